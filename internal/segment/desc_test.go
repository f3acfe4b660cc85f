package segment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// remoteDesc has eight buffers, each of a page, and four devices, one of which (dead)
// is not in the matrix; the matrix names one (gone) that is not there.
func remoteDesc() *wire.SegmentDesc {
	d := &wire.SegmentDesc{
		Name: "target:15001", Protocol: wire.ProtocolRDMA, RDMAServerName: "10.0.0.2:15001",
		Devices: []wire.Device{
			{Name: "n0", GID: gid(1)}, {Name: "dead", GID: "no such thing"}, {Name: "n1", GID: gid(2)}, {Name: "n2", GID: gid(3)},
		},
		PriorityMatrix: map[string][2][]string{
			"cpu:0":  {{"n0", "gone"}, {"n1", "n2"}},
			"cpu:1":  {{"n1"}, {"n0"}},
			"cuda:0": {{}, {"n2", "n1"}},
			"cuda:1": {{"gone"}, {}},
			"cuda:2": {{"n1", "n2"}, {"n0"}},
		},
	}
	for i, name := range []string{
		"cpu:0", "cpu:1", "cuda:0", "cuda:1", "cuda:2", "shelf:0", "segments:4096:0,1,1", "segments:4096:x",
	} {
		keys := func(base int) []uint32 {
			out := make([]uint32, len(d.Devices))
			for dev := range out {
				out[dev] = uint32(base + 100*i + dev)
			}
			return out
		}
		d.Buffers = append(d.Buffers, wire.Buffer{Name: name, Addr: 0x1000 * uint64(i+1), Length: 0x1000, LKey: keys(0), RKey: keys(10000)})
	}
	return d
}

func TestSelect(t *testing.T) {
	d := NewDesc(remoteDesc())
	for _, tc := range []struct {
		name   string
		addr   uint64
		length uint64
		retry  int
		hint   string
		rnd    uint64
		want   string // device, and where the buffer ends
	}{
		{"preferred", 0x1000, 1, 0, "", 0, "n0 2000"},
		{"preferred, another draw", 0x1000, 1, 0, "", 5, "n0 2000"},
		{"of two preferred, by draw", 0x5000, 1, 0, "", 2, "n1 6000"},
		{"of two preferred, another draw", 0x5000, 1, 0, "", 3, "n2 6000"},
		{"no preferred: any available", 0x3000, 1, 0, "", 0, "n2 4000"},
		{"no preferred: another available", 0x3000, 1, 0, "", 1, "n1 4000"},
		{"first retry", 0x1000, 1, 1, "", 9, "n0 2000"},
		{"second retry", 0x1000, 1, 2, "", 9, "n1 2000"},
		{"third retry", 0x1000, 1, 3, "", 9, "n2 2000"},
		{"fourth retry", 0x1000, 1, 4, "", 9, "n0 2000"},
		{"hint in preferred", 0x5000, 1, 0, "n2", 0, "n2 6000"},
		{"hint in available, whatever the retry", 0x5000, 1, 1, "n0", 0, "n0 6000"},
		{"hint for no device", 0x2000, 1, 0, "n7", 0, "n1 3000"},
		{"hint for a device not listed here", 0x2000, 1, 0, "n2", 0, "n1 3000"},
		{"location with absent devices only: any of the matrix", 0x4000, 1, 0, "", 1, "n1 5000"},
		{"unknown location: any of the matrix", 0x6000, 1, 0, "", 2, "n2 7000"},
		{"never one outside the matrix", 0x6000, 1, 0, "dead", 3, "n0 7000"},
		{"first region", 0x7554, 1, 0, "", 0, "n0 8000"},
		{"second region", 0x7555, 1, 0, "", 0, "n1 8000"},
		{"odd last byte", 0x7fff, 1, 0, "", 0, "n1 8000"},
		{"malformed regions: an unknown location", 0x8000, 1, 0, "", 0, "n0 9000"},
		{"whole buffer", 0x1000, 0x1000, 0, "", 0, "n0 2000"},
		{"beyond the buffer: cut at its end", 0x1800, 0x1000, 0, "", 0, "n0 2000"},
		{"and then the next", 0x2000, 0x800, 0, "", 0, "n1 3000"},
		{"negative retry", 0x1000, 1, -1, "", 0, "n0 2000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := d.Select(tc.addr, tc.length, tc.retry, tc.hint, tc.rnd)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%s %x", c.Name, c.BufferEnd); got != tc.want {
				t.Errorf("chose %s, want %s", got, tc.want)
			}
			if want := d.Buffers[c.Buffer].RKey[c.Device]; c.RKey != want {
				t.Errorf("rkey %d, want %d", c.RKey, want)
			}
			if want := "10.0.0.2:15001@" + c.Name; c.NICPath != want || d.NICPath(c.Device) != want {
				t.Errorf("NIC path %s, want %s", c.NICPath, want)
			}
			if d.Devices[c.Device].Name != c.Name {
				t.Errorf("device %d is %s, not %s", c.Device, d.Devices[c.Device].Name, c.Name)
			}
		})
	}
}

