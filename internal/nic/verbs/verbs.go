// Package verbs drives real RDMA cards through libibverbs, loaded when it is first
// asked for: the provider "verbs" of package nic.
//
// It owns the library's functions, structs and error numbers, none of which leave
// it; which GID of a port is used; and the words for memory that cannot be
// registered. It decides nothing about peers and reads no environment.
//
//	Provider -- the library, the devices that it lists
//	   |-- Device, one an Open: port, GID, events
//	          |-- pd: memory regions, queue pairs
//	          |-- cq: completions, and the channel that wakes
//
// A call of Post is one chain of work requests and one call of the library, a call
// of Poll one call for up to 64 completions. What the library reads and writes is
// mapped memory, so that the data path allocates nothing.
//
// Threads: one goroutine a device waits for events, and one for each completion
// queue with a wake; both are parked in the netpoller. A call is made on the
// caller's OS thread.
package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/railhop/railhop/internal/dl"
	"github.com/railhop/railhop/internal/nic"
)

// Options configures a [Provider].
type Options struct {
	// Library is the library; "" means libibverbs.so.1.
	Library string
	// Port is the port of devices that are named without one; 0 means 1.
	Port int
	// GIDIndex is the entry of the GID table that is used. -1 chooses one.
	GIDIndex int
	// GIDIndexFrom says in the log what decided GIDIndex.
	GIDIndexFrom string
	// GIDRetries is how many further entries are tried where the chosen one does not
	// connect.
	GIDRetries int
	// MaxMR bounds memory regions, in bytes; 0 means what the device says.
	MaxMR uint64
	// NeedRelaxed fails a registration with relaxed ordering that the library
	// cannot do. Without it the ordering is dropped.
	NeedRelaxed bool
	// GPU knows GPU memory. Nil means that there is none.
	GPU GPU
	// GPUMemory is how cards are told of it.
	GPUMemory GPUMemory
	// Sysfs and Dev are where sysfs and the device nodes are; "" means /sys and /dev.
	Sysfs, Dev string
	// Logger takes life-cycle messages. Nil means none.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Library == "" {
		o.Library = "libibverbs.so.1"
	}
	if o.Port == 0 {
		o.Port = 1
	}
	if o.Sysfs == "" {
		o.Sysfs = "/sys"
	}
	if o.Dev == "" {
		o.Dev = "/dev"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Provider is the devices that the library lists. Its methods may be called by any
// goroutine.
type Provider struct {
	opts   Options
	log    *slog.Logger
	lib    *library
	frames *frames

	mu      sync.Mutex
	skipped map[string]string // devices that Devices left out, and why
}

var (
	_ nic.Provider = (*Provider)(nil)
	_ nic.Ported   = (*Provider)(nil)
)

// Open loads the library. Where there is none the error wraps
// [errors.ErrUnsupported].
func Open(opts Options) (*Provider, error) {
	opts = opts.withDefaults()
	if opts.Port < 1 || opts.Port > 255 || opts.GIDIndex < -1 || opts.GIDIndex > 255 {
		return nil, fmt.Errorf("verbs: port %d and GID index %d: want 1..255 and -1..255", opts.Port, opts.GIDIndex)
	}
	lib, err := load(opts.Library)
	if err != nil {
		return nil, err
	}
	p := &Provider{opts: opts, log: opts.Logger, lib: lib, frames: &frames{}, skipped: make(map[string]string)}
	// A provider is not closed; its devices refer to it.
	runtime.AddCleanup(p, (*frames).unmap, p.frames)
	return p, nil
}

// Name returns "verbs".
func (p *Provider) Name() string { return "verbs" }

// Devices lists the devices that can be used by the port that names without one mean:
// their node can be opened, the port is active and has a GID. Why others are left out is
// logged, and which of their ports could be used.
func (p *Provider) Devices() ([]string, error) {
	names, err := p.list()
	if err != nil {
		return nil, err
	}
	var usable []string
	for _, name := range names {
		why := p.unusable(name, p.opts.Port)
		p.note(name, why)
		if why == "" {
			usable = append(usable, name)
		}
	}
	return usable, nil
}

// Usable implements [nic.Ported].
func (p *Provider) Usable(name string) error {
	base, port, err := p.split(name)
	if err != nil {
		return err
	}
	names, err := p.list()
	if err != nil {
		return err
	}
	why := "there is none"
	if slices.Contains(names, base) {
		why = p.unusable(base, port)
	}
	if why != "" {
		return fmt.Errorf("verbs: %s: %s: %w", name, why, nic.ErrNoDevice)
	}
	return nil
}

// note logs why a device is left out, if that is news.
func (p *Provider) note(name, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.skipped[name] == why {
		return
	}
	p.skipped[name] = why
	if why == "" {
		return
	}
	args := []any{"nic", name, "why", why}
	for _, port := range (tree{p.opts.Sysfs, p.opts.Dev}).ports(name) {
		if port != p.opts.Port && p.unusable(name, port) == "" {
			args = append(args, "usable", name+":"+strconv.Itoa(port))
		}
	}
	p.log.Warn("RDMA device not used", args...)
}

// list returns the names of all devices, in the library's order.
func (p *Provider) list() ([]string, error) {
	var names []string
	err := p.eachDevice(func(_ *frame, _ uintptr, name string) bool {
		names = append(names, name)
		return true
	})
	return names, err
}

// eachDevice calls f for each struct ibv_device until it returns false.
func (p *Provider) eachDevice(visit func(f *frame, dev uintptr, name string) bool) error {
	f, err := p.frames.get()
	if err != nil {
		return err
	}
	defer p.frames.put(f)
	f.word = 0
	list, errno := p.lib.pointer(f, p.lib.getDeviceList, f.wordAddr())
	switch {
	case list != 0:
	case errno == syscall.ENOSYS: // a kernel without RDMA
		return nil
	default:
		return fmt.Errorf("verbs: list devices: %w", errno)
	}
	n := int(int32(f.word))
	defer f.call(p.lib.freeDeviceList, list)
	for i := range n {
		dev := wordAt(list, i)
		if !visit(f, dev, cString(f.call(p.lib.getDeviceName, dev))) {
			break
		}
	}
	return nil
}

// Open opens a device by name, or by name and port as in mlx5_0:2. The device is a
// *[Device].
func (p *Provider) Open(name string) (nic.Device, error) {
	base, port, err := p.split(name)
	if err != nil {
		return nil, err
	}
	var d *Device
	listErr := p.eachDevice(func(f *frame, dev uintptr, found string) bool {
		if found != base {
			return true
		}
		d, err = p.openDevice(f, dev, name, base, port)
		return false
	})
	switch {
	case listErr != nil:
		return nil, listErr
	case err != nil:
		return nil, fmt.Errorf("verbs: open %s: %w", name, err)
	case d == nil:
		return nil, fmt.Errorf("verbs: open %q: %w", name, nic.ErrNoDevice)
	}
	return d, nil
}

// split takes a port off a device's name.
func (p *Provider) split(name string) (base string, port int, err error) {
	base, text, given := strings.Cut(name, ":")
	if !given {
		return base, p.opts.Port, nil
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 1 || port > 255 {
		return "", 0, fmt.Errorf("verbs: %q: port %q: want 1..255: %w", name, text, nic.ErrNoDevice)
	}
	return base, port, nil
}

// load binds the library's functions.
func load(name string) (*library, error) {
	l := &library{}
	lib, err := dl.Open(name)
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	if err := dl.Bind(lib, 0, l.table()); err != nil {
		return nil, fmt.Errorf("verbs: not libibverbs: %w", err)
	}
	libc, err := dl.Open("libc.so.6")
	if err == nil {
		err = dl.Bind(libc, 0, []dl.Symbol{{Names: []string{"__errno_location"}, Target: &l.errnoLocation}})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: %w", err), errors.ErrUnsupported)
	}
	return l, nil
}
