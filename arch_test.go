package railhop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const module = "github.com/railhop/railhop"

// layers are the packages of the module, lowest layer first. A package imports
// only packages of lower layers, never of its own.
var layers = [][]string{
	0: { // words
		"internal/xfer", "internal/shmabi", "internal/wire",
	},
	1: { // mechanisms
		"internal/dl", "internal/gpu", "internal/iov", "internal/nic", "internal/pattern", "internal/proc", "internal/pump",
		"internal/shm", "internal/tally", "internal/trace",
	},
	2: { // providers, joints, decisions
		"internal/gpu/cuda", "internal/gpu/gpufault", "internal/gpu/softgpu",
		"internal/nic/nicfault", "internal/nic/softnic", "internal/nic/verbs",
		"internal/endpoint", "internal/handshake", "internal/lane", "internal/metadata", "internal/registry", "internal/segment",
		"internal/ledger", "internal/plan", "internal/topo",
	},
	3: { // ways; config, which only the root and what is above may read
		"internal/path/pxn", "internal/path/rdma", "internal/path/tcp", "internal/relay",
		"internal/config",
	},
	4: {"."}, // the whole
	5: { // edges
		"internal/capi", "internal/metrics", "internal/report", "internal/workload",
	},
	6: {"internal/worker"},                                                    // processes that play ranks
	7: {"internal/fabric"},                                                    // and whole fabrics of them
	8: {"internal/cli", "cmd/libtransfer_engine"},                             // programs
	9: {"cmd/railhop", "tools/testsum", "tools/interop/compare", "bench/gpu"}, // mains
}

// testSupport may import anything, and is imported by tests alone.
var testSupport = []string{"internal/testkit", "internal/faulttest", "internal/nic/nictest", "internal/gpu/gputest", "internal/endpoint/endpointtest", "internal/pxntest", "internal/sim", "internal/lane/model"}

// banned lists what may be used in a few places only. A use is an import path,
// or an import path and the names in it that are meant.
var banned = []struct {
	rule    string
	imports []string // this path and what lies below it
	names   []string // nil means the import itself
	allowed func(f *sourceFile) bool
}{
	{
		rule:    "unsafe is for *_unsafe.go, to be reviewed twice",
		imports: []string{"unsafe"},
		allowed: func(f *sourceFile) bool {
			return strings.HasSuffix(f.path, "_unsafe.go") || strings.HasSuffix(f.path, "_unsafe_test.go") || f.pkg == "cmd/libtransfer_engine"
		},
	},
	{
		rule:    "cgo is for the C library alone",
		imports: []string{"C"},
		allowed: func(f *sourceFile) bool { return f.pkg == "cmd/libtransfer_engine" },
	},
	{
		rule:    "purego is for internal/dl",
		imports: []string{"github.com/ebitengine/purego"},
		allowed: func(f *sourceFile) bool { return f.pkg == "internal/dl" },
	},
	{
		rule:    "the environment is read in internal/config",
		imports: []string{"os", "syscall", "golang.org/x/sys/unix"},
		names:   []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv", "Unsetenv", "Clearenv"},
		allowed: func(f *sourceFile) bool { return f.test || f.pkg == "internal/config" || f.pkg == "internal/testkit" },
	},
}

// sourceFile is a Go file of the module, whatever its build tags.
type sourceFile struct {
	path string // from the root of the module
	pkg  string // its folder: "." for the root
	test bool
	text []byte
	ast  *ast.File
}

var sources = sync.OnceValues(func() ([]*sourceFile, error) {
	fset := token.NewFileSet()
	var files []*sourceFile
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (name[0] == '.' || name[0] == '_' || name == "testdata" || name == "node_modules" || p == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		tree, err := parser.ParseFile(fset, p, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p = filepath.ToSlash(p)
		files = append(files, &sourceFile{path: p, pkg: path.Dir(p), test: strings.HasSuffix(p, "_test.go"), text: text, ast: tree})
		return nil
	})
	return files, err
})

func sourceFiles(t *testing.T) []*sourceFile {
	t.Helper()
	files, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// imports returns the paths that f imports and the names it knows them by.
func (f *sourceFile) imports() map[string]string {
	byPath := map[string]string{}
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // does not parse as Go
		}
		byPath[p] = path.Base(p)
		if spec.Name != nil {
			byPath[p] = spec.Name.Name
		}
	}
	return byPath
}

func layerOf(pkg string) (layer int, known bool) {
	for i, pkgs := range layers {
		if slices.Contains(pkgs, pkg) {
			return i, true
		}
	}
	return 0, false
}

