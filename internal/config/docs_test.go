package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:generate go test . -run TestDocs -update

var update = flag.Bool("update", false, "rewrite docs/configuration.md")

// TestDocs keeps docs/configuration.md equal to the table.
func TestDocs(t *testing.T) {
	const path = "../../docs/configuration.md"
	want := markdown()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/configuration.md is out of date: run go generate ./internal/config\n%s", diff)
	}
}

const docsHead = `<!-- Made from the table in internal/config by go generate ./internal/config. Do not edit. -->

# Configuration

railhop is set up by the environment, as Mooncake is. It is read once, when an engine is opened from it; later changes
have no effect.

- **Values are trimmed. An empty value counts as not set**, except for presence variables and passwords.
- **A bad value never stops the engine and never becomes zero.** The default takes its place, and one warning names the
  variable, the value and what is valid. One bad ` + "`MC_PXN_*`" + ` value switches the relay off instead.
- **A default may be written out**, even one that lies outside the range, such as -1.
- **presence**: on as soon as the variable is set, even to 0 or to nothing, as in Mooncake. A value that looks like "off"
  is warned about. Unset the variable to switch it off.
- **boolean**: ` + boolWords + `, in any case.
- **integer**: decimal digits only. **seconds**, **milliseconds**: likewise, in that unit.
- **size**: bytes, or a number with K, KiB, M, MiB, G or GiB (powers of 1024). Sizes of Mooncake's own are plain integers.
- **Other names** are looked at in order where the first is not set.
- A name that starts with ` + "`MC_PXN_`" + ` and is not listed here, or that looks like a misspelt one of these, is warned about.
`

func markdown() string {
	var b strings.Builder
	b.WriteString(docsHead)
	for _, s := range table() {
		fmt.Fprintf(&b, "\n## %s\n\n| variable | type | default | valid | meaning |\n| --- | --- | --- | --- | --- |\n", s.title)
		for _, v := range s.vars {
			name := "`" + v.name + "`"
			for _, other := range v.others {
				name += ", else `" + other + "`"
			}
			def := "–"
			if v.def != "" {
				def = "`" + v.def + "`"
			}
			if v.present {
				def = "off"
			}
			valid := v.valid
			if v.kind == "boolean" {
				valid = "a boolean"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, v.kind, def, cell(valid), cell(v.meaning))
		}
	}
	b.WriteString("\n## Known, without effect\n\nMooncake reads these and railhop does not. Each is warned about where it is set.\n\n| variable | why |\n| --- | --- |\n")
	for _, o := range withoutEffect() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", o.name, cell(o.why))
	}
	b.WriteString("\n## For tests only\n\n`RAILHOP_REQUIRE`, a comma list of `cuda` and `verbs`, turns the skips of tests that need such hardware into failures.\n")
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
