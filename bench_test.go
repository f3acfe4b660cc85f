package railhop_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/railhop/railhop"
)

// stream writes total bytes in requests of block bytes, depth batches of many
// requests at a time, and returns the rate in GB/s.
func stream(tb testing.TB, e *railhop.Engine, id railhop.SegmentID, src, dst, size, block, total uint64) float64 {
	tb.Helper()
	const depth, each = 4, 8
	var batches [depth]*railhop.Batch
	for i := range batches {
		batches[i] = e.NewBatch(each)
	}
	reqs := make([]railhop.Request, each)
	var sent uint64
	fill := func() {
		for i := range reqs {
			off := sent % size
			reqs[i] = railhop.Request{Op: railhop.Write, Source: src + off, Target: id, TargetAddr: dst + off, Length: block}
			sent += block
		}
	}
	begin := time.Now()
	for n := 0; sent < total || n%depth != 0; n++ {
		b := batches[n%depth]
		if err := b.Wait(context.Background()); err != nil {
			tb.Fatal(err)
		}
		if err := b.Reset(); err != nil {
			tb.Fatal(err)
		}
		fill()
		if err := b.Submit(reqs); err != nil {
			tb.Fatal(err)
		}
	}
	for _, b := range batches {
		if err := b.Wait(context.Background()); err != nil {
			tb.Fatal(err)
		}
	}
	return float64(sent) / 1e9 / time.Since(begin).Seconds()
}

// plainTCP is a Go TCP stream between two processes' worth of goroutines: writes
// of 1 MiB, ReadFull into a buffer of size bytes that is used round and round.
func plainTCP(tb testing.TB, size, total int) float64 {
	tb.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, size)
		for off := 0; ; off = (off + 1<<20) % size {
			if _, err := io.ReadFull(c, buf[off:off+1<<20]); err != nil {
				return
			}
		}
	}()
	c, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	src := make([]byte, size)
	begin := time.Now()
	for n := 0; n < total; n += 1 << 20 {
		if _, err := c.Write(src[n%size : n%size+1<<20]); err != nil {
			tb.Fatal(err)
		}
	}
	c.Close()
	<-done
	return float64(total) / 1e9 / time.Since(begin).Seconds()
}

func median(x []float64) float64 {
	x = slices.Clone(x)
	slices.Sort(x)
	return x[len(x)/2]
}

// BenchmarkWays compares, alternating in one run of real processes: a plain TCP
// stream, a direct write on the same rail, and a relayed write.
func BenchmarkWays(b *testing.B) {
	const size, total = 64 << 20, 1 << 30
	registry := b.TempDir()
	start(b, rankSettings("g", 1), registry)
	far, farName := start(b, targetSettings(), registry)
	set := targetSettings()
	set["RAILHOP_SOFT_NICS"] = "m0=127.0.2.1"
	near, nearName := start(b, set, registry)
	s, err := open(rankSettings("g", 0), registry, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	src, err := s.memory(size)
	if err != nil {
		b.Fatal(err)
	}
	s.dev.CopyIn(src, bytesOf(1, size))
	farID, err := s.engine.OpenSegment(b.Context(), farName)
	if err != nil {
		b.Fatal(err)
	}
	nearID, err := s.engine.OpenSegment(b.Context(), nearName)
	if err != nil {
		b.Fatal(err)
	}
	farAddr := far.do(command{Op: "memory", Size: size}).Addr
	nearAddr := near.do(command{Op: "memory", Size: size}).Addr
	stream(b, s.engine, farID, src, farAddr, size, 1<<20, size)
	stream(b, s.engine, nearID, src, nearAddr, size, 1<<20, size)
	for range b.N {
		var tcp, direct, relayed []float64
		for range 5 {
			tcp = append(tcp, plainTCP(b, size, total))
			direct = append(direct, stream(b, s.engine, nearID, src, nearAddr, size, 1<<20, total))
			relayed = append(relayed, stream(b, s.engine, farID, src, farAddr, size, 1<<20, total))
		}
		b.Logf("tcp %.2f, direct %.2f, relayed %.2f GB/s", tcp, direct, relayed)
		b.ReportMetric(median(direct)/median(tcp), "direct/tcp")
		b.ReportMetric(median(relayed)/median(direct), "relayed/direct")
		b.ReportMetric(median(direct), "direct-GB/s")
	}
	if st := s.engine.Stats(); len(st.Fallbacks) > 0 {
		b.Errorf("fallbacks: %v", st.Fallbacks)
	}
}
