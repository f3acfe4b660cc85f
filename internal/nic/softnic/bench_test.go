package softnic_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/softnic"
)

// link is a connected pair of queue pairs with memory at both ends.
type link struct {
	a, b     nic.Device
	qa, qb   nic.QP
	cqa, cqb nic.CQ
	woken    chan struct{}
	from, to nic.MR
	src, dst uint64
	srcMem   []byte
	dstMem   []byte
}

func newLink(t testing.TB, size, maxWR int, cfgA, cfgB softnic.DeviceConfig) *link {
	t.Helper()
	p := provider(t, cfgA, cfgB)
	l := &link{woken: make(chan struct{}, 1)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	l.a, err = p.Open(cfgA.Name)
	must(err)
	t.Cleanup(func() { l.a.Close() })
	l.b, err = p.Open(cfgB.Name)
	must(err)
	t.Cleanup(func() { l.b.Close() })
	pda, err := l.a.NewPD()
	must(err)
	pdb, err := l.b.NewPD()
	must(err)
	l.cqa, err = l.a.NewCQ(maxWR, func() { l.woken <- struct{}{} })
	must(err)
	l.cqb, err = l.b.NewCQ(maxWR, nil)
	must(err)
	l.qa, err = pda.NewQP(nic.QPOptions{CQ: l.cqa, MaxWR: maxWR})
	must(err)
	l.qb, err = pdb.NewQP(nic.QPOptions{CQ: l.cqb, MaxWR: maxWR})
	must(err)
	must(up(l.qa, l.b, l.qb.Num()))
	must(up(l.qb, l.a, l.qa.Num()))
	const access = nic.LocalWrite | nic.RemoteWrite | nic.RemoteRead
	l.src, l.srcMem = alloc(t, size)
	l.dst, l.dstMem = alloc(t, size)
	l.from, err = pda.Register(l.src, uint64(size), access)
	must(err)
	l.to, err = pdb.Register(l.dst, uint64(size), access)
	must(err)
	for i := range l.srcMem {
		l.srcMem[i], l.dstMem[i] = byte(i), 0
	}
	return l
}

func up(q nic.QP, dev nic.Device, qpn uint32) error {
	p := dev.Port()
	for _, a := range []nic.QPAttr{
		{State: nic.Init, Access: nic.LocalWrite | nic.RemoteWrite | nic.RemoteRead},
		{State: nic.RTR, RemoteQPN: qpn, RemoteGID: p.GID, RemoteLID: p.LID},
		{State: nic.RTS, Timeout: 500 * time.Millisecond, Retries: 7},
	} {
		if err := q.Modify(a); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) wr(op nic.Op, id uint64, off, n int) nic.WR {
	return nic.WR{
		ID: id, Op: op, Signaled: true, LKey: l.from.LKey(), RKey: l.to.RKey(), Length: uint32(n),
		LocalAddr: l.src + uint64(off), RemoteAddr: l.dst + uint64(off),
	}
}

var plain = []softnic.DeviceConfig{{Name: "soft0", Addr: loopback}, {Name: "soft1", Addr: loopback}}

// pour moves count operations of n bytes each and waits for all of them.
func (l *link) pour(t testing.TB, op nic.Op, n, count int) {
	posted, done := 0, 0
	var wrs [16]nic.WR
	var comps [64]nic.Completion
	for done < count {
		for posted < count {
			k := 0
			for k < len(wrs) && posted+k < count {
				wrs[k] = l.wr(op, uint64(posted+k), (posted+k)*n%(len(l.srcMem)-n+1), n)
				k++
			}
			took, err := l.qa.Post(wrs[:k])
			if err != nil {
				t.Fatal(err)
			}
			posted += took
			if took < k {
				break
			}
		}
		k, err := l.cqa.Poll(comps[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range comps[:k] {
			if c.Status != nic.StatusSuccess {
				t.Fatalf("completion %d: %v", c.ID, c.Status)
			}
		}
		done += k
		if k > 0 {
			continue
		}
		if err := l.cqa.Arm(); err != nil {
			t.Fatal(err)
		}
		<-l.woken
	}
}

// stream is what the same bytes take over a plain TCP connection, written and
// read by the MiB. It returns bytes a second.
func stream(b *testing.B, total int) float64 {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer lis.Close()
	const chunk = 1 << 20
	_, mem := alloc(b, chunk)
	go func() {
		c, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			return
		}
		defer c.Close()
		for n := 0; n < total; n += chunk {
			c.Write(mem)
		}
	}()
	c, err := lis.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	_, into := alloc(b, 64<<20)
	start := time.Now()
	for n := 0; n < total; n += chunk {
		if _, err := io.ReadFull(c, into[n%len(into):][:chunk]); err != nil {
			b.Fatal(err)
		}
	}
	return float64(total) / time.Since(start).Seconds()
}

// bench moves operations of n bytes, as many bytes over a plain connection, and
// so on in turns, and reports the median ratio.
func bench(b *testing.B, op nic.Op, n int) {
	const each = 128 << 20
	l := newLink(b, 64<<20, 256, plain[0], plain[1])
	l.pour(b, op, n, 256)
	count := min(each/n, 200_000)
	var ratios []float64
	var spent time.Duration
	for b.Loop() {
		start := time.Now()
		l.pour(b, op, n, count)
		d := time.Since(start)
		spent += d
		ratios = append(ratios, float64(n)*float64(count)/d.Seconds()/stream(b, each))
	}
	slices.Sort(ratios)
	total := float64(count) * float64(len(ratios))
	b.ReportMetric(spent.Seconds()*1e9/total, "ns/transfer")
	b.ReportMetric(total*float64(n)/1e6/spent.Seconds(), "MB/s")
	b.ReportMetric(ratios[len(ratios)/2], "of-tcp")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkWrite64(b *testing.B)  { bench(b, nic.OpWrite, 64) }
func BenchmarkWrite4K(b *testing.B)  { bench(b, nic.OpWrite, 4<<10) }
func BenchmarkWrite64K(b *testing.B) { bench(b, nic.OpWrite, 64<<10) }
func BenchmarkWrite1M(b *testing.B)  { bench(b, nic.OpWrite, 1<<20) }
func BenchmarkRead64K(b *testing.B)  { bench(b, nic.OpRead, 64<<10) }
func BenchmarkRead1M(b *testing.B)   { bench(b, nic.OpRead, 1<<20) }

// BenchmarkPaced reports how much of the configured rate, in parts of 1, gets
// through.
func BenchmarkPaced(b *testing.B) {
	for _, rate := range []uint64{100e6, 500e6, 1e9} {
		b.Run(fmt.Sprintf("%dMBps", rate/1e6), func(b *testing.B) {
			limited := plain[0]
			limited.Rate = rate
			l := newLink(b, 64<<20, 256, limited, plain[1])
			const n = 64 << 10
			count := int(rate) / n // a second's worth
			l.pour(b, nic.OpWrite, n, count/10)
			start, moved := time.Now(), 0
			for b.Loop() {
				l.pour(b, nic.OpWrite, n, count)
				moved += n * count
			}
			b.ReportMetric(float64(moved)/time.Since(start).Seconds()/float64(rate), "of-rate")
		})
	}
}

// BenchmarkLatency is the time of one write of 64 bytes, alone.
func BenchmarkLatency(b *testing.B) {
	l := newLink(b, 4096, 16, plain[0], plain[1])
	l.pour(b, nic.OpWrite, 64, 1)
	b.ResetTimer()
	for range b.N {
		l.pour(b, nic.OpWrite, 64, 1)
	}
}
