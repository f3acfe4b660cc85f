package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/metadata"
	"github.com/railhop/railhop/internal/metrics"
	"github.com/railhop/railhop/internal/nic/softnic"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/worker"
)

// bench is one run.
type bench struct {
	app    *app
	opts   *benchOptions
	engine *railhop.Engine
	gpus   gpu.Provider // nil but for --use_vram
	memory benchMemory
}

// benchMemory is what is moved from or to at this end.
type benchMemory struct {
	addr, size uint64
	free       func() error
}

// run is this end's life: open, measure or be measured, close.
func (b *bench) run(ctx context.Context) (err error) {
	if err := b.settle(ctx); err != nil {
		return err
	}
	if b.opts.mode == "self" {
		child, segment, err := b.startTarget(ctx)
		if err != nil {
			return err
		}
		defer child.Close()
		b.opts.segment = segment
	}
	if err := b.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if b.opts.metricsAddr != "" {
		m, err := metrics.Listen(b.opts.metricsAddr, b.engine)
		if err != nil {
			return err
		}
		defer m.Close()
		fmt.Fprintln(b.app.errOut, "metrics at", m.URL())
	}
	if b.opts.mode == "target" {
		return b.serve(ctx)
	}
	return b.measure(ctx)
}

// settle reads the environment and decides what the flags have left open.
func (b *bench) settle(ctx context.Context) error {
	o := b.opts
	env, warnings := config.FromEnviron()
	for _, w := range warnings {
		fmt.Fprintln(b.app.errOut, "railhop: warning:", w)
	}
	if o.soft {
		env.Providers.Soft, env.Providers.Auto = true, false
	}
	soft := env.Providers.Soft
	if o.host == "" {
		o.host = "127.0.0.1"
		if !soft && o.mode != "self" {
			name, err := os.Hostname()
			if err != nil {
				return usagef("bench: --local_server_name: this host has no name (%w): want one, or an address", err)
			}
			o.host = name
		}
	}
	if o.served() {
		o.env = env
		return nil // the name stands as it is, and hardware in software has to be described
	}
	if host, _, err := net.SplitHostPort(o.host); err == nil {
		fmt.Fprintf(b.app.errOut, "railhop: --local_server_name %s: the port is not used: one is drawn from %d to %d\n", o.host, env.Names.MinRPCPort, env.Names.MaxRPCPort)
		o.host = host
	}
	if err := wire.CheckOwnHost(o.host, o.mode == "self"); err != nil {
		return usagef("bench: --local_server_name: %w", err)
	}
	if soft && env.Providers.SoftNICs == "" {
		addr, err := addressOf(ctx, o.host)
		if err != nil {
			return usagef("bench: --local_server_name %q: a software NIC listens there (%w): want a name or address of this host, or RAILHOP_SOFT_NICS", o.host, err)
		}
		env.Providers.SoftNICs = "soft0=" + bracketed(addr)
	}
	if soft && env.Providers.SoftGPUs == "" && o.vram {
		env.Providers.SoftGPUs = fmt.Sprint(o.gpu + 1)
	}
	if soft {
		if _, err := softnic.ParseDevices(env.Providers.SoftNICs); err != nil {
			return usagef("bench: RAILHOP_SOFT_NICS: %w", err)
		}
	}
	o.env = env
	return nil
}

func addressOf(ctx context.Context, host string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return a, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if a.Unmap().Is4() {
			return a.Unmap(), nil
		}
	}
	return addrs[0], nil
}

// bracketed is an address as it stands in front of a port.
func bracketed(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]:0"
	}
	return a.String()
}

func (b *bench) open() error {
	o := b.opts
	cfg := railhop.Defaults()
	cfg.Host, cfg.Devices, cfg.Settings, cfg.Registry, cfg.Logger = o.host, o.nics, o.env, o.registry, b.app.log
	cfg.Metadata, cfg.Protocol = o.metadata, o.protocol
	if o.vram {
		if err := b.openGPUs(); err != nil {
			return err
		}
		cfg.GPUs = b.gpus
	}
	var err error
	if b.engine, err = railhop.Open(cfg); err != nil {
		if errors.Is(err, railhop.ErrNoProvider) && !o.env.Providers.Soft {
			err = fmt.Errorf("%w (here: --soft)", err)
		}
		return err
	}
	if b.memory, err = b.allocate(); err == nil {
		err = b.engine.Register(b.memory.addr, b.memory.size, "")
	}
	if err != nil {
		return errors.Join(err, b.close())
	}
	return nil
}

func (b *bench) openGPUs() error {
	o := b.opts
	if !o.env.Providers.Soft {
		if o.mode == "self" {
			return usagef("bench: --mode self with --use_vram plays its GPUs: want --soft, or --mode target and --mode initiator")
		}
		var err error
		if b.gpus, err = cuda.Open(cuda.Options{Logger: b.app.log}); err != nil {
			return fmt.Errorf("bench: --use_vram: %w; --soft plays a GPU in software", err)
		}
		return nil
	}
	configs, err := softgpu.ParseDevices(o.env.Providers.SoftGPUs)
	if err != nil {
		return usagef("bench: RAILHOP_SOFT_GPUS: %w", err)
	}
	if o.gpu >= len(configs) {
		return usagef("bench: --gpu_id %d: RAILHOP_SOFT_GPUS has %d: want 0 to %d", o.gpu, len(configs), len(configs)-1)
	}
	b.gpus, err = softgpu.New(softgpu.Options{Devices: configs, Logger: b.app.log})
	return err
}

