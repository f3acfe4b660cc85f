package proc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// ErrShort is returned for a stat line that ends too early. It says nothing
// about the process.
var ErrShort = errors.New("proc: stat line cut off")

// Stat is what this package reads of /proc/<pid>/stat.
type Stat struct {
	PID        int
	State      byte   // 'R', 'S', 'Z', ...
	Threads    int    // field 20
	StartTicks uint64 // field 22, since boot
}

// Zombie reports whether the process has ended. A leader that has left its
// threads running is shown as Z as well, and has not.
func (s Stat) Zombie() bool {
	return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1
}

// Fields of /proc/<pid>/stat, counted from the state, which is field 3.
const (
	fieldThreads    = 20 - 3
	fieldStartTicks = 22 - 3
)

// ParseStat parses the content of /proc/<pid>/stat. The command name is free
// text in parentheses, which it may itself contain, so fields are counted after
// the last one. It returns [ErrShort] unless the start ticks are followed by
// another field: a number that was cut would name another process.
func ParseStat(b []byte) (Stat, error) {
	head, _, ok := bytes.Cut(b, []byte(" ("))
	end := bytes.LastIndexByte(b, ')')
	if !ok || end < 0 {
		return Stat{}, fmt.Errorf("%w: no command name in %d bytes", ErrShort, len(b))
	}
	fields := bytes.Fields(b[end+1:])
	if len(fields) <= fieldStartTicks+1 {
		return Stat{}, fmt.Errorf("%w: %d fields after the command name, need %d", ErrShort, len(fields), fieldStartTicks+2)
	}
	var st Stat
	var err error
	if st.PID, err = strconv.Atoi(string(head)); err != nil || st.PID <= 0 {
		return Stat{}, fmt.Errorf("proc: stat: pid %q", head)
	}
	if len(fields[0]) != 1 {
		return Stat{}, fmt.Errorf("proc: stat: state %q", fields[0])
	}
	st.State = fields[0][0]
	if st.Threads, err = strconv.Atoi(string(fields[fieldThreads])); err != nil {
		return Stat{}, fmt.Errorf("proc: stat: threads %q", fields[fieldThreads])
	}
	if st.StartTicks, err = strconv.ParseUint(string(fields[fieldStartTicks]), 10, 64); err != nil {
		return Stat{}, fmt.Errorf("proc: stat: start ticks %q", fields[fieldStartTicks])
	}
	return st, nil
}
