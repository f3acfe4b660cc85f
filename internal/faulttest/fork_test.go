package faulttest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forks makes a process fork, and returns how the child is killed.
func forks(t *testing.T, p *Process, bare bool) (kill func()) {
	t.Helper()
	c := command{Op: "fork"}
	if bare {
		c.Op = "fork bare"
	}
	pid := p.Do(c).PID
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	kill = func() { unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }
	t.Cleanup(func() { kill(); unix.Close(fd) })
	return kill
}

// TestForkedRelayKilled kills a relay that has forked a child, which holds its
// sockets, and so its bytes, as long as it sleeps.
func TestForkedRelayKilled(t *testing.T) {
	t.Parallel()
	for name, bare := range map[string]bool{"all": false, "bare": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stage{name: "posted", wire: 0}
			n := start(t, s, NoBug)
			child := forks(t, n.Relay, bare)
			n.fail(killed)
			n.Wire.Release()
			time.Sleep(beyond * time.Second)
			if bad := n.Target.Unwatch(); bad > 0 {
				t.Errorf("%d bytes have landed late", bad)
			}
			n.RestartRelay()
			n.AwaitRelayed()
			n.Target.Verify(n.Dst, n.Size, Written)
			child()
			n.AwaitLanes(1)
			n.Balance()
			AwaitMaps(n.Sender, 2)
			n.Close()
		})
	}
}

// TestForkedSenderKilled kills a sender that has forked a child. Its lane is freed
// at once if the child has closed what it got, and else when the child ends: until
// then, the dead one's GPU may write.
func TestForkedSenderKilled(t *testing.T) {
	t.Parallel()
	for name, bare := range map[string]bool{"all": false, "bare": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, stage{name: "posted"}, NoBug)
			child := forks(t, n.Sender, bare)
			n.Sender.Kill()
			n.Sender.Reap()
			n.Wire.Release()
			if !bare {
				time.Sleep(200 * time.Millisecond)
				n.AwaitLanes(1)
				child()
			}
			n.AwaitLanes(0)
			n.Target.Reuse(n.Dst, n.Size, 0, Reused)
			time.Sleep(beyond * time.Second)
			if bad := n.Target.Unwatch(); bad > 0 {
				t.Errorf("%d bytes have landed late", bad)
			}
			n.freed()
			n.again()
		})
	}
}
