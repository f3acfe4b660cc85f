package railhop

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/ledger"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/segment"
	"github.com/railhop/railhop/internal/topo"
	"github.com/railhop/railhop/internal/xfer"
)

// Region is memory to be registered.
type Region struct {
	Addr   uint64
	Length uint64 // bytes
	// Location is where the memory lies, such as "cuda:0" or "cpu:1". "" or "*"
	// means that it is found out.
	Location string
	// LocalOnly keeps peers from reading and writing it.
	LocalOnly bool
}

// Register makes memory known, so that it can be moved from and to. The memory
// must stay where it is until Unregister. It fails with [ErrInvalidArgument] for
// length 0, and with [ErrAddressOverlapped] if the range overlaps registered
// memory.
func (e *Engine) Register(addr, length uint64, location string) error {
	return e.RegisterBatch([]Region{{Addr: addr, Length: length, Location: location}})
}

// RegisterBytes registers a slice, keeps it alive until its address is
// unregistered, and returns that address.
func (e *Engine) RegisterBytes(b []byte) (addr uint64, err error) {
	addr = addressOf(b)
	if err := e.Register(addr, uint64(len(b)), ""); err != nil {
		return 0, err
	}
	e.keepMu.Lock()
	defer e.keepMu.Unlock()
	e.kept[addr] = b
	return addr, nil
}

// RegisterBatch is Register for many regions, all or none.
func (e *Engine) RegisterBatch(regions []Region) error {
	if len(regions) == 0 {
		return nil
	}
	bufs := make([]*segment.Buffer, len(regions))
	for i, r := range regions {
		b, err := e.classify(r)
		if err != nil {
			return err
		}
		bufs[i] = b
	}
	if err := e.local.Reserve(bufs...); err != nil {
		return err
	}
	for i, b := range bufs {
		if err := e.pin(b); err != nil {
			for _, done := range bufs[:i] {
				err = errors.Join(err, unpin(done))
			}
			e.local.Free(bufs...)
			return err
		}
	}
	e.local.Publish(bufs...)
	if err := e.publish(); err != nil {
		addrs := make([]uint64, len(regions))
		for i, r := range regions {
			addrs[i] = r.Addr
		}
		return errors.Join(err, e.UnregisterBatch(addrs))
	}
	limit := uint64(e.cfg.Settings.Names.MaxFrame)
	if err := e.local.CheckLength(limit); err != nil {
		e.log.Warn("peers with default settings cannot read this segment's descriptor", "segment", e.name, "err", err)
	}
	return nil
}

// classify asks the driver what a region is. The first GPU memory says which
// GPU this rank is, if nothing has said so before.
func (e *Engine) classify(r Region) (*segment.Buffer, error) {
	b := &segment.Buffer{Addr: r.Addr, Length: r.Length, Location: r.Location, RemoteAccess: !r.LocalOnly}
	b.Memory = gpu.Range{Kind: gpu.HostMemory}
	if e.host.gpus != nil && r.Length > 0 {
		b.Memory = e.host.gpus.Classify(r.Addr, r.Length)
	}
	if b.Memory.Kind != gpu.DeviceMemory {
		if b.Location == "" || b.Location == "*" {
			b.Location = e.hostLocation(r.Addr)
		}
		return b, nil
	}
	infos, err := e.host.gpuInfos()
	if err != nil {
		return nil, err
	}
	for _, g := range infos {
		if g.BusID == b.Memory.BusID {
			b.Location = location(g.Index)
		}
	}
	if e.tcp == nil && e.cfg.Settings.PXN.On() && e.rank.Load() == nil {
		e.joinRank(b.Memory.BusID)
	}
	return b, nil
}

// hostLocation is the location of host memory: the node, if there is one only, or else
// that of its first page, if that was touched.
func (e *Engine) hostLocation(addr uint64) string {
	const anywhere = "*"
	name := ""
	for l := range e.cfg.Topology {
		if strings.HasPrefix(l, "cpu:") {
			if name != "" {
				name = anywhere
				break
			}
			name = l
		}
	}
	if name == anywhere {
		if node, ok := topo.PageNode(addr); ok {
			name = "cpu:" + strconv.Itoa(node)
		}
	}
	return cmp.Or(name, anywhere)
}

