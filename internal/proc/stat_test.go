package proc

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

var statLines = []struct {
	name   string
	line   string
	ticks  uint64
	zombie bool
}{
	{"colons", "4242 (sglang::schedul) S 1 4242 4242 0 -1 4194304 10 0 0 0 5 3 0 0 20 0 97 0 880001 1000 10", 880001, false},
	{"spaces", "4244 (Media New Trans) S 1264 1252 1252 0 -1 1077960704 17317 0 18 0 9260 137 0 0 15 -5 8 0 1430749 186589184 16704", 1430749, false},
	{"colon and space", "4245 (tmux: server) S 1 4245 4245 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 880003 1000 10", 880003, false},
	{"parenthesis inside", "4246 (a) R 1 2 3) S 1 4246 4246 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 880004 1000 10", 880004, false},
	{"smile", "4247 (:-) 1 2 3 4 5 6) R 9 4247 9 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 880005 1000 10", 880005, false},
	{"empty name", "4249 () S 1 4249 4249 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 880007 1000 10", 880007, false},
	{"zombie", "4250 (python3) Z 1 4250 4250 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 880008 0 0", 880008, true},
	{"newline", "4248 (a\nb) S 1 4248 4248 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 880006 1000 10\n", 880006, false},
	{"leader gone, threads not", "4251 (python3) Z 1 4251 4251 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 9 0 880009 0 0", 880009, false},
}

func TestParseStat(t *testing.T) {
	for _, tc := range statLines {
		t.Run(tc.name, func(t *testing.T) {
			st, err := ParseStat([]byte(tc.line))
			if err != nil {
				t.Fatal(err)
			}
			if st.StartTicks != tc.ticks || st.Zombie() != tc.zombie {
				t.Errorf("start ticks %d, zombie %v; want %d, %v", st.StartTicks, st.Zombie(), tc.ticks, tc.zombie)
			}
		})
	}
}

// A line that was cut anywhere before the end of field 22 must never read as
// another process.
func TestParseStatCutOff(t *testing.T) {
	for _, tc := range statLines {
		line := strings.TrimSpace(tc.line)
		for n := range len(line) {
			st, err := ParseStat([]byte(line[:n]))
			if err == nil && st.StartTicks != tc.ticks {
				t.Errorf("%s cut to %d bytes: start ticks %d, want %d or an error", tc.name, n, st.StartTicks, tc.ticks)
			}
		}
		if _, err := ParseStat([]byte(line[:len(line)/2])); !errors.Is(err, ErrShort) {
			t.Errorf("%s, half a line: %v, want %v", tc.name, err, ErrShort)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	for _, tc := range statLines {
		f.Add([]byte(tc.line))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := ParseStat(b)
		if err == nil && st.PID <= 0 {
			t.Errorf("pid %d from %q", st.PID, b)
		}
	})
}

func TestSelf(t *testing.T) {
	self, err := FS{}.Self()
	if err != nil {
		t.Fatal(err)
	}
	st, err := FS{}.Stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if self.StartTicks != st.StartTicks || self.BootIDHash == 0 || self.PIDNamespace == 0 {
		t.Errorf("self %+v, stat %+v", self, st)
	}
}

func TestStatOfTheGoneAndTheHidden(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if _, err := (FS{}).Stat(pid); !errors.Is(err, ErrGone) {
		t.Errorf("stat of a reaped child: %v, want %v", err, ErrGone)
	}
	if _, err := (FS{}).Pidfd(pid); !errors.Is(err, ErrGone) {
		t.Errorf("pidfd of a reaped child: %v, want %v", err, ErrGone)
	}
	hidden := FS{Root: t.TempDir()}
	if _, err := hidden.Stat(os.Getpid()); err == nil || errors.Is(err, ErrGone) {
		t.Errorf("stat without a procfs: %v, want an error that is not %v", err, ErrGone)
	}
}

func TestParseNamespace(t *testing.T) {
	for _, tc := range []struct {
		link string
		want uint64
	}{
		{"pid:[4026531836]", 4026531836},
		{"net:[4026531836]", 0},
		{"pid:[", 0},
		{"pid:[x]", 0},
	} {
		if got := parseNamespace(tc.link); got != tc.want {
			t.Errorf("%q: %d, want %d", tc.link, got, tc.want)
		}
	}
}

func TestHashBootID(t *testing.T) {
	const id = "7d1f3d2e-8a0e-4a57-9f39-0f3c3c8ae1a2"
	if HashBootID(id) != HashBootID(id+"\n") || HashBootID(id) == HashBootID(id[1:]) {
		t.Error("hash must cover the text and not the newline")
	}
	if got := HashBootID("a"); got != 0xaf63dc4c8601ec8c {
		t.Errorf("FNV-1a of \"a\" is %#x", got)
	}
}
