package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
)

// sharedPages are shared by the two processes: one for each sender that is open.
const sharedPages = 16

// Words of a page, each on a line of its own.
const (
	bellWord = 0   // written by the sender's GPU
	echoWord = 128 // by the relay: what it has read
	stopWord = 256 // by the sender: stop echoing
)

// ask is what the sender wants of the relay, answer what it gets: one JSON value each,
// over standard input and output.
type ask struct {
	Op     string
	Page   int // for echo
	Bytes  uint64
	Seed   uint64
	Copies []gpu.Copy // for check: source offsets, arena offsets

	NIC, Registry, Doorbell string // of a rank
}

type answer struct {
	Err    string
	Handle []byte
	Name   string // of a rank's segment
	Addr   uint64
}

const (
	arenaSlots = 18
	slotBytes  = 8 << 20
	arenaBytes = arenaSlots * slotBytes
)

// serveRelay is the other process.
func serveRelay(in io.Reader, out io.Writer) error {
	runtime.LockOSThread()
	p, err := cuda.Open(cuda.Options{})
	if err != nil {
		return err
	}
	block, err := unix.Mmap(4, 0, controlBytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	shared, err := unix.Mmap(3, 0, sharedPages*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	var d gpu.Device
	var arena uint64
	var source []byte // of the last seed
	asks, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q ask
		if err := asks.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		var err error
		switch q.Op {
		case "open":
			var infos []gpu.Info
			if infos, err = p.Devices(); err == nil {
				d, err = p.Open(infos[0].BusID)
			}
			if err == nil {
				arena, err = d.Alloc(arenaBytes)
			}
			if err == nil {
				var h gpu.Handle
				h, err = d.Export(arena)
				a.Handle = h[:]
			}
		case "echo": // answered at once; ends when the sender says so
			if err := answers.Encode(a); err != nil {
				return err
			}
			if q.Page >= 0 && q.Page < sharedPages {
				echo(shared[q.Page*os.Getpagesize():])
			}
		case "lane": // likewise
			if err := answers.Encode(a); err != nil {
				return err
			}
			err = serveLane(block, wordAt(shared, stopWord))
		case "poison":
			err = d.CopyIn(arena, bytes.Repeat([]byte{poison}, arenaBytes))
		case "check":
			if uint64(len(source)) != q.Bytes {
				source = randomBytes(q.Seed, q.Bytes)
			}
			err = check(d, arena, source, q.Copies)
		default:
			err = fmt.Errorf("no such operation: %q", q.Op)
		}
		if err != nil {
			a.Err = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// echo is all that a relay does while a ring is timed.
func echo(page []byte) {
	bell, back, stop := wordAt(page, bellWord), wordAt(page, echoWord), wordAt(page, stopWord)
	last := back.Load()
	for stop.Load() == 0 {
		if now := bell.Load(); now != last {
			back.Store(now)
			last = now
		}
	}
	stop.Store(0)
}

const poison = 0xa5

// check compares the whole arena with what copies of the source leave in a poisoned
// one.
func check(d gpu.Device, arena uint64, source []byte, copies []gpu.Copy) error {
	want := bytes.Repeat([]byte{poison}, arenaBytes)
	for _, c := range copies {
		copy(want[c.Dst:c.Dst+c.Length], source[c.Src:])
	}
	got := make([]byte, arenaBytes)
	if err := d.CopyOut(got, arena); err != nil {
		return err
	}
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of the arena is %#x, want %#x", i, got[i], want[i])
		}
	}
	return nil
}

// randomBytes is the source of a seed.
func randomBytes(seed, n uint64) []byte {
	b := make([]byte, n)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		if i%8 == 0 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		b[i] = byte(x >> (i % 8 * 8))
	}
	return b
}

// peer is the sender's side of the relay.
type peer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
	asks    *json.Encoder
}

func startPeer(arg string, files ...*os.File) (*peer, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &peer{cmd: exec.Command(exe, arg)}
	r.cmd.ExtraFiles = files
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.asks, r.answers = json.NewEncoder(r.in), json.NewDecoder(out)
	return r, r.cmd.Start()
}

func (r *peer) ask(q ask) (answer, error) {
	var a answer
	if err := r.asks.Encode(q); err != nil {
		return a, err
	}
	return a, r.wait(&a)
}

func (r *peer) wait(a *answer) error {
	if err := r.answers.Decode(a); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	if a.Err != "" {
		return fmt.Errorf("peer: %s", a.Err)
	}
	return nil
}

func (r *peer) close() error {
	r.in.Close()
	return r.cmd.Wait()
}