// TestSelectAmong has NICs that settings pair with a peer's, for GPU memory alone.
func TestSelectAmong(t *testing.T) {
	w := &wire.SegmentDesc{Name: "b:1", Protocol: wire.ProtocolRDMA, PriorityMatrix: map[string][2][]string{
		"cuda:0": {{"n0", "n1", "n2"}, {"n3"}}, "cpu:0": {{"n0", "n1"}, {}},
	}}
	for i := range 4 {
		w.Devices = append(w.Devices, wire.Device{Name: "n" + string(rune('0'+i)), GID: gid(byte(i))})
	}
	keys := []uint32{1, 2, 3, 4}
	w.Buffers = []wire.Buffer{{Name: "cuda:0", Addr: 0x1000, Length: 0x1000, LKey: keys, RKey: keys}, {Name: "cpu:0", Addr: 0x2000, Length: 0x1000, LKey: keys, RKey: keys}}
	d := NewDesc(w)
	for _, tc := range []struct {
		name  string
		addr  uint64
		retry int
		among string
		rnd   uint64
		want  string
	}{
		{"one", 0x1000, 0, "n2", 0, "n2"},
		{"one, whatever the retry", 0x1000, 3, "n2", 0, "n2"},
		{"of two, by draw", 0x1000, 0, "n2 n1", 1, "n2"},
		{"of two, by retry", 0x1000, 1, "n2 n1", 1, "n1"},
		{"not preferred", 0x1000, 0, "n3", 0, "n0"},
		{"none", 0x1000, 0, "", 1, "n1"},
		{"host memory", 0x2000, 0, "n1", 0, "n0"},
	} {
		c, err := d.SelectAmong(tc.addr, 1, tc.retry, strings.Fields(tc.among), tc.rnd)
		if err != nil || c.Name != tc.want {
			t.Errorf("%s: %s, %v, want %s", tc.name, c.Name, err, tc.want)
		}
	}
	if _, err := d.SelectAmong(0x9000, 1, 0, nil, 0); !errors.Is(err, xfer.ErrAddressNotFound) {
		t.Errorf("outside: %v", err)
	}
}

func TestSelectFails(t *testing.T) {
	w := remoteDesc()
	w.Buffers[1].RKey = nil
	d := NewDesc(w)
	noMatrix := remoteDesc()
	noMatrix.PriorityMatrix, noMatrix.MatrixProblem = nil, "priority_matrix is missing"
	for _, tc := range []struct {
		name         string
		d            *Desc
		addr, length uint64
		code         xfer.Code
		text         string
	}{
		{"outside", d, 0xb7869c1cb5cae9f3, 16, xfer.ErrAddressNotFound, `address 0xb7869c1cb5cae9f3 is in no buffer that "target:15001" has registered (range of 16 bytes at 0xb7869c1cb5cae9f3); the nearest, [0x8000, 0x9000), ends`},
		{"below", d, 0xfff, 1, xfer.ErrAddressNotFound, "the nearest, [0x1000, 0x2000), begins 1 bytes above"},
		{"no buffers", NewDesc(&wire.SegmentDesc{Name: "t"}), 1, 1, xfer.ErrAddressNotFound, "it has registered none"},
		{"no keys", d, 0x2000, 1, xfer.ErrAddressNotFound, "0x2000 in \"target:15001\" is not remotely accessible"},
		{"no matrix", NewDesc(noMatrix), 0x1000, 1, xfer.ErrDeviceNotFound, "priority_matrix is missing"},
		{"over the end", d, 1<<64 - 1, 2, xfer.ErrInvalidArgument, "end of the address space"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := tc.d.Select(tc.addr, tc.length, 0, "", 0)
			var code xfer.Code
			if !errors.As(err, &code) || code != tc.code || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %v (code %d), want %d with %q", err, code, tc.code, tc.text)
			}
		})
	}
}

