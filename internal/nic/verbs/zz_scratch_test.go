package verbs_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

func TestScratchLatency(t *testing.T) {
	wakes := make(chan struct{}, 1024)
	r := newRig(t, func() {
		select {
		case wakes <- struct{}{}:
		default:
		}
	})
	r.wr.Length = 4096
	done := make([]nic.Completion, 4)
	show := func(what string, f func()) {
		var ts []time.Duration
		for range 150 {
			s := time.Now()
			f()
			ts = append(ts, time.Since(s))
		}
		slices.Sort(ts)
		fmt.Fprintf(os.Stderr, "%s: min %v p50 %v p90 %v\n", what, ts[0], ts[75], ts[135])
	}
	poll := func() bool {
		n, err := r.cq.Poll(done)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	for range 2 {
		show("post only+spin", func() {
			r.qp.Post([]nic.WR{r.wr})
			for !poll() {
			}
		})
		show("post call", func() {
			r.qp.Post([]nic.WR{r.wr})
			s := time.Now()
			for !poll() {
			}
			_ = s
		})
		show("spin with gosched", func() {
			r.qp.Post([]nic.WR{r.wr})
			for !poll() {
				runtime.Gosched()
			}
		})
		show("arm+channel", func() {
			r.qp.Post([]nic.WR{r.wr})
			for !poll() {
				r.cq.Arm()
				if poll() {
					break
				}
				<-wakes
			}
		})
		show("just poll", func() { poll() })
		show("sleep wake channel", func() {
			c := make(chan int)
			go func() { c <- 1 }()
			<-c
		})
	}
	s := time.Now()
	r.qp.Post([]nic.WR{r.wr})
	p := time.Since(s)
	n := 0
	for !poll() {
		n++
	}
	fmt.Fprintln(os.Stderr, "post", p, "all", time.Since(s), "polls", n)
}
