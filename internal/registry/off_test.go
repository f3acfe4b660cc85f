package registry

import (
	"errors"
	"testing"
)

func TestSwitchOff(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	them := open(t, Options{Root: root, Processes: stranger{}})
	e, mine := publish(t, them, "a"), publish(t, r, "b")
	p := onePeer(t, r)
	steps := []struct{ off, marker, changed int }{{1, 1, 2}, {1, 1, 0}, {0, 0, 2}, {0, 0, 0}}
	for i, s := range steps {
		changed, refused, err := r.SetOff(s.off == 1)
		if err != nil || len(refused) != 0 || changed != s.changed {
			t.Errorf("step %d: changed %d, refused %v, %v; want %d", i, changed, refused, err, s.changed)
		}
		off, err := them.Off()
		if err != nil || off != (s.off == 1) || e.Off() != off || p.Off() != off || mine.Off() != off {
			t.Errorf("step %d: marker %v, entry %v, peer %v, own %v; %v", i, off, e.Off(), p.Off(), mine.Off(), err)
		}
		_, err = p.Claim(mine.Identity(), mine.Epoch())
		if got := errors.Is(err, ErrOff); got != off {
			t.Errorf("step %d: claim: %v", i, err)
		}
	}
	if _, _, err := r.SetOff(true); err != nil {
		t.Fatal(err)
	}
	if late := publish(t, them, "late"); !late.Off() {
		t.Error("a rank that came after the marker is on")
	}
}
