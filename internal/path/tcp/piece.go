package tcp

import (
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/iov"
	"github.com/railhop/railhop/internal/xfer"
)

const none int32 = -1

// place is where a piece is.
type place uint8

const (
	nowhere  place = iota // free
	toStage               // waits for staging memory
	copying               // a copy from or to GPU memory is under way
	queued                // at its peer
	awaiting              // a descriptor
	flying                // on a connection
)

// piece is one request of the protocol.
type piece struct {
	next  int32 // in the list that it is in
	where place
	tries uint8 // connections lost under it
	fresh bool  // its range was looked up in a descriptor fetched for it
	op    xfer.Opcode
	peer  *peer
	conn  *conn // where it flies
	owner Owner
	since time.Duration // when it began to wait for a descriptor with its range
	cause error         // why it is not to be gone on with

	local, remote, length uint64

	dev   gpu.Device // of local, nil for host memory
	stage []byte     // stands in for GPU memory
}

// host is where the payload lies, or comes, in host memory.
func (s *piece) host() uint64 {
	if s.stage != nil {
		return uint64(iov.Of(s.stage).Base)
	}
	return s.local
}

// list is a queue of pieces, linked by their next.
type list struct {
	head, tail int32
	n          int
}

func (p *Path) push(l *list, i int32) {
	p.pieces[i].next = none
	if l.n == 0 {
		l.head = i
	} else {
		p.pieces[l.tail].next = i
	}
	l.tail = i
	l.n++
}

func (p *Path) pop(l *list) int32 {
	i := l.head
	l.head = p.pieces[i].next
	l.n--
	return i
}

// take empties a list and returns what was in it.
func (l *list) take() list {
	all := *l
	*l = list{}
	return all
}

func (p *Path) newPiece(w *Work, pr *peer) int32 {
	i := p.free
	if i != none {
		p.free = p.pieces[i].next
	} else {
		i = int32(len(p.pieces))
		p.pieces = append(p.pieces, piece{})
	}
	p.pieces[i] = piece{next: none, op: w.Op, peer: pr, owner: w.Owner, local: w.Local, remote: w.Remote, length: w.Length}
	p.open++
	pr.open++
	return i
}

// end closes a piece that is in no list, has no copy under way, and of which
// nothing moves any more.
func (p *Path) end(i int32, err error) {
	s := &p.pieces[i]
	owner, bytes := s.owner, s.length
	if err != nil {
		bytes = 0
		p.counts.failed.Add(1)
	}
	s.peer.open--
	p.open--
	p.unstage(s.stage)
	*s = piece{next: p.free}
	p.free = i
	owner.Closed(bytes, err)
}

// purge ends the pieces of a list that have a cause to.
func (p *Path) purge(l *list) {
	all := l.take()
	for all.n > 0 {
		i := p.pop(&all)
		if cause := p.pieces[i].cause; cause != nil {
			p.end(i, cause)
		} else {
			p.push(l, i)
		}
	}
}
