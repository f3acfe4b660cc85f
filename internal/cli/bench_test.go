package cli

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// noSettings makes the environment of a test one without settings.
func noSettings(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "MC_") || strings.HasPrefix(name, "RAILHOP_") {
			t.Setenv(name, "") // restores it
			os.Unsetenv(name)
		}
	}
}

func TestBenchSelf(t *testing.T) {
	noSettings(t)
	status, out, errOut := runMain("bench", "--mode", "self", "--soft", "--operation", "write", "--duration", "0.2",
		"--matrix=4K,1M", "--buffer-size", "4M", "--threads", "2", "--batch_size", "8", "--json")
	if status != 0 || errOut != "" {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 {
		t.Fatalf("%d rows, want 2:\n%s", len(rows), out)
	}
	for i, want := range []struct{ block, batch float64 }{{4096, 8}, {1 << 20, 2}} {
		r := rows[i]
		number := func(m map[string]any, name string) float64 {
			v, ok := m[name].(float64)
			if !ok {
				t.Fatalf("row %d: %s is %v, want a number", i, name, m[name])
			}
			return v
		}
		latency, ok := r["latency_us"].(map[string]any)
		if !ok {
			t.Fatalf("row %d: latency_us is %v", i, r["latency_us"])
		}
		bytes, seconds := number(r, "bytes"), number(r, "seconds")
		if number(r, "block_size") != want.block || number(r, "batch_size") != want.batch || number(r, "threads") != 2 ||
			r["operation"] != "write" || r["path"] != "direct_same_rail" || bytes == 0 || seconds < 0.2 {
			t.Errorf("row %d: %v, want blocks of %v, batches of %v", i, r, want.block, want.batch)
		}
		if got := number(r, "gbytes_per_s"); got < bytes/seconds/1e9*0.999 || got > bytes/seconds/1e9*1.001 {
			t.Errorf("row %d: %v GB/s, want %v bytes in %v s", i, got, bytes, seconds)
		}
		if got := number(r, "ops_per_s"); got < bytes/want.block/seconds*0.999 || got > bytes/want.block/seconds*1.001 {
			t.Errorf("row %d: %v ops/s, want %v bytes of %v in %v s", i, got, bytes, want.block, seconds)
		}
		if p50, p90, p99 := number(latency, "p50"), number(latency, "p90"), number(latency, "p99"); p50 <= 0 || p90 < p50 || p99 < p90 {
			t.Errorf("row %d: latency %v", i, latency)
		}
	}
}

func TestBenchText(t *testing.T) {
	noSettings(t)
	status, out, errOut := runMain("bench", "--local", "--soft", "--use_vram", "--duration", "100ms", "--block_size", "64K",
		"--buffer_size", "1M", "--threads", "1", "--batch_size", "4", "--report_unit", "MiB", "--report_precision", "1")
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines, want 3:\n%s", len(lines), out)
	}
	for i, want := range []string{
		`^ +block +batch +threads +operation +path +MiB/s +ops/s +p50 µs +p90 µs +p99 µs$`,
		`^ +64KiB +4 +1 +read +direct_same_rail +[0-9]+\.[0-9] +[0-9]+( +[0-9]+\.[0-9]){3}$`,
		`^Test completed: duration 0\.[0-9]{2}, batch count [0-9]+, throughput [0-9]+\.[0-9] MiB/s$`,
	} {
		line := lines[i]
		if i == 0 {
			line = " " + line // TrimSpace
		}
		if !regexp.MustCompile(want).MatchString(line) {
			t.Errorf("line %q, want %s", lines[i], want)
		}
	}
}

func TestBenchTCP(t *testing.T) {
	noSettings(t)
	for _, how := range [][]string{{"--protocol", "tcp"}, nil} { // asked for, and for want of a NIC
		t.Setenv("RAILHOP_PROVIDERS", map[bool]string{true: "soft"}[how != nil])
		status, out, errOut := runMain(append([]string{"bench", "--local", "--operation", "write", "--duration", "50ms", "--block_size", "64K",
			"--buffer_size", "1M", "--threads", "1", "--batch_size", "4", "--json"}, how...)...)
		if status != 0 || !strings.Contains(out, `"path": "tcp"`) {
			t.Errorf("%v: exit status %d: %s\n%s", how, status, errOut, out)
		}
	}
}

// syncedText is what a process has said so far.
type syncedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncedText) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncedText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// startTarget starts a target in a process of its own, and returns its name.
func startTarget(t *testing.T, args ...string) (cmd *exec.Cmd, segment string, errOut *syncedText) {
	t.Helper()
	return startTargetIn(t, nil, args...)
}

