package pump

import (
	"slices"
	"testing"
)

func TestMail(t *testing.T) {
	rung := 0
	m := NewMail(func() { rung++ })
	if m.Read() {
		t.Error("there is mail that nobody has left")
	}
	var got []int
	m.Post(func() {
		got = append(got, 1)
		m.Post(func() { got = append(got, 3) }) // for the next time
	})
	m.Post(func() { got = append(got, 2) })
	if !m.Read() || !slices.Equal(got, []int{1, 2}) || rung != 3 {
		t.Errorf("read %v, rung %d times; want 1, 2 and 3 times", got, rung)
	}
	if !m.Read() || m.Read() || !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("read %v in the end", got)
	}
}
