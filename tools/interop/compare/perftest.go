package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// perftest lets ib_write_bw write a stream.
func (c *contest) perftest(round int, s stream) error {
	args := func(device string) []string {
		return []string{"-F", "-d", device, "-x", "1", "-s", strconv.Itoa(s.length), "-n", strconv.Itoa(s.depth * s.repeat), "-t", strconv.Itoa(s.depth)}
	}
	server := exec.Command(perftest, args(c.devices[1])...)
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Wait()
	var out []byte
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		time.Sleep(wait) // until it listens
		var err error
		if out, err = exec.Command(perftest, append(args(c.devices[0]), "127.0.0.1")...).CombinedOutput(); err == nil {
			break
		}
		if wait > 10*time.Second {
			server.Process.Kill()
			return fmt.Errorf("%s: %w: %s", perftest, err, out)
		}
	}
	rate, err := average(string(out), s.length)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", perftest, err, out)
	}
	c.add(round, s.String(), perftest, "MiB/s", rate)
	return nil
}

// average finds the average rate, in MiB a second, which perftest calls MB, in the row
// of a length.
func average(out string, length int) (float64, error) {
	for line := range strings.Lines(out) {
		if row := strings.Fields(line); len(row) == 5 && row[0] == strconv.Itoa(length) {
			return strconv.ParseFloat(row[3], 64)
		}
	}
	return 0, errors.New("no row")
}
