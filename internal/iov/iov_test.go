package iov

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAdvance(t *testing.T) {
	t.Parallel()
	mem := make([]byte, 30)
	runs := func() []Vec { return []Vec{Of(mem[:10]), Of(mem[10:10]), Of(mem[10:])} }
	base := Of(mem).Base
	for _, tc := range []struct {
		name string
		n    int
		want []Vec
	}{
		{"nothing", 0, runs()},
		{"a part of the first", 4, []Vec{{Base: base + 4, Len: 6}, {Base: base + 10}, {Base: base + 10, Len: 20}}},
		{"the first", 10, []Vec{{Base: base + 10}, {Base: base + 10, Len: 20}}},
		{"into the last", 11, []Vec{{Base: base + 11, Len: 19}}},
		{"all", 30, nil},
	} {
		got := Advance(runs(), tc.n)
		same := len(got) == len(tc.want)
		for i := range got {
			same = same && got[i] == tc.want[i]
		}
		if !same {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestReadAndWrite gathers, scatters, blocks on neither, and survives a peer that is gone.
func TestReadAndWrite(t *testing.T) {
	t.Parallel()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	from, to := uintptr(fds[0]), uintptr(fds[1])
	sent, got := []byte("one and two"), make([]byte, 11)
	var m Msg
	if _, errno := Read(to, []Vec{Of(got)}); errno != unix.EAGAIN {
		t.Errorf("read of nothing: %v, want %v", errno, unix.EAGAIN)
	}
	if n, errno := Write(from, &m, []Vec{Of(sent[:3]), Of(sent[3:])}); n != 11 || errno != 0 {
		t.Errorf("write: %d bytes, %v", n, errno)
	}
	if n, errno := Read(to, []Vec{Of(got[:7]), Of(got[7:])}); n != 11 || errno != 0 || !bytes.Equal(got, sent) {
		t.Errorf("read: %d bytes, %v, %q", n, errno, got)
	}
	unix.Close(fds[0])
	if _, errno := Write(to, &m, []Vec{Of(sent)}); !errors.Is(errno, unix.EPIPE) {
		t.Errorf("write to a peer that is gone: %v, want %v", errno, unix.EPIPE)
	}
}

func TestCopyTo(t *testing.T) {
	t.Parallel()
	for n := range 20 {
		dst, src := make([]byte, 24), bytes.Repeat([]byte{7}, n)
		CopyTo(uint64(Of(dst[2:]).Base), src)
		if want := append(append(make([]byte, 2), src...), make([]byte, 22-n)...); !bytes.Equal(dst, want) {
			t.Errorf("%d bytes: got %v, want %v", n, dst, want)
		}
	}
}
