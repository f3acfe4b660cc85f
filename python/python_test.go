package python_test

import (
	"archive/zip"
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// root is the repository, seen from here.
const root = ".."

// venv is a clean virtual environment with the package, which all tests share.
var venv struct {
	once sync.Once
	dir  string
	skip string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(venv.dir)
	os.Exit(code)
}

// install installs the package as a user does, by pip install, and returns the
// environment's interpreter.
func install(t *testing.T) string {
	t.Helper()
	venv.once.Do(func() {
		check := exec.Command("python3", "-c", "import ensurepip, venv, sysconfig; open(sysconfig.get_paths()['include'] + '/Python.h').close()")
		if out, err := check.CombinedOutput(); err != nil {
			venv.skip = fmt.Sprintf("no Python with venv, pip and headers (tools/setup.sh installs them): %v: %s", err, tail(out))
			return
		}
		if _, err := exec.LookPath("gcc"); err != nil {
			venv.skip = "no gcc: tools/setup.sh installs it"
			return
		}
		if venv.dir, venv.err = os.MkdirTemp("", "railhop-python"); venv.err != nil {
			return
		}
		for _, c := range [][]string{
			{"python3", "-m", "venv", venv.dir},
			{filepath.Join(venv.dir, "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "--no-index", root},
		} {
			if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
				venv.err = fmt.Errorf("%v: %w\n%s", c, err, out)
				return
			}
		}
	})
	if venv.skip != "" {
		t.Skip(venv.skip)
	}
	if venv.err != nil {
		t.Fatal(venv.err)
	}
	return filepath.Join(venv.dir, "bin/python")
}

// tail is the last line of a text.
func tail(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(lines[len(lines)-1])
}

// upstream is where Mooncake's own wheel is installed, "" if it is not.
func upstream(t *testing.T) string {
	found, err := filepath.Glob(filepath.Join(root, ".cache/interop/lib/python*/site-packages"))
	if err != nil || len(found) == 0 {
		return ""
	}
	dir, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPython runs the tests that are written in Python.
func TestPython(t *testing.T) {
	cmd := exec.Command(install(t), "run.py")
	cmd.Dir = "tests" // the package's sources are not on the path there
	cmd.Env = append(os.Environ(), "RAILHOP_TEST_UPSTREAM="+upstream(t))
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var test struct{ Name, Outcome, Text string }
		if json.Unmarshal(lines.Bytes(), &test) != nil {
			continue
		}
		n++
		t.Run(test.Name, func(t *testing.T) {
			switch test.Outcome {
			case "ok":
			case "skip":
				t.Skip(test.Text)
			default:
				t.Error(test.Text)
			}
		})
	}
	if err := cmd.Wait(); err != nil || n < 30 {
		t.Errorf("%d tests, and python3 ends with %v\n%s", n, err, log.String())
	}
}

// TestREADME runs the README's Python, which must print what its comments say.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```python\n(.*?)^```").FindAllSubmatch(text, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no Python")
	}
	for _, b := range blocks {
		cmd := exec.Command(install(t), "-c", string(b[1]))
		cmd.Dir = t.TempDir()
		var log bytes.Buffer
		cmd.Stderr = &log
		out, err := cmd.Output()
		want := ""
		for _, m := range regexp.MustCompile(`(?m)print\(.*# (.*)$`).FindAllSubmatch(b[1], -1) {
			want += string(m[1]) + "\n"
		}
		if err != nil || string(out) != want || want == "" {
			t.Errorf("it prints %q, want %q: %v\n%s", out, want, err, log.String())
		}
	}
}

// TestWheelNeedsOldGlibc builds the wheel for manylinux_2_28 and reads which glibc it needs.
func TestWheelNeedsOldGlibc(t *testing.T) {
	python, err := filepath.Abs(filepath.Join(root, ".cache/wheel/bin/python"))
	if err != nil {
		t.Fatal(err)
	}
	if exec.Command(python, "-m", "ziglang", "version").Run() != nil {
		t.Skip("no zig, the C compiler for it: make wheel installs it")
	}
	dir := t.TempDir()
	if out, err := exec.Command(python, "build_railhop.py", "--manylinux", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "railhop-*-cp310-abi3-manylinux_2_28_*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("wheels %v, %v", wheels, err)
	}
	z, err := zip.OpenReader(wheels[0])
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	n := 0
	for _, f := range z.File {
		if path.Ext(f.Name) != ".so" {
			continue
		}
		n++
		if name, minor := newestGlibc(t, f); minor > 28 {
			t.Errorf("%s needs %s of glibc 2.%d, and 2.28 is promised", f.Name, name, minor)
		}
	}
	if n != 2 {
		t.Errorf("%d shared objects in the wheel, want 2", n)
	}

	smoke := t.TempDir()
	install(t)
	pip := filepath.Join(venv.dir, "bin/pip")
	if out, err := exec.Command(pip, "install", "--quiet", "--disable-pip-version-check", "--no-index", "--target", smoke, wheels[0]).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(install(t), "smoke.py")
	cmd.Dir = "tests"
	cmd.Env = append(os.Environ(), "PYTHONPATH="+smoke)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), smoke) {
		t.Errorf("%v\n%s", err, out)
	}
}

// newestGlibc is the symbol of the newest glibc that a shared object needs.
func newestGlibc(t *testing.T, f *zip.File) (name string, minor int) {
	t.Helper()
	r, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	object, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := object.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	versions := 0
	for _, s := range symbols {
		version, ok := strings.CutPrefix(s.Version, "GLIBC_2.")
		if !ok {
			continue
		}
		versions++
		version, _, _ = strings.Cut(version, ".")
		if v, err := strconv.Atoi(version); err != nil {
			t.Errorf("%s: symbol %s has version %s", f.Name, s.Name, s.Version)
		} else if v > minor {
			name, minor = s.Name, v
		}
	}
	if versions == 0 {
		t.Errorf("%s: no symbol has a version of glibc", f.Name)
	}
	return name, minor
}
