package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// process is one end, driven by lines of JSON.
type process struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	name string
	addr uint64
}

// message is what a process says.
type message struct {
	RC    int       `json:"rc"`
	Name  string    `json:"name,omitempty"`
	Addr  uint64    `json:"addr,omitempty"`
	Times []float64 `json:"times,omitempty"`
}

func launch(command, env []string) (*process, error) {
	p := &process{cmd: exec.Command(command[0], command[1:]...)}
	p.cmd.Env = append(p.cmd.Environ(), env...)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewScanner(out)
	p.out.Buffer(nil, 1<<20)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	hello, err := p.read()
	p.name, p.addr = hello.Name, hello.Addr
	return p, err
}

func (p *process) close() {
	p.signal(syscall.SIGCONT)
	p.in.Close()
	kill := time.AfterFunc(5*time.Second, func() { p.cmd.Process.Kill() })
	p.cmd.Wait()
	kill.Stop()
}

func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

func (p *process) read() (m message, err error) {
	for p.out.Scan() {
		if json.Unmarshal(p.out.Bytes(), &m) == nil {
			if m.RC != 0 {
				err = fmt.Errorf("code %d", m.RC)
			}
			return m, err
		}
	}
	return m, errors.New("the process has ended")
}

// ask says a verb and its arguments, and returns the numbers of the answer.
func (p *process) ask(verb string, args ...any) ([]float64, error) {
	line, err := json.Marshal(append([]any{verb}, args...))
	if err != nil {
		return nil, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	m, err := p.read()
	if err == nil && len(m.Times) == 0 {
		err = errors.New("no times")
	}
	return m.Times, err
}

func (p *process) measure(to *process, w workload) ([]float64, error) {
	return p.ask("measure", to.name, to.addr, w.count, w.length, w.repeat)
}

// usage is the processor time that the process has used, in seconds.
func (p *process) usage() (float64, error) {
	used, err := p.ask("usage")
	if err != nil {
		return 0, err
	}
	if len(used) != 2 {
		return 0, fmt.Errorf("usage of %d numbers, want 2", len(used))
	}
	return used[0] + used[1], nil
}
