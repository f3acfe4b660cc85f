package railhop_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/nicfault"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/testkit"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// plain opens a sender and writes twice.
func plain(o options) func(*rig) {
	return func(r *rig) {
		r.open(o)
		r.twice()
	}
}

// startWith is plain for what goes wrong at the start: once more for a second
// engine.
func startWith(o options) func(*rig) {
	return func(r *rig) {
		r.open(o)
		r.second()
		r.twice()
	}
}

func (r *rig) group() *registry.Registry {
	r.Helper()
	reg, err := registry.Open(registry.Options{Root: r.registry, Group: "g"})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { reg.Close() })
	return reg
}

func (r *rig) switchPXN(off bool) {
	r.Helper()
	if _, _, err := r.group().SetOff(off); err != nil {
		r.Fatal(err)
	}
}

func switchedOff(r *rig) {
	r.open(options{})
	r.write()
	r.switchPXN(true)
	r.twice()
	r.switchPXN(false)
	r.relaysAgain()
}

// relaysAgain writes until a write is relayed: a lane that was given back is not
// claimed anew at once.
func (r *rig) relaysAgain() {
	r.Helper()
	was := r.sender.engine.Stats().Relayed.Ops
	until(r, "a relayed write", func() bool {
		r.write()
		return r.Failed() || r.sender.engine.Stats().Relayed.Ops > was
	})
}

func offBefore(r *rig) {
	r.switchPXN(true)
	r.open(options{})
	r.twice()
}

func foreignGroup(r *rig) {
	if err := os.Mkdir(filepath.Join(r.registry, "g"), 0o755); err != nil {
		r.Fatal(err)
	}
	r.open(options{})
	r.second()
	r.twice()
}

func noRegistry(r *rig) {
	r.open(options{registry: filepath.Join(r.registry, "absent")})
	r.second()
	r.twice()
}

// fullRegistry has its registry on a file system that only a thread of ours has
// mounted, and that has 4 KiB free.
func fullRegistry(r *rig) {
	type mounted struct {
		fd  int
		err error
	}
	c := make(chan mounted)
	go func() {
		runtime.LockOSThread() // for good: its namespace is not to be used again
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", r.registry, "tmpfs", 0, "size=64m")
		}
		fd := -1
		if err == nil {
			fd, err = unix.Open(r.registry, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		c <- mounted{fd, err}
	}()
	m := <-c
	if errors.Is(m.err, unix.EPERM) {
		r.Skip("mounting a file system is not permitted here")
	}
	if m.err != nil {
		r.Fatal(m.err)
	}
	r.Cleanup(func() { unix.Close(m.fd) })
	root := fmt.Sprintf("/proc/self/fd/%d", m.fd)
	f, err := os.Create(root + "/ballast")
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 64<<20-4096); err != nil {
		r.Fatal(err)
	}
	r.open(options{registry: root})
	r.second()
	r.twice()
}

// truncated has the sender's own block cut short under it.
func truncated(r *rig) {
	r.open(options{})
	r.write()
	mine := fmt.Sprintf("%d.%d.*", os.Geteuid(), os.Getpid())
	files, err := filepath.Glob(filepath.Join(r.registry, "g", mine))
	if err != nil || len(files) != 1 {
		r.Fatalf("entries %q, %v: want one", files, err)
	}
	if err := os.Truncate(files[0], 0); err != nil {
		r.Fatal(err)
	}
	r.twice()
}

func reads(r *rig) {
	r.open(options{})
	r.seed = 77
	r.target.do(command{Op: "fill", Addr: r.dst, Size: r.size, Seed: r.seed})
	for range 2 {
		if err := r.sender.engine.Read(r.Context(), r.id, r.src, r.dst, r.size); err != nil {
			r.Fatal(err)
		}
	}
	got := make([]byte, r.size)
	if err := r.sender.dev.CopyOut(got, r.src); err != nil {
		r.Fatal(err)
	}
	if _, bad := pattern.Mismatch(got, r.seed, 0); bad > 0 {
		r.Errorf("%d bytes differ after a read", bad)
	}
}

func fromHost(r *rig) {
	r.open(options{})
	buf := make([]byte, r.size)
	r.seed = 78
	pattern.Fill(buf, r.seed, 0)
	src, err := r.sender.engine.RegisterBytes(buf)
	if err != nil {
		r.Fatal(err)
	}
	r.src = src
	for range 2 {
		if err := r.tryWrite(20 * time.Second); err != nil {
			r.Fatal(err)
		}
	}
	r.verify()
}

