// Package registry is where the ranks of one host find each other: a directory
// in /dev/shm with one control block a rank, without a daemon.
//
//	/dev/shm/<group>/            0700
//	    .lock                    flock: scan, publish, withdraw
//	    .off                     marker: ranks to come start switched off
//	    <uid>.<pid>.<ticks>.<epoch>          a rank's control block, 0600
//	    .stats.<uid>.<pid>.<ticks>.<epoch>   what it says of itself
//
// It owns the files, their locks, the header of our own block and the lane
// states (claim and free); it says who is alive, dead, suspected and closed. It
// does not own what happens in a lane: internal/lane. Files that are not ours,
// by name and by magic, are never touched, and a bad file never hides good ones.
//
// Nothing of a peer is trusted: a header is read once and checked, and memory is
// touched under shm.Guard, so that a truncated file costs that peer and nothing
// else. A Registry, its entries and its peers may be used from any goroutine,
// except that nobody may be in a block that is being closed. Two kinds of
// goroutine run here: one a published entry, which owns the robust life word,
// and those of a [Watcher].
package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/proc"
	"github.com/railhop/railhop/internal/shm"
)

// Causes on which a caller acts.
var (
	ErrBusy      = errors.New("registry: busy")              // a lock was not to be had in time
	ErrGroupFull = errors.New("registry: group is full")     // eight ranks are there
	ErrNoLane    = errors.New("registry: no free lane")      // all seven are taken
	ErrOff       = errors.New("registry: relay is off")      // by `railhop pxn off`
	ErrStopping  = errors.New("registry: relay is stopping") // or not ready yet
	ErrGone      = errors.New("registry: peer is gone")      // dead, truncated or closed
)

// MaxRanks is how many entries a group holds.
const MaxRanks = 8

// DefaultRoot is where groups are.
const DefaultRoot = "/dev/shm"

const (
	lockName    = ".lock"
	offName     = ".off"
	statsPrefix = ".stats."
)

// Processes tells about this and other processes. It is [proc.FS] but for tests.
type Processes interface {
	Self() (proc.Self, error)
	Stat(pid int) (proc.Stat, error)
	Pidfd(pid int) (int, error)
}

// Options configures a [Registry]. Only Group is needed.
type Options struct {
	Root  string // empty means [DefaultRoot]
	Group string // 1..64 of A-Za-z0-9_.-, not "." or ".."
	// Logger may be nil.
	Logger *slog.Logger
	// Now is the time since some fixed start. Nil means the monotonic clock.
	Now func() time.Duration
	// LockWait bounds the tries for a lock. Zero means 100 ms.
	LockWait time.Duration
	// HeartbeatTimeout is how long a heartbeat may stand still before its rank
	// is suspected. Zero means 3 s.
	HeartbeatTimeout time.Duration
	// Processes nil means /proc.
	Processes Processes
}

func (o Options) withDefaults() Options {
	if o.Root == "" {
		o.Root = DefaultRoot
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() time.Duration { return time.Since(start) }
	}
	if o.LockWait == 0 {
		o.LockWait = 100 * time.Millisecond
	}
	if o.HeartbeatTimeout == 0 {
		o.HeartbeatTimeout = 3 * time.Second
	}
	if o.Processes == nil {
		o.Processes = proc.FS{}
	}
	return o
}

// Counters counts what the registry has met since it was opened.
type Counters struct {
	Reclaimed uint64 // entries of dead owners that were unlinked
	Refused   uint64 // files with our kind of name that were not accepted, each counted once
	Busy      uint64 // locks that were not to be had in time
	Truncated uint64 // peers lost because their file was cut under us
}

// Registry is one group of this host, as this process sees it.
type Registry struct {
	opts Options
	self proc.Self
	uid  uint32
	dir  *shm.Dir

	reclaimed, refused, busy, truncated atomic.Uint64

	mu       sync.Mutex
	closed   bool
	entries  map[string]*Entry
	peers    map[string]*Peer    // by entry name; open, listed or held
	seen     map[string]struct{} // refusals that were logged and counted
	watchers map[*Watcher]struct{}
}

// CheckGroup says whether a group's name is one.
func CheckGroup(name string) error {
	ok := len(name) >= 1 && len(name) <= 64 && name != "." && name != ".."
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
	}
	if !ok {
		return fmt.Errorf("registry: group %q: valid are 1 to 64 of A-Z, a-z, 0-9 and the signs _ . - (not . or .. alone)", name)
	}
	return nil
}

