// Package fabric plays a small rail-optimized fabric on one machine: nodes of
// ranks that are real processes, each with its own software NIC and GPU, whose NICs
// hang on rails.
//
//	node 1          rank 0   rank 1          127.0.1.10, 127.0.1.11
//	                  |        |
//	rails            r0       r1             a NIC's rate, and a lower one across
//	                  |        |
//	node 2          target: both NICs        127.0.2.10, 127.0.2.11
//
// It owns names, addresses, the text that describes hardware to each process,
// and the processes themselves, down to the group's directory, which is removed in
// the end. How fast links are is enforced by the software NICs. What the processes
// do is told them by whoever uses the package. All traffic is on loopback.
package fabric

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/railhop/railhop/internal/worker"
)

// Bounds of what can be played.
const (
	MaxNodes = 250
	MaxRails = 64
)

// Options describes a fabric.
type Options struct {
	Exe       string   // what to run as a rank
	Args      []string // with which arguments; "{name}" stands for the process's name
	Stderr    io.Writer
	Name      string // of the groups of ranks; a random part is appended
	LinkRate  uint64 // bytes a second that a NIC sends at most; 0: no limit
	CrossRate uint64 // the same across rails; 0: LinkRate
	SlotSize  uint64 // MC_PXN_SLOT_SIZE; 0: the engine's default
}

// Fabric is a running fabric. Use [New], and [Fabric.Close] in the end.
type Fabric struct {
	opts Options
	id   string

	mu     sync.Mutex
	ranks  []*Rank
	groups map[string]bool
}

// New returns a fabric without processes.
func New(o Options) *Fabric {
	var id [4]byte
	rand.Read(id[:])
	return &Fabric{opts: o, id: hex.EncodeToString(id[:]), groups: make(map[string]bool)}
}

// Member describes a process of the fabric.
type Member struct {
	Name  string // such as "rank 0"
	Node  int    // 1..250
	Rails []int  // of its NICs; the GPU near each has the same number
	PXN   bool   // it relays, and is relayed for
}

// Rank is a running process, with one engine open.
type Rank struct {
	*worker.Proc
	Member
	Segment string // by which peers open its memory
}

// Engine is the name of the engine that every rank opens.
const Engine = "engine"

// NIC, Rail and Addr are the names of things: NICs are called as on real hosts,
// the same on every node.
func NIC(rail int) string { return "mlx5_" + strconv.Itoa(rail) }

// Rail is the name of a rail.
func Rail(rail int) string { return "r" + strconv.Itoa(rail) }

// Addr is where the NIC of a node on a rail listens. Each NIC has an address of
// its own, whose port the kernel picks.
func Addr(node, rail int) string { return fmt.Sprintf("127.0.%d.%d", node, 10+rail) }

// Host is the address of a node itself.
func Host(node int) string { return fmt.Sprintf("127.0.%d.1", node) }

// Group is the group of the ranks of a node.
func (f *Fabric) Group(node int) string { return fmt.Sprintf("%s-%s-%d", f.opts.Name, f.id, node) }

// Env is the environment of an engine of a member.
func (f *Fabric) Env(m Member) map[string]string {
	var nics, gpus []string
	rails := make(map[string]string)
	for i := range MaxRails {
		rails[NIC(i)] = Rail(i)
	}
	for _, r := range m.Rails {
		nic := fmt.Sprintf("%s=%s,rail=%s", NIC(r), Addr(m.Node, r), Rail(r))
		if f.opts.LinkRate > 0 {
			nic += fmt.Sprintf(",rate=%d", f.opts.LinkRate)
		}
		if f.opts.CrossRate > 0 {
			nic += fmt.Sprintf(",cross=%d", f.opts.CrossRate)
		}
		nics = append(nics, nic)
		gpus = append(gpus, fmt.Sprintf("0000:%02x:00.0", 0xa0+r))
	}
	names, _ := json.Marshal(rails)
	env := map[string]string{
		"RAILHOP_PROVIDERS": "soft",
		"RAILHOP_SOFT_NICS": strings.Join(nics, ";"),
		"RAILHOP_SOFT_GPUS": strings.Join(gpus, ";"),
		"MC_PXN_RAIL_MAP":   string(names),
	}
	if f.opts.SlotSize > 0 {
		env["MC_PXN_SLOT_SIZE"] = strconv.FormatUint(f.opts.SlotSize, 10)
	}
	if m.PXN {
		// All nodes share this machine's cores: a relay may get its turn late.
		env["MC_PXN_CREDIT_TIMEOUT_MS"] = "10000"
		env["MC_PXN_ENABLE"] = "1"
		env["MC_PXN_GROUP_ID"] = f.Group(m.Node)
	}
	return env
}

