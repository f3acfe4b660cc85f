package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
)

// rankArg, as the only argument, makes this process an engine: a relay or a target.
const rankArg = "rank"

// engineOf opens an engine on a software NIC and the real GPU. Those with the same
// registry are ranks of one group; "" means none of any.
func engineOf(nic, registry, doorbell string) (*railhop.Engine, error) {
	set := map[string]string{"RAILHOP_PROVIDERS": "soft,cuda", "RAILHOP_SOFT_NICS": nic}
	if registry != "" {
		set["MC_PXN_ENABLE"], set["MC_PXN_GROUP_ID"], set["MC_PXN_DOORBELL"] = "1", "bench", doorbell
	}
	env, warnings := config.Load(func(name string) (string, bool) { v, ok := set[name]; return v, ok })
	if len(warnings) > 0 {
		return nil, fmt.Errorf("settings: %v", warnings)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return railhop.Open(railhop.Config{Host: "127.0.0.1", Settings: env, Registry: registry, Logger: log, CloseWait: 2 * time.Second})
}

// serveRank is the process of a relay or a target.
func serveRank(in io.Reader, out io.Writer) error {
	p, err := cuda.Open(cuda.Options{})
	if err != nil {
		return err
	}
	infos, err := p.Devices()
	if err != nil {
		return err
	}
	d, err := p.Open(infos[0].BusID)
	if err != nil {
		return err
	}
	var e *railhop.Engine
	var mem uint64
	var source []byte
	do := func(q ask, a *answer) (err error) {
		switch q.Op {
		case "open":
			if e, err = engineOf(q.NIC, q.Registry, q.Doorbell); err != nil {
				return err
			}
			if mem, err = d.Alloc(arenaBytes); err != nil {
				return err
			}
			h, err := d.Export(mem)
			if err != nil {
				return err
			}
			a.Name, a.Addr, a.Handle = e.Name(), mem, h[:]
			return e.Register(mem, arenaBytes, "")
		case "poison":
			return d.CopyIn(mem, bytes.Repeat([]byte{poison}, arenaBytes))
		case "check":
			if uint64(len(source)) != q.Bytes {
				source = randomBytes(q.Seed, q.Bytes)
			}
			return check(d, mem, source, q.Copies)
		}
		return fmt.Errorf("no such operation: %q", q.Op)
	}
	asks, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q ask
		if err := asks.Decode(&q); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		var a answer
		if err := do(q, &a); err != nil {
			a.Err = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
	if e != nil {
		err = e.Close()
	}
	return errors.Join(err, d.Free(mem), d.Close())
}

// ranks is this process as a sender, with a relay and two targets: one on the relay's
// rail, and one on the sender's own.
type ranks struct {
	b             *bench
	dir           string
	e             *railhop.Engine
	relay         *peer
	far, near     *peer
	farID, nearID railhop.SegmentID
	farAt, nearAt uint64
	farIn, nearIn uint64 // the targets' memory, imported: a look at it costs little
}

func (b *bench) ranks(doorbell string) (_ *ranks, err error) {
	r := &ranks{b: b}
	if r.dir, err = os.MkdirTemp("/dev/shm", "bench-gpu-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if err = r.startRelay(); err != nil {
		return nil, err
	}
	if r.e, err = engineOf("m0=127.0.1.1", r.dir, doorbell); err != nil {
		return nil, err
	}
	if err = r.e.Register(b.src, sourceBytes, ""); err != nil {
		return nil, err
	}
	target := func(nic string) (p *peer, id railhop.SegmentID, at, in uint64, err error) {
		if p, err = startPeer(rankArg); err != nil {
			return nil, 0, 0, 0, err
		}
		a, err := p.ask(ask{Op: "open", NIC: nic})
		if err != nil {
			return p, 0, 0, 0, err
		}
		if in, err = b.device.Import(gpu.Handle(a.Handle), arenaBytes); err != nil {
			return p, 0, 0, 0, err
		}
		id, err = r.e.OpenSegment(context.Background(), a.Name)
		return p, id, a.Addr, in, err
	}
	if r.far, r.farID, r.farAt, r.farIn, err = target("m1=127.0.2.2"); err != nil {
		return r, err
	}
	r.near, r.nearID, r.nearAt, r.nearIn, err = target("m0=127.0.2.1")
	return r, err
}

func (r *ranks) startRelay() (err error) {
	if r.relay, err = startPeer(rankArg); err == nil {
		_, err = r.relay.ask(ask{Op: "open", NIC: "m1=127.0.1.2", Registry: r.dir, Doorbell: "auto"})
	}
	return err
}

func (r *ranks) close() error {
	var err error
	if r.e != nil {
		err = r.e.Close()
	}
	for _, in := range []uint64{r.farIn, r.nearIn} {
		if in != 0 {
			err = errors.Join(err, r.b.device.CloseImport(in))
		}
	}
	for _, p := range []*peer{r.relay, r.far, r.near} {
		if p != nil {
			err = errors.Join(err, p.close())
		}
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}

// write moves copies, whose places are offsets in the source and the target, and waits.
// stream is a stream of the model's, if given.
func (r *ranks) write(far bool, stream uint64, given bool, copies []gpu.Copy) error {
	return r.writeFrom(r.b.src, far, stream, given, copies)
}

func (r *ranks) writeFrom(src uint64, far bool, stream uint64, given bool, copies []gpu.Copy) error {
	id, at := r.nearID, r.nearAt
	if far {
		id, at = r.farID, r.farAt
	}
	reqs := make([]railhop.Request, len(copies))
	for i, c := range copies {
		reqs[i] = railhop.Request{Op: railhop.Write, Source: src + c.Src, Target: id, TargetAddr: at + c.Dst, Length: c.Length}
	}
	batch := r.e.NewBatch(len(reqs))
	var err error
	if given {
		err = batch.SubmitOn(stream, reqs)
	} else {
		err = batch.Submit(reqs)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return batch.Wait(ctx)
}
