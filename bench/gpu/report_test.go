package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocs has the page say what the results say.
func TestDocs(t *testing.T) {
	want, err := render("results")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/benchmarks.md is not what bench/gpu/results gives: go run ./bench/gpu -docs")
	}
}

func TestRender(t *testing.T) {
	dir := t.TempDir()
	text := `{"Date": "2026-11-30T22:00:00Z", "Commit": "abc", "Driver": 13000, "Device": {"Name": "GPU"}, "Samples": [
		{"Group": "gather", "Case": "4096 x 2 KiB", "Way": "kernel", "Blocks": 4, "Unit": "GB/s", "Values": [3, 1, 2.5], "Want": ">= 2"}]}`
	if err := os.WriteFile(filepath.Join(dir, "a.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	page, err := render(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## GPU, 2026-11-30", "### Gather", "| 4096 x 2 KiB | kernel | 4 | 2.50 GB/s (1..3) | >= 2 |"} {
		if !strings.Contains(page, want) {
			t.Errorf("want %q in\n%s", want, page)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "b.json"), []byte(`{"Date": ""}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := render(dir); err == nil {
		t.Error("a result without a date: want an error")
	}
}
