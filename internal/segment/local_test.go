package segment

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

func gid(last byte) string { return wire.FormatGID([16]byte{10: 0xff, 11: 0xff, 12: 10, 15: last}) }

// twoNICs is a process with two NICs, each near one NUMA node and GPU.
func twoNICs() LocalOptions {
	return LocalOptions{
		Name: "host:15000", Protocol: wire.ProtocolRDMA, TCPProtoVersion: 1, FenceVersion: 1,
		Devices: []wire.Device{{Name: "gA", LID: 1, GID: gid(1)}, {Name: "gB", LID: 2, GID: gid(2)}},
		Matrix: map[string][2][]string{
			"cpu:0":  {{"gA"}, {"gB"}},
			"cpu:1":  {{"gB"}, {"gA"}},
			"cuda:0": {{"gA"}, {"gB"}},
		},
		Now: func() time.Time { return time.Date(2026, 11, 30, 19, 47, 34, 164174000, time.UTC) },
	}
}

func newLocal(t testing.TB, opts LocalOptions) *Local {
	t.Helper()
	l, err := NewLocal(opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// add registers a buffer with keys that tell chunk and device.
func add(t testing.TB, l *Local, addr, length uint64, location string) *Buffer {
	t.Helper()
	b := &Buffer{Addr: addr, Length: length, Location: location, RemoteAccess: true}
	if err := l.Reserve(b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Chunks {
		for dev := range l.opts.Devices {
			b.Chunks[i].LKey = append(b.Chunks[i].LKey, uint32(addr)+uint32(i)*16+uint32(dev))
			b.Chunks[i].RKey = append(b.Chunks[i].RKey, uint32(addr)+uint32(i)*16+uint32(dev)+8)
		}
	}
	l.Publish(b)
	return b
}

func TestReserve(t *testing.T) {
	buf := func(addr, length uint64) *Buffer { return &Buffer{Addr: addr, Length: length} }
	for _, tc := range []struct {
		name string
		bufs []*Buffer
		want error
	}{
		{"nothing", nil, nil},
		{"touching below", []*Buffer{buf(0x800, 0x800)}, nil},
		{"touching above", []*Buffer{buf(0x2000, 1)}, nil},
		{"both, and each other", []*Buffer{buf(0x2000, 1), buf(0x800, 0x800), buf(0x2001, 9)}, nil},
		{"length 0", []*Buffer{buf(0x9000, 0)}, xfer.ErrInvalidArgument},
		{"over the end", []*Buffer{buf(1<<64-1, 2)}, xfer.ErrInvalidArgument},
		{"same", []*Buffer{buf(0x1000, 0x1000)}, xfer.ErrAddressOverlapped},
		{"inside", []*Buffer{buf(0x1100, 1)}, xfer.ErrAddressOverlapped},
		{"around", []*Buffer{buf(0x800, 0x8000)}, xfer.ErrAddressOverlapped},
		{"over its start", []*Buffer{buf(0x800, 0x801)}, xfer.ErrAddressOverlapped},
		{"over its end", []*Buffer{buf(0x1fff, 2)}, xfer.ErrAddressOverlapped},
		{"good one and bad one", []*Buffer{buf(0x9000, 1), buf(0x1fff, 2)}, xfer.ErrAddressOverlapped},
		{"each other", []*Buffer{buf(0x9000, 2), buf(0xa000, 1), buf(0x9001, 1)}, xfer.ErrAddressOverlapped},
		{"one that spans two in the batch", []*Buffer{buf(0x9000, 0x9000), buf(0xa000, 1), buf(0xb000, 1)}, xfer.ErrAddressOverlapped},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLocal(t, twoNICs())
			add(t, l, 0x1000, 0x1000, "cpu:0")
			if err := l.Reserve(tc.bufs...); !errors.Is(err, tc.want) {
				t.Fatalf("Reserve: %v, want %v", err, tc.want)
			}
			if tc.want != nil {
				if n := len(l.buffers); n != 1 {
					t.Errorf("%d ranges are taken after the failure, want 1", n)
				}
				return
			}
			l.Publish(tc.bufs...)
			if got, want := len(l.Buffers()), 1+len(tc.bufs); got != want {
				t.Errorf("%d buffers published, want %d", got, want)
			}
			if !slices.IsSortedFunc(l.buffers, byAddr) {
				t.Error("the buffers are out of order")
			}
		})
	}
}

func TestRegistrationLifeCycle(t *testing.T) {
	l := newLocal(t, twoNICs())
	var cur Cursor
	found := func() bool { _, err := l.Find(&cur, 0x1000, 1); return err == nil }
	again := func() error { return l.Reserve(&Buffer{Addr: 0x1800, Length: 1}) }

	b := &Buffer{Addr: 0x1000, Length: 0x1000, Location: "cpu:0"}
	if err := l.Reserve(b); err != nil || found() || !errors.Is(again(), xfer.ErrAddressOverlapped) {
		t.Errorf("reserved: %v; want the range hidden and taken", err)
	}
	if _, err := l.Withdraw(0x1000); !errors.Is(err, xfer.ErrAddressNotFound) {
		t.Errorf("Withdraw of a reserved buffer: %v", err)
	}
	l.Publish(b)
	l.Publish(b)
	if !found() || len(l.Desc().Buffers) != 1 {
		t.Errorf("published: want it found and described once: %v", l.Desc().Buffers)
	}
	if _, err := l.Withdraw(0x1001); !errors.Is(err, xfer.ErrAddressNotFound) {
		t.Errorf("Withdraw inside: %v", err)
	}
	bufs, err := l.Withdraw(0x9000, 0x1000)
	if !slices.Equal(bufs, []*Buffer{b}) || !errors.Is(err, xfer.ErrAddressNotFound) {
		t.Errorf("Withdraw of a good and a bad one = %v, %v, want the good one and an error", bufs, err)
	}
	if found() || len(l.Desc().Buffers) != 0 || !errors.Is(again(), xfer.ErrAddressOverlapped) {
		t.Error("withdrawn: want the range hidden and taken")
	}
	l.Publish(b)
	if !found() {
		t.Error("published again: not found")
	}
	l.Free(b) // is published: stays
	if !found() {
		t.Error("Free took a published buffer")
	}
	if _, err := l.Withdraw(0x1000); err != nil {
		t.Error(err)
	}
	l.Free(b)
	if err := again(); err != nil {
		t.Errorf("freed: %v", err)
	}
}

func TestNewLocalRefuses(t *testing.T) {
	opts := twoNICs()
	opts.Matrix["cpu:0"] = [2][]string{{"mlx5_9"}, nil}
	if _, err := NewLocal(opts); err == nil || !strings.Contains(err.Error(), `"mlx5_9"`) {
		t.Errorf("matrix with an absent device: %v", err)
	}
	opts = twoNICs()
	opts.Devices[1].Name = "gA"
	if _, err := NewLocal(opts); err == nil {
		t.Error("a device that is there twice is accepted")
	}
}

func TestLocalConcurrently(t *testing.T) {
	l := newLocal(t, twoNICs())
	add(t, l, 0x1000, 0x1000, "cpu:0")
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			var cur Cursor
			var pieces []Piece
			for {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				if pieces, err = l.Cover(&cur, pieces[:0], 0x1800, 0x10); err != nil {
					t.Error(err)
				}
				l.Device(pieces[0].Buffer, 0x1800, 0, 1)
				if _, err := wire.DecodeSegmentDesc(l.Encoded()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range uint64(3) {
		writers.Go(func() {
			for range 100 {
				b := add(t, l, 0x10000*(i+1), 0x1000, "cpu:1")
				l.SetActive(1, i == 1)
				l.SetAddress(0, uint16(i), gid(byte(i)))
				if _, err := l.Withdraw(b.Addr); err != nil {
					t.Error(err)
				}
				l.Free(b)
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

// One registration beside 15,000 others, with the check of the descriptor's length.
func BenchmarkRegister(b *testing.B) {
	l := newLocal(b, twoNICs())
	for i := range uint64(15000) {
		add(b, l, 0x100000+i*0x2000, 0x1000, "cpu:0")
	}
	for b.Loop() {
		add(b, l, 0x100000+7777*0x2000+0x1000, 0x1000, "cpu:0")
		if err := l.CheckLength(64 << 20); err != nil {
			b.Fatal(err)
		}
		bufs, err := l.Withdraw(0x100000 + 7777*0x2000 + 0x1000)
		if err != nil {
			b.Fatal(err)
		}
		l.Free(bufs...)
	}
}
