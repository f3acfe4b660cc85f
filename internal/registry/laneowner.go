package registry

import (
	"errors"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/shmabi"
)

const whyUnlisted = "its entry is not known"

// LaneOwner is the sender of a lane of ours, as the relay judges it. It keeps
// the sender's entry open, and so known, after the entry has left the directory.
type LaneOwner struct {
	look  *looker
	id    shmabi.Identity
	epoch uint64
	peer  *Peer // nil: no such entry was found
	once  sync.Once
}

// LaneOwner finds the sender (id, epoch), dead or alive: senders have entries too,
// and the entry of a dead one stays until its lanes are free. It opens the entry
// if that is not open yet, and so may sleep. Close the result when the lane is
// free.
func (r *Registry) LaneOwner(id shmabi.Identity, epoch uint64) (*LaneOwner, error) {
	o := &LaneOwner{look: r.looker(), id: id, epoch: epoch}
	if o.peer = r.held(entryName(id, epoch)); o.peer == nil {
		if p, bad := r.find(entryName(id, epoch)); bad == nil {
			o.peer = p
			r.pokeWatchers()
		}
	}
	return o, nil
}

// Known reports whether the sender's entry was found.
func (o *LaneOwner) Known() bool { return o.peer != nil }

// Life is [Peer.Life]. Of a sender without an entry it is only known that it
// lives, if a process of this namespace answers to its identity.
func (o *LaneOwner) Life() Liveness {
	if o.peer != nil {
		return o.peer.Life()
	}
	if o.look.stat(o.id) == Alive {
		return Alive
	}
	return Unknown
}

// Suspected is [Peer.Suspected]. A sender without an entry is.
func (o *LaneOwner) Suspected(now time.Duration) (bool, string) {
	if o.peer == nil {
		return true, whyUnlisted
	}
	return o.peer.Suspected(now)
}

// Closed is [Peer.Closed]. A sender without an entry never is.
func (o *LaneOwner) Closed() bool { return o.peer != nil && o.peer.Closed() }

// Wake is [Peer.Wake].
func (o *LaneOwner) Wake() bool { return o.peer != nil && o.peer.Wake() }

// Close lets the sender's entry go, and removes it if its owner is closed: it was
// kept for the lane. It may sleep. A second call does nothing.
func (o *LaneOwner) Close() error {
	var err error
	if o.peer != nil {
		o.once.Do(func() {
			closed := o.peer.Closed()
			err = o.peer.drop()
			if closed {
				err = errors.Join(err, o.peer.r.Reclaim())
			}
		})
	}
	return err
}
