package railhop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu/gpufault"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/nicfault"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/testkit"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// options say how an engine of a test is opened.
type options struct {
	set      settings
	registry string
	topology map[string][2][]string
	hooks    *railhop.Hooks
	nicHook  nicfault.Hook
	gpuHook  gpufault.Hook
	lax      bool // settings may be wrong
	log      *slog.Logger
}

// breakable is a setting of tests alone: the NICs of a process with it can be
// broken by command.
const breakable = "test: NICs can be broken"

// openWith starts an engine on software providers, with faults.
func openWith(o options) (*process, error) {
	if o.set["MC_PXN_CREDIT_TIMEOUT_MS"] == "" && len(testkit.RealDevices()) > 0 {
		// Such a machine is emulated, and has two processors for all ends.
		o.set = maps.Clone(o.set)
		o.set["MC_PXN_CREDIT_TIMEOUT_MS"] = "20000"
	}
	env, warnings := config.Load(func(name string) (string, bool) { v, ok := o.set[name]; return v, ok })
	if len(warnings) > 0 && !o.lax {
		return nil, fmt.Errorf("settings: %v", warnings)
	}
	gpuConfigs, err := softgpu.ParseDevices(env.Providers.SoftGPUs)
	if err != nil {
		return nil, err
	}
	gpus, err := softgpu.New(softgpu.Options{Devices: gpuConfigs})
	if err != nil {
		return nil, err
	}
	nics, err := testkit.NICs(env.Providers.SoftNICs, o.log)
	if err != nil {
		return nil, err
	}
	infos, err := gpus.Devices()
	if err != nil {
		return nil, err
	}
	dev, err := gpus.Open(infos[0].BusID)
	if err != nil {
		return nil, err
	}
	p := &process{gpus: gpus, dev: dev, cfg: railhop.Config{
		Host: "127.0.0.1", Settings: env, Topology: o.topology, Registry: o.registry,
		NICs: nics, GPUs: gpus, Hooks: o.hooks, Logger: o.log, CloseWait: 2 * time.Second,
	}}
	if o.nicHook != nil {
		p.cfg.NICs = nicfault.Wrap(nics, o.nicHook)
	} else if o.set[breakable] != "" {
		p.cfg.NICs = nicfault.Wrap(nics, func(c *nicfault.Call) error {
			if p.nicFails.Load() && c.Op == nicfault.Complete {
				c.Completion.Status = nic.StatusRetryExceeded
			}
			return nil
		})
	}
	if o.gpuHook != nil {
		p.cfg.GPUs = gpufault.New(gpus, o.gpuHook)
	}
	if p.engine, err = railhop.Open(p.cfg); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return p, nil
}

// rig is a sender in the process of the test, a relay and a target in others.
// The sender is rail m0, the relay m1, and the target m1.
type rig struct {
	*testing.T
	registry string
	target   *child
	name     string // of the target's segment
	relay    *child // nil if there is none
	log      *records

	sender   *process
	id       railhop.SegmentID
	src, dst uint64
	size     uint64
	seed     uint64 // of what was written last
}

const small = 256 << 10 // a slot

// newRig starts a relay and gives the target memory of size bytes.
func newRig(t *testing.T, target *child, name string, size uint64, relay settings) *rig {
	t.Helper()
	r := &rig{T: t, registry: t.TempDir(), target: target, name: name, size: size, log: &records{seen: make(map[string]int)}}
	if relay != nil {
		r.relay, _ = start(t, with(rankSettings("g", 1), relay), r.registry)
	}
	r.dst = target.do(command{Op: "memory", Size: size}).Addr
	r.poison()
	return r
}

// with adds settings to those of a rank; tests use small slots.
func with(s, more settings) settings {
	s["MC_PXN_SLOT_SIZE"] = "256KiB"
	for k, v := range more {
		if v == "" {
			delete(s, k)
		} else {
			s[k] = v
		}
	}
	return s
}

// open starts the sender, with a source as long as the target's memory.
func (r *rig) open(o options) {
	r.Helper()
	if o.set == nil {
		o.set = settings{}
	}
	o.set, o.log = with(rankSettings("g", 0), o.set), slog.New(r.log)
	if o.registry == "" {
		o.registry = r.registry
	}
	r.log.t = r.T
	var err error
	if r.sender, err = openWith(o); err != nil {
		r.Fatal(err)
	}
	if r.src, err = r.sender.memory(r.size); err != nil {
		r.Fatal(err)
	}
	r.find(r.name)
}

// find opens the target's segment by a name.
func (r *rig) find(name string) {
	r.Helper()
	var err error
	if r.id, err = r.sender.engine.OpenSegment(r.Context(), name); err != nil {
		r.Fatal(err)
	}
}

// fill puts new bytes into the source.
func (r *rig) fill() {
	r.Helper()
	r.seed++
	if err := r.sender.fillAll(r.src, r.size, r.seed); err != nil {
		r.Fatal(err)
	}
}

// tryWrite writes the whole source, or gives up after the time.
func (r *rig) tryWrite(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	return r.sender.engine.Write(ctx, r.id, r.src, r.dst, r.size)
}

// write writes new bytes and has them checked.
func (r *rig) write() {
	r.Helper()
	r.fill()
	if err := r.tryWrite(20 * time.Second); err != nil {
		r.Fatal(err)
	}
	r.verify()
}

// twice writes twice.
func (r *rig) twice() {
	r.Helper()
	r.write()
	r.write()
}

// begin hands a write over, to be waited for with its result.
func (r *rig) begin() *railhop.Batch {
	r.Helper()
	b := r.sender.engine.NewBatch(1)
	err := b.Submit([]railhop.Request{{Op: railhop.Write, Source: r.src, Target: r.id, TargetAddr: r.dst, Length: r.size}})
	if err != nil {
		r.Fatal(err)
	}
	return b
}

