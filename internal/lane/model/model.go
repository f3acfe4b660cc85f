// Package model checks the lane exhaustively: every interleaving of two senders,
// their GPU streams, a relay, its NIC and the target's fence, with a crash or a
// stop before any step of any of them, over a ring of three slots that is claimed
// again by another sender (pxn.md 3 and 5-8).
//
// It drives the real [lane.Sender] and [lane.Relay], so that it cannot drift from
// them: the model is their [lane.Mem]. One access is one step, and a descriptor's
// body takes two, so that torn reads show. An action, such as "reap" or "take",
// is a Go function that runs from its start in each step: accesses already made
// are answered from a record, one more is made, and at the next the run is given
// up. The state is thus plain data (memory words, the ends' own few numbers, and
// the records of actions underway), which is hashed, compared and restored.
//
//	state ──> for each actor: its action underway, or each action it may begin
//	          ──> run again, one access further ──> checks ──> new state?
//
// What lies above the lane (when to revoke, fence, drain, complete and free) is
// written here as actions that mirror internal/path/pxn, internal/relay,
// internal/registry and internal/pump; each names what it mirrors. Where the real
// loop goes through its sources in an order, the model's actors may take them in
// any order.
//
// A stop needs no steps: a process that is not scheduled is a stopped one, and
// its GPU and NIC have steps of their own. Only that others see it matters, and
// that is counted as a fault.
package model

import "fmt"

// Bug is a mistake planted to see that the model finds it.
type Bug uint8

const (
	None Bug = iota

	NoClaim          // the relay posts without claiming
	BindAfterClaim   // the relay picks its queue pairs after the claim
	Repost           // the relay posts a claimed piece again on new queue pairs
	CompleteEarly    // the relay completes before its NIC is done
	SequenceFirst    // a completion's sequence is stored before its status
	FreeOutstanding  // a dead sender's lane is freed while work is posted for it
	FreeOnSuspicion  // a lane is freed when its sender is dead, not closed
	FreeStateFirst   // a lane's state is stored before its words are cleared
	ForgetsDead      // a relay cannot find a sender that died before it was adopted
	RelayWakesFirst  // the relay wakes the sender before it completes
	RelayLooksOnce   // the relay parks without a look after its announcement
	BellBeforeCopy   // the stream rings before it copies
	BellBeforeCommit // the sender rings before it commits
	SenderWakesFirst // the sender wakes the relay before it commits
	SkipFence        // a claimed piece goes direct at once
	FenceCoversAll   // a fence counts for pieces that were claimed after it
	ReuseOnRevoke    // a revoked piece's slot is used again at once
	EndOnRevoke      // a revoked piece ends while its copy may still read its source
	DropOnError      // an error completion before the bell was seen loses the piece
	RingUncopied     // what is left is rung for although its copy failed
	ExitBlind        // a relay that leaves frees its arena by what it knows of its lanes
	LostInPublish    // a piece whose descriptor's memory is gone is forgotten
	LostInReap       // and so is one whose lane's memory is gone while it is reaped
	BlindClaim       // what a blind lane cannot revoke is taken for copied
	DeadStreamUnseen // nobody looks whether the stream of a silent piece failed
	bugs
)

var bugNames = [...]string{
	"none", "no claim", "bind after claim", "repost", "complete early", "sequence before status", "free with work outstanding",
	"free on suspicion", "free state first", "forgets a dead sender", "relay wakes before it stores", "relay looks once",
	"bell before copy", "bell before commit", "sender wakes before it stores", "skip the fence",
	"fence covers what is claimed later", "slot reused on revoke", "source freed on revoke", "piece dropped on error",
	"uncopied piece rung", "arena freed unseen", "piece lost in publish", "piece lost in reap", "blind claim", "dead stream unseen",
}

func (b Bug) String() string { return bugNames[b] }

// Config bounds a run.
type Config struct {
	Name     string
	Senders  int  // 1 or 2
	Lanes    int  // 1 or 2
	Slots    int  // of a lane, 1 to 3
	Pieces   int  // of a sender, 1 to 4
	Epochs   int  // how often a lane is claimed, in all
	Faults   int  // crashes, stops, failed GPUs and broken queue pairs
	Patience int  // how often a piece is taken back from a healthy relay: credit timeouts and aborts
	Stops    bool // the relay may leave
	CPUBell  bool // the CPU rings, not the stream
	Leave    bool // senders may give their lane back before their last piece
	Truncate bool // the relay's file may be cut short, which counts as a fault
	Outlives bool // posted work outlives its process, as the software NIC's; only the fence counts
	Park     bool // the pumps sleep; a sender that waits for its relay relies on being woken
	Strict   bool // so does a relay that waits for a sender's GPU, which does not fail then
	Fine     bool // every access is a step, private ones too
	Bug      Bug
	Max      int // states; 0 means no bound
}

// Result is what a run found.
type Result struct {
	States, Steps int
	Depth         int
	Complete      bool // all states were explored
	Finals        int  // states in which everything has ended
	Violation     *Violation
}

// Violation is a broken property, and how to get there.
type Violation struct {
	Property string
	Detail   string
	Trace    []string
}

func (v *Violation) Error() string {
	s := v.Property + ": " + v.Detail
	for i, step := range v.Trace {
		s += fmt.Sprintf("\n%4d  %s", i+1, step)
	}
	return s
}
