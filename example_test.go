package railhop_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/railhop/railhop"
)

// softEngine opens an engine on a NIC that is played in software.
func softEngine(nic string) *railhop.Engine {
	cfg := railhop.Defaults()
	cfg.Host = "127.0.0.1"
	cfg.Settings.Providers.Soft = true
	cfg.Settings.Providers.SoftNICs = nic
	e, err := railhop.Open(cfg)
	if err != nil {
		log.Fatal(err)
	}
	return e
}

func Example() {
	prefill, decode := softEngine("rail0=127.0.0.1"), softEngine("rail0=127.0.0.2")
	defer prefill.Close()
	defer decode.Close()

	source, sink := []byte("keys and values of a prompt"), make([]byte, 27)
	from, err := prefill.RegisterBytes(source)
	if err != nil {
		log.Fatal(err)
	}
	to, err := decode.RegisterBytes(sink)
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	target, err := prefill.OpenSegment(ctx, decode.Name())
	if err != nil {
		log.Fatal(err)
	}
	if err := prefill.Write(ctx, target, from, to, uint64(len(source))); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", sink)
	// Output: keys and values of a prompt
}

func ExampleBatch() {
	a, b := softEngine("rail0=127.0.0.1"), softEngine("rail0=127.0.0.2")
	defer a.Close()
	defer b.Close()
	pages, pool := make([]byte, 64<<10), make([]byte, 1<<20)
	copy(pages, "a page of 4 KiB, and fifteen more")
	from, err := a.RegisterBytes(pages)
	if err != nil {
		log.Fatal(err)
	}
	to, err := b.RegisterBytes(pool)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	target, err := a.OpenSegment(ctx, b.Name())
	if err != nil {
		log.Fatal(err)
	}

	// Sixteen pages, scattered over the other side's pool.
	const page = 4 << 10
	var reqs []railhop.Request
	for i := range uint64(16) {
		reqs = append(reqs, railhop.Request{Op: railhop.Write, Source: from + i*page, Target: target, TargetAddr: to + i*7*page, Length: page})
	}
	batch := a.NewBatch(len(reqs))
	if err := batch.Submit(reqs); err != nil {
		log.Fatal(err)
	}
	if err := batch.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(batch.Poll(), string(pool[:16]))
	// Output: completed a page of 4 KiB,
}

func ExampleEngine_Notify() {
	a, b := softEngine("rail0=127.0.0.1"), softEngine("rail0=127.0.0.2")
	defer a.Close()
	defer b.Close()
	ctx := context.Background()
	target, err := a.OpenSegment(ctx, b.Name())
	if err != nil {
		log.Fatal(err)
	}
	if err := a.Notify(ctx, target, railhop.Notification{Name: "request-7", Msg: "pages are in place"}); err != nil {
		log.Fatal(err)
	}
	for _, n := range b.Notifications() {
		fmt.Println(n.Name+":", n.Msg)
	}
	// Output: request-7: pages are in place
}
