package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/path/pxn"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/tally"
	"github.com/railhop/railhop/internal/xfer"
)

// controlBytes is a control block in whole pages.
func controlBytes() int {
	page := os.Getpagesize()
	return (shmabi.ControlBytes + page - 1) / page * page
}

func geometry() lane.Geometry {
	return lane.Geometry{Slots: arenaSlots, SlotSize: slotBytes, MaxSpans: shmabi.MaxSpans}
}

const laneEpoch = 1

// serveLane is a relay that has sent each piece as soon as it sees it: it claims,
// reads and completes, until told to stop.
func serveLane(block []byte, stop *atomic.Uint64) error {
	c, err := shmabi.ControlAt(block)
	if err != nil {
		return err
	}
	rx := lane.NewRelay(lane.Map(c, 0), geometry(), 1)
	var b lane.Body
	for rx.Adopt() != shmabi.LaneReady && stop.Load() == 0 {
	}
	for ; stop.Load() == 0; rx.Flush() {
		seq, offer := rx.Look()
		if offer != lane.Piece {
			continue
		}
		if !rx.Claim(seq) {
			return fmt.Errorf("piece %d was taken back", seq)
		}
		if err := rx.Read(seq, &b); err != nil {
			return err
		}
		rx.Pass()
		rx.Complete(xfer.OK)
	}
	rx.Free()
	stop.Store(0)
	return nil
}

// otherRank is the relay, as the sender's path knows it: alive, and never asleep.
type otherRank struct{}

func (otherRank) Name() string                                { return "relay" }
func (otherRank) Epoch() uint64                               { return laneEpoch + 1 }
func (otherRank) Suspected(time.Duration) (bool, xfer.Reason) { return false, xfer.NoReason }
func (otherRank) Gone() bool                                  { return false }
func (otherRank) Watched() bool                               { return true }
func (otherRank) Leaving() xfer.Reason                        { return xfer.NoReason }
func (otherRank) Wake()                                       {}
func (otherRank) Fault(error)                                 {}
func (otherRank) Close() error                                { return nil }

// shares counts the shares that have ended.
type shares struct {
	ended int
	err   error
}

func (s *shares) Opened(n int) { s.ended -= n }

func (s *shares) Closed(_ uint64, err error) {
	s.ended++
	if err != nil {
		s.err = err
	}
}

// engineRates is rates through the engine's own way instead of the bare stream: shares
// queued, packed into pieces, described in the lane, copied, rung for, and reaped.
func (b *bench) engineRates(opts cuda.Options, piece func(slot uint64) []gpu.Copy) (values []float64, err error) {
	const pieces = 200
	p, err := cuda.Open(opts)
	if err != nil {
		return nil, err
	}
	d, err := p.Open(b.info.BusID)
	if err != nil {
		return nil, err
	}
	block, err := shmabi.ControlAt(b.block)
	if err != nil {
		return nil, err
	}
	mem := lane.Map(block, 0)
	bell, page := shmabi.Doorbell(b.block, 0)
	path := pxn.New(pxn.Options{
		Device: d, BusOf: func(uint64) string { return b.info.BusID }, Epoch: laneEpoch,
		Tally: tally.New(nil), Wake: func() {}, Credit: patience, NoCut: true, DeathCloses: true,
		Find: func(context.Context, string, func(uint64) bool) (*pxn.Claim, xfer.Reason, error) {
			mem.Store(lane.Word{Kind: lane.SenderEpoch}, laneEpoch)
			mem.Store(lane.Word{Kind: lane.State}, uint64(shmabi.LaneReady))
			return &pxn.Claim{
				Peer: otherRank{}, Mem: mem, Geometry: geometry(), Handle: b.handle, Arena: arenaBytes,
				Rails: map[string]uint32{"m1": 0}, DoorbellPage: page, DoorbellAt: bell,
			}, xfer.NoReason, nil
		},
		Direct: func(_ pxn.Item, why xfer.Reason) error { return fmt.Errorf("a piece would go direct: %v", why) },
	})
	start := time.Now()
	now := func() time.Duration { return time.Since(start) }
	stop := wordAt(b.shared, stopWord)
	stop.Store(0)
	if _, err := b.relay.ask(ask{Op: "lane"}); err != nil {
		return nil, err
	}
	target := &pxn.Target{Session: []byte("node-b:12345"), Fences: true}
	for i := range rounds + 1 {
		var o shares
		given, from := 0, time.Now()
		for n := 0; n < pieces || o.ended < given; {
			// As many as the lane has slots, and one to go on with.
			for at := now(); n < pieces && given-o.ended <= arenaSlots*len(piece(0)); n++ {
				for k, c := range piece(uint64(n) % arenaSlots) {
					it := pxn.Item{Span: xfer.Span{Source: c.Src, Dest: uint64(k+1) << 24, Length: c.Length}, Owner: &o, Target: target}
					given++
					if why := path.Submit(at, "m1", &it); why != xfer.NoReason {
						return nil, fmt.Errorf("piece %d: %v", n, why)
					}
				}
			}
			path.Step(now())
			if o.err != nil {
				return nil, o.err
			}
			if now() > patience {
				return nil, fmt.Errorf("%d of %d shares have ended after %v", o.ended, given, patience)
			}
		}
		if i > 0 { // one to warm up
			bytes := uint64(0)
			for _, c := range piece(0) {
				bytes += c.Length
			}
			values = append(values, float64(bytes)*pieces/time.Since(from).Seconds()/1e9)
		}
	}
	path.Release(now(), xfer.PXNOff)
	for end := now() + patience; !path.Idle(); path.Step(now()) {
		if now() > end {
			return nil, errors.New("the lane is not given back")
		}
	}
	stop.Store(1)
	var a answer
	return values, errors.Join(b.relay.wait(&a), path.Close(), d.Close())
}
