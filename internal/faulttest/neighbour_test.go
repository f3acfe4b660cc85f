package faulttest

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/shmabi"
)

// relayEntry is the control block of the only relay, as any process of its user
// may open it, and the lane in it that a sender has.
func (f *Fabric) relayEntry(sender int) (block []byte, lane int) {
	f.T.Helper()
	s, err := registry.View(registry.Options{Root: f.Registry, Group: "g"}, 0)
	if err != nil {
		f.T.Fatal(err)
	}
	lane = -1
	for _, r := range s.Ranks {
		if int(r.Owner.PID) != f.Relays[0].cmd.Process.Pid {
			continue
		}
		file, err := os.OpenFile(filepath.Join(f.Registry, "g", r.Name), os.O_RDWR, 0)
		if err != nil {
			f.T.Fatal(err)
		}
		defer file.Close()
		if block, err = unix.Mmap(int(file.Fd()), 0, shmabi.ControlBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			f.T.Fatal(err)
		}
		f.T.Cleanup(func() { unix.Munmap(block) })
		for i, l := range r.Lanes {
			if l.State == shmabi.LaneReady && int(l.Sender.PID) == f.Senders[sender].cmd.Process.Pid {
				lane = i
			}
		}
	}
	if block == nil || lane < 0 {
		f.T.Fatalf("no relay, or no lane of sender %d in it: %+v", sender, s.Ranks)
	}
	return block, lane
}

// laneHeader is the size of what a lane begins with.
const laneHeader = 64

// TestNeighbour scribbles over a relay's control block while two senders stream
// through it: over one sender's lane, over the header, and over all. Nobody breaks
// down or hangs; where it was the other sender's lane, nothing of the first's is
// wrong or fails; and a fresh relay serves both.
func TestNeighbour(t *testing.T) {
	for _, c := range []struct {
		name  string
		area  func(block []byte, lane int) []byte
		words int // of the start of the area that are hit most
		clean bool
	}{
		{"lane", func(b []byte, lane int) []byte {
			return b[shmabi.HeaderBytes+lane*shmabi.LaneBytes:][:shmabi.LaneBytes]
		}, laneHeader / 8, true},
		{"header", func(b []byte, _ int) []byte { return b[:shmabi.HeaderBytes] }, shmabi.HeaderBytes / 8, true},
		{"everything", func(b []byte, _ int) []byte { return b }, shmabi.HeaderBytes / 8, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := NewFabric(t, FabricOptions{Senders: 2, Targets: 2, Limit: 2 * time.Second})
			f.AwaitRelaying()
			block, lane := f.relayEntry(1)
			area := c.area(block, lane)
			rnd := rand.New(rand.NewPCG(*seed, 5))
			for end := time.Now().Add(time.Second); time.Now().Before(end); {
				for range 64 {
					at := rnd.IntN(len(area) / 8)
					if rnd.IntN(2) == 0 {
						at = rnd.IntN(c.words)
					}
					v := rnd.Uint64()
					if rnd.IntN(2) == 0 {
						v = rnd.Uint64N(32) // as states and sequences are
					}
					binary.LittleEndian.PutUint64(area[8*at:], v)
				}
				time.Sleep(time.Millisecond)
			}
			for _, p := range [...]*Process{f.Senders[0], f.Senders[1], f.Relays[0]} {
				p.Status() // it answers
			}
			// The second has written by a lane that was not its own alone.
			f.StopStream(1, true)
			if c.clean {
				f.StopStream(0, false)
				if s := f.Targets[0].Do(command{Op: "settle"}).Sink; s.Wrong+s.Late+s.Double > 0 {
					t.Errorf("the other sender's target has seen %+v", *s)
				}
			} else {
				f.StopStream(0, true)
			}
			f.Relays[0].Kill()
			f.Relays[0].Reap()
			f.StartRelay(0)
			before := [...]SinkCounts{*f.Targets[0].Do(command{Op: "settle"}).Sink, *f.Targets[1].Do(command{Op: "settle"}).Sink}
			f.Stream(0)
			f.Stream(1)
			f.AwaitRelaying()
			time.Sleep(100 * time.Millisecond)
			for i, p := range f.Targets {
				s := p.Do(command{Op: "settle"}).Sink
				if s.Writes == before[i].Writes || s.Wrong > before[i].Wrong || s.Late > before[i].Late {
					t.Errorf("afterwards, target %d has seen %+v, %+v before", i, *s, before[i])
				}
			}
		})
	}
}

// TestFlood lets strangers connect to a target while writes go on: many at once,
// slow ones, halves of frames, garbage, and two hundred and forty that ask for a
// handshake. Writes go on, and the target serves others afterwards.
func TestFlood(t *testing.T) {
	t.Parallel()
	f := NewFabric(t, FabricOptions{})
	f.AwaitRelaying()
	at := f.Targets[0].Name
	frame := func(n uint64, body string) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), body...) }
	hellos := [][]byte{
		frame(0, ""), []byte("GET / HTTP/1.1\r\n\r\n"), {0x16, 3, 1, 2, 0, 1, 0, 1}, frame(1<<20+1, ""),
		frame(10, "half"), frame(2, "{}"), nil, frame(1<<63, ""), frame(3, "\x00{}"), frame(64, "\x00"+strings.Repeat("[", 63)),
	}
	var strangers sync.WaitGroup
	const at240 = 240
	for i := range at240 {
		strangers.Go(func() {
			c, err := net.Dial("tcp", at)
			if err != nil {
				return // refused is an answer
			}
			defer c.Close()
			for _, b := range hellos[i%len(hellos)] {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				if i%3 == 0 {
					time.Sleep(5 * time.Millisecond)
				}
			}
			c.SetReadDeadline(time.Now().Add(Patience))
			if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
				t.Errorf("stranger %d is not shut out within %v", i, Patience)
			}
		})
	}
	f.Relays[0].Kill() // so that fences and handshakes are among them
	f.Relays[0].Reap()
	f.StartRelay(0)
	f.AwaitRelaying()
	strangers.Wait()
	f.AwaitRelaying()
	if sum := f.Close(); sum.Wrong+sum.Late+sum.Lost+sum.Double > 0 {
		t.Errorf("wrong, late, lost, double: %+v, want none", sum)
	}
}