func startTargetIn(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, segment string, errOut *syncedText) {
	t.Helper()
	cmd = exec.Command(os.Args[0], append([]string{"bench", "--mode", "target", "--soft", "--buffer_size", "1M"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	errOut = new(syncedText)
	cmd.Stderr = errOut
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the target said %q, %v: %s", line, err, errOut)
	}
	_, segment, ok := strings.Cut(strings.TrimSpace(line), "listening on ")
	if !ok {
		t.Fatalf("the target said %q", line)
	}
	return cmd, segment, errOut
}

func TestBenchTwoCommands(t *testing.T) {
	noSettings(t)
	target, segment, targetErr := startTarget(t, "--metrics_addr", "127.0.0.1:0")
	for _, op := range []string{"read", "write"} {
		status, out, errOut := runMain("bench", "--soft", "--segment_id", segment, "--operation", op, "--duration", "50ms", "--buffer_size", "2M",
			"--threads", "2", "--batch_size", "4", "--json")
		if status != 0 || !strings.Contains(out, `"operation": "`+op+`"`) {
			t.Errorf("%s: exit status %d: %s\n%s", op, status, errOut, out)
		}
	}
	status, _, errOut := runMain("bench", "--soft", "--segment_id", segment, "--block_size", "2M", "--buffer_size", "4M", "--duration", "50ms")
	if status != 1 || !strings.Contains(errOut, "block size 2MiB: the target's largest buffer has 1MiB") {
		t.Errorf("a block larger than the target's buffer: exit status %d: %s", status, errOut)
	}
	// The address was printed before the segment.
	_, url, _ := strings.Cut(strings.TrimSpace(targetErr.String()), "metrics at ")
	if resp, err := http.Get(url); err != nil {
		t.Errorf("metrics at %q: %v", url, err)
	} else {
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), `railhop_engine_info{segment="`+segment+`"} 1`) {
			t.Errorf("metrics: %v\n%s", err, body)
		}
	}
	if err := target.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := target.Wait(); err != nil {
		t.Errorf("a target that is told to end: %v, want exit status 0; %s", err, targetErr)
	}
	status, _, errOut = runMain("bench", "--soft", "--segment_id", segment, "--buffer_size", "1M", "--duration", "50ms")
	if status != 1 || !strings.Contains(errOut, "--segment_id "+segment) || strings.Count(errOut, "\n") != 1 {
		t.Errorf("a target that is gone: exit status %d: %s", status, errOut)
	}
}

// A target that dies under way is the end of the work, not of the program.
func TestBenchTargetDies(t *testing.T) {
	noSettings(t)
	target, segment, _ := startTarget(t)
	kill := time.AfterFunc(300*time.Millisecond, func() { target.Process.Kill() })
	defer kill.Stop()
	status, _, errOut := runMain("bench", "--soft", "--segment_id", segment, "--operation", "write", "--buffer_size", "1M", "--threads", "2",
		"--batch_size", "4", "--duration", "20", "--log-level", "error")
	if status != 1 || !strings.HasPrefix(errOut, "railhop: bench: blocks of 64KiB: ") || strings.Count(errOut, "\n") != 1 {
		t.Errorf("exit status %d: %s", status, errOut)
	}
}

// Never silently soft.
func TestBenchNeedsHardware(t *testing.T) {
	noSettings(t)
	t.Setenv("RAILHOP_PROVIDERS", "verbs")
	status, out, errOut := runMain("bench", "--mode", "target", "--local_server_name", "127.0.0.1", "--buffer_size", "1M")
	if status != 1 || out != "" || !strings.Contains(errOut, "--soft") {
		t.Errorf("exit status %d: %s%s", status, out, errOut)
	}
}

