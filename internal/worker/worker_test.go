package worker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/trace"
	"github.com/railhop/railhop/internal/workload"
)

// TestMain makes the test binary a worker, if it is told to be one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		hold := func(ctx context.Context, _ json.RawMessage, emit func(any)) (any, error) {
			emit("held")
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		if err := Serve(context.Background(), os.Stdin, os.Stdout, Options{Commands: map[string]Handler{"hold": hold}}); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T) *Proc {
	t.Helper()
	p, err := Start(context.WithoutCancel(t.Context()), os.Args[0], "worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// rank starts a worker with an engine called "e", on a NIC at addr.
func rank(t *testing.T, addr string) (*Proc, string) {
	t.Helper()
	p := start(t)
	o, err := p.Open(t.Context(), OpenArgs{Engine: "e", Host: addr, Env: map[string]string{
		"RAILHOP_PROVIDERS": "soft", "RAILHOP_SOFT_NICS": "mlx5_0=" + addr, "RAILHOP_SOFT_GPUS": "1",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Warnings) > 0 || o.PXN {
		t.Errorf("opened %+v: want no warning and no PXN", o)
	}
	return p, o.Segment
}

func allocate(t *testing.T, p *Proc, name string, gpu int, bytes uint64) uint64 {
	t.Helper()
	addr, err := p.Alloc(t.Context(), AllocArgs{Memory: name, GPU: gpu, Bytes: bytes})
	if err == nil {
		err = p.Register(t.Context(), RegisterArgs{Engine: "e", Memory: name})
	}
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func TestCommandsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	p, _ := rank(t, "127.0.71.1")
	ctx := t.Context()
	allocate(t, p, "m", HostMemory, 4096)
	raw := func(do string, args any) error {
		_, err := Call[json.RawMessage](ctx, p, do, args, nil)
		return err
	}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"unknown command", raw("fly", None{}), `command "fly": want one of alloc, `},
		{"arguments of another type", raw("alloc", []int{1}), "arguments: json: "},
		{"engine not open", raw("stats", EngineArgs{"x"}), `engine "x" is not open: want one of e`},
		{"engine open already", raw("open", OpenArgs{Engine: "e", Host: "127.0.71.1"}), `engine "e" is open already`},
		{"other hardware", raw("open", OpenArgs{Engine: "f", Host: "127.0.71.1", Env: map[string]string{"RAILHOP_PROVIDERS": "soft", "RAILHOP_SOFT_NICS": "x=127.0.71.2"}}), "want what the first engine has"},
		{"memory unknown", raw("fill", FillArgs{Memory: "x"}), `memory "x" is not allocated: want one of m`},
		{"memory allocated already", raw("alloc", AllocArgs{Memory: "m", Bytes: 1}), `memory "m" is allocated already`},
		{"no bytes", raw("alloc", AllocArgs{Memory: "n"}), "0 bytes: want 1 or more"},
		{"GPU unknown", raw("alloc", AllocArgs{Memory: "n", GPU: 7, Bytes: 1}), "GPU 7: want 0..0"},
		{"beyond the end", raw("verify", FillArgs{Memory: "m", Offset: 4000, Length: 97}), `97 bytes at offset 4000 of memory "m": it has 4096`},
		{"no blocks", raw("stream", StreamArgs{Engine: "e", Memory: "m"}), "want 1 or more of each"},
		{"no plan", raw("replay_check", ReplayCheckArgs{}), "no plan is loaded"},
		{"plain stream of odd size", raw("plain_send", PlainArgs{Memory: "m", Total: 1}), "want multiples of 1048576"},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", tc.name, tc.err, tc.want)
		}
	}
}

// TestBytesMove writes from host and GPU memory to GPU memory of another
// process, reads back, and looks at all counters.
func TestBytesMove(t *testing.T) {
	t.Parallel()
	const size, block = 1<<20 + 4096, 100_000
	ctx := t.Context()
	a, _ := rank(t, "127.0.72.1")
	b, segment := rank(t, "127.0.72.2")
	to := allocate(t, b, "to", 0, size)
	allocate(t, a, "back", HostMemory, size)
	id, err := a.Segment(ctx, "e", segment)
	if err != nil {
		t.Fatal(err)
	}
	for i, from := range []struct {
		name string
		gpu  int
	}{{"host", HostMemory}, {"gpu", 0}} {
		allocate(t, a, from.name, from.gpu, size)
		content := FillArgs{Memory: from.name, Seed: uint64(i), From: 3}
		if err := a.Fill(ctx, content); err != nil {
			t.Fatal(err)
		}
		if err := b.Poison(ctx, "to", 0xee); err != nil {
			t.Fatal(err)
		}
		content.Memory = "to"
		if v, err := b.Verify(ctx, content); err != nil || v.Mismatched < size*9/10 || v.First < 0 || v.First > 100 {
			t.Errorf("%s: verified poison: %+v, %v", from.name, v, err)
		}
		s, err := a.Stream(ctx, StreamArgs{Engine: "e", Segment: id, Memory: from.name, Addr: to, Block: block, Batch: 3, Window: 2, Total: 2 * size}, nil)
		if want := uint64(22); err != nil || s.Bytes != 2*size || s.Requests != want || s.Rate() <= 0 {
			t.Errorf("%s: streamed %+v, %v: want %d bytes in %d requests", from.name, s, err, 2*size, want)
		}
		if v, err := b.Verify(ctx, content); err != nil || v != (Verified{Bytes: size, First: -1}) {
			t.Errorf("%s: verified %+v, %v", from.name, v, err)
		}
		if _, err := a.Stream(ctx, StreamArgs{Engine: "e", Segment: id, Read: true, Memory: "back", Addr: to, Block: size, Batch: 1, Window: 1}, nil); err != nil {
			t.Error(err)
		}
		content.Memory = "back"
		if v, err := a.Verify(ctx, content); err != nil || v.Mismatched != 0 {
			t.Errorf("%s: read back %+v, %v", from.name, v, err)
		}
	}

	want := Counter{NIC: "mlx5_0", Rail: "mlx5_0", Peer: "mlx5_0", PeerAddr: "127.0.72.1", PeerRail: "mlx5_0", WroteHere: 4 * size, ReadHere: 2 * size}
	counters, err := b.Counters(ctx)
	for end := time.Now().Add(5 * time.Second); err == nil && !slices.Equal(counters, []Counter{want}) && time.Now().Before(end); {
		counters, err = b.Counters(ctx) // what was read is counted once it has been sent
	}
	if err != nil || !slices.Equal(counters, []Counter{want}) {
		t.Errorf("target's counters %+v, %v: want %+v", counters, err, want)
	}
	st, err := a.Stats(ctx, "e")
	if err != nil || st.DirectSameRail.Bytes != 6*size || st.Relayed.Bytes != 0 || len(st.Fallbacks) != 0 || st.Reasons["pxn_off"].Ops == 0 {
		t.Errorf("stats %+v, %v", st, err)
	}
}

func TestTransferTellsOfEachSpan(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, _ := rank(t, "127.0.73.1")
	b, segment := rank(t, "127.0.73.2")
	from, to := allocate(t, a, "from", HostMemory, 8192), allocate(t, b, "to", HostMemory, 8192)
	id, err := a.Segment(ctx, "e", segment)
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Transfer(ctx, TransferArgs{Engine: "e", Segment: id, Memory: "from", Spans: []Span{{0, to, 100}, {100, to + 8000, 193}, {300, to + 200, 1}}})
	if err != nil || r.Error == "" || !slices.Equal(r.Status, []string{"completed", "failed", "completed"}) || !slices.Equal(r.Bytes, []uint64{100, 0, 1}) {
		t.Errorf("transferred %+v, %v from %#x", r, err, from)
	}
}

func TestPlainStream(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, b := start(t), start(t)
	for _, p := range []*Proc{a, b} {
		if _, err := p.Alloc(ctx, AllocArgs{Memory: "m", GPU: HostMemory, Bytes: 2 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Fill(ctx, FillArgs{Memory: "m", Seed: 5}); err != nil {
		t.Fatal(err)
	}
	at, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		s, err := b.PlainReceive(ctx, PlainArgs{Memory: "m", Total: 5 << 20, Host: "127.0.74.1"}, func(l Listening) { at <- l.Addr })
		if err == nil && s.Bytes != 5<<20 {
			err = errors.New("short")
		}
		ended <- err
	}()
	var addr string
	select {
	case addr = <-at:
	case err := <-ended:
		t.Fatal(err)
	}
	if _, err := a.PlainSend(ctx, PlainArgs{Memory: "m", Total: 5 << 20, Addr: addr}); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if v, err := b.Verify(ctx, FillArgs{Memory: "m", Seed: 5}); err != nil || v.Mismatched != 0 {
		t.Errorf("verified %+v, %v", v, err)
	}
}

// TestReplayWaitsForItsReceiver plays a plan on two ranks, whose decode pool is
// small, so that pages are used again.
func TestReplayWaitsForItsReceiver(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	model, err := workload.ModelByName("tiny")
	if err != nil {
		t.Fatal(err)
	}
	o := workload.Options{Model: model, PrefillTP: 1, DecodeTP: 1, Requests: trace.Generate(3, 4), PoolBytes: 256 << 10, Seed: 9}
	plan, err := workload.New(o)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := rank(t, "127.0.75.1")
	b, segment := rank(t, "127.0.75.2")
	for _, p := range []*Proc{a, b} {
		if made, err := p.ReplayLoad(ctx, o); err != nil || made.Chunks != plan.Chunks() {
			t.Fatalf("plan %+v, %v: want %d chunks", made, err, plan.Chunks())
		}
	}
	allocate(t, a, ReplayMemory, 0, plan.PrefillBytes())
	to := allocate(t, b, ReplayMemory, 0, plan.DecodeBytes())
	if err := a.Fill(ctx, FillArgs{Memory: ReplayMemory, Seed: plan.ContentSeed(0)}); err != nil {
		t.Fatal(err)
	}
	id, err := a.Segment(ctx, "e", segment)
	if err != nil {
		t.Fatal(err)
	}
	landed := make(chan ReplayLanded, 4096)
	ended := make(chan error, 1)
	var sent Streamed
	go func() {
		var err error
		sent, err = a.ReplaySend(ctx, ReplaySendArgs{Engine: "e", Segments: []uint64{id}, Addrs: []uint64{to}, Requests: 100, Window: 2}, func(l ReplayLanded) { landed <- l })
		close(landed)
		ended <- err
	}()
	var bytes uint64
	reused := false
	last := make(map[int]int) // the chunk that each may overwrite
	for it, batch := plan.Batches(), new(workload.Batch); it.Next(batch); {
		last[batch.Chunk] = batch.After
	}
	received := -1
	for l := range landed {
		if last[l.Chunk] > received {
			t.Fatalf("chunk %d was sent when %d was received, before %d", l.Chunk, received, last[l.Chunk])
		}
		reused = reused || last[l.Chunk] >= 0
		v, err := b.ReplayCheck(ctx, ReplayCheckArgs{Every: 1})
		if err != nil || v.Mismatched > 0 {
			t.Fatalf("chunk %d: %+v, %v", l.Chunk, v, err)
		}
		bytes += v.Bytes
		if l.Final {
			received = l.Chunk
			if err := a.ReplayAllow(ctx, received); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if want := plan.FlowBytes(0); bytes != want || sent.Bytes != want || received != plan.Chunks()-1 {
		t.Errorf("checked %d bytes of %d sent, %d chunks: want %d and %d", bytes, sent.Bytes, received+1, want, plan.Chunks())
	}
	if !reused {
		t.Error("no page was used again: the test shows nothing")
	}
	if _, err := b.ReplayCheck(ctx, ReplayCheckArgs{Every: 1}); err == nil {
		t.Error("a batch after the last was checked")
	}
}

func TestCommandIsGivenUp(t *testing.T) {
	t.Parallel()
	p := start(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	_, err := Call[None](ctx, p, "hold", None{}, func(json.RawMessage) { cancel(why) })
	if !errors.Is(err, why) {
		t.Errorf("held: %v: want %v", err, why)
	}
	if _, err := p.Usage(t.Context()); err != nil {
		t.Errorf("the worker does not go on: %v", err)
	}
}

func TestWorkerEnds(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		end   func(p *Proc) error
		clean bool
	}{
		{"with its input", (*Proc).Close, true},
		{"killed", (*Proc).Kill, false},
		{"killed while stopped", func(p *Proc) error { return errors.Join(p.Stop(), p.Kill()) }, false},
		{"stopped and let go on", func(p *Proc) error { return errors.Join(p.Stop(), p.Cont(), p.Close()) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t)
			held, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				_, err := Call[None](context.Background(), p, "hold", None{}, func(json.RawMessage) { close(held) })
				ended <- err
			}()
			<-held
			if err := tc.end(p); err != nil {
				t.Errorf("end: %v", err)
			}
			<-p.Ended()
			if err := <-ended; err == nil {
				t.Error("a command outlived its worker")
			} else if !tc.clean && !errors.Is(err, ErrEnded) {
				t.Errorf("command: %v: want %v", err, ErrEnded)
			}
			if _, err := p.Usage(t.Context()); !errors.Is(err, ErrEnded) {
				t.Errorf("command to a worker that has ended: %v", err)
			}
		})
	}
}

// TestEngineIsClosedAtTheEnd looks for what a rank may leave in the registry.
func TestEngineIsClosedAtTheEnd(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p := start(t)
	o, err := p.Open(t.Context(), OpenArgs{Engine: "e", Host: "127.0.76.1", Registry: root, Env: map[string]string{
		"RAILHOP_PROVIDERS": "soft", "RAILHOP_SOFT_NICS": "mlx5_0=127.0.76.1", "RAILHOP_SOFT_GPUS": "1",
		"MC_PXN_ENABLE": "1", "MC_PXN_GROUP_ID": "g", "MC_PXN_SLOT_SIZE": "256KiB",
	}})
	if err != nil || !o.PXN {
		t.Fatalf("opened %+v, %v", o, err)
	}
	entries := func() []string {
		found, err := filepath.Glob(filepath.Join(root, "g", "[0-9]*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if len(entries()) != 1 {
		t.Fatalf("entries %q: want one", entries())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if len(entries()) != 0 {
		t.Errorf("left behind: %q", entries())
	}
}

func TestStartOfNothing(t *testing.T) {
	t.Parallel()
	if _, err := Start(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("started a program that is not there")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	p, err := Start(ctx, "/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Usage(ctx); err == nil {
		t.Error("a program that is no worker has answered")
	}
}
