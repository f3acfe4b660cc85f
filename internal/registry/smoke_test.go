package registry

import (
	"testing"
	"time"
)

func TestSmoke(t *testing.T) {
	root := t.TempDir()
	a, err := Open(Options{Root: root, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	e, err := a.Publish(EntryOptions{Rails: []string{"mlx5_0", "mlx5_1"}, SlotSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if e.Block().Header.Life.Load() == 0 {
		t.Error("no life")
	}
	p, bad := openPeer(a.dir, a.looker(), a.uid, e.Name(), true)
	if bad != nil {
		t.Fatal(bad)
	}
	p.r = a
	p.list()
	p.drop()
	if p.Life() != Alive || p.Closed() || !p.HasPidfd() {
		t.Error(p.Life(), p.Closed(), p.HasPidfd())
	}
	lane, err := p.Claim(e.Identity(), 7)
	if err != nil || lane != 0 {
		t.Fatal(lane, err)
	}
	if s, why := p.Suspected(time.Second); s {
		t.Error(why)
	}
	e.Block().Header.Wake.Store(1)
	if !p.Wake() || p.Wake() {
		t.Error("wake")
	}
	if err := e.FreeLane(0); err != nil {
		t.Error(err)
	}
	e.Block().Lanes[3].Header.State.Store(1)
	if n, err := e.SweepClaims(); n != 1 || err != nil {
		t.Error(n, err)
	}
	peers, refused, err := a.Scan()
	if len(peers) != 0 || len(refused) != 0 || err != nil {
		t.Error(peers, refused, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