// A matrix that permutes devices (D01) is followed by name, never by number.
func TestSelectPermutedTopology(t *testing.T) {
	w := &wire.SegmentDesc{Name: "b:1", Protocol: wire.ProtocolRDMA, PriorityMatrix: map[string][2][]string{
		"cuda:0": {{"mlx5_4"}, {"mlx5_5"}}, "cuda:1": {{"mlx5_5"}, {"mlx5_4"}},
		"cuda:4": {{"mlx5_0"}, {"mlx5_1"}}, "cuda:5": {{"mlx5_1"}, {"mlx5_0"}},
	}}
	for _, name := range []string{"mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5"} {
		w.Devices = append(w.Devices, wire.Device{Name: name, GID: gid(1)})
	}
	for i, location := range []string{"cuda:0", "cuda:1", "cuda:4", "cuda:5"} {
		w.Buffers = append(w.Buffers, wire.Buffer{Name: location, Addr: uint64(i+1) << 12, Length: 1 << 12, LKey: make([]uint32, 4), RKey: []uint32{1, 2, 3, 4}})
	}
	d := NewDesc(w)
	for i, want := range []string{"mlx5_4", "mlx5_5", "mlx5_0", "mlx5_1"} {
		if c, err := d.Select(uint64(i+1)<<12, 1, 0, "", 7); err != nil || c.Name != want {
			t.Errorf("%s is reached through %s, %v, want %s", w.Buffers[i].Name, c.Name, err, want)
		}
	}
}

func TestSelectOnRail(t *testing.T) {
	d := NewDesc(remoteDesc())
	for _, tc := range []struct {
		name string
		addr uint64
		rail []string // the devices on it
		want string   // "" is an error
	}{
		{"preferred", 0x5000, []string{"n1", "n2", "n0"}, "n1"},
		{"second preferred", 0x5000, []string{"n0", "n2"}, "n2"},
		{"available", 0x5000, []string{"n0"}, "n0"},
		{"none", 0x5000, []string{"dead"}, ""},
		{"of an unknown location", 0x6000, []string{"n2"}, "n2"},
	} {
		c, err := d.SelectOnRail(tc.addr, 1, func(dev int) bool { return slices.Contains(tc.rail, d.Devices[dev].Name) })
		if c.Name != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v, want %q", tc.name, c.Name, err, tc.want)
		}
	}
}

func TestCandidates(t *testing.T) {
	d := NewDesc(remoteDesc())
	for _, tc := range []struct {
		addr      uint64
		want      []uint16
		preferred int
	}{
		{0x1000, []uint16{0, 2, 3}, 1},
		{0x3000, []uint16{3, 2}, 0},
		{0x6000, []uint16{0, 2, 3}, 3},
	} {
		got, preferred, err := d.Candidates(tc.addr, 1)
		if err != nil || !slices.Equal(got, tc.want) || preferred != tc.preferred {
			t.Errorf("%#x: %v, %d preferred, %v, want %v, %d", tc.addr, got, preferred, err, tc.want, tc.preferred)
		}
	}
}

func TestCovers(t *testing.T) {
	w := remoteDesc()
	w.Buffers = slices.Delete(w.Buffers, 3, 4) // a hole at 0x4000
	d := NewDesc(w)
	for _, tc := range []struct {
		addr, length uint64
		missing      uint64 // 0: covered
	}{
		{0x1000, 0x3000, 0},
		{0x1fff, 2, 0},
		{0x5000, 0x4000, 0},
		{0x99, 0, 0},
		{0x3fff, 2, 0x4000},
		{0x1000, 0x8000, 0x4000},
		{0x8fff, 2, 0x9000},
		{0xfff, 2, 0xfff},
	} {
		err := d.Covers(tc.addr, tc.length)
		var nc *NotCoveredError
		if tc.missing == 0 && err != nil || tc.missing != 0 && (!errors.As(err, &nc) || nc.Missing != tc.missing) {
			t.Errorf("Covers(%#x, %#x): %v, want missing %#x", tc.addr, tc.length, err, tc.missing)
		}
	}
}

