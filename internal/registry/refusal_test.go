package registry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/proc"
	"github.com/railhop/railhop/internal/shmabi"
)

// living is a name and a header of a process that lives, for files that are made
// by hand: this test's parent's.
func living(t *testing.T, epoch uint64) (name string, header []byte) {
	t.Helper()
	self, err := stranger{}.Self()
	if err != nil {
		t.Fatal(err)
	}
	return madeHeader(self, epoch)
}

// madeHeader is written by offsets, beside the struct that the product writes.
func madeHeader(self proc.Self, epoch uint64) (name string, header []byte) {
	b := make([]byte, shmabi.HeaderBytes)
	u32, u64 := binary.LittleEndian.PutUint32, binary.LittleEndian.PutUint64
	copy(b, "RAILHOP1")
	u32(b[8:], 1)
	u32(b[12:], 448)
	u64(b[16:], 8306816)
	u32(b[24:], 1)
	u32(b[28:], 7)
	u32(b[32:], uint32(os.Geteuid()))
	u32(b[36:], uint32(self.PID))
	u64(b[40:], self.StartTicks)
	u64(b[48:], epoch)
	u64(b[56:], 1)
	u32(b[64:], 7)
	u32(b[68:], 18)
	u64(b[72:], 1<<20)
	u64(b[80:], 126<<20)
	u32(b[88:], 64)
	u32(b[92:], 1)
	copy(b[96:], "mlx5_0\x00")
	b[352] = 0xaa
	u64(b[424:], self.BootIDHash)
	u64(b[432:], self.PIDNamespace)
	id := shmabi.Identity{UID: uint32(os.Geteuid()), PID: self.PID, StartTicks: self.StartTicks}
	return entryName(id, epoch), b
}

func writeEntry(t *testing.T, dir, name string, header []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	err := os.WriteFile(path, header, 0o600)
	if err == nil {
		err = os.Truncate(path, shmabi.ControlBytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func put32(off int, v uint32) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint32(b[off:], v) }
}

func put64(off int, v uint64) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint64(b[off:], v) }
}