func fromOtherGPU(r *rig) {
	r.open(options{set: settings{"RAILHOP_SOFT_GPUS": "0000:a0:00.0;0000:a7:00.0"}})
	own := r.sender.dev
	other, err := r.sender.gpus.Open("0000:a7:00.0")
	if err != nil {
		r.Fatal(err)
	}
	src, err := other.Alloc(r.size)
	if err != nil {
		r.Fatal(err)
	}
	if err := r.sender.engine.Register(src, r.size, ""); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { other.Free(src); other.Close() })
	r.src, r.sender.dev = src, other
	r.twice()
	r.sender.dev = own
}

func nothing(r *rig) {
	r.open(options{})
	for range 2 {
		if err := r.sender.engine.Write(r.Context(), r.id, r.src, r.dst, 0); err != nil {
			r.Fatal(err)
		}
	}
	r.write()
}

func sameRail(r *rig) {
	r.target, r.name = start(r.T, with(targetSettings(), settings{"RAILHOP_SOFT_NICS": "m0=127.0.2.1"}), r.registry)
	r.dst = r.target.do(command{Op: "memory", Size: r.size}).Addr
	r.open(options{})
	r.twice()
	if s := r.sender.engine.Stats(); s.DirectSameRail.Bytes != 2*r.size {
		r.Errorf("%d bytes are counted as direct on the same rail, want %d", s.DirectSameRail.Bytes, 2*r.size)
	}
}

func longName(r *rig) {
	r.open(options{})
	r.find(r.alias(func(d *wire.SegmentDesc) { d.Name = strings.Repeat("n", 257) }))
	r.twice()
}

// noDevice has no way for the direct path either, so nothing arrives.
func noDevice(r *rig) {
	r.open(options{})
	r.find(r.alias(func(d *wire.SegmentDesc) {
		d.PriorityMatrix = map[string][2][]string{"cuda:0": {{"m7"}, {}}}
	}))
	for range 2 {
		err := r.tryWrite(20 * time.Second)
		if !errors.Is(err, xfer.ErrDeviceNotFound) || !strings.Contains(err.Error(), `"cuda:0"`) {
			r.Fatalf("got %v, want an error that names the location", err)
		}
	}
}

// lanesTaken has seven other senders hold all lanes of the relay.
func lanesTaken(r *rig) {
	reg := r.group()
	peers, _, err := reg.Scan()
	if err != nil || len(peers) != 1 {
		r.Fatalf("%d peers, %v: want the relay", len(peers), err)
	}
	self := peers[0].Owner()
	self.PID, self.StartTicks = reg.Self().PID, reg.Self().StartTicks
	for epoch := range uint64(7) {
		if _, err := peers[0].Claim(self, 100+epoch); err != nil {
			r.Fatal(err)
		}
	}
	r.open(options{})
	r.twice()
}

func busyRegistry(r *rig) {
	r.open(options{})
	f, err := os.OpenFile(filepath.Join(r.registry, "g", ".lock"), os.O_RDWR, 0)
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		r.Fatal(err)
	}
	r.twice()
}

func noFence(r *rig) {
	r.open(options{})
	r.find(r.alias(func(d *wire.SegmentDesc) { d.FenceVersion = 0 }))
	r.twice()
}

// blindfold hides what the relay completes from the sender, while it is on.
type blindfold struct{ on atomic.Bool }

func (b *blindfold) hooks() *railhop.Hooks {
	return &railhop.Hooks{NoCut: true, Lane: func(end railhop.End, m lane.Mem) lane.Mem {
		if end == railhop.SenderEnd {
			return blindMem{m, b}
		}
		return m
	}}
}

type blindMem struct {
	lane.Mem
	b *blindfold
}

func (m blindMem) Load(w lane.Word) uint64 {
	if (w.Kind == lane.DoneCommit || w.Kind == lane.Completed) && m.b.on.Load() {
		return 0
	}
	return m.Mem.Load(w)
}

