package capi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/xfer"
)

func TestCodes(t *testing.T) {
	tests := []struct {
		name         string
		err          error
		code, status int32
	}{
		{"none", nil, 0, 0},
		{"a code, wrapped", fmt.Errorf("x: %w", xfer.ErrAddressOverlapped), -7, 7},
		{"the first of two", errors.Join(fmt.Errorf("a: %w", xfer.ErrAddressNotFound), xfer.ErrBatchBusy), -3, 3},
		{"one of metadata", xfer.ErrMetadata, -200, 200},
		{"no code", errors.New("x"), -1, 1},
		{"one that is not Mooncake's", xfer.ErrRevoked, -1, 1},
		{"closed", railhop.ErrClosed, -1, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := Code(test.err); got != test.code {
				t.Errorf("code %d, want %d", got, test.code)
			}
			if got := StatusCode(test.err); got != test.status {
				t.Errorf("status %d, want %d", got, test.status)
			}
		})
	}
}

// environ silences the log: what fails on purpose is not worth a line.
var environ = []string{"MC_FORCE_TCP=1", "MC_LOG_LEVEL=ERROR", "RAILHOP_PROVIDERS="}

func open(t *testing.T, l *Library, change ...func(*Options)) (*Engine, uint64) {
	t.Helper()
	o := Options{Host: "127.0.0.1:5555", Metadata: "P2PHANDSHAKE", Environ: environ}
	for _, f := range change {
		f(&o)
	}
	id, err := l.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	e, err := l.Engine(id)
	if err != nil {
		t.Fatal(err)
	}
	e.log = slog.New(slog.DiscardHandler)
	t.Cleanup(func() { l.Destroy(id) })
	return e, id
}

// pair is an engine, and another with a buffer, at an address.
func pair(t *testing.T) (l *Library, from *Engine, target string, local, remote uint64) {
	t.Helper()
	l = NewLibrary()
	from, _ = open(t, l)
	to, _ := open(t, l)
	target, err := to.Name()
	if err != nil {
		t.Fatal(err)
	}
	for at, e := range map[*uint64]*Engine{&local: from, &remote: to} {
		if *at, err = e.Allocate(1 << 20); err != nil {
			t.Fatal(err)
		}
	}
	return l, from, target, local, remote
}

func TestNumbersAreUsedUp(t *testing.T) {
	l := NewLibrary()
	e, id := open(t, l)
	batch, err := e.NewBatch(1)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := open(t, l)
	if err := other.FreeBatch(batch); !errors.Is(err, xfer.ErrInvalidArgument) {
		t.Errorf("another engine frees the batch: %v", err)
	}
	if err := l.Destroy(id); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Engine(id); Code(err) != -1 {
		t.Errorf("the engine is there still: %v", err)
	}
	if err := l.Destroy(id); Code(err) != -1 {
		t.Errorf("it is destroyed twice: %v", err)
	}
	if _, ok := l.batches.get(batch); ok {
		t.Error("its batch is there still")
	}
	if err := e.Register([]railhop.Region{{Addr: 4096, Length: 1}}); !errors.Is(err, railhop.ErrClosed) {
		t.Errorf("memory is registered with it: %v", err)
	}
	if err := e.Probe("127.0.0.1:1"); !errors.Is(err, railhop.ErrClosed) {
		t.Errorf("it probes: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name, says string
		change     func(*Options)
	}{
		{"no server", "P2PHANDSHAKE", func(o *Options) { o.Metadata = "" }},
		{"a scheme that is not known", "foo", func(o *Options) { o.Metadata = "foo://x" }},
		{"no host", "no host", func(o *Options) { o.Host = "" }},
		{"a port that is none", "port", func(o *Options) { o.Host = "127.0.0.1:x" }},
		{"a device that is none", "device", func(o *Options) { o.Devices = "^mlx5_0" }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := Options{Host: "127.0.0.1", Metadata: "P2PHANDSHAKE", Environ: append(environ, "MC_LOG_DIR="+t.TempDir())}
			test.change(&o)
			l := NewLibrary()
			if _, err := l.Open(o); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want one that says %q", err, test.says)
			}
			if ids := l.engines.ids(); len(ids) != 0 {
				t.Errorf("engines %v are left", ids)
			}
		})
	}
}

