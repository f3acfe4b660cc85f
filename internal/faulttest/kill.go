package faulttest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// fault is what a round of [Kill] does.
type fault string

const (
	killRelay  fault = "relay killed"
	stopRelay  fault = "relay stopped and woken"
	killSender fault = "sender killed"
	stopSender fault = "sender stopped and woken"
	killTarget fault = "target killed"
	stopTarget fault = "target stopped and woken"
)

// watchedLate is how long is waited for late bytes after a death.
const watchedLate = 150 * time.Millisecond

// faults are drawn from; relays are what this is about.
var faults = [...]fault{
	killRelay, killRelay, killRelay, killRelay, killRelay, killRelay,
	stopRelay, stopRelay, killSender, killSender, stopSender, killTarget, stopTarget,
}

// Report is what rounds of faults have shown.
type Report struct {
	Rounds map[fault]int
	Tally
	// After a relay's death.
	Suspected, FirstByte, Completed []time.Duration
}

func (r *Report) String() string {
	var b strings.Builder
	for _, f := range []fault{killRelay, stopRelay, killSender, stopSender, killTarget, stopTarget} {
		fmt.Fprintf(&b, "%5d  %s\n", r.Rounds[f], f)
	}
	fmt.Fprintf(&b, "%d writes; %d bytes wrong, %d late; %d writes lost, %d double\n", r.Writes, r.Wrong, r.Late, r.Lost, r.Double)
	fmt.Fprintf(&b, "after a relay's death  %8s %10s %10s %10s\n", "n", "p50", "p99", "max")
	for _, q := range []struct {
		name  string
		times []time.Duration
	}{{"suspected", r.Suspected}, {"first byte", r.FirstByte}, {"completed", r.Completed}} {
		t := slices.Sorted(slices.Values(q.times))
		if len(t) == 0 {
			continue
		}
		at := func(p int) time.Duration { return t[min(len(t)*p/100, len(t)-1)].Round(10 * time.Microsecond) }
		fmt.Fprintf(&b, "  %-20s %8d %10v %10v %10v\n", q.name, len(t), at(50), at(99), at(100))
	}
	return b.String()
}

// Kill does rounds of faults to a fabric, by a seed, and ends it.
func Kill(f *Fabric, rounds int, seed uint64) *Report {
	f.T.Helper()
	r := &Report{Rounds: make(map[fault]int)}
	rnd := rand.New(rand.NewPCG(seed, 1))
	for i := range rounds {
		what := faults[rnd.IntN(len(faults))]
		if i == 0 || what == killTarget && f.wire != nil {
			what = killRelay
		}
		f.AwaitRelaying()
		f.Park()
		time.Sleep(time.Duration(rnd.IntN(10_000)) * time.Microsecond)
		f.round(r, what, rnd)
		f.Settle()
		r.Rounds[what]++
		if f.T.Failed() {
			f.T.Fatalf("round %d of seed %d: %s", i, seed, what)
		}
	}
	r.Tally = f.Close()
	return r
}

func (f *Fabric) round(r *Report, what fault, rnd *rand.Rand) {
	f.T.Helper()
	pause := time.Duration(rnd.IntN(900)) * time.Millisecond
	switch what {
	case killRelay:
		i := rnd.IntN(len(f.Relays))
		f.relayDies(r, f.Relays[i])
		f.Relays[i].Reap()
		time.Sleep(watchedLate)
		f.StartRelay(i)
	case stopRelay:
		p := f.Relays[rnd.IntN(len(f.Relays))]
		p.Stop()
		time.Sleep(pause)
		p.Continue()
		time.Sleep(watchedLate)
	case killSender:
		i := rnd.IntN(len(f.Senders))
		p := f.Senders[i]
		p.Kill()
		p.Reap()
		f.AwaitLanesFreed(p.cmd.Process.Pid)
		time.Sleep(watchedLate) // what it sent itself
		f.Settle()
		f.StartSender(i)
	case stopSender:
		p := f.Senders[rnd.IntN(len(f.Senders))]
		p.Stop()
		time.Sleep(pause)
		p.Continue()
	case killTarget:
		i := rnd.IntN(len(f.Targets))
		f.retire(i)
		f.Targets[i].Kill()
		for k := range f.Senders {
			if f.target(k) == i {
				f.StopStream(k, true)
			}
		}
		f.Targets[i].Reap()
		f.StartTarget(i)
		for k := range f.Senders {
			if f.target(k) == i {
				f.Stream(k)
			}
		}
	case stopTarget:
		p := f.Targets[rnd.IntN(len(f.Targets))]
		p.Stop()
		time.Sleep(pause)
		p.Continue()
	}
}

// relayDies kills a relay and takes the times of the senders that had to do with
// it.
func (f *Fabric) relayDies(r *Report, p *Process) {
	f.T.Helper()
	for _, s := range f.Senders {
		s.Do(command{Op: "mark"})
	}
	if f.wire != nil {
		f.wire.hold()
		defer f.wire.release()
	}
	at := now()
	p.Kill()
	var answers []<-chan Answer
	for _, s := range f.Senders {
		answers = append(answers, s.Go(command{Op: "measure", At: at}))
	}
	for i, s := range f.Senders {
		a := s.Await("measure", answers[i])
		if a.Err != "" {
			f.T.Errorf("sender %d: %s", i, a.Err)
			continue
		}
		for _, t := range []struct {
			took uint64
			to   *[]time.Duration
		}{{a.Times.Suspected, &r.Suspected}, {a.Times.FirstByte, &r.FirstByte}, {a.Times.Completed, &r.Completed}} {
			if a.Times.Suspected > 0 && t.took > 0 {
				*t.to = append(*t.to, time.Duration(t.took))
			}
		}
	}
}
