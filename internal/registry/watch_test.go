package registry

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

type seen struct {
	peer  *Peer
	event Event
}

func TestWatcher(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	events := make(chan seen, 16)
	w, err := r.Watch(func(p *Peer, e Event) { events <- seen{p, e} })
	if err != nil {
		t.Fatal(err)
	}
	// Peers that come after the watcher are watched, too.
	first, second := start(t, nil, "rank", root, "a"), start(t, nil, "rank", root, "b")
	firstName, secondName := first.read(), second.read()
	peers, _, err := r.Scan()
	if err != nil || len(peers) != 2 {
		t.Fatalf("%v, %v", peers, err)
	}
	for _, k := range []struct {
		kid  *kid
		name string
	}{{second, secondName}, {first, firstName}} {
		k.kid.kill()
		for _, want := range []Event{Died, Closed} {
			if got := <-events; got.peer.Name() != k.name || got.event != want {
				t.Errorf("%s: got %v of %s, want %v", k.name, got.event, got.peer.Name(), want)
			}
		}
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if len(events) != 0 {
		t.Errorf("%d more events", len(events))
	}
}

// Without a pidfd and with the longest heartbeat, only the life word can tell in
// time, and the one that the kernel wakes must wake the others.
func TestWatchersWakeEachOther(t *testing.T) {
	root := testRoot(t)
	k := start(t, nil, "rank", root)
	k.read()
	events := make(chan seen, 16)
	for range 3 {
		r := open(t, Options{Root: root, Processes: procsWith{namespace: 7}})
		w, err := r.watch(func(p *Peer, e Event) { events <- seen{p, e} }, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		onePeer(t, r)
	}
	time.Sleep(20 * time.Millisecond) // all three wait by now, or the test shows less
	k.kill()
	for range 3 {
		if got := <-events; got.event != Died {
			t.Errorf("got %v", got.event)
		}
	}
}

// A watcher sleeps while nothing happens, and a peer that plays with its life
// word does not keep it awake.
func TestWatcherSleeps(t *testing.T) {
	r, e, p := pair(t)
	w, err := r.watch(func(*Peer, Event) { t.Error("an event") }, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	onePeer(t, r)
	time.Sleep(20 * time.Millisecond)
	if n := w.Rounds(); n > 10 {
		t.Errorf("%d rounds for nothing", n)
	}
	word := &e.Block().Header.Life
	life := word.Load()
	for i := range uint32(20000) {
		word.Store(shmabi.LifeWaiters | i + 1)
		shm.Wake(word, shm.WaitMax)
	}
	if n := w.Rounds(); n > 200 {
		t.Errorf("%d rounds for a peer that plays", n)
	}
	word.Store(life)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if p.Life() != Alive {
		t.Errorf("life %v", p.Life())
	}
}

// The lock of a forked child goes without a signal: it is looked at once a
// heartbeat.
func TestWatcherSeesTheChildLetGo(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root, HeartbeatTimeout: 30 * time.Millisecond})
	k := start(t, nil, "forking", root)
	_, pid, _ := strings.Cut(k.read(), " ")
	onePeer(t, r)
	events := make(chan seen, 16)
	w, err := r.Watch(func(p *Peer, e Event) { events <- seen{p, e} })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	k.kill()
	if got := <-events; got.event != Died {
		t.Fatalf("got %v", got.event)
	}
	if err := unix.Kill(atoi(t, pid), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := <-events; got.event != Closed {
		t.Errorf("got %v", got.event)
	}
}

func TestRegistryCloseEndsWatchers(t *testing.T) {
	root := testRoot(t)
	r, err := Open(Options{Root: root, Group: group})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Watch(func(*Peer, Event) {}); err != nil {
		t.Fatal(err)
	}
	e, err := r.Publish(EntryOptions{Rails: []string{"a"}, SlotSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, group, e.Name())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("entry: %v", err)
	}
	if _, err := r.Watch(func(*Peer, Event) {}); err == nil {
		t.Error("watch after close")
	}
	if _, err := r.Publish(EntryOptions{Rails: []string{"a"}, SlotSize: 1 << 20}); err == nil {
		t.Error("publish after close")
	}
}
