package main

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
)

// fence fills the source by something slow on the model's stream, and writes it. With a
// fence on an idle stream instead, which is none, stale bytes must be seen.
func (r *ranks) fence(doorbell string) error {
	const (
		size      = 64 << 10
		scrap     = 16 << 20
		perThread = 2
	)
	own, err := r.b.raw.stream()
	if err != nil {
		return err
	}
	idle, err := r.b.raw.stream()
	if err != nil {
		return err
	}
	src := r.b.src
	tries := 10_000
	if doorbell == "kernel" {
		tries = 1000 // only the relayed way has one
	}
	got := make([]byte, size)
	copies := []gpu.Copy{{Dst: 0, Src: 0, Length: size / 2}, {Dst: size / 2, Src: size, Length: size / 2}}
	for _, c := range []struct {
		name   string
		model  uintptr
		stream uint64
		given  bool
		far    bool
		fence  bool
		tries  int
	}{
		{"given stream, relayed", own, uint64(own), true, true, true, tries},
		{"given stream, direct", own, uint64(own), true, false, true, tries},
		{"per-thread default stream, relayed", perThread, 0, true, true, true, tries},
		{"per-thread default stream, direct", perThread, 0, true, false, true, tries},
		{"no fence, relayed", own, uint64(idle), true, true, false, 100},
	} {
		target, stale := r.nearIn, 0
		if c.far {
			target = r.farIn
		}
		for i := range c.tries {
			value := byte(i%250 + 1)
			for range 8 { // slower than the way
				if err := r.b.raw.copy(gpu.Copy{Dst: src + 2*scrap, Src: src + scrap, Length: scrap}, c.model); err != nil {
					return err
				}
			}
			if err := r.b.raw.fill(src, value, 2*size, c.model); err != nil {
				return err
			}
			if err := r.write(c.far, c.stream, c.given, copies); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if err := r.b.device.CopyOut(got, target); err != nil {
				return err
			}
			if bytes.Count(got, []byte{value}) != size {
				stale++
			}
			if err := r.b.raw.sync(c.model); err != nil {
				return err
			}
		}
		x := sample{Group: "engine", Case: fmt.Sprintf("fence, %d tries", c.tries), Way: c.name + ", " + doorbell + " doorbell", Unit: "stale", Values: []float64{float64(stale)}, Want: "0"}
		if !c.fence {
			x.Want = "some"
		}
		r.b.report.add(x)
		if c.fence == (stale > 0) {
			return fmt.Errorf("%s: %d of %d stale, want %s", c.name, stale, c.tries, x.Want)
		}
	}
	return nil
}

// capture has a thread of the model's capture a graph in global mode while this one
// moves bytes, which would break it if a thread of the engine's were not in relaxed
// mode. The graph must come out whole, and run.
func (r *ranks) capture() error {
	const writes = 50
	copies := []gpu.Copy{{Length: 1 << 20}, {Dst: 2 << 20, Src: 4 << 20, Length: 3000}}
	begun, moved, done := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	var stream uintptr
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- func() error {
			detach, err := r.b.device.(*cuda.Device).Attach()
			if err != nil {
				begun <- err
				return err
			}
			defer detach()
			raw, err := bindRaw()
			if err == nil {
				stream, err = raw.stream()
			}
			if err != nil {
				begun <- err
				return err
			}
			end, err := raw.capture(stream)
			if err == nil {
				err = raw.fill(r.b.src+sourceBytes-4096, 1, 4096, stream)
			}
			begun <- err
			<-moved
			return errors.Join(err, end())
		}()
	}()
	err := <-begun
	refused := 0
	for i := 0; i < writes && err == nil; i++ {
		err = r.write(i%2 == 0, 0, false, copies)
		if e := r.write(i%2 == 0, uint64(stream), true, copies); errors.Is(e, gpu.ErrCapturing) {
			refused++
		} else if e == nil {
			err = errors.New("a write behind the capturing stream was taken")
		}
	}
	close(moved)
	if err = errors.Join(err, <-done); err != nil {
		return fmt.Errorf("capture in global mode: %w", err)
	}
	r.b.report.add(sample{Group: "engine", Case: fmt.Sprintf("%d writes during a capture in global mode", writes), Way: "graphs broken", Unit: "graphs", Values: []float64{0}, Want: "0"})
	r.b.report.add(sample{Group: "engine", Case: "writes behind the capturing stream", Way: "refused", Unit: "writes", Values: []float64{float64(refused)}, Want: fmt.Sprint(writes)})
	return nil
}