func (m *Member) check() error {
	switch {
	case m.Node < 1 || m.Node > MaxNodes:
		return fmt.Errorf("fabric: %s: node %d: want 1..%d", m.Name, m.Node, MaxNodes)
	case len(m.Rails) == 0:
		return fmt.Errorf("fabric: %s: no rail: want a NIC on one at least", m.Name)
	}
	for i, r := range m.Rails {
		if r < 0 || r >= MaxRails {
			return fmt.Errorf("fabric: %s: rail %d: want 0..%d", m.Name, r, MaxRails-1)
		}
		for _, q := range m.Rails[:i] {
			if q == r {
				return fmt.Errorf("fabric: %s: two NICs on rail %d: want one", m.Name, r)
			}
		}
	}
	return nil
}

// admit notes a member, if its names and places are free.
func (f *Fabric) admit(r *Rank) error {
	if err := r.check(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.ranks {
		if o.Name == r.Name {
			return fmt.Errorf("fabric: two processes are called %q: want a name for each", r.Name)
		}
	}
	f.ranks = append(f.ranks, r)
	if r.PXN {
		f.groups[f.Group(r.Node)] = true
	}
	return nil
}

// Start starts a member's process and opens its engine. The process ends with
// [Fabric.Close], or with this one.
func (f *Fabric) Start(ctx context.Context, m Member) (*Rank, error) {
	r := &Rank{Member: m}
	if err := f.admit(r); err != nil {
		return nil, err
	}
	args := make([]string, len(f.opts.Args))
	for i, a := range f.opts.Args {
		args[i] = strings.ReplaceAll(a, "{name}", m.Name)
	}
	p, err := worker.Command{Name: m.Name, Exe: f.opts.Exe, Args: args, Stderr: f.opts.Stderr}.Start(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err // Close knows it by its missing process
	}
	f.mu.Lock()
	r.Proc = p
	f.mu.Unlock()
	o, err := p.Open(ctx, worker.OpenArgs{Engine: Engine, Host: Host(m.Node), Env: f.Env(m)})
	if err != nil {
		return nil, err
	}
	r.Segment = o.Segment
	return r, nil
}

// StartAll starts members at once, and returns them in order, which is that in
// which they are ended: senders first, so that nobody's peer is gone before it.
func (f *Fabric) StartAll(ctx context.Context, members ...Member) ([]*Rank, error) {
	ranks, errs := make([]*Rank, len(members)), make([]error, len(members))
	Each(len(members), func(i int) { ranks[i], errs[i] = f.Start(ctx, members[i]) })
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.SortStableFunc(f.ranks, func(a, b *Rank) int { return slices.Index(ranks, a) - slices.Index(ranks, b) })
	return ranks, errors.Join(errs...)
}

// Each calls do for 0 to n-1 at once, and waits.
func Each(n int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// Close ends all processes, in the order in which they were started, then removes
// the groups' directories, whatever the processes have left in them.
func (f *Fabric) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	for _, r := range f.ranks {
		if r.Proc != nil {
			err = errors.Join(err, r.Proc.Close())
		}
	}
	for g := range f.groups {
		err = errors.Join(err, os.RemoveAll(filepath.Join("/dev/shm", g)))
	}
	f.ranks = nil
	return err
}
