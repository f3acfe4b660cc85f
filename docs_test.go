package railhop_test

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestCasesHaveTests looks up the tests that docs/testing.md names for the cases
// from the field.
func TestCasesHaveTests(t *testing.T) {
	tests := map[string]bool{}
	for _, f := range sourceFiles(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				tests[f.pkg+": "+fn.Name.Name] = true
			}
		}
	}
	text, err := os.ReadFile("docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (D\d\d) \|.*$`).FindAllStringSubmatch(string(text), -1)
	found := map[string]bool{}
	for _, row := range rows {
		found[row[1]] = true
		for _, name := range regexp.MustCompile("`([^`]*Test[A-Z][A-Za-z0-9]*)`").FindAllStringSubmatch(row[0], -1) {
			full := name[1]
			if !strings.Contains(full, ": ") {
				full = ".: " + full
			}
			if !tests[full] {
				t.Errorf("case %s: there is no test %s", row[1], full)
			}
		}
	}
	for _, c := range strings.Fields("D01 D07 D09 D11 D13 D15 D17 D18 D20") {
		if !found[c] {
			t.Errorf("docs/testing.md has no row for case %s", c)
		}
	}
}