// contexts calls the engine on threads with no context and with the device's, and looks
// whether each is current afterwards as it was before.
func (r *ranks) contexts() error {
	device, err := r.b.raw.current()
	if err != nil {
		return err
	}
	calls, changed := 0, 0
	for _, context := range []uintptr{0, device} {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // and not unlocked: the thread ends
			done <- func() error {
				raw, err := bindRaw()
				if err != nil {
					return err
				}
				if err := raw.setCurrent(context); err != nil {
					return err
				}
				mem, err := r.b.device.Alloc(4 << 20)
				if err != nil {
					return err
				}
				defer r.b.device.Free(mem)
				copies := []gpu.Copy{{Length: 1 << 20}}
				for _, call := range []func() error{
					func() error { return r.e.Register(mem, 4<<20, "") },
					func() error { return r.write(true, 0, false, copies) },
					func() error { return r.write(false, 0, false, copies) },
					func() error { return r.writeFrom(mem, true, 0, false, copies) },
					func() error { return r.e.Unregister(mem) },
				} {
					if err := call(); err != nil {
						return fmt.Errorf("call %d: %w", calls, err)
					}
					calls++
					if now, err := raw.current(); err != nil {
						return err
					} else if now != context {
						changed++
					}
				}
				return nil
			}()
		}()
		if err := <-done; err != nil {
			return fmt.Errorf("with the context %#x: %w", context, err)
		}
	}
	r.b.report.add(sample{Group: "engine", Case: fmt.Sprintf("%d calls, no context or the device's", calls), Way: "after which another is current", Unit: "calls", Values: []float64{float64(changed)}, Want: "0"})
	return nil
}

// killed kills the relay, whose arena stays allocated for as long as we import it, and
// waits for the GPU's memory to be as without a relay.
func (r *ranks) killed() error {
	if err := r.relay.close(); err != nil {
		return err
	}
	used := func() (uint64, error) {
		free, total, err := r.b.raw.memory()
		return total - free, err
	}
	const still, slack = 700 * time.Millisecond, 64 << 20
	without, err := used()
	for since := time.Now(); err == nil && time.Since(since) < still; time.Sleep(time.Millisecond) {
		var now uint64
		if now, err = used(); now != without {
			without, since = now, time.Now()
		}
	}
	x := sample{Group: "engine", Case: "relay killed", Way: "until its arena is given up", Unit: "ms", Want: "<= 1000"}
	for range 5 {
		if err != nil {
			return err
		}
		if err := r.startRelay(); err != nil {
			return err
		}
		if err := r.untilRelayed(); err != nil {
			return err
		}
		if with, err := used(); err != nil || with < without+slack {
			return errors.Join(err, fmt.Errorf("a relay takes %d bytes of GPU memory, want more than %d", int64(with-without), slack))
		}
		r.relay.cmd.Process.Kill()
		r.relay.cmd.Wait()
		start := time.Now()
		for now := ^uint64(0); now > without+slack && err == nil; now, err = used() {
			if time.Since(start) > patience {
				return errors.New("the arena of a killed relay is still there")
			}
		}
		x.Values = append(x.Values, float64(time.Since(start).Microseconds())/1e3)
	}
	r.relay = nil
	r.b.report.add(x)
	return err
}

// untilRelayed writes until something goes over the relay.
func (r *ranks) untilRelayed() error {
	before := r.e.Stats().Relayed.Bytes
	for end := time.Now().Add(5 * time.Second); r.e.Stats().Relayed.Bytes == before; {
		if time.Now().After(end) {
			return errors.New("nothing was relayed")
		}
		if err := r.write(true, 0, false, []gpu.Copy{{Length: 1 << 20}}); err != nil {
			return err
		}
	}
	return nil
}