func TestTransfer(t *testing.T) {
	_, e, target, local, remote := pair(t)
	tests := []struct {
		name   string
		target string
		pieces Pieces
		note   bool
		code   int32
	}{
		{name: "one", pieces: Pieces{[]uint64{local}, []uint64{remote}, []uint64{100}}},
		{name: "two", pieces: Pieces{[]uint64{local, local + 8}, []uint64{remote, remote + 8}, []uint64{8, 8}}, note: true},
		{name: "none"},
		{name: "none, with a notification", note: true, code: -1},
		{name: "lists that do not fit", pieces: Pieces{[]uint64{local}, []uint64{remote}, nil}, code: -1},
		{name: "an address that is not there", pieces: Pieces{[]uint64{local}, []uint64{8}, []uint64{8}}, code: -3},
		{name: "one of two that is not", pieces: Pieces{[]uint64{local, local}, []uint64{remote, 8}, []uint64{8, 8}}, code: -3},
		{name: "nobody", target: "127.0.0.1:1", code: -102},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			to := target
			if test.target != "" {
				to = test.target
			}
			var note *railhop.Notification
			if test.note {
				note = &railhop.Notification{Name: "n", Msg: "m"}
			}
			for _, op := range []railhop.Opcode{railhop.Write, railhop.Read} {
				err := e.Transfer(op, to, test.pieces, note)
				if got := Code(err); got != test.code {
					t.Errorf("%v: code %d, want %d: %v", op, got, test.code, err)
				}
				if err != nil && !strings.Contains(e.LastError(), err.Error()) {
					t.Errorf("last error %q, want %q in it", e.LastError(), err)
				}
			}
			if test.target != "" {
				return
			}
			batch, err := e.Start(railhop.Write, to, test.pieces)
			if err == nil {
				err = e.Finish([]uint64{batch})
			}
			if got := Code(err); got != test.code && !(test.note && err == nil) {
				t.Errorf("in the background: code %d, want %d: %v", got, test.code, err)
			}
		})
	}
}

