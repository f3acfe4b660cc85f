package registry

import (
	"io"
	"time"

	"github.com/railhop/railhop/internal/shmabi"
)

// Group is a [Registry] as a rank uses it, so that a test can play one. The
// methods are those of the types named beside them.
type Group interface {
	Publish(EntryOptions) (OwnEntry, error)
	Scan() ([]OtherRank, []Refusal, error)
	LaneOwner(id shmabi.Identity, epoch uint64) (LaneHolder, error)
	// Watch calls notify, from one goroutine, when a peer has died or is closed.
	Watch(notify func()) (io.Closer, error)
	Close() error
}

// OwnEntry is an [Entry].
type OwnEntry interface {
	Name() string
	Identity() shmabi.Identity
	Epoch() uint64
	Block() *shmabi.ControlBlock
	Beat(now time.Duration) error
	Off() bool
	SweepClaims() (int, error)
	WriteStats(Stats) error
	Withdraw() error
	Close() error
}

// OtherRank is a [Peer].
type OtherRank interface {
	Name() string
	Epoch() uint64
	Rails() []string
	HasRail(name string) (index int, ok bool)
	SlotSize() uint64
	ArenaSize() uint64
	ArenaHandle() [shmabi.HandleBytes]byte
	Block() *shmabi.ControlBlock
	Bytes() []byte
	Claim(sender shmabi.Identity, epoch uint64) (int, error)
	Suspected(now time.Duration) (bool, string)
	Closed() bool
	HasPidfd() bool
	Off() bool
	Stopping() bool
	Wake() bool
	Fault(err error) bool
	Close() error
}

// LaneHolder is a [LaneOwner].
type LaneHolder interface {
	Suspected(now time.Duration) (bool, string)
	Closed() bool
	Wake() bool
	Close() error
}

// OpenGroup is [Open].
func OpenGroup(o Options) (Group, error) {
	r, err := Open(o)
	if err != nil {
		return nil, err
	}
	return ranks{r}, nil
}

type ranks struct{ r *Registry }

func (g ranks) Publish(o EntryOptions) (OwnEntry, error) {
	e, err := g.r.Publish(o)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (g ranks) Scan() ([]OtherRank, []Refusal, error) {
	peers, refused, err := g.r.Scan()
	all := make([]OtherRank, len(peers))
	for i, p := range peers {
		all[i] = p
	}
	return all, refused, err
}

func (g ranks) LaneOwner(id shmabi.Identity, epoch uint64) (LaneHolder, error) {
	o, err := g.r.LaneOwner(id, epoch)
	if err != nil {
		return nil, err
	}
	return o, nil
}

func (g ranks) Watch(notify func()) (io.Closer, error) {
	w, err := g.r.Watch(func(*Peer, Event) { notify() })
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (g ranks) Close() error { return g.r.Close() }
