package shm

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func wordAt(m *Mapping, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&m.Bytes()[off]))
}

func childRobust(args []string) error {
	d, err := OpenDir(args[0])
	if err != nil {
		return err
	}
	f, err := d.Open("a", true)
	if err != nil {
		return err
	}
	m, err := f.Map(true)
	if err != nil {
		return err
	}
	r, err := HoldRobust(wordAt(m, 64))
	if err != nil {
		return err
	}
	fmt.Println(r.TID())
	io.Copy(io.Discard, os.Stdin)
	r.Release()
	return nil
}

// needWaitAny skips where the kernel has no FUTEX_WAITV.
func needWaitAny(t *testing.T) {
	t.Helper()
	word := new(atomic.Uint32)
	if err := WaitAny([]Wait{{word, 1, true}}, 0); err != nil {
		t.Skip(err)
	}
}

func TestDeathWakes(t *testing.T) {
	needWaitAny(t)
	d := openDir(t)
	_, m := create(t, d, "a", 4096)
	cmd, line := child(t, nil, "robust", d.Path())
	tid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(line)
	}
	word := wordAt(m, 64)
	alive := uint32(tid) | robustWaiters
	if got := word.Load(); got != alive {
		t.Fatalf("word %#x, want %#x", got, alive)
	}
	quiet := new(atomic.Uint32)
	started, woken := make(chan struct{}), make(chan error)
	go func() {
		close(started)
		woken <- WaitAny([]Wait{{quiet, 0, true}, {word, alive, false}}, -1)
	}()
	<-started
	cmd.Process.Kill()
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
	if got := word.Load(); got != 0xc0000000 {
		t.Errorf("word %#x after the death, want OWNER_DIED and WAITERS", got)
	}
}

func TestReleaseClearsAndWakes(t *testing.T) {
	needWaitAny(t)
	d := openDir(t)
	_, m := create(t, d, "", 4096)
	// Two at a time: each has a thread and a list.
	a, err := HoldRobust(wordAt(m, 0))
	if err != nil {
		t.Fatal(err)
	}
	b, err := HoldRobust(wordAt(m, 4))
	if err != nil {
		t.Fatal(err)
	}
	if a.TID() == b.TID() {
		t.Fatalf("one thread, %d, for both", a.TID())
	}
	word := wordAt(m, 0)
	woken := make(chan error)
	old := word.Load()
	go func() { woken <- WaitAny([]Wait{{word, old, false}}, -1) }()
	a.Release()
	a.Release()
	if err := <-woken; err != nil {
		t.Error(err)
	}
	if word.Load() != 0 || wordAt(m, 4).Load() != uint32(b.TID())|robustWaiters {
		t.Errorf("words %#x, %#x", word.Load(), wordAt(m, 4).Load())
	}
	b.Release()
}

func TestHoldRobustOnTruncatedMemory(t *testing.T) {
	d := openDir(t)
	_, m := create(t, d, "a", 4096)
	r, err := HoldRobust(wordAt(m, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(d.Path(), "a"), 0); err != nil {
		t.Fatal(err)
	}
	r.Release()
	if _, err := HoldRobust(wordAt(m, 0)); err == nil {
		t.Error("held a word that is not there")
	}
}

func TestWaitAnyReturns(t *testing.T) {
	needWaitAny(t)
	d := openDir(t)
	_, m := create(t, d, "a", 4096)
	word := wordAt(m, 0)
	if err := WaitAny([]Wait{{word, 1, false}}, -1); err != nil {
		t.Errorf("the word differs: %v", err)
	}
	if err := WaitAny([]Wait{{word, 0, false}}, time.Millisecond); err != nil {
		t.Errorf("time is up: %v", err)
	}
	for _, n := range []int{0, WaitMax + 1} {
		if err := WaitAny(make([]Wait, n), 0); err == nil {
			t.Errorf("waited for %d words", n)
		}
	}
	if err := os.Truncate(filepath.Join(d.Path(), "a"), 0); err != nil {
		t.Fatal(err)
	}
	err := WaitAny([]Wait{{word, 0, false}}, -1)
	if err == nil || !strings.Contains(err.Error(), unix.EFAULT.Error()) {
		t.Errorf("memory is gone: %v, want %v", err, unix.EFAULT)
	}
	Wake(word, 1) // does no harm
}