// pin registers a buffer's chunks with every NIC.
func (e *Engine) pin(b *segment.Buffer) error {
	if e.tcp != nil {
		return e.pinTCP(b)
	}
	access := nic.LocalWrite
	if b.RemoteAccess {
		access |= nic.RemoteRead | nic.RemoteWrite
	}
	if e.cfg.Settings.RDMA.RelaxedOrdering != 0 {
		access |= nic.RelaxedOrdering
	}
	mrs := make([][]nic.MR, len(e.devices))
	errs := make([]error, len(e.devices))
	var wg sync.WaitGroup
	for i, d := range e.devices {
		register := func() { mrs[i], errs[i] = registerChunks(d, b.Chunks, access) }
		if e.cfg.Settings.RDMA.ParallelRegMR == 0 {
			register()
		} else {
			wg.Go(register)
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, mr := range slices.Concat(mrs...) {
			err = errors.Join(err, mr.Close())
		}
		return err
	}
	for i := range b.Chunks {
		c := &b.Chunks[i]
		for _, of := range mrs {
			c.LKey, c.RKey = append(c.LKey, of[i].LKey()), append(c.RKey, of[i].RKey())
		}
	}
	b.Owner = slices.Concat(mrs...)
	return nil
}

// registerChunks registers chunks with one NIC, as far as that takes them.
func registerChunks(d *device, chunks []segment.Chunk, access nic.Access) (mrs []nic.MR, _ error) {
	for _, c := range chunks {
		mr, err := d.pd.Register(c.Addr, c.Length, access)
		if err != nil {
			return mrs, fmt.Errorf("railhop: register %d bytes at %#x with %s: %w: %w", c.Length, c.Addr, d.Attr().Name, xfer.ErrContext, err)
		}
		mrs = append(mrs, mr)
	}
	return mrs, nil
}

func unpin(b *segment.Buffer) error {
	var err error
	if dev, ok := b.Owner.(gpu.Device); ok {
		err = dev.Close()
	}
	mrs, _ := b.Owner.([]nic.MR)
	for _, mr := range mrs {
		err = errors.Join(err, mr.Close())
	}
	b.Owner = nil
	return err
}

// Unregister makes memory unknown again, by the address that Register was given.
// It waits for transfers that use it, and fails with [ErrBatchBusy] if they
// take too long; the memory then stays registered. It fails with
// [ErrAddressNotFound] for an address that is not the start of a region.
func (e *Engine) Unregister(addr uint64) error { return e.UnregisterBatch([]uint64{addr}) }

// UnregisterBatch is Unregister for many regions. Those that can be unregistered
// are, whatever becomes of the others.
func (e *Engine) UnregisterBatch(addrs []uint64) error {
	found, err := e.local.Withdraw(addrs...)
	if len(found) > 0 {
		err = errors.Join(err, e.publish())
	}
	deadline := time.Now().Add(e.cfg.CloseWait)
	var free []*segment.Buffer
	for _, b := range found {
		if busy := e.awaitUnused(b, deadline); busy {
			e.local.Publish(b)
			err = errors.Join(err, fmt.Errorf("railhop: unregister %#x: transfers still use it: %w", b.Addr, xfer.ErrBatchBusy))
			continue
		}
		if e.data != nil {
			e.data.Revoke(b.Addr, b.Length)
		}
		err = errors.Join(err, unpin(b))
		free = append(free, b)
	}
	if len(free) < len(found) {
		err = errors.Join(err, e.publish()) // peers find what stays
	}
	e.keepMu.Lock()
	for _, b := range free {
		delete(e.kept, b.Addr)
	}
	e.keepMu.Unlock()
	e.local.Free(free...) // last: from now on the range may be registered anew
	return err
}

// awaitUnused waits until no open task reads or writes a buffer.
func (e *Engine) awaitUnused(b *segment.Buffer, deadline time.Time) (busy bool) {
	for {
		if e.host.loop.Do(func() { busy = e.uses(b) }) != nil {
			return false
		}
		if !busy || time.Now().After(deadline) {
			return busy
		}
		time.Sleep(time.Millisecond)
	}
}

// uses reports whether an open task has its local end in b. It belongs to the pump.
func (e *Engine) uses(b *segment.Buffer) bool {
	e.drainIntake()
	for batch := range e.active {
		if batch.Closed() {
			delete(e.active, batch)
			continue
		}
		for i := range batch.Len() {
			t := batch.At(i)
			if t.Open() && overlaps(t, b) {
				return true
			}
		}
	}
	return false
}

func overlaps(t *ledger.Task, b *segment.Buffer) bool {
	return t.Req.Source < b.Addr+b.Length && b.Addr < t.Req.Source+t.Req.Length
}

func (e *Engine) unregisterAll() error {
	var err error
	for _, b := range e.local.Buffers() {
		if _, w := e.local.Withdraw(b.Addr); w != nil {
			err = errors.Join(err, w)
			continue
		}
		err = errors.Join(err, unpin(b))
		e.local.Free(b)
	}
	return err
}
