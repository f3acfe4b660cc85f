package segment

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func TestCover(t *testing.T) {
	opts := twoNICs()
	opts.MaxMR = 0x1000
	l := newLocal(t, opts)
	add(t, l, 0x10000, 0x2800, "cpu:0") // three chunks
	add(t, l, 0x12800, 0x800, "cpu:1")  // touches
	add(t, l, 0x20000, 0x1000, "cuda:0")
	for _, tc := range []struct {
		name         string
		addr, length uint64
		want         string // pieces, or part of the error
	}{
		{"nothing", 0x99, 0, ""},
		{"first byte", 0x10000, 1, "10000+1"},
		{"one chunk", 0x10000, 0x1000, "10000+1000"},
		{"over a chunk's border", 0x10fff, 2, "10fff+1 11000+1"},
		{"over two buffers", 0x11fff, 0x1001, "11fff+1 12000+800 12800+800"},
		{"last byte", 0x20fff, 1, "20fff+1"},
		{"below all", 0xffff, 1, "address 0xffff is in no buffer that this process has registered; the nearest, [0x10000, 0x12800), begins 1 bytes above"},
		{"into a gap", 0x12fff, 2, "address 0x13000 is in no buffer that this process has registered (range of 2 bytes at 0x12fff); the nearest, [0x12800, 0x13000), ends 0 bytes below"},
		{"above all", 0xb7869c1cb5cae9f3, 8, "0xb7869c1cb5cae9f3 is in no buffer that this process has registered (range of 8 bytes at 0xb7869c1cb5cae9f3); the nearest, [0x20000, 0x21000), ends"},
		{"over the end of memory", 1<<64 - 1, 2, "runs over the end of the address space"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var cur Cursor
			pieces, err := l.Cover(&cur, nil, tc.addr, tc.length)
			if err != nil {
				if !strings.Contains(err.Error(), tc.want) || len(pieces) > 0 {
					t.Errorf("error %v with %d pieces, want %q", err, len(pieces), tc.want)
				}
				return
			}
			var got []string
			for _, p := range pieces {
				if p.Addr < p.Chunk.Addr || p.Addr+p.Length > p.Chunk.Addr+p.Chunk.Length {
					t.Errorf("piece %#x+%#x is not in its chunk", p.Addr, p.Length)
				}
				got = append(got, fmt.Sprintf("%x+%x", p.Addr, p.Length))
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("pieces %s, want %s", s, tc.want)
			}
		})
	}
}

func TestFind(t *testing.T) {
	l := newLocal(t, twoNICs())
	b := add(t, l, 0x1000, 0x1000, "cpu:0")
	add(t, l, 0x2000, 0x1000, "cpu:0")
	for _, tc := range []struct {
		addr, length uint64
		ok           bool
	}{
		{0x1000, 0x1000, true},
		{0x1fff, 1, true},
		{0x1fff, 2, false}, // touching buffers are not joined
		{0x1000, 0, false},
		{0xfff, 1, false},
		{0x1000, 1<<64 - 1, false},
	} {
		var cur Cursor
		if got, err := l.Find(&cur, tc.addr, tc.length); (err == nil) != tc.ok || tc.ok && got != b {
			t.Errorf("Find(%#x, %d) = %v, %v", tc.addr, tc.length, got, err)
		}
	}
	var empty *NotCoveredError
	if _, err := newLocal(t, twoNICs()).Find(new(Cursor), 1, 1); !errors.As(err, &empty) || !strings.Contains(err.Error(), "it has registered none") {
		t.Errorf("without buffers: %v", err)
	}
}

// TestCoverAgainstModel compares with a map from byte to buffer.
func TestCoverAgainstModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const space = 400
	l := newLocal(t, LocalOptions{Protocol: wire.ProtocolRDMA, MaxMR: 7})
	var owner [space + 64]*Buffer
	var cur Cursor
	for range 4000 {
		addr, length := rnd.Uint64N(space)+1, rnd.Uint64N(30)+1
		switch rnd.IntN(4) {
		case 0:
			b := &Buffer{Addr: addr, Length: length}
			free := !slices.ContainsFunc(owner[addr:addr+length], func(o *Buffer) bool { return o != nil })
			if err := l.Reserve(b); (err == nil) != free {
				t.Fatalf("Reserve(%d, %d): %v, free %v", addr, length, err, free)
			}
			if free {
				l.Publish(b)
				for i := range length {
					owner[addr+i] = b
				}
			}
		case 1:
			o := owner[addr]
			bufs, err := l.Withdraw(addr)
			if ok := o != nil && o.Addr == addr; (err == nil) != ok {
				t.Fatalf("Withdraw(%d): %v, want %v", addr, err, ok)
			}
			l.Free(bufs...)
			for _, b := range bufs {
				clear(owner[b.Addr : b.Addr+b.Length])
			}
		default:
			covered := !slices.Contains(owner[addr:addr+length], nil)
			pieces, err := l.Cover(&cur, nil, addr, length)
			if (err == nil) != covered {
				t.Fatalf("Cover(%d, %d): %v, covered %v", addr, length, err, covered)
			}
			at := addr
			for _, p := range pieces {
				if p.Addr != at || p.Length == 0 || p.Length > 7 || owner[at] != p.Buffer || owner[at+p.Length-1] != p.Buffer {
					t.Fatalf("Cover(%d, %d): bad piece %d+%d", addr, length, p.Addr, p.Length)
				}
				at += p.Length
			}
			if covered && at != addr+length {
				t.Fatalf("Cover(%d, %d) ends at %d", addr, length, at)
			}
		}
	}
}

