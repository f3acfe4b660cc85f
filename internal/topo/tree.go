package topo

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Tree is sysfs, or what stands for it. Paths have no leading slash. What is not there
// is an error that wraps [fs.ErrNotExist].
type Tree interface {
	Name() string // for messages
	ReadFile(path string) (string, error)
	ReadDir(path string) ([]string, error)
	// Real resolves all links in a path.
	Real(path string) (string, error)
}

// netFolder holds the addresses of each network interface with their networks, as
// "10.0.0.1/24 fe80::1/64". The kernel does not give them in sysfs.
const netFolder = "railhop/net"

// Host is this machine's sysfs.
func Host() Tree { return host{Dir("/sys").(dir)} }

type host struct{ dir }

func (h host) ReadFile(name string) (string, error) {
	netdev, ok := strings.CutPrefix(name, netFolder+"/")
	if !ok {
		return h.dir.ReadFile(name)
	}
	i, err := net.InterfaceByName(netdev)
	if err != nil {
		return "", fmt.Errorf("interface %s: %w: %w", netdev, fs.ErrNotExist, err)
	}
	addrs, err := i.Addrs()
	if err != nil {
		return "", fmt.Errorf("interface %s: %w", netdev, err)
	}
	var words []string
	for _, a := range addrs {
		words = append(words, a.String())
	}
	return strings.Join(words, " "), nil
}

// Dir is a folder that stands for /sys.
func Dir(root string) Tree { return dir(root) }

type dir string

func (d dir) Name() string { return string(d) }

func (d dir) ReadFile(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(string(d), name))
	return string(text), err
}

func (d dir) ReadDir(name string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(string(d), name))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (d dir) Real(name string) (string, error) {
	root, err := filepath.EvalSymlinks(string(d))
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(filepath.Join(root, name))
	if err != nil {
		return "", err
	}
	return filepath.Rel(root, real)
}

// recordHead is the first line of a record: what it is, and its version.
const recordHead = "railhop topology record 1"

// Recorder is a tree that notes what is read of another. The record answers the same
// questions on any machine.
type Recorder struct {
	t     Tree
	mu    sync.Mutex
	texts map[string]string
	links map[string]string
}

// Record returns a recorder of t.
func Record(t Tree) *Recorder {
	return &Recorder{t: t, texts: make(map[string]string), links: make(map[string]string)}
}

func (r *Recorder) put(name, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts[name] = text
}

// Name is the other tree's.
func (r *Recorder) Name() string { return r.t.Name() }

// ReadFile notes the text. GIDs that are not in use are left out: most of a table is.
func (r *Recorder) ReadFile(name string) (string, error) {
	text, err := r.t.ReadFile(name)
	if text = strings.TrimSpace(text); err == nil && text != unusedGID {
		r.put(name, text)
	}
	return text, err
}

// ReadDir notes nothing: the names in a folder are those of which something is noted.
func (r *Recorder) ReadDir(name string) ([]string, error) { return r.t.ReadDir(name) }

// Real notes where a path leads.
func (r *Recorder) Real(name string) (string, error) {
	real, err := r.t.Real(name)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.links[name] = real
	}
	return real, err
}

// Write writes the record: a line a fact, in order.
func (r *Recorder) Write(w io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, recordHead)
	names := slices.AppendSeq(slices.Collect(maps.Keys(r.texts)), maps.Keys(r.links))
	slices.SortFunc(names, natural)
	for _, name := range slices.Compact(names) {
		if to, ok := r.links[name]; ok {
			fmt.Fprintf(b, "%s -> %s\n", name, to)
		}
		if text, ok := r.texts[name]; ok {
			if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' }) || strings.HasPrefix(text, `"`) {
				text = strconv.Quote(text)
			}
			fmt.Fprintf(b, "%s = %s\n", name, text)
		}
	}
	return b.Flush()
}

// Open opens a folder that stands for /sys, or a record.
func Open(name string) (Tree, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("topo: %w", err)
	}
	if st.IsDir() {
		return Dir(name), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("topo: %w", err)
	}
	defer f.Close()
	return parseRecord(name, io.LimitReader(f, maxRecord))
}

const maxRecord = 64 << 20 // bytes

// record is a tree that was recorded.
type record struct {
	name    string
	texts   map[string]string
	links   map[string]string
	folders map[string]map[string]bool
}

func emptyRecord(name string) *record {
	return &record{name: name, texts: make(map[string]string), links: make(map[string]string), folders: make(map[string]map[string]bool)}
}

func parseRecord(name string, from io.Reader) (*record, error) {
	r := emptyRecord(name)
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if n == 1 {
			if line != recordHead {
				return nil, fmt.Errorf("topo: %s: line 1 is %.64q: want %q, or a folder", name, line, recordHead)
			}
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		key, text, isText := strings.Cut(line, " =")
		link, to, isLink := strings.Cut(line, " -> ")
		switch {
		case isText && !strings.Contains(key, " "):
			text = strings.TrimSpace(text)
			if strings.HasPrefix(text, `"`) {
				whole, err := strconv.Unquote(text)
				if err != nil {
					return nil, fmt.Errorf("topo: %s: line %d: %.64q is not a quoted text", name, n, text)
				}
				text = whole
			}
			r.texts[key] = text
		case isLink:
			key = link
			r.links[key] = to
		default:
			return nil, fmt.Errorf("topo: %s: line %d: %.64q: want path = text, or path -> path", name, n, line)
		}
		if !fs.ValidPath(key) || isLink && !isText && !fs.ValidPath(to) {
			return nil, fmt.Errorf("topo: %s: line %d: %.64q: want paths like class/infiniband/mlx5_0", name, n, line)
		}
		r.add(key)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("topo: %s: %w", name, err)
	}
	return r, nil
}

// add puts a path into the folders above it.
func (r *record) add(name string) {
	for name != "." && name != "/" {
		folder, base := path.Split(name)
		folder = strings.TrimSuffix(folder, "/")
		if r.folders[folder] == nil {
			r.folders[folder] = make(map[string]bool)
		}
		if r.folders[folder][base] {
			return
		}
		r.folders[folder][base] = true
		if name = folder; folder == "" {
			return
		}
	}
}

func (r *record) missing(name string) error {
	return &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
}

// Name implements [Tree].
func (r *record) Name() string { return r.name }

// ReadFile implements [Tree].
func (r *record) ReadFile(name string) (string, error) {
	text, ok := r.texts[name]
	if !ok {
		return "", r.missing(name)
	}
	return text, nil
}

// ReadDir implements [Tree].
func (r *record) ReadDir(name string) ([]string, error) {
	names, ok := r.folders[name]
	if !ok {
		return nil, r.missing(name)
	}
	return slices.Collect(maps.Keys(names)), nil
}

// Real implements [Tree].
func (r *record) Real(name string) (string, error) {
	to, ok := r.links[name]
	if !ok {
		return "", r.missing(name)
	}
	return to, nil
}