// wayNotClosed has a piece given up that the relay has claimed, and a target
// that does not answer the fence.
func wayNotClosed(r *rig) {
	var b blindfold
	var confirms atomic.Bool
	h := b.hooks()
	h.Fence = func(_ string, _ uint64, ask func() error) error {
		if !confirms.Load() {
			return errInjected
		}
		return ask()
	}
	r.open(options{hooks: h})
	r.write()
	b.on.Store(true)
	var late *railhop.MayLandError
	if err := r.tryWrite(200 * time.Millisecond); !errors.As(err, &late) || !errors.Is(err, context.DeadlineExceeded) {
		r.Fatalf("got %v, want an error that says what may still land", err)
	}
	if got := r.sender.engine.MayLand(); len(got) != 1 || got[0].Addr != r.dst || got[0].Length != r.size {
		r.Errorf("may still land: %v", got)
	}
	if err := r.sender.engine.Unregister(r.src); !errors.Is(err, railhop.ErrBatchBusy) {
		r.Errorf("unregister the source: got %v, want busy", err)
	}
	r.twice()
	confirms.Store(true)
	until(r, "nothing may land any more", func() bool { return len(r.sender.engine.MayLand()) == 0 })
	b.on.Store(false)
}

// noCredit has 18 pieces in flight that the sender never sees completed.
func noCredit(r *rig) {
	var b blindfold
	r.open(options{hooks: b.hooks(), set: settings{"MC_PXN_CREDIT_TIMEOUT_MS": "300"}})
	b.on.Store(true)
	r.fill()
	batch := r.begin()
	until(r, "two pieces without credit", func() bool { return r.sender.engine.Stats().Reasons[xfer.NoCredit].Ops == 2 })
	b.on.Store(false)
	r.wait(batch)
	r.verify()
}

func (r *rig) signal(s os.Signal) {
	r.Helper()
	do := r.relay.cmd.Process.Signal
	if s == unix.SIGSTOP {
		do = func(os.Signal) error { return testkit.Stop(r.relay.cmd.Process) }
	}
	if err := do(s); err != nil {
		r.Fatal(err)
	}
}

func notClaimed(r *rig) {
	r.open(options{set: settings{"MC_PXN_HEARTBEAT_TIMEOUT_MS": "60000", "MC_PXN_CREDIT_TIMEOUT_MS": "500"}})
	r.write()
	r.signal(unix.SIGSTOP)
	r.twice()
	r.signal(unix.SIGCONT)
	r.relaysAgain()
}

// submitOn writes behind a stream of the sender's GPU.
func (r *rig) submitOn(stream uint64) error {
	b := r.sender.engine.NewBatch(1)
	err := b.SubmitOn(stream, []railhop.Request{{Op: railhop.Write, Source: r.src, Target: r.id, TargetAddr: r.dst, Length: r.size}})
	if err == nil {
		r.wait(b)
	}
	return err
}

// capturing has nothing sent while the stream is captured.
func capturing(r *rig) {
	r.open(options{})
	handle, s, err := r.device().NewUserStream()
	if err != nil {
		r.Fatal(err)
	}
	defer s.Close()
	r.fill()
	s.SetCapturing(true)
	for range 2 {
		if err := r.submitOn(handle); !errors.Is(err, gpu.ErrCapturing) {
			r.Fatalf("got %v, want a refusal", err)
		}
	}
	s.SetCapturing(false)
	if err := r.submitOn(handle); err != nil {
		r.Fatal(err)
	}
	r.verify()
}

// copyFails has every copy into a slot fault, in the background.
func copyFails(r *rig) {
	r.open(options{})
	r.device().SetCopyHook(func(c []gpu.Copy) { c[0].Src = 4096 })
	r.twice()
}

// scattered writes pieces of two runs, with a GPU that copies them one by one.
func scattered(r *rig) {
	r.open(options{set: settings{"RAILHOP_SOFT_GPUS": "0000:a0:00.0,batch=off"}})
	half := r.size / 2
	for range 2 {
		r.fill()
		b := r.sender.engine.NewBatch(2)
		err := b.Submit([]railhop.Request{
			{Op: railhop.Write, Source: r.src + half, Target: r.id, TargetAddr: r.dst + half, Length: half},
			{Op: railhop.Write, Source: r.src, Target: r.id, TargetAddr: r.dst, Length: half},
		})
		if err != nil {
			r.Fatal(err)
		}
		r.wait(b)
		r.verify()
	}
}

// manyBuffers writes one span over more buffers than the relay has slices.
func manyBuffers(r *rig) {
	const parts = 4500
	r.target, r.name = start(r.T, targetSettings(), r.registry)
	r.dst = r.target.do(command{Op: "alloc", Size: r.size}).Addr
	r.target.do(command{Op: "register", Addr: r.dst, Size: r.size, Part: r.size/parts + 1})
	r.open(options{})
	r.twice()
}

// body is a descriptor's, on its way to the relay.
type body = lane.Body

type hostileMem struct {
	lane.Mem
	spoil func(*body)
}

