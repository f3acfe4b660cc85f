package testkit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Stop stops a process, and returns once none of its threads runs: the signal alone
// may take a while.
func Stop(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	const patience = 10 * time.Second
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		if err != nil {
			return err
		}
		running := slices.ContainsFunc(files, func(name string) bool {
			b, err := os.ReadFile(name)
			return err == nil && !bytes.Contains(b, []byte(") T "))
		})
		if !running {
			return nil
		}
	}
	return fmt.Errorf("testkit: process %d is not stopped after %v", p.Pid, patience)
}
