package softnic

import (
	"io"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

// TestRegionTakenMidBatch closes regions while the responder is in the middle of a batch
// of three writes, to regions x, y and z; half of y has arrived.
func TestRegionTakenMidBatch(t *testing.T) {
	const n = 40_000
	for _, tc := range []struct {
		name   string
		taken  int // index of the region
		status nic.Status
		seq    uint64
	}{
		{"one that is done with", 0, nic.StatusSuccess, 3},
		{"the one being written", 1, nic.StatusRemoteAccess, 1},
		{"one still to come", 2, nic.StatusRemoteAccess, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, DeviceConfig{Name: "b"}, 3*n)
			me := end{r.d.gid, 9, 99}
			r.connect(me)
			c, _ := say(t, r.d, hello{kind: kindData, src: me, dstQPN: r.q.num})
			b := make([]byte, batchBytes+3*opBytes)
			putBatch(b, 3)
			var mrs [3]nic.MR
			for i := range mrs {
				at := r.addr + uint64(i*n)
				mr, err := r.q.pd.Register(at, n, rigAccess)
				if err != nil {
					t.Fatal(err)
				}
				mrs[i] = mr
				putOp(b[batchBytes+i*opBytes:], op{nic.OpWrite, mr.RKey(), at, n})
			}
			payload := bytesOf(3*n, 1)
			c.Write(append(b, payload[:n+n/2]...))
			for end := time.Now().Add(patience); !said(r, n+n/2-1) && time.Now().Before(end); {
				time.Sleep(100 * time.Microsecond)
			}
			if err := mrs[tc.taken].Close(); err != nil {
				t.Fatal(err)
			}
			c.Write(payload[n+n/2:])
			c.SetReadDeadline(time.Now().Add(patience))
			var f frame
			var err error
			for reply := make([]byte, frameBytes); f.kind != frameNak && f.seq < 3 && err == nil; {
				if _, err := io.ReadFull(c, reply); err != nil {
					t.Fatal(err)
				}
				f, err = parseFrame(reply)
			}
			if err != nil || f.status != tc.status || f.seq != tc.seq {
				t.Errorf("frame %+v, %v; want %v at %d", f, err, tc.status, tc.seq)
			}
			for i := range int(f.seq) * n {
				if r.mem[i] != 1 {
					t.Fatalf("byte %d of %d is missing", i, int(f.seq)*n)
				}
			}
		})
	}
}

// TestRegionsComeAndGo registers and closes regions all the time, while writes to and from
// others go on: those must not notice.
func TestRegionsComeAndGo(t *testing.T) {
	const n = 32 << 10
	a, b := two(t, DeviceConfig{Name: "a"}, DeviceConfig{Name: "b"}, 8*n)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			time.Sleep(20 * time.Microsecond) // with one processor, let the others run
			for _, r := range []*rig{a, b} {
				mr, err := r.q.pd.Register(r.addr, 8*n, rigAccess)
				if err != nil {
					t.Error(err)
					return
				}
				mr.Close()
			}
		}
	}()
	for round := range 200 {
		// Each round uses regions of its own and closes them at once when done.
		from, err := a.q.pd.Register(a.addr, 8*n, 0)
		if err != nil {
			t.Fatal(err)
		}
		to, err := b.q.pd.Register(b.addr, 8*n, rigAccess)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(8) {
			a.post(nic.WR{
				ID: i, Op: nic.OpWrite, Signaled: true, LKey: from.LKey(), RKey: to.RKey(), Length: n,
				LocalAddr: a.addr + i*n, RemoteAddr: b.addr + i*n,
			})
		}
		for i, c := range a.wait(8) {
			if c.Status != nic.StatusSuccess {
				t.Fatalf("round %d: completion %d: %v", round, i, c.Status)
			}
		}
		if from.Close() != nil || to.Close() != nil {
			t.Fatal("close")
		}
	}
	close(stop)
	<-ended
}