// own returns the folder of a package of this module.
func own(importPath string) (pkg string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

func TestImportsPointDown(t *testing.T) {
	told := map[string]bool{}
	for _, f := range sourceFiles(t) {
		from, known := layerOf(f.pkg)
		support := slices.Contains(testSupport, f.pkg)
		if !known && !support && !told[f.pkg] && !f.test {
			told[f.pkg] = true
			t.Errorf("%s: unknown package: add it to the layer table in arch_test.go", f.pkg)
		}
		if f.test || support {
			continue
		}
		for p := range f.imports() {
			pkg, ours := own(p)
			if !ours {
				continue
			}
			if slices.Contains(testSupport, pkg) {
				t.Errorf("%s imports %s, which is for tests", f.path, pkg)
				continue
			}
			to, ok := layerOf(pkg)
			if known && ok && to >= from {
				t.Errorf("%s, in layer %d, imports %s, in layer %d: imports point down", f.path, from, pkg, to)
			}
		}
	}
}

func TestBannedUses(t *testing.T) {
	for _, b := range banned {
		t.Run(b.rule, func(t *testing.T) {
			for _, f := range sourceFiles(t) {
				if b.allowed(f) {
					continue
				}
				for p, name := range f.imports() {
					if !slices.ContainsFunc(b.imports, func(banned string) bool { return p == banned || strings.HasPrefix(p, banned+"/") }) {
						continue
					}
					if b.names == nil {
						t.Errorf("%s imports %s: %s", f.path, p, b.rule)
						continue
					}
					for _, used := range uses(f.ast, name, b.names) {
						t.Errorf("%s uses %s.%s: %s", f.path, name, used, b.rule)
					}
				}
			}
		})
	}
}

// uses returns those of names that tree selects from the package known as pkg.
func uses(tree *ast.File, pkg string, names []string) []string {
	var used []string
	ast.Inspect(tree, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg && slices.Contains(names, sel.Sel.Name) {
			used = append(used, sel.Sel.Name)
		}
		return true
	})
	return used
}

func TestPackagesHaveComments(t *testing.T) {
	commented := map[string]bool{}
	for _, f := range sourceFiles(t) {
		if !f.test {
			commented[f.pkg] = commented[f.pkg] || f.ast.Doc != nil
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(commented)) {
		if !commented[pkg] {
			t.Errorf("%s has no package comment", pkg)
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	const most = 500
	for _, f := range sourceFiles(t) {
		if n := bytes.Count(f.text, []byte("\n")); n > most && !f.test {
			t.Errorf("%s has %d lines, more than %d: it has begun to hold a second thing", f.path, n, most)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, f := range sourceFiles(t) {
		want, err := format.Source(f.text)
		if err != nil {
			t.Errorf("%s: %v", f.path, err)
		} else if !bytes.Equal(want, f.text) {
			t.Errorf("%s is not as gofmt writes it", f.path)
		}
	}
}

func TestModuleIsTidy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "mod", "tidy", "-diff").CombinedOutput()
	if err == nil {
		return
	}
	if ctx.Err() != nil || offline.Match(out) {
		t.Skipf("no module proxy to be reached: %.200s", out)
	}
	t.Errorf("go mod tidy would change go.mod or go.sum:\n%s", out)
}

// offline is what the go command says where it finds no network.
var offline = regexp.MustCompile(`dial tcp|no such host|connection refused|i/o timeout|network is unreachable|module lookup disabled|proxyconnect`)

// TestDependenciesAreExplained wants one line in docs/dependencies.md for each
// module that the code imports or go.mod has as a tool, and no other.
func TestDependenciesAreExplained(t *testing.T) {
	var mod struct {
		Require []struct{ Path string }
		Tool    []struct{ Path string }
	}
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	use := func(importPath string) {
		for _, r := range mod.Require {
			if importPath == r.Path || strings.HasPrefix(importPath, r.Path+"/") {
				used[r.Path] = true
			}
		}
	}
	for _, tool := range mod.Tool {
		use(tool.Path)
	}
	for _, f := range sourceFiles(t) {
		for p := range f.imports() {
			use(p)
		}
	}

	text, err := os.ReadFile("docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^- `([^`]+)`: .+").FindAllSubmatch(text, -1) {
		explained[string(m[1])] = true
	}
	for _, dep := range slices.Sorted(maps.Keys(used)) {
		if !explained[dep] {
			t.Errorf("docs/dependencies.md does not say what %s is for: want a line \"- `%s`: …\"", dep, dep)
		}
	}
	for _, dep := range slices.Sorted(maps.Keys(explained)) {
		if !used[dep] {
			t.Errorf("docs/dependencies.md explains %s, which nothing uses", dep)
		}
	}
}