// D15: each bad file has its own reason, is left as it is, and hides nobody.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name   string
		header func(b []byte)
		file   func(path string) error
		cause  Cause
		detail string
	}{
		{name: "zero bytes", file: func(p string) error { return os.Truncate(p, 0) }, cause: Empty, detail: "0 bytes"},
		{name: "too short", file: func(p string) error { return os.Truncate(p, shmabi.ControlBytes-1) }, cause: WrongSize, detail: "8306815 bytes, want 8306816"},
		{name: "too long", file: func(p string) error { return os.Truncate(p, shmabi.ControlBytes+1) }, cause: WrongSize},
		{name: "eleven bytes", file: func(p string) error { return os.Truncate(p, 11) }, cause: WrongSize},
		{name: "wrong magic", header: put64(0, 0x4c54584e50434d), cause: WrongMagic, detail: "RAILHOP1"},
		{name: "other version", header: put32(8, 2), cause: WrongVersion, detail: "abi_version 2, this build speaks 1"},
		{name: "other version and size", header: put32(8, 3), file: func(p string) error { return os.Truncate(p, 4096) }, cause: WrongVersion, detail: "abi_version 3"},
		{name: "other uid", file: func(p string) error { return os.Chown(p, os.Geteuid()+1, -1) }, cause: WrongOwner},
		{name: "mode 0666", file: func(p string) error { return os.Chmod(p, 0o666) }, cause: WrongMode, detail: "0666"},
		{name: "mode 0400", file: func(p string) error { return os.Chmod(p, 0o400) }, cause: WrongMode},
		{name: "set-uid", file: func(p string) error { return unix.Chmod(p, 0o4600) }, cause: WrongMode},
		{name: "symbolic link", file: func(p string) error {
			return errors.Join(os.Rename(p, p+"x"), os.Symlink(p+"x", p))
		}, cause: Symlink},
		{name: "hard link", file: func(p string) error { return os.Link(p, filepath.Join(filepath.Dir(p), "second")) }, cause: HardLinked, detail: "2 links"},
		{name: "directory", file: func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o600)) }, cause: NotRegular},
		{name: "pipe", file: func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) }, cause: NotRegular},
		{name: "header bytes", header: put32(12, 440), cause: BadHeader, detail: "header_bytes is 440"},
		{name: "mapping bytes", header: put64(16, 1<<40), cause: BadHeader, detail: "mapping_bytes"},
		{name: "state", header: put32(24, 3), cause: BadHeader, detail: "state is 3"},
		{name: "rail bytes", header: put32(28, 257), cause: BadHeader, detail: "rail_bytes is 257"},
		{name: "rail bytes cut a name", header: put32(28, 6), cause: BadHeader, detail: "no NUL"},
		{name: "rail count", header: put32(92, 2), cause: BadHeader, detail: "rail_count is 2"},
		{name: "rail count large", header: put32(92, 1<<31), cause: BadHeader, detail: "rail_count"},
		{name: "empty rail", header: func(b []byte) { b[96] = 0 }, cause: BadHeader, detail: "empty"},
		{name: "pid in the header", header: put32(36, 1), cause: WrongName},
		{name: "negative pid", header: put32(36, 1<<31), cause: BadHeader, detail: "pid"},
		{name: "uid in the header", header: put32(32, 4242), cause: WrongName},
		{name: "epoch 0", header: put64(48, 0), cause: BadHeader, detail: "epoch 0"},
		{name: "other epoch", header: put64(48, 6), cause: WrongName},
		{name: "lanes", header: put32(64, 8), cause: BadHeader, detail: "lane_count"},
		{name: "slots", header: put32(68, 17), cause: BadHeader, detail: "slots_per_lane"},
		{name: "slot size", header: put64(72, 3<<20), cause: BadHeader, detail: "slot size"},
		{name: "arena size", header: put64(80, 1<<62), cause: BadHeader, detail: "arena_size"},
		{name: "handle bytes", header: put32(88, 65), cause: BadHeader, detail: "ipc_handle_bytes"},
		{name: "last word", header: put32(444, 1), cause: BadHeader, detail: "last word"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := testRoot(t)
			r := open(t, Options{Root: root})
			name, header := living(t, 5)
			goodName, good := living(t, 4)
			lastName, last := living(t, 9)
			if tc.header != nil {
				tc.header(header)
			}
			path := writeEntry(t, r.Path(), name, header)
			if tc.file != nil {
				if err := tc.file(path); err != nil {
					t.Skip(err)
				}
			}
			writeEntry(t, r.Path(), goodName, good)
			writeEntry(t, r.Path(), lastName, last)
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				peers, refused, err := r.Scan()
				if err != nil || len(peers) != 2 || peers[0].Name() != goodName || peers[1].Name() != lastName {
					t.Fatalf("peers %v, %v; want the two good ones", peers, err)
				}
				if len(refused) != 1 || refused[0].Cause != tc.cause || refused[0].Name != name {
					t.Fatalf("refused %+v, want %v", refused, tc.cause)
				}
				if !strings.Contains(refused[0].Error(), tc.detail) {
					t.Errorf("says %v, want %q", &refused[0], tc.detail)
				}
			}
			after, err := os.Lstat(path)
			if err != nil || after.Mode() != before.Mode() || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
				t.Errorf("the file was touched: %v, %v", after, err)
			}
			if c := r.Counters(); c.Refused != 1 || c.Reclaimed != 0 {
				t.Errorf("counters %+v", c)
			}
		})
	}
}

func TestScanTakesNoMoreThanEight(t *testing.T) {
	r := open(t, Options{Root: testRoot(t)})
	for epoch := uint64(1); epoch <= 9; epoch++ {
		name, header := living(t, epoch)
		writeEntry(t, r.Path(), name, header)
	}
	peers, refused, err := r.Scan()
	if err != nil || len(peers) != 8 || len(refused) != 1 || refused[0].Cause != TooMany {
		t.Errorf("%d peers, refused %v, %v", len(peers), refused, err)
	}
}