func TestWrongUse(t *testing.T) {
	noSettings(t)
	for _, tc := range []struct{ line, want string }{
		{"bench", "--segment_id is missing"},
		{"bench --mode both", `--mode "both": want initiator, target or self`},
		{"bench --operation append", `--operation "append": want read or write`},
		{"bench --segment_id a --metadata_server ftp://a:2379", `--metadata_server: metadata: server "ftp://a:2379": scheme "ftp" is not known: want http`},
		{"bench --segment_id a --metadata_server etcd://a:2379", `--local_server_name is missing: want the name to be known by`},
		{"bench --local --metadata_server etcd://a:2379", "--mode self and --metadata_server etcd://a:2379: want one of them"},
		{"bench --protocol ucx", `--protocol "ucx": want rdma or tcp`},
		{"bench --backend tent", `--backend "tent": want classic`},
		{"bench --local --mode target", "--local and --mode target"},
		{"bench --local --block_size 64Q", "want a number of bytes with an optional unit"},
		{"bench --local --block_size 0", "want 1B to 1TiB"},
		{"bench --local --block_size 2G", "block size 2GiB: want at most --buffer_size, which is 1GiB"},
		{"bench --local --batch_size 0", "--batch_size 0: want 1 to 1048576"},
		{"bench --local --threads 1025", "--threads 1025: want 1 to 1024"},
		{"bench --local --threads many", `"many"`},
		{"bench --local --duration 0", "want 1ms to 24h"},
		{"bench --local --duration soon", "want seconds"},
		{"bench --local --report_unit GBit", `--report_unit "GBit": want one of GB, GiB, Gb`},
		{"bench --local --report_precision 10", "--report_precision 10: want 0 to 9"},
		{"bench --local --matrix=4K,,8K", `--matrix: block size ""`},
		{"bench --local --matrix --block_size 4K", "--matrix and --block_size"},
		{"bench --segment_id nowhere:port", "--segment_id"},
		{"bench --segment_id a:1 --device_name ^mlx5_0", `"^mlx5_0"`},
		{"bench --local --soft --gpu_id -1", "--gpu_id -1: want 0 to 1023"},
		{"bench --mode target --soft --local_server_name localhost", `--local_server_name: wire: server name "localhost"`},
		{"bench --local extra", `unexpected argument "extra"`},
		{"bench --blocksize 4K", "unknown flag: --blocksize"},
		{"status kv other", `unexpected argument "other"`},
		{"status no/group", `group "no/group": valid are 1 to 64`},
		{"status kv --interval 1ms", "--interval 1ms: want 50ms to 1h"},
		{"status kv --watch --no-wait", "--watch and --no-wait"},
		{"pxn", "want on or off"},
		{"pxn maybe kv", `unknown command "maybe": want one of off, on`},
		{"pxn off", "0 arguments: want one, the group"},
		{"pxn on ..", `group "..": valid are 1 to 64`},
	} {
		t.Run(tc.line, func(t *testing.T) {
			status, out, errOut := runMain(strings.Fields(tc.line)...)
			if status != 2 || out != "" || !strings.Contains(errOut, tc.want) {
				t.Errorf("exit status %d, want 2 and %q:\n%s%s", status, tc.want, out, errOut)
			}
			if strings.Count(errOut, "\n") != 1 || !strings.HasPrefix(errOut, "railhop: ") {
				t.Errorf("%q, want one line", errOut)
			}
		})
	}
}

func TestWorkThatFails(t *testing.T) {
	noSettings(t)
	root, _ := liveGroup(t)
	for _, tc := range []struct{ line, want string }{
		{"status none --registry " + root, `group "none" is not there: ` + root + ` has kv`},
		{"status --registry /no/such/directory", "/no/such/directory"},
		{"status kv --registry /no/such/directory", "/no/such/directory"},
		{"pxn off kv --registry /no/such/directory", "/no/such/directory"},
		{"bench --local --soft --buffer_size 1M --device_name mlx5_7", `"mlx5_7"`},
	} {
		t.Run(tc.line, func(t *testing.T) {
			status, out, errOut := runMain(strings.Fields(tc.line)...)
			if status != 1 || out != "" || !strings.Contains(errOut, tc.want) || strings.Count(errOut, "\n") != 1 {
				t.Errorf("exit status %d, want 1 and one line with %q:\n%s%s", status, tc.want, out, errOut)
			}
		})
	}
}

func TestBenchBatchFits(t *testing.T) {
	for _, tc := range []struct {
		name          string
		blocks        []uint64
		buffer, block uint64
		batch, want   int
	}{
		{"one size is as asked", []uint64{1 << 20}, 1 << 20, 1 << 20, 128, 128},
		{"small blocks of a matrix", []uint64{4096, 1 << 20}, 8 << 20, 4096, 128, 128},
		{"large blocks of a matrix", []uint64{4096, 1 << 20}, 8 << 20, 1 << 20, 128, 2},
		{"at least one", []uint64{4096, 8 << 20}, 8 << 20, 8 << 20, 128, 1},
	} {
		o := benchOptions{blocks: tc.blocks, buffer: tc.buffer, batch: tc.batch, threads: 4}
		if got := o.batchFor(tc.block); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