// Peers do not publish overlapping buffers; one that does is read in array order.
func TestOverlappingBuffers(t *testing.T) {
	w := remoteDesc()
	w.Buffers = []wire.Buffer{
		{Name: "cpu:0", Addr: 0x2000, Length: 0x100, LKey: make([]uint32, 4), RKey: make([]uint32, 4)},
		{Name: "cpu:1", Addr: 0x1000, Length: 0x4000, LKey: make([]uint32, 4), RKey: make([]uint32, 4)},
	}
	d := NewDesc(w)
	for _, tc := range []struct {
		addr, length uint64
		buffer       int
	}{
		{0x2000, 1, 0},
		{0x20ff, 2, 1},     // the first one does not hold it all
		{0x2000, 0x800, 1}, // likewise
		{0x1000, 1, 1},
		{0x2000, 0x8000, 0}, // none does: the first that holds the start
	} {
		if c, err := d.Select(tc.addr, tc.length, 0, "", 0); err != nil || c.Buffer != tc.buffer {
			t.Errorf("Select(%#x, %#x): buffer %d, %v, want %d", tc.addr, tc.length, c.Buffer, err, tc.buffer)
		}
	}
}

func TestGIDs(t *testing.T) {
	d := NewDesc(remoteDesc())
	if got := d.GID(0); got[15] != 1 {
		t.Errorf("GID %x", got)
	}
	if got := d.GID(1); got != [16]byte{} {
		t.Errorf("unreadable GID is %x, want zeros", got)
	}
	if i, ok := d.Device("n2"); !ok || i != 3 {
		t.Errorf("Device(n2) = %d, %v", i, ok)
	}
}

func TestSelectDoesNotAllocate(t *testing.T) {
	d := NewDesc(remoteDesc())
	i := uint64(0)
	rail := 0
	if n := testing.AllocsPerRun(100, func() {
		i++
		addr := 0x1000 + i*0x123%0x8000
		if _, err := d.Select(addr, 100, int(i%4), "n2", i); err != nil {
			t.Fatal(err)
		}
		if err := d.Covers(0x1000, 0x8000); err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.Candidates(addr, 1); err != nil {
			t.Fatal(err)
		}
		rail = int(i % 2)
		if _, err := d.SelectOnRail(0x1000, 1, func(dev int) bool { return dev == 2*rail }); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func FuzzDesc(f *testing.F) {
	f.Add(wire.AppendSegmentDesc(nil, remoteDesc()), uint64(0x1800), uint64(0x1000), uint64(1))
	f.Add([]byte(`{"protocol":"rdma"}`), uint64(1), uint64(0), uint64(1))
	f.Fuzz(func(t *testing.T, text []byte, addr, length, rnd uint64) {
		w, err := wire.DecodeSegmentDesc(text)
		if err != nil {
			return
		}
		d := NewDesc(w)
		if !d.same(NewDesc(w)) {
			t.Error("a descriptor differs from itself")
		}
		c, err := d.Select(addr, length, int(rnd%5), "n1", rnd)
		if err != nil {
			return
		}
		b := d.Buffers[c.Buffer]
		if addr < b.Addr || addr >= c.BufferEnd || b.RKey[c.Device] != c.RKey {
			t.Errorf("address %#x is served by %+v of %+v", addr, c, b)
		}
		if covered := d.Covers(addr, length) == nil; !covered && addr+length <= c.BufferEnd && addr+length >= addr {
			t.Errorf("[%#x, +%d) is in a buffer and not covered", addr, length)
		}
		if _, err := d.SelectOnRail(addr, length, func(dev int) bool { return dev == c.Device }); err != nil {
			t.Errorf("device %d is chosen, and not found on its rail: %v", c.Device, err)
		}
	})
}

func BenchmarkSelect(b *testing.B) {
	w := remoteDesc()
	one := w.Buffers[0]
	w.Buffers = nil
	for i := range uint64(15000) {
		one.Addr = 0x100000 + i*0x1000
		w.Buffers = append(w.Buffers, one)
	}
	d := NewDesc(w)
	i := uint64(0)
	for b.Loop() {
		i = (i + 7919) % 15000
		if _, err := d.Select(0x100000+i*0x1000, 100, 0, "", i); err != nil {
			b.Fatal(err)
		}
	}
}
