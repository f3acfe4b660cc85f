package cuda

import (
	_ "embed"
	"fmt"

	"golang.org/x/sys/unix"
)

// gatherPTX is the gather kernel, for the driver's compiler.
//
//go:embed gather.ptx
var gatherPTX string

const (
	// kernelDriver and kernelTarget are the driver and the device that take the PTX,
	// by its .version and its .target.
	kernelDriver = 11000
	kernelTarget = 70
)

// loadKernel compiles the kernel and launches it once, with nothing to copy. That
// it does run is seen in the word that it stores last.
func (d *device) loadKernel(f *frame, s *staging) error {
	drv := d.p.drv
	text, err := unix.Mmap(-1, 0, len(gatherPTX)+1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", len(gatherPTX)+1, err)
	}
	defer unix.Munmap(text)
	copy(text, gatherPTX)
	if err := d.check("cuModuleLoadDataEx", f.callOut(drv.moduleLoadData, uintptr(addressOf(text)), 0, 0, 0)); err != nil {
		return err
	}
	d.module = f.word
	if err := d.check("cuModuleGetFunction", f.callOut(drv.moduleGetFunction, uintptr(d.module), f.setText("gather"))); err != nil {
		return err
	}
	d.kernel = f.word
	t, err := d.newTable(f, s.stream, tableSpans)
	if err != nil {
		return err
	}
	d.tables = append(d.tables, t)
	f.setLaunch()
	if err := d.launch(f, s.stream, t, 0, 0, 0, bell{}); err != nil {
		return err
	}
	if err := d.check("cuStreamSynchronize", f.call(drv.streamSynchronize, uintptr(s.stream))); err != nil {
		return err
	}
	if got := t.done.Load(); got != t.launched {
		return fmt.Errorf("the kernel ran and stored %d, want %d", got, t.launched)
	}
	return nil
}

// launch runs the kernel over n spans of bytes in all, from first on in the table.
func (d *device) launch(f *frame, stream uint64, t *table, first, n int, bytes uint64, ring bell) error {
	grid, threads, share, team := shape(d.blocks, n, bytes)
	t.launched++
	f.launch = launchArgs{
		spans: t.deviceSpans + uint64(first)*spanBytes, arrived: t.arrived,
		done: t.deviceDone, doneValue: t.launched, bell: ring.addr, bellValue: ring.value,
		count: uint32(n), share: uint32(share), team: uint32(team),
	}
	return d.check("cuLaunchKernel", f.call(d.p.drv.launchKernel, uintptr(d.kernel),
		uintptr(grid), 1, 1, uintptr(threads), 1, 1, 0, uintptr(stream), 0, addr(&f.extra)))
}

// shape chooses how many blocks of how many threads copy n spans, how many spans a
// warp fetches at a time, and how many threads share in one.
func shape(blocks, n int, bytes uint64) (grid, threads, share, team int) {
	const (
		blockBytes = 16 << 10 // worth a block of its own
		blockSpans = 128
		eightBytes = 1 << 10 // of a span, which 8 threads copy with 8 loads underway each
		halfBytes  = 2 << 10 // likewise 16 threads
	)
	grid = max(1, min(blocks, max(int((bytes+blockBytes-1)/blockBytes), (n+blockSpans-1)/blockSpans)))
	threads = 1024
	if grid == 1 && n <= 8 {
		threads = 256
	}
	warps := grid * threads / 32
	share = min(32, max(1, (n+warps-1)/warps))
	team = 32
	if n > 0 {
		switch each := bytes / uint64(n); {
		case each <= eightBytes:
			team = 8
		case each <= halfBytes:
			team = 16
		}
	}
	for team < 32 && team*share < 32 {
		team *= 2 // a warp has too few spans for so many teams
	}
	return grid, threads, share, team
}
