package faulttest

import "testing"

// TestRolling restarts every rank in turn, in good order, under streams of writes:
// relays at any time, senders when their own writes have ended, and a target when
// those to it have. No write fails.
func TestRolling(t *testing.T) {
	f := NewFabric(t, FabricOptions{Senders: 2, Relays: 2, Targets: 2})
	for range *rolls {
		for i := range f.Relays {
			f.AwaitRelaying()
			f.Relays[i].Close()
			f.StartRelay(i)
		}
		for i := range f.Senders {
			f.StopStream(i, false)
			f.Senders[i].Close()
			f.StartSender(i)
		}
		for i := range f.Targets {
			f.StopStream(i, false) // sender i writes to target i
			f.retire(i)
			f.Targets[i].Close()
			f.StartTarget(i)
			f.Stream(i)
		}
		if t.Failed() {
			return
		}
	}
	sum := f.Close()
	t.Logf("%d rolling restarts: %+v", *rolls, sum)
	if sum.Wrong+sum.Late+sum.Lost+sum.Double > 0 {
		t.Errorf("wrong, late, lost, double: %+v, want none", sum)
	}
}