func (m hostileMem) PutBody(slot int, b *lane.Body, plans, session int) {
	bad := *b
	m.spoil(&bad)
	m.Mem.PutBody(slot, &bad, plans, session)
}

// hostile has the sender write descriptors that are spoilt.
func hostile(spoil func(*body)) func(*rig) {
	return plain(options{hooks: &railhop.Hooks{Lane: func(end railhop.End, m lane.Mem) lane.Mem {
		return hostileMem{m, spoil}
	}}})
}

func suspected(r *rig) {
	r.open(options{set: settings{"MC_PXN_HEARTBEAT_TIMEOUT_MS": "300", "MC_PXN_CREDIT_TIMEOUT_MS": "20000"}})
	r.write()
	r.signal(unix.SIGSTOP)
	r.twice()
	r.signal(unix.SIGCONT)
	r.relaysAgain()
}

func killed(r *rig) {
	r.open(options{})
	r.write()
	r.signal(unix.SIGSTOP) // so that it claims nothing
	r.fill()
	b := r.begin()
	r.signal(unix.SIGKILL)
	r.wait(b)
	r.verify()
	r.relay.cmd.Wait()
	b = r.begin()
	r.wait(b)
}

// stopping has two writes meet a relay that shuts down.
func stopping(r *rig) {
	r.open(options{})
	r.write()
	reg := r.group()
	peers, _, err := reg.Scan()
	if err != nil {
		r.Fatal(err)
	}
	done := make(chan answer)
	go func() { done <- r.relay.do(command{Op: "close"}) }()
	for _, p := range peers {
		if p.Owner().PID == int32(r.relay.cmd.Process.Pid) {
			until(r, "the relay stops", p.Stopping)
		}
	}
	r.fill()
	first, second := r.begin(), r.begin()
	r.wait(first)
	r.wait(second)
	r.verify()
	<-done
}

// senderDies is about the relay: two senders die that hold lanes of ours.
func senderDies(r *rig) {
	r.open(options{})
	target, name := start(r.T, with(targetSettings(), settings{"RAILHOP_SOFT_NICS": "m0=127.0.2.1"}), r.registry)
	dst := target.do(command{Op: "memory", Size: r.size}).Addr
	for i := range uint64(2) {
		c, _ := start(r.T, with(rankSettings("g", 1), nil), r.registry)
		src := c.do(command{Op: "memory", Size: r.size}).Addr
		c.do(command{Op: "fill", Addr: src, Size: r.size, Seed: 50 + i})
		c.do(command{Op: "write", Name: name, Addr: src, To: dst, Size: r.size})
		if bad := target.do(command{Op: "verify", Addr: dst, Size: r.size, Seed: 50 + i}).Bad; bad > 0 {
			r.Errorf("%d bytes differ", bad)
		}
		if got := c.do(command{Op: "stats"}).Stats.Relayed.Bytes; got != r.size {
			r.Errorf("sender %d: %d bytes were relayed, want %d", i, got, r.size)
		}
		c.cmd.Process.Kill()
		c.cmd.Wait()
		until(r, "the lane of the dead is free", func() bool {
			return r.sender.engine.Stats().Reasons[xfer.SenderDead].Ops == i+1
		})
	}
}

func nicFails(r *rig) {
	r.open(options{})
	r.write()
	r.relay.do(command{Op: "break nic"})
	r.twice()
}

func gpuLost(r *rig) {
	r.open(options{})
	r.write()
	r.device().Fail(errInjected)
	for range 2 {
		r.poison()
		if err := r.tryWrite(20 * time.Second); err != nil {
			r.Fatal(err)
		}
		r.verify()
	}
}

// gpuLostInCopy loses the GPU while a piece is on its way into its slot.
func gpuLostInCopy(r *rig) {
	r.open(options{})
	r.write()
	r.fill()
	copying, goOn := make(chan struct{}), make(chan struct{})
	r.device().SetCopyHook(func([]gpu.Copy) { close(copying); <-goOn })
	b := r.begin()
	<-copying
	r.device().Fail(errInjected)
	close(goOn)
	r.wait(b)
	r.verify()
	r.poison()
	if err := r.tryWrite(20 * time.Second); err != nil {
		r.Fatal(err)
	}
	r.verify()
}

// unplug has queue pairs connect to where nobody is.
func unplug(c *nicfault.Call) error {
	if c.Op == nicfault.Modify && c.Attr.State == nic.RTR {
		c.Attr.RemoteLID = 1
	}
	return nil
}