func (r *rig) wait(b *railhop.Batch) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	if err := b.Wait(ctx); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) verify() {
	r.Helper()
	if bad := r.target.do(command{Op: "verify", Addr: r.dst, Size: r.size, Seed: r.seed}).Bad; bad > 0 {
		r.Errorf("%d of %d bytes differ", bad, r.size)
	}
}

func (r *rig) poison() {
	r.Helper()
	r.target.do(command{Op: "poison", Addr: r.dst, Size: r.size, Byte: 0xa5})
}

// second opens another engine on the sender's host, and closes it.
func (r *rig) second() {
	r.Helper()
	e, err := railhop.Open(r.sender.cfg)
	if err != nil {
		r.Fatal(err)
	}
	if err := e.Close(); err != nil {
		r.Error(err)
	}
}

// until waits for a condition of the world outside.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// balance checks that every byte that was submitted went some way or failed.
func balance(t testing.TB, s railhop.Stats) {
	t.Helper()
	got := s.Relayed.Bytes + s.DirectSameRail.Bytes + s.DirectCrossRail.Bytes + s.Failed.Bytes
	if got != s.Submitted.Bytes {
		t.Errorf("submitted %d bytes, and %d relayed, %d direct on the rail, %d across, %d failed make %d", s.Submitted.Bytes,
			s.Relayed.Bytes, s.DirectSameRail.Bytes, s.DirectCrossRail.Bytes, s.Failed.Bytes, got)
	}
}

// records counts log lines by their reason, and passes them on to the test.
type records struct {
	mu   sync.Mutex
	t    *testing.T
	over bool
	min  slog.Level // of what is passed on
	seen map[string]int
	peer []string // warnings that name a peer
}

func (l *records) Enabled(context.Context, slog.Level) bool { return true }
func (l *records) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *records) WithGroup(string) slog.Handler            { return l }

func (l *records) Handle(_ context.Context, rec slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := rec.Level.String() + " " + rec.Message
	rec.Attrs(func(a slog.Attr) bool {
		if a.Key == "reason" {
			l.seen[a.Value.String()]++
		}
		if a.Key == "peer" && rec.Level >= slog.LevelWarn {
			l.peer = append(l.peer, rec.Message+": "+a.Value.String())
		}
		text += " " + a.String()
		return true
	})
	if l.t != nil && !l.over && rec.Level >= l.min {
		l.t.Log(text)
	}
	return nil
}

func (l *records) count(why xfer.Reason) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[why.String()]
}

func (l *records) ofPeers() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.peer)
}

// end stops passing lines on: the test is over.
func (l *records) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

// alias serves the target's descriptor, changed, under another name.
func (r *rig) alias(change func(*wire.SegmentDesc)) string {
	r.Helper()
	d := &handshake.Dialer{ConnectTimeout: 5 * time.Second}
	desc, err := d.Describe(r.Context(), r.name)
	if err != nil {
		r.Fatal(err)
	}
	desc.RDMAServerName = r.name
	change(desc)
	s, err := handshake.Listen(handshake.Options{PortMin: 17001, PortMax: 19000})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { s.Close() })
	encoded := wire.AppendSegmentDesc(nil, desc)
	s.Handle(handshake.Handlers{Describe: func() []byte { return encoded }})
	return wire.ServerName("127.0.0.1", s.Port())
}

// device is the sender's GPU, below all faults.
func (r *rig) device() *softgpu.Device { return r.sender.dev.(*softgpu.Device) }

// chunks calls f for the parts of a range, with a buffer as long.
func (p *process) chunks(addr, size uint64, f func(addr, off uint64, b []byte) error) error {
	const chunk = 16 << 20
	buf := make([]byte, min(chunk, size))
	for off := uint64(0); off < size; off += chunk {
		if err := f(addr+off, off, buf[:min(chunk, size-off)]); err != nil {
			return err
		}
	}
	return nil
}

// fillAll puts a seed's bytes into memory, as much as there is.
func (p *process) fillAll(addr, size, seed uint64) error {
	return p.chunks(addr, size, func(addr, off uint64, b []byte) error {
		pattern.Fill(b, seed, off)
		return p.dev.CopyIn(addr, b)
	})
}

// differ counts the bytes that are not the seed's; with a stride, those of the
// parts that are not, and those between them that are not c.Byte.
func (p *process) differ(c command) (bad int, err error) {
	err = p.chunks(c.Addr, c.Size, func(addr, off uint64, b []byte) error {
		if err := p.dev.CopyOut(b, addr); err != nil {
			return err
		}
		if c.Stride == 0 {
			_, n := pattern.Mismatch(b, c.Seed, off)
			bad += n
			return nil
		}
		for at := uint64(0); at < uint64(len(b)); at += c.Stride {
			_, n := pattern.Mismatch(b[at:at+c.Part], c.Seed, (off+at)/c.Stride*c.Part)
			bad += n
			for _, x := range b[at+c.Part : at+c.Stride] {
				if x != c.Byte {
					bad++
				}
			}
		}
		return nil
	})
	return bad, err
}

// memoryOn is memory on the GPU with that ordinal.
func (p *process) memoryOn(ordinal int, size uint64) (uint64, error) {
	if ordinal == 0 {
		return p.memory(size)
	}
	infos, err := p.gpus.Devices()
	if err != nil {
		return 0, err
	}
	dev, err := p.gpus.Open(infos[ordinal].BusID)
	if err != nil {
		return 0, err
	}
	addr, err := dev.Alloc(size)
	if err != nil {
		return 0, err
	}
	return addr, p.engine.Register(addr, size, "")
}
