package faulttest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/testkit"
)

// nodes counts those of this process, so that none shares an address.
var nodes atomic.Int32

// Node is two ranks of a group, a sender on rail m0 and a relay on rail m1, and a
// target on rail m1 elsewhere: what the sender writes goes through the relay.
type Node struct {
	T                     testing.TB
	Registry              string
	Sender, Relay, Target *Process
	Wire                  *Wire // between relay and target; nil with real NICs
	Src, Dst, Size        uint64

	id    int32
	relay Options
	send  Options
}

// Seeds of the bytes that tests write.
const (
	Poison  = 100 // what is there before
	Written = 101 // what the sender writes
	Reused  = 102 // what the target puts there afterwards
)

// NewNode starts the processes of a node, and gives sender and target memory of
// size bytes. What is zero in relay and sender is filled in.
func NewNode(t testing.TB, size uint64, relay, sender Options) *Node {
	t.Helper()
	n := &Node{T: t, Size: size, id: nodes.Add(1) % 200}
	root, err := os.MkdirTemp("/dev/shm", "railhop-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	n.Registry = root
	n.Target = Start(t, "target", Options{Registry: root, Stage: Handshake, Set: Settings{
		"RAILHOP_PROVIDERS": "soft",
		"RAILHOP_SOFT_NICS": fmt.Sprintf("m1=127.%d.2.2", n.id+20),
		"RAILHOP_SOFT_GPUS": "0000:b1:00.0",
	}})
	if len(testkit.RealDevices()) == 0 { // a software NIC can be led by the nose
		n.Wire = NewWire(t, n.Target.NIC)
		relay.Wire = n.Wire.Addr()
	}
	relay.Registry, relay.Set = root, n.rank(1, relay.Set)
	sender.Registry, sender.Set = root, n.rank(0, sender.Set)
	n.relay, n.send = relay, sender
	n.Relay = Start(t, "relay", relay)
	n.StartSender(sender)
	n.Dst = n.Target.Memory(size)
	n.Target.Fill(n.Dst, size, Poison)
	return n
}

// rank is the settings of a rank, and more. Timeouts are short: tests wait for
// them.
func (n *Node) rank(i int, more Settings) Settings {
	s := Settings{
		"RAILHOP_PROVIDERS":           "soft",
		"RAILHOP_SOFT_NICS":           fmt.Sprintf("m%d=127.%d.1.%d", i, n.id+20, i+1),
		"RAILHOP_SOFT_GPUS":           fmt.Sprintf("0000:a%d:00.0", i),
		"MC_PXN_ENABLE":               "1",
		"MC_PXN_GROUP_ID":             "g",
		"MC_PXN_SLOT_SIZE":            "256KiB",
		"MC_PXN_CREDIT_TIMEOUT_MS":    "1000",
		"MC_PXN_HEARTBEAT_TIMEOUT_MS": "1500",
	}
	for k, v := range more {
		if k == "RAILHOP_SOFT_NICS" {
			v = s[k] + "," + v // options
		}
		s[k] = v
	}
	return s
}

// StartSender starts a sender, with the settings of the first if o has none.
func (n *Node) StartSender(o Options) {
	n.T.Helper()
	if o.Set == nil {
		o.Set, o.Registry = n.send.Set, n.Registry
	}
	n.Sender = Start(n.T, "sender", o)
	n.Src = n.Sender.Memory(n.Size)
	n.Sender.Fill(n.Src, n.Size, Written)
}

// RestartRelay starts a relay like the first, without its faults.
func (n *Node) RestartRelay() {
	n.T.Helper()
	n.Relay = Start(n.T, "relay again", Options{Set: n.relay.Set, Registry: n.Registry, Wire: n.relay.Wire})
}

// Begin begins a write of everything.
func (n *Node) Begin(limit time.Duration) <-chan Answer {
	n.T.Helper()
	return n.Sender.Write(n.Target.Name, n.Src, n.Dst, n.Size, limit)
}

// Write writes everything.
func (n *Node) Write() {
	n.T.Helper()
	n.Complete(n.Begin(Patience))
}

// Complete wants a write to end well.
func (n *Node) Complete(a <-chan Answer) {
	n.T.Helper()
	if r := n.Sender.Await("write", a); r.Err != "" {
		n.T.Fatalf("write: %s", r.Err)
	}
}

// Warm writes until everything goes through the relay, and poisons the target
// again.
func (n *Node) Warm() {
	n.T.Helper()
	n.AwaitRelayed()
	n.Target.Verify(n.Dst, n.Size, Written)
	n.Target.Fill(n.Dst, n.Size, Poison)
}

// AwaitRelayed writes until a whole write has gone through the relay.
func (n *Node) AwaitRelayed() {
	n.T.Helper()
	end := time.Now().Add(Patience)
	for {
		before := n.Sender.Status().Stats.Relayed.Bytes
		n.Write()
		if n.Sender.Status().Stats.Relayed.Bytes == before+n.Size {
			return
		}
		if time.Now().After(end) {
			n.T.Fatalf("the relay is not used within %v: %+v", Patience, n.Sender.Status().Stats)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Balance wants every byte that was submitted to be counted once.
func (n *Node) Balance() {
	n.T.Helper()
	s := n.Sender.Status().Stats
	if went := s.Relayed.Bytes + s.DirectCrossRail.Bytes + s.DirectSameRail.Bytes + s.Failed.Bytes; went != s.Submitted.Bytes {
		n.T.Errorf("%d bytes were submitted, %d relayed, %d direct and %d failed",
			s.Submitted.Bytes, s.Relayed.Bytes, s.DirectCrossRail.Bytes+s.DirectSameRail.Bytes, s.Failed.Bytes)
	}
}

// AwaitStatus waits until a process says what is wanted.
func AwaitStatus(p *Process, what string, ok func(*Status) bool) {
	p.t.Helper()
	for end := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		s := p.Status()
		if ok(s) {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: not so within %v: %s; it says %+v", p.role, Patience, what, s)
		}
	}
}

// AwaitLanes waits until so many lanes of the group's ranks are taken.
func (n *Node) AwaitLanes(want int) {
	n.T.Helper()
	for end := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		s, err := registry.View(registry.Options{Root: n.Registry, Group: "g"}, 0)
		if err != nil {
			n.T.Fatal(err)
		}
		taken := 0
		for _, r := range s.Ranks {
			for _, l := range r.Lanes {
				if l.State != shmabi.LaneFree {
					taken++
				}
			}
		}
		if taken == want {
			return
		}
		if time.Now().After(end) {
			n.T.Fatalf("%d lanes are taken, want %d within %v: %+v", taken, want, Patience, s.Ranks)
		}
	}
}

// AwaitMaps waits until a process maps so many files of the registry.
func AwaitMaps(p *Process, want int) {
	p.t.Helper()
	AwaitStatus(p, fmt.Sprintf("%d files of the registry are mapped", want), func(s *Status) bool { return s.Maps == want })
}

// Bytes is what was counted under a reason.
func (s *Status) Bytes(r railhop.Reason) uint64 { return s.Stats.Reasons[r].Bytes }

// Close closes the engines. Nothing may be left in the processes, nor on disk but
// the group's lock.
func (n *Node) Close() {
	n.T.Helper()
	n.Sender.Close()
	n.Relay.Close()
	n.Target.Close()
	left, err := os.ReadDir(filepath.Join(n.Registry, "g"))
	if err != nil {
		n.T.Error(err)
	}
	for _, e := range left {
		if e.Name() != ".lock" {
			n.T.Errorf("left behind: %s", e.Name())
		}
	}
}