// noWay has a sender whose NIC does not reach the target's, and no relay.
func noWay(r *rig) {
	r.open(options{nicHook: unplug, set: settings{"MC_RETRY_CNT": "2"}})
	for range 2 {
		err := r.tryWrite(20 * time.Second)
		if !errors.Is(err, xfer.ErrEndpoint) {
			r.Fatalf("got %v, want that of an endpoint", err)
		}
		for _, want := range []string{"m0 (rail m0)", "@m1 (rail m1)", "no relay served it: no_peer"} {
			if !strings.Contains(err.Error(), want) {
				r.Errorf("error %q does not say %q", err, want)
			}
		}
	}
	if s := r.sender.engine.Stats(); s.Failed.Bytes != 2*r.size {
		r.Errorf("%d bytes are counted as failed, want %d", s.Failed.Bytes, 2*r.size)
	}
}

// aborted has two deadlines pass while the relay works.
func aborted(r *rig) {
	var b blindfold
	r.open(options{hooks: b.hooks()})
	r.write()
	b.on.Store(true)
	for range 2 {
		r.fill()
		if err := r.tryWrite(200 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			r.Fatalf("got %v, want that the deadline has passed", err)
		}
		if got := r.sender.engine.MayLand(); len(got) > 0 {
			r.Errorf("%v may still land", got)
		}
	}
	b.on.Store(false)
	r.write()
}

// TestWaitsWhereDirectIsImpossible has a relay that stands still for longer than
// the credit timeout, and a target that only it can reach.
func TestWaitsWhereDirectIsImpossible(t *testing.T) {
	target, name := start(t, targetSettings(), t.TempDir())
	r := newRig(t, target, name, small, settings{"MC_PXN_HEARTBEAT_TIMEOUT_MS": "60000"})
	defer r.log.end()
	r.open(options{nicHook: unplug, set: settings{
		"MC_RETRY_CNT": "2", "MC_PXN_HEARTBEAT_TIMEOUT_MS": "60000", "MC_PXN_CREDIT_TIMEOUT_MS": "100",
	}})
	if err := r.sender.engine.Read(t.Context(), r.id, r.src, r.dst, r.size); err == nil {
		t.Fatal("the direct way works: the test shows nothing")
	}
	r.write()
	r.signal(unix.SIGSTOP)
	r.fill()
	b := r.begin()
	time.Sleep(500 * time.Millisecond) // five times as long as a piece waits otherwise
	if s := b.Poll(); s != railhop.Waiting {
		t.Errorf("the write is %v, want it to wait for the relay: %v", s, r.sender.engine.Stats().Fallbacks)
	}
	r.signal(unix.SIGCONT)
	r.wait(b)
	r.verify()
	if err := r.sender.close(); err != nil {
		t.Error(err)
	}
}

// TestStrict has what should be relayed fail where it cannot be, and all else go
// direct.
func TestStrict(t *testing.T) {
	target, name := start(t, targetSettings(), t.TempDir())
	r := newRig(t, target, name, small, settings{})
	defer r.log.end()
	r.open(options{set: settings{"MC_PXN_STRICT": "1"}})
	r.write()
	if s := r.sender.engine.Stats(); s.Relayed.Bytes != r.size {
		t.Errorf("%d bytes were relayed, want %d", s.Relayed.Bytes, r.size)
	}
	if err := r.sender.engine.Read(t.Context(), r.id, r.src, r.dst, r.size); err != nil {
		t.Errorf("a read, which is never relayed: %v", err)
	}
	r.relay.do(command{Op: "close"})
	r.poison()
	until(t, "the relay is not found any more", func() bool {
		err := r.tryWrite(20 * time.Second)
		if err == nil || !errors.Is(err, xfer.ErrContext) || !strings.Contains(err.Error(), "MC_PXN_STRICT") {
			t.Fatalf("got %v, want an error that names the setting", err)
		}
		return strings.Contains(err.Error(), "no_peer")
	})
	got := target.do(command{Op: "verify", Addr: r.dst, Size: r.size, Seed: r.seed}).Bad
	if got < int(r.size)*9/10 {
		t.Errorf("only %d of %d bytes are not those of the source: a strict write went direct", got, r.size)
	}
	s := r.sender.engine.Stats()
	if s.DirectCrossRail.Bytes != r.size {
		t.Errorf("%d bytes went direct, want those of the read: %d", s.DirectCrossRail.Bytes, r.size)
	}
	balance(t, s)
	if err := r.sender.close(); err != nil {
		t.Error(err)
	}
}
