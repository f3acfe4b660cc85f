package registry

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// Off reports whether ranks to come start switched off.
func (r *Registry) Off() (bool, error) { return r.offMarker() }

// SetOff switches the relays of the group off or on: a flag in each header, ours
// included, and a marker file for ranks to come. It returns how many headers it
// changed and the files that it left alone. What is underway in a lane goes on.
func (r *Registry) SetOff(off bool) (changed int, refused []Refusal, err error) {
	err = r.locked(func() error {
		if err := r.setMarker(off); err != nil {
			return err
		}
		r.mu.Lock()
		own := values(r.entries)
		r.mu.Unlock()
		for _, e := range own {
			if e.setOff(off) {
				changed++
			}
		}
		var err error
		refused, err = r.each(func(p *Peer) *Refusal {
			if p.setOff(off) {
				changed++
			}
			return nil
		})
		return err
	})
	return changed, refused, err
}

// setOff sets the flag and reports whether it was another before.
func (p *Peer) setOff(off bool) (changed bool) {
	p.touch(func(b *shmabi.ControlBlock) { changed = setFlag(b, off) })
	return changed
}

func (e *Entry) setOff(off bool) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		shm.Guard(func() error { changed = setFlag(e.block, off); return nil })
	}
	return changed
}

func setFlag(b *shmabi.ControlBlock, off bool) (changed bool) {
	if off {
		return b.Header.Flags.Or(shmabi.FlagOff)&shmabi.FlagOff == 0
	}
	return b.Header.Flags.And(^shmabi.FlagOff)&shmabi.FlagOff != 0
}

func (r *Registry) setMarker(off bool) error {
	if !off {
		if err := r.dir.Unlink(offName); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("registry: %w", err)
		}
		return nil
	}
	f, err := r.dir.OpenFile(offName, unix.O_RDWR|unix.O_CREAT|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	return f.Close()
}

// offMarker reports whether the marker file is there.
func (r *Registry) offMarker() (bool, error) {
	_, err := r.dir.Lstat(offName)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("registry: %w", err)
	}
	return true, nil
}