func TestBatchesOfManyThreads(t *testing.T) {
	_, e, target, local, remote := pair(t)
	var wg sync.WaitGroup
	for i := range uint64(8) {
		wg.Go(func() {
			for n := range uint64(20) {
				p := Pieces{}
				for j := range n {
					at := i<<14 + j*64
					p.Local, p.Remote, p.Lengths = append(p.Local, local+at), append(p.Remote, remote+at), append(p.Lengths, 64)
				}
				if err := e.Transfer(railhop.Write, target, p, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestBatchOfC(t *testing.T) {
	l, e, target, local, remote := pair(t)
	segment, err := e.OpenSegment(target, false)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := e.NewBatch(2)
	if err != nil {
		t.Fatal(err)
	}
	req := railhop.Request{Op: railhop.Write, Source: local, Target: railhop.SegmentID(segment), TargetAddr: remote, Length: 64}
	if err := e.Submit(batch, []railhop.Request{req, req, req}, nil); StatusCode(err) != 2 {
		t.Errorf("three requests for two: %v", err)
	}
	if err := e.Submit(batch, []railhop.Request{req, req}, &railhop.Notification{Name: "done"}); err != nil {
		t.Fatal(err)
	}
	if err := e.FreeBatch(batch); StatusCode(err) != 4 {
		t.Errorf("freed before its end was seen: %v", err)
	}
	for task := range uint64(2) {
		r, err := e.Status(batch, task)
		for deadline := time.Now().Add(10 * time.Second); err == nil && !r.Status.Done() && time.Now().Before(deadline); {
			r, err = e.Status(batch, task)
		}
		if err != nil || r.Status != railhop.Completed || r.Transferred != 64 {
			t.Errorf("task %d: %+v, %v", task, r, err)
		}
	}
	for _, id := range l.engines.ids() { // the notification has come before the end was seen
		other, err := l.Engine(id)
		if err != nil || other == e {
			continue
		}
		if notes, err := other.Notifications(); err != nil || len(notes) != 1 || notes[0].Name != "done" {
			t.Errorf("notifications %v, %v", notes, err)
		}
	}
	if _, err := e.Status(batch, 2); StatusCode(err) != 1 {
		t.Errorf("task 2: %v", err)
	}
	if err := e.FreeBatch(batch); err != nil {
		t.Error(err)
	}
	if err := e.Submit(batch, nil, nil); StatusCode(err) != 1 {
		t.Errorf("submit to a batch that was freed: %v", err)
	}
}

func TestManual(t *testing.T) {
	l := NewLibrary()
	e, _ := open(t, l, func(o *Options) { o.Manual = true })
	a, b := railhop.Region{Addr: 1 << 30, Length: 4096}, railhop.Region{Addr: 1<<30 + 4096, Length: 4096}
	if err := e.Register([]railhop.Region{a, b}); err != nil {
		t.Fatal(err)
	}
	over := railhop.Region{Addr: a.Addr + 1, Length: 1}
	if err := e.Register([]railhop.Region{over}); Code(err) != -7 {
		t.Errorf("overlap: %v", err)
	}
	if err := e.Unregister([]uint64{a.Addr, 7}); Code(err) != -3 {
		t.Errorf("unregister one that is not there: %v", err)
	}
	if err := e.InstallTransport("nope", ""); err == nil {
		t.Error("transport nope is installed")
	}
	if err := e.InstallTransport("tcp", ""); err != nil {
		t.Fatal(err)
	}
	if err := e.InstallTransport("rdma", ""); Code(err) != -6 {
		t.Errorf("rdma without a NIC: %v", err)
	}
	if err := e.Register([]railhop.Region{over}); err != nil {
		t.Errorf("what was unregistered early is there: %v", err)
	}
	if err := e.Unregister([]uint64{b.Addr, over.Addr}); err != nil {
		t.Errorf("what was registered early is not there: %v", err)
	}
}

func TestLinks(t *testing.T) {
	e, _ := open(t, NewLibrary())
	for asJSON, want := range map[bool]string{true: `"local_nics":[]`, false: "(no RDMA devices found)"} {
		if got, err := e.Links(asJSON); err != nil || !strings.Contains(got, want) {
			t.Errorf("links %q, %v; want %q in it", got, err, want)
		}
	}
	if m, err := Topology(environ, ""); err != nil || !strings.Contains(m, `"cpu:0"`) {
		t.Errorf("topology %s, %v", m, err)
	}
	if s, err := e.Stats(); err != nil || !bytes.Contains(s, []byte(`"transport":"tcp"`)) {
		t.Errorf("stats %s, %v", s, err)
	}
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(&lines{w: &out, mu: new(sync.Mutex), level: slog.LevelWarn})
	log.Info("not shown")
	log.With("peer", "10.0.0.1:5").WithGroup("g").Warn("slow", "took", 2*time.Second, slog.Group("of", "n", 1))
	log.Error("failed", "err", errors.New(`a "b"`), "empty", "")
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{`slow peer=10.0.0.1:5 g.took=2s g.of.n=1`, `failed err="a \"b\"" empty=""`}
	for i, letter := range "WE" {
		if i >= len(got) || got[i][0] != byte(letter) || !strings.HasSuffix(got[i], "railhop] "+want[i]) {
			t.Errorf("line %d of %q, want %c… railhop] %s", i, got, letter, want[i])
		}
	}
	if len(got) != 2 || !log.Enabled(context.Background(), slog.LevelError) {
		t.Errorf("got %q", got)
	}
}

// Operators look for these words in the log.
func TestHeadlines(t *testing.T) {
	_, e, target, local, remote := pair(t)
	var out bytes.Buffer
	e.log = slog.New(&lines{w: &out, mu: new(sync.Mutex)})
	one := Pieces{[]uint64{local}, []uint64{remote}, []uint64{8}}
	e.Transfer(railhop.Write, "127.0.0.1:1", one, nil)
	e.Register([]railhop.Region{{Addr: local, Length: 8}})
	e.Transfer(railhop.Write, target, one, nil)
	e.Transfer(railhop.Write, target, one, nil)
	e.fail("write", context.DeadlineExceeded)
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{
		"transferSync, cache not found, openSegment with target 127.0.0.1:1",
		"Failed to get segment descriptor for segment 127.0.0.1:1: write peer=127.0.0.1:1 pieces=1",
		"Transfer Engine does not support overlapped memory region regions=1 code=-7",
		"transferSync, cache not found, openSegment with target " + target,
		"Sync batch data transfer timeout: write",
	}
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), out.String())
	}
	for i := range want {
		if !strings.Contains(got[i], "railhop] "+want[i]) {
			t.Errorf("line %d is %q, want %q", i, got[i], want[i])
		}
	}
}

func TestSettings(t *testing.T) {
	env, _ := settings([]string{"MC_TRANSFER_TIMEOUT=7", "MC_TRANSFER_TIMEOUT=9", "MC_NO_SUCH=1", "odd", ""})
	if env.Log.TransferTimeout != 7*time.Second {
		t.Errorf("MC_TRANSFER_TIMEOUT is %v: C's getenv takes the first of two", env.Log.TransferTimeout)
	}
	if env, _ := settings(nil); env.Log != config.Default().Log {
		t.Errorf("an empty environment gives %+v", env.Log)
	}
}

func TestSnakeName(t *testing.T) {
	for name, want := range map[string]string{
		"Ops": "ops", "DialFailures": "dial_failures", "NICs": "nics", "MayLand": "may_land", "RKey": "r_key", "QPNumber": "qp_number", "already_so": "already_so", "": "",
	} {
		if got := snakeName(name); got != want {
			t.Errorf("%s becomes %s, want %s", name, got, want)
		}
	}
}
