package railhop_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/pattern"
)

// cable pulls a device's cable, "down", and plugs it in, "up".
func cable(t *testing.T, device, state string) {
	t.Helper()
	port := "port" + strings.TrimPrefix(device, "rxe")
	if out, err := exec.Command("ip", "link", "set", port, state).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestRXELinkPulled pulls the relay's cable in the middle of a write and plugs it in
// again.
func TestRXELinkPulled(t *testing.T) {
	devices := needRXE(t, 3)
	target, name := start(t, targetSettings(), t.TempDir())
	patient := settings{"MC_PXN_CREDIT_TIMEOUT_MS": "3000", "MC_RDMA_RAIL_PAUSE_SECONDS": "3"}
	// To pull a cable takes as long as some of the pieces: the batch writes all of them twice.
	const pieces, piece, laps = 12, 1 << 20, 2
	r := newRig(t, target, name, pieces*piece, patient)
	r.open(options{set: patient})
	defer r.sender.close()
	defer cable(t, devices[1], "up")
	r.write()
	before := r.sender.engine.Stats().Relayed
	if before.Bytes == 0 {
		t.Fatalf("nothing was relayed: %v", r.sender.engine.Stats().Fallbacks)
	}
	r.fill()
	reqs := make([]railhop.Request, laps*pieces)
	b := r.sender.engine.NewBatch(len(reqs))
	for i := range reqs {
		at := uint64(i % pieces * piece)
		reqs[i] = railhop.Request{Op: railhop.Write, Source: r.src + at, Target: r.id, TargetAddr: r.dst + at, Length: piece}
	}
	if err := b.Submit(reqs); err != nil {
		t.Fatal(err)
	}
	until(t, "a piece is relayed", func() bool { return r.sender.engine.Stats().Relayed.Bytes > before.Bytes })
	cable(t, devices[1], "down")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	if err := b.Wait(ctx); err != nil {
		t.Fatalf("%v: %+v", err, r.sender.engine.Stats())
	}
	r.verify()
	st := r.sender.engine.Stats()
	balance(t, st)
	if st.Failed.Bytes > 0 || st.DirectCrossRail.Bytes == 0 {
		t.Errorf("failed %+v, direct %+v: want the rest to go direct", st.Failed, st.DirectCrossRail)
	}
	t.Logf("while it was pulled: relayed %d, direct %d, fallbacks %v", st.Relayed.Bytes-before.Bytes, st.DirectCrossRail.Bytes, st.Fallbacks)
	cable(t, devices[1], "up")
	for end := time.Now().Add(120 * time.Second); ; {
		was := r.sender.engine.Stats().Relayed.Bytes
		r.write()
		if r.sender.engine.Stats().Relayed.Bytes > was {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("not relayed again: %v", r.sender.engine.Stats().Fallbacks)
		}
		time.Sleep(time.Second)
	}
	balance(t, r.sender.engine.Stats())
}

// TestRXEDirectLinkPulled pulls one of two cables in the middle of a direct write, on
// either side: what was on it goes by the other, which alone is used until
// MC_RDMA_RAIL_PAUSE_SECONDS are over and the cable is back.
func TestRXEDirectLinkPulled(t *testing.T) {
	devices := needRXE(t, 3)
	pulled := devices[1]
	for _, tc := range []struct {
		name      string
		from, to  []string
		throughIt func(railhop.Stats) (bytes uint64)
	}{
		{"the target's", devices[:1], devices[1:3], func(s railhop.Stats) (n uint64) {
			for _, l := range s.Direct.Links {
				if strings.HasSuffix(l.Peer, "@"+pulled) {
					n += l.Bytes
				}
			}
			return n
		}},
		{"our own", devices[1:3], devices[:1], func(s railhop.Stats) (n uint64) {
			for _, l := range s.Direct.Links {
				if l.NIC == pulled {
					n += l.Bytes
				}
			}
			return n
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const size, piece = 32 << 20, 1 << 20
			set := settings{"MC_RDMA_RAIL_PAUSE_SECONDS": "3"}
			a, b := openRXE(t, set, tc.from...), openRXE(t, set, tc.to...)
			defer cable(t, pulled, "up")
			src, from := registerBytes(t, a, size)
			dst, to := registerBytes(t, b, size)
			id := openSegment(t, a, b.Name())
			seed := uint64(0)
			begin := func(n int) *railhop.Batch {
				t.Helper()
				seed++
				pattern.Fill(src[:n], seed, 0)
				reqs := make([]railhop.Request, 0, n/piece)
				for at := uint64(0); at < uint64(n); at += piece {
					reqs = append(reqs, railhop.Request{Op: railhop.Write, Source: from + at, Target: id, TargetAddr: to + at, Length: piece})
				}
				batch := a.NewBatch(len(reqs))
				if err := batch.Submit(reqs); err != nil {
					t.Fatal(err)
				}
				return batch
			}
			end := func(batch *railhop.Batch, n int) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
				defer cancel()
				if err := batch.Wait(ctx); err != nil {
					t.Fatalf("%v: %+v", err, a.Stats())
				}
				check(t, "a write", nil, dst[:n], seed)
			}
			through := func() uint64 { return tc.throughIt(a.Stats()) }
			end(begin(4*piece), 4*piece)
			if through() == 0 {
				t.Fatalf("%s is not used: %+v", pulled, a.Stats().Direct.Links)
			}

			was := through()
			batch := begin(size)
			until(t, "it goes by "+pulled, func() bool { return through() > was })
			cable(t, pulled, "down")
			at := time.Now()
			end(batch, size)
			t.Logf("ended %v after the cable was pulled: %+v", time.Since(at).Round(time.Millisecond), a.Stats().Direct)

			// Nothing is tried there, and nothing fails.
			was = through()
			retries := a.Stats().Direct.Retries
			for range 3 {
				end(begin(4*piece), 4*piece)
			}
			if now := a.Stats().Direct; through() != was || now.Failed > 0 {
				t.Errorf("while it is paused: %d bytes more by %s, %d retries more, %d failed", through()-was, pulled, now.Retries-retries, now.Failed)
			}
			balance(t, a.Stats())

			cable(t, pulled, "up")
			at = time.Now()
			for through() == was {
				end(begin(4*piece), 4*piece)
				if time.Since(at) > 60*time.Second {
					t.Fatalf("%s is not used again: %+v", pulled, a.Stats().Direct)
				}
				time.Sleep(300 * time.Millisecond)
			}
			t.Logf("used again %v after the cable was plugged in", time.Since(at).Round(time.Millisecond))
			if st := a.Stats(); st.Failed.Bytes > 0 {
				t.Errorf("failed: %+v", st.Failed)
			}
			balance(t, a.Stats())
			if err := errors.Join(a.Close(), b.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}
