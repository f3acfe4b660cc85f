package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/railhop/railhop"
)

// peer is a process of our engine, which says and answers what peer.py does, and
// streams besides.
type peer struct {
	engine *railhop.Engine
	addr   uint64
}

// servePeer runs a peer with so many bytes by TCP, or, with a device, by RDMA.
func servePeer(bytes, device string) error {
	size, err := strconv.Atoi(bytes)
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	cfg, _ := railhop.FromEnvironment()
	cfg.Host, cfg.Protocol = "127.0.0.1", "tcp"
	if device != "" {
		cfg.Protocol, cfg.Devices = "rdma", []string{device}
	}
	e, err := railhop.Open(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	buf := make([]byte, size)
	for i := 0; i < size; i += 4096 {
		buf[i] = 1 // so that the pages are there
	}
	p := &peer{engine: e}
	if p.addr, err = e.RegisterBytes(buf); err != nil {
		return err
	}
	return answerAll(message{Name: e.Name(), Addr: p.addr}, p.answer)
}

// answerAll says hello, and then answers each line.
func answerAll(hello message, answer func(line []byte) ([]float64, error)) error {
	out := json.NewEncoder(os.Stdout)
	out.Encode(hello)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		times, err := answer(in.Bytes())
		if err != nil {
			return err
		}
		out.Encode(message{Times: times})
	}
	return nil
}

func (p *peer) answer(line []byte) ([]float64, error) {
	var (
		verb, target string
		remote       uint64
		w            workload
	)
	args := []any{&verb, &target, &remote, &w.count, &w.length, &w.repeat}
	if err := json.Unmarshal(line, &args); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if verb == "usage" {
		return usage()
	}
	id, err := p.engine.OpenSegment(ctx, target)
	if err != nil {
		return nil, err
	}
	reqs := make([]railhop.Request, w.count)
	for i := range reqs {
		at := uint64(i * w.length)
		reqs[i] = railhop.Request{Op: railhop.Write, Source: p.addr + at, Target: id, TargetAddr: remote + at, Length: uint64(w.length)}
	}
	switch verb {
	case "measure":
		return p.writes(ctx, reqs, w.repeat)
	case "stream":
		return p.stream(ctx, reqs, w.repeat)
	}
	return nil, fmt.Errorf("verb %q: want measure, stream or usage", verb)
}

// writes returns how long each of some writes takes, of one piece or of a batch.
func (p *peer) writes(ctx context.Context, reqs []railhop.Request, repeat int) (times []float64, err error) {
	b := p.engine.NewBatch(len(reqs))
	times = make([]float64, repeat)
	for i := range times {
		start := time.Now()
		if r := reqs[0]; len(reqs) == 1 {
			err = p.engine.Write(ctx, r.Target, r.Source, r.TargetAddr, r.Length)
		} else if err = b.Transfer(ctx, reqs); err == nil {
			err = b.Reset()
		}
		if err != nil {
			return nil, err
		}
		times[i] = time.Since(start).Seconds()
	}
	return times, nil
}

// streams is how many batches of a stream are in flight.
const streams = 4

// stream makes the requests over and over, with all of them in flight at any time, and
// returns how long that took.
func (p *peer) stream(ctx context.Context, reqs []railhop.Request, repeat int) ([]float64, error) {
	n := (len(reqs) + streams - 1) / streams
	var batches [streams]*railhop.Batch
	for i := range batches {
		batches[i] = p.engine.NewBatch(n)
	}
	start := time.Now()
	for i := range streams * (repeat + 1) {
		b := batches[i%streams]
		if i >= streams {
			if err := b.Wait(ctx); err != nil {
				return nil, err
			}
			if err := b.Reset(); err != nil {
				return nil, err
			}
		}
		if i < streams*repeat {
			at := i % streams * n
			if err := b.Submit(reqs[min(at, len(reqs)):min(at+n, len(reqs))]); err != nil {
				return nil, err
			}
		}
	}
	return []float64{time.Since(start).Seconds()}, nil
}

func usage() ([]float64, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return nil, err
	}
	return []float64{time.Duration(u.Utime.Nano()).Seconds(), time.Duration(u.Stime.Nano()).Seconds()}, nil
}
