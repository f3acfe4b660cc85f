package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// contract decodes JSON and wants these names in it, at any depth.
func contract(t *testing.T, text string, names ...string) map[string]any {
	t.Helper()
	var all map[string]any
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(&all); err != nil {
		t.Fatalf("not a JSON object: %v\n%s", err, text)
	}
	if _, err := dec.Token(); err != io.EOF {
		t.Errorf("more than one value in %s", text)
	}
	for _, name := range names {
		var v any = all
		for part := range strings.SplitSeq(name, ".") {
			m, _ := v.(map[string]any)
			var ok bool
			if v, ok = m[part]; !ok {
				t.Errorf("%s is missing in %s", name, text)
				break
			}
		}
	}
	return all
}

func TestDemoJSON(t *testing.T) {
	t.Parallel()
	const bytes = 8 << 20
	status, out, errOut := runMain("demo", "--soft", "--json", "--bytes", "8MiB", "--slot-size", "256KiB", "--idle-seconds", "0.2", "--cross-rate", "100MB")
	if status != 0 || errOut != "" {
		t.Fatalf("status %d, %q", status, errOut)
	}
	contract(t, out, "verified_bytes", "mismatched_bytes", "idle_cpu_percent", "fallbacks",
		"paths.direct_same_rail.bytes", "paths.direct_same_rail.gbytes_per_s", "paths.direct_cross_rail.bytes",
		"paths.direct_cross_rail.gbytes_per_s", "paths.relayed.bytes", "paths.relayed.gbytes_per_s")
	var r demoResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.VerifiedBytes != 3*bytes || r.MismatchedBytes != 0 || len(r.Fallbacks) != 0 || len(r.IdleByProcess) != 3 {
		t.Errorf("result %+v", r)
	}
	for _, way := range ways {
		if p := r.Paths[way]; p.Bytes != bytes || p.GBps <= 0 {
			t.Errorf("%s: %+v: want %d bytes", way, p, bytes)
		}
	}
	// The wire is paid for a chunk at a time, so that short runs come a little early.
	if p := r.Paths[crossRail]; p.GBps > 0.15 {
		t.Errorf("across rails %.3f GB/s: want the cap of 0.1", p.GBps)
	}
}

func TestDemoUncapped(t *testing.T) {
	t.Parallel()
	status, out, errOut := runMain("demo", "--soft", "--uncapped", "--bytes", "2MiB", "--pairs", "2", "--slot-size", "256KiB", "--idle-seconds", "0")
	if status != 0 || errOut != "" {
		t.Fatalf("status %d, %q", status, errOut)
	}
	for _, want := range []string{"NICs are not capped", "MC_PXN_SLOT_SIZE=256KiB", "medians of 2 interleaved streams", "fallbacks  none", "verified: 6,291,456 bytes equal"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}

// TestDemoVerdict wants a failure for each thing that must not be.
func TestDemoVerdict(t *testing.T) {
	good := func() *demo { return &demo{result: demoResult{Fallbacks: map[string]uint64{}}} }
	if err := good().verdict(); err != nil {
		t.Errorf("a good run: %v", err)
	}
	d := good()
	d.result.Fallbacks["no_lane"] = 3
	if err := d.verdict(); err == nil || !strings.Contains(err.Error(), "fell back 3 times: no_lane") {
		t.Errorf("fallbacks: %v", err)
	}

	want := source{"127.0.1.11", "mlx5_1"}
	for _, tc := range []struct {
		name   string
		came   map[source]uint64
		differ uint64
		want   string // "" is a good run
	}{
		{"all by the relay", map[source]uint64{want: 100}, 0, ""},
		{"one byte differs", map[source]uint64{want: 100}, 1, "1 of 100 bytes differ, the first at offset 7"},
		{"relay not used", map[source]uint64{{"127.0.1.10", "mlx5_0"}: 100}, 0, "100 bytes came from mlx5_0 at 127.0.1.10"},
		{"some not relayed", map[source]uint64{want: 99, {"127.0.1.10", "mlx5_0"}: 1}, 0, "has counted 99 bytes from mlx5_1 at 127.0.1.11: want 100"},
		{"some twice", map[source]uint64{want: 101}, 0, "has counted 101 bytes"},
	} {
		d := good()
		d.judge("3. relayed", want, tc.came, 100, tc.differ, 7)
		err := d.verdict()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", tc.name, err, tc.want)
		}
	}
}

// TestInterruptLeavesNothing sends a signal to a demo at work.
func TestInterruptLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "demo", "--soft", "--bytes", "64MiB", "--cross-rate", "1MB", "--slot-size", "256KiB", "--log-level", "info")
			pipe, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
			var seen bytes.Buffer
			groups := make(map[string]bool)
			ranks := 0
			group := regexp.MustCompile(`msg="PXN is on".*\bgroup=(\S+)`)
			for scan := bufio.NewScanner(pipe); scan.Scan(); {
				seen.WriteString(scan.Text() + "\n")
				if m := group.FindStringSubmatch(scan.Text()); m != nil {
					groups[m[1]] = true
					if ranks++; ranks == 2 {
						if err := cmd.Process.Signal(sig); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			err = cmd.Wait()
			if status := cmd.ProcessState.ExitCode(); status != 1 {
				t.Errorf("status %d, %v: want 1\n%s", status, err, &seen)
			}
			if !strings.Contains(seen.String(), "railhop: interrupted\n") || len(groups) != 1 {
				t.Fatalf("groups %v, and:\n%s", groups, &seen)
			}
			for _, g := range slices.Collect(maps.Keys(groups)) {
				if _, err := os.Stat(filepath.Join("/dev/shm", g)); !os.IsNotExist(err) {
					t.Errorf("%s is left behind: %v", g, err)
				}
			}
		})
	}
}
