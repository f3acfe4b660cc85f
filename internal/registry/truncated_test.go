package registry

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

func TestTruncatedWhileMapped(t *testing.T) {
	r, e, p := pair(t)
	if err := os.Truncate(filepath.Join(r.Path(), e.Name()), 4096); err != nil {
		t.Fatal(err)
	}
	err := shm.Guard(func() error { p.Block().Lanes[6].Header.State.Load(); return nil })
	if !p.Fault(err) {
		t.Fatalf("fault %v is not the peer's", err)
	}
	if p.Fault(errors.New("other")) {
		t.Error("took an error that is no fault")
	}
	if suspected, why := p.Suspected(0); !suspected || why != whyTruncated {
		t.Errorf("suspected %v, %q", suspected, why)
	}
	if _, err := p.Claim(e.Identity(), 1); !errors.Is(err, ErrGone) {
		t.Errorf("claim: %v, want %v", err, ErrGone)
	}
	if p.Life() != Alive || p.Closed() {
		t.Errorf("life %v, closed %v: the process is there", p.Life(), p.Closed())
	}
	if peers, refused, err := r.Scan(); err != nil || len(peers) != 0 || len(refused) != 1 || refused[0].Cause != WrongSize {
		t.Errorf("scan: %v, %v, %v", peers, refused, err)
	}
	if c := r.Counters(); c.Truncated != 1 {
		t.Errorf("counters %+v", c)
	}
	// The owner lives on as well.
	if err := os.Truncate(filepath.Join(r.Path(), e.Name()), 0); err != nil {
		t.Fatal(err)
	}
	if err := e.Beat(1); !errors.Is(err, shm.ErrTruncated) {
		t.Errorf("beat: %v", err)
	}
	if err := e.freeLane(0); !errors.Is(err, shm.ErrTruncated) {
		t.Errorf("free lane: %v", err)
	}
	e.Off()
	if err := e.Close(); !errors.Is(err, shm.ErrTruncated) {
		t.Errorf("close: %v", err)
	}
}

// The peer notices by itself, whichever word is read first.
func TestTruncationIsNoticedByAnyLook(t *testing.T) {
	for name, look := range map[string]func(p *Peer){
		"suspected": func(p *Peer) { p.Suspected(0) },
		"wake":      func(p *Peer) { p.Wake() },
		"off":       func(p *Peer) { p.Off() },
		"life":      func(p *Peer) { p.Life() },
		"stopping":  func(p *Peer) { p.Stopping() },
		"claim":     func(p *Peer) { p.Claim(shmabi.Identity{}, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			r, e, p := pair(t)
			if err := os.Truncate(filepath.Join(r.Path(), e.Name()), 0); err != nil {
				t.Fatal(err)
			}
			look(p)
			if !p.Truncated() {
				t.Error("not noticed")
			}
			e.Close()
		})
	}
}

// D15: a full and a read-only file system are messages.
func TestFileSystemWithoutRoom(t *testing.T) {
	k := start(t, &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}, "full", t.TempDir())
	line := k.read()
	if line == "skip" {
		t.Skip("no mounts here")
	}
	for _, want := range []string{"need 28672 bytes, 4096 are free", group} {
		if !strings.Contains(line, want) {
			t.Errorf("full: %s, want %q", line, want)
		}
	}
	if line := k.read(); !strings.Contains(line, "lane") || !strings.Contains(line, "bytes, 0 are free") {
		t.Errorf("claim: %s", line)
	}
	if line := k.read(); !strings.Contains(line, unix.EROFS.Error()) {
		t.Errorf("read-only: %s", line)
	}
}
