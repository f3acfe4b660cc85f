package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/shm"
)

const (
	statsVersion = 1
	statsMax     = 1 << 20 // bytes that a reader takes
	statsNext    = ".next" // a stats file on its way
)

// Stats is what a rank says of itself, beside its entry.
type Stats struct {
	Version      int               `json:"version"` // set by WriteStats
	Server       string            `json:"server"`
	NICPaths     map[string]string `json:"nic_paths"` // by rail
	RailRule     string            `json:"rail_rule,omitempty"`
	Counters     map[string]uint64 `json:"counters"`
	MayStillLand []string          `json:"may_still_land,omitempty"` // destinations of pieces that timed out and are not closed
}

// WriteStats replaces the entry's stats file. Readers see the old or the new one.
func (e *Entry) WriteStats(s Stats) error {
	s.Version = statsVersion
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("registry: stats: %w", err)
	}
	if len(b) > statsMax {
		return fmt.Errorf("registry: stats of %s: %d bytes, at most %d", e.name, len(b), statsMax)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.withdrawn || e.closed {
		return fmt.Errorf("registry: stats of %s: withdrawn", e.name)
	}
	dir, name := e.r.dir, statsPrefix+e.name
	f, err := dir.Create(0)
	if err != nil {
		return fmt.Errorf("registry: stats: %w", err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return fmt.Errorf("registry: stats of %s: %w", e.name, err)
	}
	// A link never replaces, so the file gets its name by way of another.
	next := name + statsNext
	if err := dir.Unlink(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("registry: stats: %w", err)
	}
	if err := dir.Link(f, next); err != nil {
		return fmt.Errorf("registry: stats: %w", err)
	}
	if err := dir.Rename(next, name); err != nil {
		return fmt.Errorf("registry: stats: %w", err)
	}
	return nil
}

// readStats reads the stats of an entry. A file that is not there wraps
// [os.ErrNotExist].
func readStats(dir *shm.Dir, uid uint32, entry string) (*Stats, error) {
	f, err := dir.Open(statsPrefix+entry, false)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("registry: %w", err)
	case st.Mode != unix.S_IFREG|0o600 || st.Uid != uid:
		return nil, fmt.Errorf("registry: %s: mode %#o of uid %d, want a regular file, 0600, of uid %d", f.Path(), st.Mode, st.Uid, uid)
	case st.Size > statsMax:
		return nil, fmt.Errorf("registry: %s: %d bytes, at most %d", f.Path(), st.Size, statsMax)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, statsMax))
	if err != nil {
		return nil, fmt.Errorf("registry: read %s: %w", f.Path(), err)
	}
	return parseStats(b)
}

func parseStats(b []byte) (*Stats, error) {
	var s Stats
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("registry: stats: %w", err)
	}
	if s.Version != statsVersion {
		return nil, fmt.Errorf("registry: stats: version %d, this build reads %d", s.Version, statsVersion)
	}
	return &s, nil
}

// ReadStats reads what the peer says of itself.
func (p *Peer) ReadStats() (*Stats, error) {
	if p.r == nil {
		return nil, fmt.Errorf("%w: %s", ErrGone, p.name)
	}
	return readStats(p.r.dir, p.r.uid, p.name)
}
