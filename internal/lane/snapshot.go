package lane

// Snapshot appends what the end knows, its memory aside, to words: so a model can
// save, compare and restore it, and step the real code from any state.
func (s *Sender) Snapshot(words []uint64) []uint64 {
	words = append(words, s.epoch, s.next, s.reaped)
	for _, u := range s.used {
		words = append(words, uint64(u.plans), uint64(u.session))
	}
	return words
}

// Restore sets the end to what [Sender.Snapshot] of one with the same geometry
// returned.
func (s *Sender) Restore(words []uint64) {
	s.epoch, s.next, s.reaped = words[0], words[1], words[2]
	for i := range s.used {
		s.used[i] = used{int(words[3+2*i]), int(words[4+2*i])}
	}
}

// Snapshot is [Sender.Snapshot] of the serving end.
func (r *Relay) Snapshot(words []uint64) []uint64 {
	return append(words, r.epoch, r.next, r.completed, r.stored)
}

// Restore is [Sender.Restore] of the serving end.
func (r *Relay) Restore(words []uint64) {
	r.epoch, r.next, r.completed, r.stored = words[0], words[1], words[2], words[3]
}
