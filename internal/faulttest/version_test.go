package faulttest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// nextVersion builds this test once more, as a build whose abi_version is the next.
func nextVersion(t *testing.T) (binary string) {
	t.Helper()
	source, err := filepath.Abs("../shmabi/shmabi.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const line = "ABIVersion    = %d"
	was, is := fmt.Sprintf(line, shmabi.ABIVersion), fmt.Sprintf(line, shmabi.ABIVersion+1)
	if strings.Count(string(text), was) != 1 {
		t.Fatalf("%s does not have %q once", source, was)
	}
	dir := t.TempDir()
	other := filepath.Join(dir, "shmabi.go")
	if err := os.WriteFile(other, []byte(strings.Replace(string(text), was, is, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{source: other}})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "next.test")
	if out, err := exec.Command("go", "test", "-c", "-overlay", list, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// TestOtherVersion puts ranks of two builds into one group, which lay out the
// control block differently: each refuses the other's, says why, and goes direct.
func TestOtherVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a second binary")
	}
	next := nextVersion(t)
	for _, ends := range []struct {
		name          string
		sender, relay string
		mine, other   int
	}{
		{"older sender", "", next, shmabi.ABIVersion, shmabi.ABIVersion + 1},
		{"newer sender", next, "", shmabi.ABIVersion + 1, shmabi.ABIVersion},
	} {
		t.Run(ends.name, func(t *testing.T) {
			n := NewNode(t, size, Options{Binary: ends.relay}, Options{Binary: ends.sender})
			n.Write()
			n.Target.Verify(n.Dst, n.Size, Written)
			s := n.Sender.Status()
			if s.Stats.Relayed.Bytes > 0 || s.Bytes(xfer.NoPeer) != n.Size {
				t.Errorf("%d bytes were relayed, %d were not for want of a peer; want 0 and %d", s.Stats.Relayed.Bytes, s.Bytes(xfer.NoPeer), n.Size)
			}
			want := fmt.Sprintf("abi_version %d, this build speaks %d", ends.other, ends.mine)
			if !n.Sender.Said(want) {
				t.Errorf("the sender does not say %q", want)
			}
			n.Balance()
			n.Close()
		})
	}
}
