package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// runtimeFacts says what this machine's kernel has of what railhop builds on: some
// sandboxes have a kernel of their own.
func runtimeFacts() []string {
	var facts []string
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		facts = append(facts, "kernel "+unix.ByteSliceToString(u.Release[:]))
	}
	for _, probe := range []struct {
		name string
		try  func() error
	}{
		{"open-file-description locks", probeLocks},
		{"pidfd", probePidfd},
		{"robust lists", probeRobust},
	} {
		if err := probe.try(); err != nil {
			facts = append(facts, fmt.Sprintf("no %s (%v)", probe.name, err))
		} else {
			facts = append(facts, probe.name)
		}
	}
	return facts
}

func probeLocks() error {
	f, err := os.CreateTemp("", "bench-gpu")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		return err
	}
	other, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer other.Close()
	if err := unix.FcntlFlock(other.Fd(), unix.F_OFD_SETLK, &lock); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("a second lock: %v", err)
	}
	return nil
}

func probePidfd() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
