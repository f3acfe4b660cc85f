package faulttest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/shmabi"
)

// FabricOptions says how many processes a [Fabric] has. Zero means one.
type FabricOptions struct {
	Senders, Relays, Targets int
	Touch                    uint64 // bytes that each process uses
	Slot                     uint64 // bytes of the longest write; zero means 128 KiB
	Depth                    int    // writes of a sender at once; zero means 3
	Set                      Settings
	Bug                      Bug           // of the senders
	Limit                    time.Duration // of each write; zero means patience
	// Wire keeps bytes on their way to the first target, the only one, while the
	// relay dies, which is the only one. That target is not killed.
	Wire bool
}

// Fabric is a group of senders and relays that share a host, and targets elsewhere.
// Every sender streams to a target without pause.
type Fabric struct {
	T                        testing.TB
	Registry                 string
	Senders, Relays, Targets []*Process

	o       FabricOptions
	wire    fabricWire // nil if there is none
	id      int32
	sockets []string
	opened  int
	done    []Tally // of the processes that have ended
}

// Tally is what has become of everything that was written. All but Writes should
// be 0.
type Tally struct {
	Writes, Wrong, Late, Lost, Double uint64
}

// The streams' shape. A ring is longer than what is under way at any time, so that
// most of it is watched.
const (
	ringSlots = 64
	slotSize  = 128 << 10 // if nothing else is said
	depth     = 3         // likewise
)

// NewFabric starts the processes and their streams.
func NewFabric(t testing.TB, o FabricOptions) *Fabric {
	t.Helper()
	o.Senders, o.Relays, o.Targets = max(o.Senders, 1), max(o.Relays, 1), max(o.Targets, 1)
	o.Slot, o.Depth = cmp.Or(o.Slot, slotSize), cmp.Or(o.Depth, depth)
	root, err := os.MkdirTemp("/dev/shm", "railhop-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	f := &Fabric{
		T: t, Registry: root, o: o, id: nodes.Add(1) % 200, sockets: make([]string, o.Targets),
		Senders: make([]*Process, o.Senders), Relays: make([]*Process, o.Relays), Targets: make([]*Process, o.Targets),
	}
	for i := range f.Targets {
		f.StartTarget(i)
	}
	if o.Wire {
		f.wire = newFabricWire(t, f.Targets[0])
	}
	for i := range f.Relays {
		f.StartRelay(i)
	}
	for i := range f.Senders {
		f.StartSender(i)
	}
	return f
}

func (f *Fabric) options(nic, gpu string, pxn bool) Options {
	o := Options{Registry: f.Registry, Touch: f.o.Touch, Quiet: true, Set: Settings{
		"RAILHOP_PROVIDERS": "soft", "RAILHOP_SOFT_NICS": nic, "RAILHOP_SOFT_GPUS": gpu,
	}}
	if pxn {
		o.Set["MC_PXN_ENABLE"] = "1"
		o.Set["MC_PXN_GROUP_ID"] = "g"
		o.Set["MC_PXN_SLOT_SIZE"] = "256KiB"
		o.Set["MC_PXN_HEARTBEAT_TIMEOUT_MS"] = "400"
	}
	for k, v := range f.o.Set {
		o.Set[k] = v
	}
	return o
}

// StartRelay starts a relay on rail m1.
func (f *Fabric) StartRelay(i int) {
	// Of the senders' host, so that real devices other than the targets' play it.
	o := f.options(fmt.Sprintf("m1=127.%d.1.%d", f.id+20, i+101), fmt.Sprintf("0000:b%d:00.0", i), true)
	if w, ok := f.wire.(*Wire); ok {
		o.Wire = w.Addr()
	}
	f.Relays[i] = Start(f.T, fmt.Sprintf("relay %d", i), o)
}

// StartTarget starts a target on rail m1, with a ring for each of its senders and
// for those that come after them.
func (f *Fabric) StartTarget(i int) {
	f.opened++
	p := Start(f.T, fmt.Sprintf("target %d", i),
		f.options(fmt.Sprintf("m1=127.%d.3.%d", f.id+20, i+1), fmt.Sprintf("0000:c%d:00.0", i), false))
	f.Targets[i], f.sockets[i] = p, filepath.Join(f.Registry, fmt.Sprintf("sink.%d", f.opened))
	p.Do(command{Op: "sink", Name: f.sockets[i], Slots: ringSlots, Size: f.o.Slot, Rings: 2 * f.o.Senders})
}

// StartSender starts a sender on rail m0, and its stream.
func (f *Fabric) StartSender(i int) {
	o := f.options(fmt.Sprintf("m0=127.%d.1.%d", f.id+20, i+1), fmt.Sprintf("0000:a%d:00.0", i), true)
	o.Bug = f.o.Bug
	f.Senders[i] = Start(f.T, fmt.Sprintf("sender %d", i), o)
	f.Stream(i)
}

