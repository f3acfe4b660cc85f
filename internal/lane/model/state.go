package model

const (
	maxSenders = 2
	maxLanes   = 2
	maxSlots   = 3
	maxPieces  = 4
	maxQueue   = 14
)

// state is everything that decides what can happen. All of it is bytes, so that
// it has no padding and can be hashed as it is.
type state struct {
	lanes   [maxLanes]laneMem
	pieces  [maxSenders * maxPieces]piece
	senders [maxSenders]sender
	relay   relay
	worlds  [maxSenders]world
	shared  shared
}

// laneMem is a lane of the control block, its slots, and what the relay's NIC has
// posted from them.
type laneMem struct {
	state, attached, epoch, head, bell, completed uint8
	identity                                      uint8           // of the sender, 0 none
	commit                                        [maxSlots]uint8 // bit 7 is the claim
	bodyEpoch                                     [maxSlots]uint8
	bodyFront, bodyBack                           [maxSlots]uint8 // the piece, as either half says
	doneSeq                                       [maxSlots]uint8
	doneStatus                                    [maxSlots]uint8 // index in statuses
	slot                                          [maxSlots]uint8 // the piece whose bytes it holds
	posted                                        [maxSlots]post
}

// post is work that the relay has given to its NIC.
type post struct {
	state  uint8 // 0, posted or applied
	live   uint8 // its queue pairs are open at the target: never, still, no longer
	target uint8 // the piece whose destination it writes
}

const (
	posted  = 1
	applied = 2
)

const (
	open  = 1
	ended = 2
)

// piece is a destination in the target, and the share that waits for it. Piece 0
// is none; they count from 1.
type piece struct {
	content uint8 // what is at the destination
	ended   uint8 // the caller was told, and has used source and destination again
}

const (
	untouched = 0
	right     = 1
	wrong     = 2
)

// world is what of a sender outlives its steps.
type world struct {
	life   uint8
	wake   uint8 // its wake word
	fence  uint8 // its request to the target: none, asked, confirmed
	broken uint8 // its GPU has failed
	lane   uint8 // that its stream writes to
	using  uint8 // it may access the lane
	queued uint8
	queue  [maxQueue]uint8 // of its stream
}

const (
	alive  = 0
	dead   = 1 // takes no more steps; its GPU or NIC may
	closed = 2 // and they do not either
)

const (
	asked     = 1
	confirmed = 2
)

// shared is the rest of the world.
type shared struct {
	life     uint8 // of the relay
	wake     uint8 // its wake word
	stopped  uint8 // the relay has been stopped: its heartbeat may be found stale
	live     uint8 // its newest queue pairs are open at the target
	cut      uint8 // the relay's file is: it takes no more steps, and its memory is gone
	leaving  uint8 // the relay takes nothing new, and will be gone
	bound    uint8 // those that the piece being taken is bound to are
	flock    uint8 // holder: 0 none, 1 and up a sender, 0xff the relay
	claims   uint8 // left
	faults   uint8 // left
	patience uint8 // left
}

// run is an action underway.
type run struct {
	action uint8 // 0 none
	param  uint8
	done   uint8 // accesses made
	read   uint8 // of them reads
	record [maxReads]uint8
}

const maxReads = 12

// sender is what a sender's pump knows. It is saved when an action ends.
type sender struct {
	run         run
	attached    uint8
	lane        uint8
	tx          [3 + 2*maxSlots]uint8 // the lane.Sender
	flight      [maxSlots]inFlight
	linger      uint8 // pieces reaped whose shares are held, by index
	lingerMark  uint8 // those of them with an event recorded
	rungSeen    uint8
	quarantined uint8
	broken      uint8 // it knows that its stream has failed
	leaving     uint8 // it, or its relay, leaves
	stopping    uint8 // its relay does
	asking      uint8
	asked       uint8
	fenced      uint8
	blind       uint8 // the lane's memory is gone
	head        uint8 // the piece that is being published
	next        uint8 // index of the piece to be published next
	parked      uint8
}

type inFlight struct {
	piece uint8
	state uint8
	flags uint8
}

// States of a piece, as in path/pxn.
const (
	flying  = 1
	closing = 2
	moved   = 3
)

// Flags of a piece.
const (
	rung     = 1
	recorded = 2
	held     = 4
)

// relay is what the relay's pump knows.
type relay struct {
	run    run
	parked uint8
	lanes  [maxLanes]inLane
}

type inLane struct {
	rx     [4]uint8 // the lane.Relay
	state  uint8
	sender uint8 // 1 and up; 0 unknown
	count  uint8
	jobs   [maxSlots]job // in order, the first is the next to be completed
}

// States of a lane, as in internal/relay.
const (
	laneFree     = 0
	laneClaiming = 1
	laneAdopting = 2
	laneActive   = 3
)

type job struct {
	state  uint8
	status uint8 // index in statuses
}

const (
	jobOpen = 1 // its NIC is at it
	jobOver = 2
)