// Open opens a group's directory and makes it if it is not there. It fails if
// the directory is a symbolic link, somebody else's, or open to others.
func Open(o Options) (*Registry, error) {
	o = o.withDefaults()
	if err := CheckGroup(o.Group); err != nil {
		return nil, err
	}
	self, err := o.Processes.Self()
	if err != nil {
		return nil, fmt.Errorf("registry: who am I: %w", err)
	}
	path := filepath.Join(o.Root, o.Group)
	made := unix.Mkdir(path, 0o700)
	if made != nil && made != unix.EEXIST {
		return nil, fmt.Errorf("registry: make %s: %w", path, made)
	}
	dir, err := openGroup(path, made == nil)
	if err != nil {
		return nil, err
	}
	return &Registry{
		opts: o, self: self, uid: uint32(os.Geteuid()), dir: dir,
		entries:  map[string]*Entry{},
		peers:    map[string]*Peer{},
		seen:     map[string]struct{}{},
		watchers: map[*Watcher]struct{}{},
	}, nil
}

// openGroup opens a group's directory and checks whose it is. A directory that
// this call's caller has just made gets its mode past the umask.
func openGroup(path string, made bool) (*shm.Dir, error) {
	dir, err := shm.OpenDir(path)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if made {
		if err := unix.Fchmod(dir.Descriptor(), 0o700); err != nil {
			dir.Close()
			return nil, fmt.Errorf("registry: chmod %s: %w", path, err)
		}
	}
	st, err := dir.Stat()
	if err == nil {
		err = checkGroupDir(path, &st, uint32(os.Geteuid()))
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("registry: %w", err)
	}
	return dir, nil
}

func checkGroupDir(path string, st *unix.Stat_t, uid uint32) error {
	switch {
	case st.Uid != uid:
		return fmt.Errorf("%s belongs to uid %d, want %d", path, st.Uid, uid)
	case st.Mode&0o7777 != 0o700:
		return fmt.Errorf("%s has mode %#o, want 0700", path, st.Mode&0o7777)
	}
	return nil
}

// Self is this process's identity.
func (r *Registry) Self() proc.Self { return r.self }

// Path is the group's directory.
func (r *Registry) Path() string { return r.dir.Path() }

// Counters returns the counts so far.
func (r *Registry) Counters() Counters {
	return Counters{r.reclaimed.Load(), r.refused.Load(), r.busy.Load(), r.truncated.Load()}
}

// Descriptors are the open descriptors of the directory, the entries and the
// peers, at this moment. A forked child must close them, or it keeps a dead
// rank's liveness lock.
func (r *Registry) Descriptors() []int {
	r.mu.Lock()
	entries, peers := values(r.entries), values(r.peers)
	r.mu.Unlock()
	fds := []int{r.dir.Descriptor()}
	for _, e := range entries {
		fds = append(fds, e.Descriptor())
	}
	for _, p := range peers {
		p.mu.Lock()
		if !p.unmapped {
			fds = append(fds, p.file.Descriptor())
		}
		if p.pidfd >= 0 {
			fds = append(fds, p.pidfd)
		}
		p.mu.Unlock()
	}
	return fds
}

// Close closes entries, watchers and peers, whoever still holds them, and the
// directory. A second call does nothing.
func (r *Registry) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	entries, peers, watchers := values(r.entries), values(r.peers), keys(r.watchers)
	r.mu.Unlock()

	var errs []error
	for _, w := range watchers {
		w.Close()
	}
	for _, e := range entries {
		errs = append(errs, e.Close())
	}
	for _, p := range peers {
		p.mu.Lock()
		errs = append(errs, p.unmap())
		p.mu.Unlock()
	}
	errs = append(errs, r.dir.Close())
	return errors.Join(errs...)
}

// locked runs f under the directory's flock, and returns [ErrBusy] if it is not
// to be had in time.
func (r *Registry) locked(f func() error) error {
	lock, err := r.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	return f()
}

// lock takes the directory's flock. The file is opened anew each time, so that
// goroutines exclude each other as processes do.
func (r *Registry) lock() (*shm.File, error) {
	for range 8 {
		f, err := r.dir.OpenFile(lockName, unix.O_RDWR|unix.O_CREAT|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
		if err := f.Flock(r.opts.LockWait); err != nil {
			f.Close()
			return nil, r.asBusy(err)
		}
		// Somebody may have removed the file between the two calls; then the
		// next one locks another.
		have, err := f.Stat()
		if err == nil {
			now, err2 := r.dir.Lstat(lockName)
			if err2 == nil && now.Dev == have.Dev && now.Ino == have.Ino {
				return f, nil
			}
			err = err2
		}
		f.Close()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("registry: %w", err)
		}
	}
	return nil, fmt.Errorf("registry: %s in %s does not stay", lockName, r.dir.Path())
}

func (r *Registry) asBusy(err error) error {
	if errors.Is(err, shm.ErrBusy) {
		r.busy.Add(1)
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return fmt.Errorf("registry: %w", err)
}

func values[K comparable, V any](m map[K]V) []V {
	s := make([]V, 0, len(m))
	for _, v := range m {
		s = append(s, v)
	}
	return s
}

func keys[K comparable, V any](m map[K]V) []K {
	s := make([]K, 0, len(m))
	for k := range m {
		s = append(s, k)
	}
	return s
}