func (b *bench) close() error {
	err := b.engine.Close()
	if b.memory.free != nil {
		err = errors.Join(err, b.memory.free())
	}
	return err
}

const fillChunk = 1 << 20

func (b *bench) allocate() (benchMemory, error) {
	o := b.opts
	m := benchMemory{size: o.buffer}
	if !o.vram {
		host, err := unix.Mmap(-1, 0, int(o.buffer), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return m, fmt.Errorf("bench: --buffer_size: map %s: %w", formatSize(o.buffer), err)
		}
		if o.init {
			pattern.Fill(host, 1, 0)
		}
		m.addr, m.free = mappedAt(host), func() error { return unix.Munmap(host) }
		return m, nil
	}
	infos, err := b.gpus.Devices()
	if err != nil {
		return m, fmt.Errorf("bench: list GPUs: %w", err)
	}
	if o.gpu >= len(infos) {
		return m, usagef("bench: --gpu_id %d: there are %d GPUs", o.gpu, len(infos))
	}
	d, err := b.gpus.Open(infos[o.gpu].BusID)
	if err != nil {
		return m, fmt.Errorf("bench: open GPU %d: %w", o.gpu, err)
	}
	if m.addr, err = d.Alloc(o.buffer); err != nil {
		return m, errors.Join(fmt.Errorf("bench: --buffer_size: %s of GPU memory: %w", formatSize(o.buffer), err), d.Close())
	}
	m.free = func() error { return errors.Join(d.Free(m.addr), d.Close()) }
	if o.init {
		chunk := make([]byte, min(fillChunk, o.buffer))
		for off := uint64(0); off < o.buffer; off += uint64(len(chunk)) {
			chunk = chunk[:min(uint64(len(chunk)), o.buffer-off)]
			pattern.Fill(chunk, 1, off)
			if err := d.CopyIn(m.addr+off, chunk); err != nil {
				return m, errors.Join(err, m.free())
			}
		}
	}
	return m, nil
}

// serve is a target's life.
func (b *bench) serve(ctx context.Context) error {
	name := b.engine.Name()
	if b.app.json {
		fmt.Fprintf(b.app.out, `{"segment_id":%q,"addr":%d,"length":%d}`+"\n", name, b.memory.addr, b.memory.size)
	} else {
		more := ""
		if b.opts.soft {
			more = " --soft"
		}
		if !b.opts.served() {
			fmt.Fprintf(b.app.out, "Transfer Engine RPC using P2P handshake, listening on %s\n", name)
		}
		for _, f := range []struct{ flag, value, usual string }{
			{"protocol", b.opts.protocol, ""}, {"metadata_server", b.opts.metadata, metadata.P2PHandshake},
		} {
			if f.value != f.usual {
				more += fmt.Sprintf(" --%s %s", f.flag, f.value)
			}
		}
		if b.opts.served() {
			more += " --local_server_name <another name>"
		}
		fmt.Fprintf(b.app.out, "now run: railhop bench --mode initiator --segment_id %s --operation write%s\n", name, more)
	}
	<-ctx.Done()
	return nil
}

// startTarget starts the other end on this machine, with the same settings but
// for the relay, which is the initiator's.
func (b *bench) startTarget(ctx context.Context) (_ *worker.Proc, segment string, err error) {
	o := b.opts
	exe, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("bench: start a target: %w", err)
	}
	p, err := worker.Command{Name: "target", Exe: exe, Args: []string{"worker", "--name", "target", "--log-level", b.app.level}, Stderr: b.app.errOut}.Start(ctx)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	env := map[string]string{}
	for _, s := range o.env.Set {
		if !strings.HasPrefix(s.Name, "MC_PXN_") {
			env[s.Name] = s.Value
		}
	}
	if o.env.Providers.Soft {
		env["RAILHOP_PROVIDERS"], env["RAILHOP_SOFT_NICS"] = "soft", o.env.Providers.SoftNICs
		if o.env.Providers.SoftGPUs != "" {
			env["RAILHOP_SOFT_GPUS"] = o.env.Providers.SoftGPUs
		}
	}
	opened, err := p.Open(ctx, worker.OpenArgs{Engine: "target", Host: o.host, Env: env, Devices: o.nics, Protocol: o.protocol})
	if err != nil {
		return nil, "", err
	}
	where := worker.HostMemory
	if o.vram {
		where = o.gpu
	}
	if _, err = p.Alloc(ctx, worker.AllocArgs{Memory: "buffer", GPU: where, Bytes: o.buffer}); err != nil {
		return nil, "", err
	}
	if o.init {
		if err = p.Poison(ctx, "buffer", 0xa5); err != nil {
			return nil, "", err
		}
	}
	if err = p.Register(ctx, worker.RegisterArgs{Engine: "target", Memory: "buffer"}); err != nil {
		return nil, "", err
	}
	return p, opened.Segment, nil
}