func TestLocalDevice(t *testing.T) {
	l := newLocal(t, twoNICs())
	near0, near1 := add(t, l, 0x1000, 0x1000, "cpu:0"), add(t, l, 0x2000, 0x1000, "cpu:1")
	parts := add(t, l, 0x3000, 0x1001, "segments:4096:0,1")
	odd := add(t, l, 0x8000, 0x1000, "shelf:7")
	for _, tc := range []struct {
		name  string
		b     *Buffer
		addr  uint64
		retry int
		want  int
	}{
		{"near 0", near0, 0x1000, 0, 0},
		{"near 1", near1, 0x2000, 0, 1},
		{"retry 1 is the first", near1, 0x2000, 1, 1},
		{"retry 2 is the next", near1, 0x2000, 2, 0},
		{"retry 3 is the first again", near1, 0x2000, 3, 1},
		{"first part", parts, 0x37ff, 0, 0},
		{"second part", parts, 0x3800, 0, 1},
		{"its odd last byte", parts, 0x4000, 0, 1},
		{"unknown location", odd, 0x8000, 0, 0}, // any; rnd is 0
	} {
		if got, ok := l.Device(tc.b, tc.addr, tc.retry, 0); !ok || got != tc.want {
			t.Errorf("%s: device %d, %v, want %d", tc.name, got, ok, tc.want)
		}
	}
	l.SetActive(0, false)
	if got, ok := l.Device(near0, 0x1000, 0, 0); !ok || got != 1 {
		t.Errorf("with device 0 off: device %d, %v, want 1", got, ok)
	}
	l.SetActive(1, false)
	if got, ok := l.Device(near0, 0x1000, 0, 0); ok {
		t.Errorf("with both off: device %d", got)
	}
}

func TestEncodedGolden(t *testing.T) {
	opts := twoNICs()
	opts.MaxMR = 40000000
	l := newLocal(t, opts)
	add(t, l, 0x10000000, 100663296, "cpu:0")
	b := add(t, l, 0x1000, 16, "")
	b.RemoteAccess = false
	// The model tells which device readers meet first; keys must follow.
	order := wire.DeviceOrder(opts.Matrix)
	if len(order) != 2 {
		t.Fatal(order)
	}
	d, err := wire.DecodeSegmentDesc(l.Encoded())
	if err != nil {
		t.Fatal(err)
	}
	if got := []string{d.Devices[0].Name, d.Devices[1].Name}; !slices.Equal(got, order) {
		t.Errorf("devices in the order %v, want %v", got, order)
	}
	first, _ := l.number(order[0])
	var got []string
	for _, b := range d.Buffers {
		got = append(got, fmt.Sprintf("%s %x+%d %v", b.Name, b.Addr, b.Length, b.RKey))
	}
	key := func(chunk, i int) int { return 0x10000000 + 16*chunk + 8 + i }
	keys := func(chunk int) string {
		return fmt.Sprintf("[%d %d]", key(chunk, first), key(chunk, 1-first))
	}
	want := []string{
		"* 1000+16 []",
		"cpu:0 10000000+40000000 " + keys(0),
		"cpu:0 12625a00+40000000 " + keys(1),
		"cpu:0 14c4b400+20663296 " + keys(2),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("buffers (-want +got):\n", diff)
	}
	if d.FenceVersion != 1 || d.Timestamp != "2026-11-30 19:47:34.164174" || d.Name != "host:15000" {
		t.Errorf("descriptor %+v", d)
	}
}

func TestEncodedIsCached(t *testing.T) {
	l := newLocal(t, twoNICs())
	one := l.Encoded()
	if two := l.Encoded(); &one[0] != &two[0] {
		t.Error("encoded anew without a change")
	}
	for _, change := range []struct {
		name string
		do   func()
		want string
	}{
		{"publish", func() { add(t, l, 0x1000, 1, "cuda:0") }, `"addr":4096`},
		{"address", func() { l.SetAddress(1, 77, gid(9)) }, `"lid":77`},
		{"device off", func() { l.SetActive(0, false) }, `"cuda:0":[[],["gB"]]`},
	} {
		change.do()
		if got := string(l.Encoded()); !strings.Contains(got, change.want) {
			t.Errorf("%s: %s lacks %s", change.name, got, change.want)
		}
	}
	if got := string(l.Encoded()); strings.Contains(got, "gA") || strings.Contains(got, `"rkey":[4104,4105]`) {
		t.Errorf("a dropped device is left in %s", got)
	}
	l.SetActive(1, false)
	if got := string(l.Encoded()); !strings.Contains(got, `"priority_matrix":{}`) || !strings.Contains(got, `"devices":[]`) {
		t.Errorf("without devices: %s", got)
	}
}

