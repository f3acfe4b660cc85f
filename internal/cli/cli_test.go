package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHelp(t *testing.T) {
	for _, tc := range []struct{ file, command string }{
		{"help.txt", "--help"},
		{"help-demo.txt", "demo --help"},
		{"help-replay.txt", "replay --help"},
	} {
		status, out, errOut := runMain(strings.Fields(tc.command)...)
		if status != 0 || errOut != "" {
			t.Errorf("railhop %s: status %d, %q", tc.command, status, errOut)
		}
		golden(t, tc.file, out)
	}
}

// TestWrongUseOfDemoAndReplay wants status 2 and one line that names the value and
// what is valid.
func TestWrongUseOfDemoAndReplay(t *testing.T) {
	rubbish := filepath.Join(t.TempDir(), "rubbish.jsonl")
	if err := os.WriteFile(rubbish, []byte("x\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ command, want string }{
		{"fly", `unknown command "fly": want one of bench, demo, metadata-server, pxn, replay, status`},
		{"--fly", `unknown flag: --fly`},
		{"--log-level loud", `--log-level "loud": want debug, info, warn or error`},
		{"demo --fly", `demo: unknown flag: --fly; see railhop demo --help`},
		{"demo fly", `demo: unexpected argument "fly": it takes flags only`},
		{"demo --json=maybe", `demo: --json "maybe": want true or false`},
		{"demo --soft --bytes 12q", `demo: --bytes "12q": want a number of bytes`},
		{"demo --soft --bytes 0", `demo: --bytes "0": want 1MiB to 1TiB`},
		{"demo --soft --bytes 2MB", `demo: --bytes 2MB: want a multiple of 1MiB`},
		{"demo --soft --slot-size 3MiB", `demo: --slot-size 3MiB: want a power of two from 256KiB to 8MiB`},
		{"demo --soft --slot-size 16MiB", `demo: --slot-size "16MiB": want 256KiB to 8MiB`},
		{"demo --soft --uncapped --cross-rate 1GB", `demo: --cross-rate and --uncapped exclude each other`},
		{"demo --soft --pairs 0", `demo: --pairs 0: want 1 to 100`},
		{"demo --soft --idle-seconds 601", `demo: --idle-seconds 601: want 0 to 600`},
		{"demo --soft --idle-seconds NaN", `demo: --idle-seconds NaN: want 0 to 600`},
		{"replay a b", `replay: 2 arguments: want one trace at most, got also "b"`},
		{"replay --soft no-such-file", `replay: trace "no-such-file": no such file`},
		{"replay --soft " + t.TempDir(), `is a directory: want a file`},
		{"replay --soft --model gpt", `replay: workload: unknown model "gpt"; valid are deepseek-v3, `},
		{"replay --soft --mapping east", `unknown mapping "east"; valid are aligned, rotated, shuffled`},
		{"replay --soft --prefill-tp 3", `prefill TP 3 can neither split nor replicate the 8 KV heads`},
		{"replay --soft --decode-tp 0", `decode TP 0, valid is 1 to 64`},
		{"replay --soft --rails 2", `2 rails for prefill TP 4 and decode TP 2: each rank of a host needs a rail of its own`},
		{"replay --soft --requests -1", `replay: --requests -1: want 1 or more, or 0 for all`},
		{"replay --soft --requests many", `replay: --requests "many": want a whole number`},
		{"replay --soft --seed -1", `replay: --seed "-1": want a whole number of 0 or more`},
		{"replay --soft --scale 0", `replay: --scale 0: want a share above 0 and up to 1`},
		{"replay --soft --verify 1.5", `replay: --verify 1.5: want a share above 0 and up to 1`},
		{"replay --soft --speed -1", `speed -1, valid are 0 (all at once) and positive numbers`},
		{"replay --soft --max-bytes 2KiB", `the first request alone moves`},
		{"replay --soft --batch-size 0", `replay: --batch-size 0: want 1 to 65536`},
		{"replay --soft --in-flight 65", `replay: --in-flight 65: want 1 to 64`},
		{"replay --soft --report /no/such/dir/x.html", `replay: --report "/no/such/dir/x.html": want a file in a directory that exists`},
		{"replay --soft --report " + t.TempDir(), `is a directory: want a file`},
	} {
		status, out, errOut := runMain(strings.Fields(tc.command)...)
		if status != 2 || out != "" || strings.Count(errOut, "\n") != 1 || !strings.HasPrefix(errOut, "railhop: ") || !strings.Contains(errOut, tc.want) {
			t.Errorf("railhop %s: status %d, out %q, err %q: want 2 and %q", tc.command, status, out, errOut, tc.want)
		}
	}

	status, _, errOut := runMain("replay", "--soft", rubbish)
	lines := strings.Split(strings.TrimSpace(errOut), "\n")
	if status != 2 || len(lines) != 3 || !strings.Contains(lines[0], "line 1: ") || !strings.Contains(lines[1], "line 2: ") || !strings.Contains(lines[2], "2 of 2 lines do not parse") {
		t.Errorf("a trace of rubbish: status %d, %q", status, errOut)
	}
}

// TestSoftIsNeverSilent wants a failure where software was not asked for.
func TestSoftIsNeverSilent(t *testing.T) {
	t.Setenv("RAILHOP_PROVIDERS", "")
	for _, c := range []string{"demo", "replay --report="} {
		status, out, errOut := runMain(strings.Fields(c)...)
		if status != 1 || out != "" || !strings.Contains(errOut, "no RDMA device and GPU can be used on this host") || !strings.Contains(errOut, "--soft plays them in software") {
			t.Errorf("railhop %s: status %d, out %q, err %q", c, status, out, errOut)
		}
	}
}

func TestSize(t *testing.T) {
	for _, tc := range []struct {
		text  string
		bytes uint64
		back  string // "" means not valid
	}{
		{"0", 0, "0B"}, {"1", 1, "1B"}, {"65536", 65536, "64KiB"}, {"64KiB", 65536, "64KiB"}, {" 1.5 GB ", 1.5e9, "1500MB"},
		{"400MB", 4e8, "400MB"}, {"1GiB", 1 << 30, "1GiB"}, {"1kB", 1000, "1kB"}, {"16TiB", 16 << 40, "16TiB"}, {"0.5KiB", 512, "512B"},
		{"", 0, ""}, {"-1", 0, ""}, {"x", 0, ""}, {"1XB", 0, ""}, {"0x10", 0, ""}, {"1e3", 1000, "1kB"}, {"inf", 0, ""}, {"NaN", 0, ""},
		{"18446744073709551616", 0, ""}, {"17000000TiB", 0, ""}, {"1MiBMiB", 0, ""},
	} {
		n, err := parseSize(tc.text)
		if (err == nil) != (tc.back != "") || n != tc.bytes {
			t.Errorf("%q: %d, %v: want %d", tc.text, n, err, tc.bytes)
		} else if err == nil && formatSize(n) != tc.back {
			t.Errorf("%q is written %q: want %q", tc.text, formatSize(n), tc.back)
		}
	}
}