func TestForeignFilesAreNotTouched(t *testing.T) {
	r := open(t, Options{Root: testRoot(t)})
	names := []string{"0.1.2.3.4", "0.1.2", "1.-2.3.4", "01.2.3.4", "0.0.0.0", "0.1.2.0", "+0.1.2.3", " 0.1.2.3", "0.1.2.18446744073709551616", "..."}
	for i := range 250 {
		names = append(names, fmt.Sprintf("nccl-%d", i), fmt.Sprintf("psm_%d", i))
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(r.Path(), name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	peers, refused, err := r.Scan()
	if err != nil || len(peers)+len(refused) != 0 {
		t.Errorf("peers %v, refused %v, %v", peers, refused, err)
	}
	e := publish(t, r, "a")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(r.Path(), name))
		if err != nil || string(b) != name {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// A file of a dead owner is reclaimed only if its magic, too, makes it ours.
func TestReclaimNeedsNameAndMagic(t *testing.T) {
	r := open(t, Options{Root: testRoot(t)})
	self := r.Self()
	self.StartTicks++ // nobody has these: a dead owner
	ours, header := madeHeader(self, 1)
	writeEntry(t, r.Path(), ours, header)
	foreign, header := madeHeader(self, 2)
	header[0] = 'X'
	writeEntry(t, r.Path(), foreign, header)
	if _, _, err := r.Scan(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(r.Path(), ours)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ours: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.Path(), foreign)); err != nil {
		t.Errorf("foreign: %v", err)
	}
	if c := r.Counters(); c.Reclaimed != 1 || c.Refused != 1 {
		t.Errorf("counters %+v", c)
	}
}

func TestEntryOfAnotherBootIsReclaimed(t *testing.T) {
	r := open(t, Options{Root: testRoot(t)})
	self, err := stranger{}.Self()
	if err != nil {
		t.Fatal(err)
	}
	self.BootIDHash++
	name, header := madeHeader(self, 1)
	writeEntry(t, r.Path(), name, header)
	if peers, _, err := r.Scan(); err != nil || len(peers) != 0 || r.Counters().Reclaimed != 1 {
		t.Errorf("%v, %v, %+v", peers, err, r.Counters())
	}
}

// Some containers show a boot id of their own: who holds a lock lives all the
// same, though its pid means nothing.
func TestOtherBootIDWithALock(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	publish(t, open(t, Options{Root: root, Processes: stranger{boot: 7}}), "a")
	if p := onePeer(t, r); p.Life() != Alive || p.Closed() || p.HasPidfd() {
		t.Errorf("life %v, closed %v, pidfd %v", p.Life(), p.Closed(), p.HasPidfd())
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"1000.4242.880001.77", "0.1.2.3", "01.2.3.4", "", "...", "a.b.c.d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, epoch, ok := parseName(s)
		if ok && (entryName(id, epoch) != s || id.PID <= 0 || epoch == 0) {
			t.Errorf("%q is %+v, %d", s, id, epoch)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	_, good := madeHeader(proc.Self{PID: 4242, StartTicks: 880001, BootIDHash: 1, PIDNamespace: 2}, 77)
	f.Add(good)
	f.Add(good[:100])
	bad := append([]byte(nil), good...)
	put32(28, 300)(bad)
	f.Add(bad)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, refusal := parseHeader(b)
		if refusal != nil {
			return
		}
		packed, err := packRails(h.rails)
		if err != nil {
			t.Errorf("accepted rails %q: %v", h.rails, err)
		}
		if uint32(len(packed)) != binary.LittleEndian.Uint32(b[28:]) {
			t.Errorf("rails %q do not make up rail_bytes", h.rails)
		}
		if h.epoch == 0 || h.owner.PID <= 0 || checkSlotSize(h.slotSize) != nil || h.arenaSize != 126*h.slotSize {
			t.Errorf("accepted %+v", h)
		}
	})
}

func FuzzParseStats(f *testing.F) {
	f.Add([]byte(`{"version":1,"server":"a","nic_paths":{"r":"p"},"counters":{"x":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStats(b); err == nil && s.Version != statsVersion {
			t.Errorf("version %d", s.Version)
		}
	})
}

// What the product writes through the struct is what the offsets say.
func TestHeaderOffsets(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root, Processes: stranger{}})
	var handle [64]byte
	handle[0] = 0xaa
	e, err := r.Publish(EntryOptions{Rails: []string{"mlx5_0"}, SlotSize: 1 << 20, ArenaHandle: handle})
	if err != nil {
		t.Fatal(err)
	}
	_, want := living(t, e.Epoch())
	got := append([]byte(nil), e.Bytes()[:shmabi.HeaderBytes]...)
	clear(got[56:64]) // heartbeat
	clear(want[56:64])
	clear(got[416:420]) // life
	if string(got) != string(want) {
		t.Errorf("header\n%x, want\n%x", got, want)
	}
}