// The size that is counted is the size that is sent, whatever happened before.
func TestCheckLength(t *testing.T) {
	for _, protocol := range []string{wire.ProtocolRDMA, wire.ProtocolTCP} {
		opts := twoNICs()
		opts.Protocol, opts.MaxMR = protocol, 0x800
		l := newLocal(t, opts)
		check := func(step string) {
			t.Helper()
			n := wire.FrameLength(l.Encoded())
			if err := l.CheckLength(n); err != nil {
				t.Errorf("%s, %s: %v", protocol, step, err)
			}
			var fe *wire.FrameError
			if err := l.CheckLength(n - 1); !errors.As(err, &fe) || fe.Length != n || !strings.Contains(err.Error(), "MC_HANDSHAKE_MAX_LENGTH") {
				t.Errorf("%s, %s: one byte less: %v, want a FrameError of %d bytes", protocol, step, err, n)
			}
		}
		check("empty")
		add(t, l, 0x1000, 0x1000, "cpu:0")
		check("one")
		add(t, l, 0x7fff00000000, 0x1801, "a \"quoted\" \u00e9")
		add(t, l, 0, 0x10, "cpu:0")
		check("three")
		l.SetActive(0, false)
		check("device off")
		if _, err := l.Withdraw(0x1000); err != nil {
			t.Fatal(err)
		}
		check("withdrawn")
		l.SetActive(0, true)
		l.SetAddress(0, 65535, gid(200))
		check("device on")
		if _, err := l.Withdraw(0x7fff00000000, 0); err != nil {
			t.Fatal(err)
		}
		check("empty again")
	}
}

func TestEncodedTCP(t *testing.T) {
	l := newLocal(t, LocalOptions{
		Name: "h:1", Protocol: wire.ProtocolTCP, TCPDataPort: 2, TCPProtoVersion: 2, MaxMR: 4,
		Now: func() time.Time { return time.Unix(0, 0).UTC() },
	})
	add(t, l, 0x1000, 16, "cpu:0")
	add(t, l, 0, 16, "cpu:0") // allowed, and of no use to peers
	want := `{"buffers":[{"addr":4096,"length":16,"name":"h:1"}],"name":"h:1","protocol":"tcp","tcp_data_port":2,` +
		`"tcp_proto_version":2,"timestamp":"1970-01-01 00:00:00.000000"}` + "\n"
	if got := string(l.Encoded()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDevicesOutsideTheMatrixComeLast(t *testing.T) {
	opts := twoNICs()
	opts.Devices = append([]wire.Device{{Name: "spare", GID: gid(3)}}, opts.Devices...)
	d := newLocal(t, opts).Desc()
	if n := len(d.Devices); n != 3 || d.Devices[2].Name != "spare" {
		t.Errorf("devices %v, want the spare one last", d.Devices)
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

func TestLocalLookupDoesNotAllocate(t *testing.T) {
	l := newLocal(t, twoNICs())
	var bufs []*Buffer
	for i := range uint64(1000) {
		bufs = append(bufs, add(t, l, 0x100000+i*0x2000, 0x1000, "segments:4096:0,1"))
	}
	var cur Cursor
	pieces := make([]Piece, 0, 8)
	i := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		i = (i + 7) % 1000
		var err error
		if pieces, err = l.Cover(&cur, pieces[:0], 0x100000+i*0x2000+5, 100); err != nil {
			t.Fatal(err)
		}
		if _, ok := l.Device(bufs[i], bufs[i].Addr+0x900, 0, i); !ok {
			t.Fatal("no device")
		}
		if _, err := l.Find(&cur, bufs[i].Addr, 1); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a lookup, want 0", n)
	}
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

func BenchmarkCover(b *testing.B) {
	l := newLocal(b, twoNICs())
	for i := range uint64(15000) {
		add(b, l, 0x100000+i*0x2000, 0x1000, "cpu:0")
	}
	for _, step := range []uint64{0, 7919} {
		b.Run(fmt.Sprintf("step=%d", step), func(b *testing.B) {
			var cur Cursor
			pieces := make([]Piece, 0, 8)
			i := uint64(0)
			for b.Loop() {
				i = (i + step) % 15000
				pieces, _ = l.Cover(&cur, pieces[:0], 0x100000+i*0x2000+5, 100)
			}
		})
	}
}