// target is where a sender writes to.
func (f *Fabric) target(sender int) int { return sender % len(f.Targets) }

// Stream begins the stream of a sender.
func (f *Fabric) Stream(sender int) {
	f.T.Helper()
	i := f.target(sender)
	f.Senders[sender].Do(command{
		Op: "stream", Name: f.Targets[i].Name, Socket: f.sockets[i], Depth: f.o.Depth, Seed: uint64(f.opened)<<32 | uint64(sender),
		Limit: int(cmp.Or(f.o.Limit, patience).Milliseconds()),
	})
}

// StopStream ends the stream of a sender, whose writes must all have gone well
// unless its target has ended.
func (f *Fabric) StopStream(sender int, targetGone bool) {
	f.T.Helper()
	c := f.Senders[sender].Do(command{Op: "stop stream"}).Stream
	var t Tally
	t.Lost = c.Begun - c.Completed - c.Failed
	if c.Failed > 0 && !targetGone {
		t.Lost += c.Failed
		f.T.Errorf("sender %d: %d writes have failed, the first with %s", sender, c.Failed, c.Err)
	}
	f.done = append(f.done, t)
}

// AwaitRelaying waits until every sender's bytes go through a relay. The streams
// must be on.
func (f *Fabric) AwaitRelaying() {
	f.T.Helper()
	for i := range f.Senders {
		f.AwaitRelayed(i)
	}
}

// AwaitRelayed waits until a sender's bytes go through a relay.
func (f *Fabric) AwaitRelayed(i int) {
	f.T.Helper()
	p := f.Senders[i]
	before := p.Status().Stats
	AwaitStatus(p, "the stream goes through a relay", func(s *Status) bool {
		ok := s.Stats.Relayed.Bytes > before.Relayed.Bytes
		before = s.Stats
		return ok
	})
}

// AwaitLanesFreed waits until no relay's lane is a process's.
func (f *Fabric) AwaitLanesFreed(pid int) {
	f.T.Helper()
	held := func() bool {
		s, err := registry.View(registry.Options{Root: f.Registry, Group: "g"}, 0)
		if err != nil {
			f.T.Fatal(err)
		}
		for _, r := range s.Ranks {
			for _, l := range r.Lanes {
				if l.State != shmabi.LaneFree && int(l.Sender.PID) == pid {
					return true
				}
			}
		}
		return false
	}
	for end := time.Now().Add(Patience); held(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			f.T.Fatalf("the dead sender %d still has a lane after %v", pid, Patience)
		}
	}
}

// Park makes the targets keep what completes next until [Fabric.Settle].
func (f *Fabric) Park() {
	for _, p := range f.Targets {
		p.Do(command{Op: "park", Slots: ringSlots / 2})
	}
}

// Settle looks at everything that is parked.
func (f *Fabric) Settle() {
	f.T.Helper()
	for _, p := range f.Targets {
		p.Do(command{Op: "settle"})
	}
}

// retire keeps the counts of a target that is to end.
func (f *Fabric) retire(i int) {
	f.T.Helper()
	f.done = append(f.done, f.Targets[i].Do(command{Op: "settle"}).Sink.tally())
}

func (c *SinkCounts) tally() Tally {
	return Tally{Writes: c.Writes, Wrong: c.Wrong, Late: c.Late, Double: c.Double}
}

// Seen is what the targets have seen so far.
func (f *Fabric) Seen() Tally {
	f.T.Helper()
	var sum Tally
	for _, p := range f.Targets {
		sum.add(p.Do(command{Op: "settle"}).Sink.tally())
	}
	return sum
}

func (t *Tally) add(o Tally) {
	t.Writes += o.Writes
	t.Wrong += o.Wrong
	t.Late += o.Late
	t.Lost += o.Lost
	t.Double += o.Double
}

// Close ends the streams and the engines, of which nothing must be left, and says
// what has become of all that was written.
func (f *Fabric) Close() Tally {
	f.T.Helper()
	for i, p := range f.Senders {
		f.StopStream(i, false)
		s := p.Status().Stats
		went := s.Relayed.Bytes + s.DirectCrossRail.Bytes + s.DirectSameRail.Bytes + s.Failed.Bytes
		if went != s.Submitted.Bytes {
			f.T.Errorf("sender %d: %d bytes were submitted, %d are accounted for", i, s.Submitted.Bytes, went)
		}
		p.Close()
	}
	for _, p := range f.Relays {
		p.Close()
	}
	for i, p := range f.Targets {
		f.retire(i)
		p.Close()
	}
	var sum Tally
	for _, t := range f.done {
		sum.add(t)
	}
	return sum
}
