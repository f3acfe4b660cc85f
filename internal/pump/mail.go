package pump

import "sync"

// Mail is how other goroutines hand their results to a [Stepper]: it reads its mail in
// Step. Use [NewMail].
type Mail struct {
	wake func()
	mu   sync.Mutex
	in   []func()
}

// NewMail returns a mailbox that calls wake, which rings the pump, for each letter.
func NewMail(wake func()) *Mail { return &Mail{wake: wake} }

// Post leaves f to be called by Read. It may be called by any goroutine.
func (m *Mail) Post(f func()) {
	m.mu.Lock()
	m.in = append(m.in, f)
	m.mu.Unlock()
	m.wake()
}

// Read calls what was left, in order, and reports whether there was anything.
func (m *Mail) Read() bool {
	m.mu.Lock()
	in := m.in
	m.in = nil
	m.mu.Unlock()
	for _, f := range in {
		f()
	}
	return len(in) > 0
}
