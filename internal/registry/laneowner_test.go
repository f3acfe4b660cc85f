package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/shmabi"
)

// TestDeadSenderKeepsItsEntry kills a sender whose lane nobody has looked at, and
// lets others scan first: its entry must be there for the lane's relay until the
// lane is free, and then go.
func TestDeadSenderKeepsItsEntry(t *testing.T) {
	root := testRoot(t)
	r, other := open(t, Options{Root: root}), open(t, Options{Root: root})
	e := publish(t, r, "mine")
	k := start(t, nil, "rank", root)
	name := k.read()
	id, epoch, _ := parseName(name)
	h := &e.Block().Lanes[2].Header
	h.Sender = id
	h.SenderEpoch.Store(epoch)
	h.State.Store(shmabi.LaneReady)
	k.kill()
	k.reap()
	file := filepath.Join(r.Path(), name)
	for _, who := range []*Registry{other, r} {
		if peers, _, err := who.Scan(); err != nil || len(peers) > 1 {
			t.Fatalf("%v, %v", peers, err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("the entry of a dead sender that holds a lane: %v", err)
		}
	}
	o, err := r.LaneOwner(id, epoch)
	if err != nil || !o.Known() || !o.Closed() {
		t.Fatalf("%+v, %v; want a known sender that is closed", o, err)
	}
	if err := e.freeLane(2); err != nil {
		t.Fatal(err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the entry of a dead sender without a lane: %v, want none", err)
	}
}

// TestClosedPeerLeavesNothing kills a peer that a scan has found, and claims
// nothing of it: with a watcher, its memory and its file go by themselves.
func TestClosedPeerLeavesNothing(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	w, err := r.Watch(func(*Peer, Event) {})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	k := start(t, nil, "rank", root)
	name := k.read()
	p := onePeer(t, r)
	k.kill()
	k.reap()
	gone := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		_, err := os.Stat(filepath.Join(r.Path(), name))
		return p.unmapped && os.IsNotExist(err)
	}
	for end := time.Now().Add(10 * time.Second); !gone(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a dead peer's memory or file is left")
		}
	}
}

// TestPeerThatLeft: a rank withdraws its entry, and its process lives on. The next
// scan lets its memory go, unless a lane of it was claimed.
func TestPeerThatLeft(t *testing.T) {
	for _, claimed := range []bool{false, true} {
		t.Run(fmt.Sprintf("claimed %v", claimed), func(t *testing.T) {
			root := testRoot(t)
			r := open(t, Options{Root: root})
			k := start(t, nil, "rank", root)
			k.read()
			p := onePeer(t, r)
			if claimed {
				if _, err := p.Claim(shmabi.Identity{UID: r.uid, PID: r.self.PID, StartTicks: r.self.StartTicks}, 7); err != nil {
					t.Fatal(err)
				}
			}
			k.say("leave")
			k.read()
			if peers, _, err := r.Scan(); err != nil || len(peers) > 0 {
				t.Fatalf("%v, %v; want nobody", peers, err)
			}
			if p.unmapped == claimed {
				t.Errorf("unmapped is %v", p.unmapped)
			}
			if err := p.Close(); err != nil || !p.unmapped {
				t.Errorf("after Close: %v, unmapped is %v", err, p.unmapped)
			}
		})
	}
}
