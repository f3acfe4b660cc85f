package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSecretIsNeverPrinted(t *testing.T) {
	const password = "hunter2"
	env, warnings := Load(vars{"MC_REDIS_PASSWORD": password, "MC_MAX_WR": "x"}.lookup)
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb, env.Metadata)
		fmt.Fprintf(&out, verb, env.Metadata.RedisPassword)
		fmt.Fprintf(&out, verb, env)
		fmt.Fprintf(&out, verb, warnings)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("start", "env", env, "metadata", env.Metadata, "password", env.Metadata.RedisPassword, "set", env.Set, "warnings", warnings)
	}
	text, err := json.Marshal(env)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(text)
	for _, form := range []string{password, fmt.Sprintf("%x", password)} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the password was printed:\n%s", out.String())
		}
	}
	if env.Metadata.RedisPassword.Reveal() != password {
		t.Error("the password is not there")
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"P2PHANDSHAKE":                     "P2PHANDSHAKE",
		"redis://user:pw@10.0.0.1:6379/0":  "redis://user:(hidden)@10.0.0.1:6379/0",
		"redis://:pw@10.0.0.1":             "redis://:(hidden)@10.0.0.1",
		"redis://u:p%zz/w@h":               "redis://u:(hidden)@h",
		"redis://u:p@w@h":                  "redis://u:(hidden)@h",
		"http://user@h:80/x":               "http://user@h:80/x",
		"http://10.0.0.1:8080/metadata":    "http://10.0.0.1:8080/metadata",
		"etcd://10.0.0.1:2379,10.0.0.2:23": "etcd://10.0.0.1:2379,10.0.0.2:23",
	} {
		if got := Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestWarningFitsALine(t *testing.T) {
	_, lines := load(vars{"MC_MAX_WR": "1\n2" + strings.Repeat("x", 5000)})
	if len(lines) != 1 || strings.Contains(lines[0], "\n") || len(lines[0]) > 400 || !strings.Contains(lines[0], "(5003 bytes)") {
		t.Errorf("got %q", lines)
	}
}

func TestWarningInALog(t *testing.T) {
	var out bytes.Buffer
	_, warnings := Load(vars{"MC_MTU": "1500"}.lookup)
	for _, w := range warnings {
		slog.New(slog.NewTextHandler(&out, nil)).Warn("setting", "setting", w)
	}
	_, got, _ := strings.Cut(strings.TrimSpace(out.String()), "msg=setting ")
	want := `setting.name=MC_MTU setting.value=1500 setting.valid="512, 1024, 2048 or 4096" setting.effect="the default 4096 is used"`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestMisspelt(t *testing.T) {
	for _, tc := range []struct {
		name string
		want string // the name suggested; "" means no warning
	}{
		{"MC_PXN_ENABEL", "MC_PXN_ENABLE"},
		{"MC_PXN_ENABLED", "MC_PXN_ENABLE"},
		{"MC_PXN_DEPTH", "MC_PXN_INFLIGHT_DEPTH"},
		{"MC_PXN_TIMEOUT_MS", "MC_PXN_CREDIT_TIMEOUT_MS"},
		{"MC_PXN_CREDIT_TIMEOUT", "MC_PXN_CREDIT_TIMEOUT_MS"},
		{"MC_PXM_ENABLE", "MC_PXN_ENABLE"},
		{"MC_GID_INDX", "MC_GID_INDEX"},
		{"RAILHOP_PROVIDER", "RAILHOP_PROVIDERS"},
		{"MC_PXN_ENABLE", ""},
		{"MC_MIN_PRC_PORT", ""},
		{"MC_USE_TENT", ""},
		{"RAILHOP_REQUIRE", ""},
		{"RAILHOP_TEST_CHILD", ""},
		{"MC_SID", ""}, // Midnight Commander's
		{"MC_METADATA_SERVER", ""},
		{"PATH", ""},
		{"", ""},
	} {
		var want []Warning
		if tc.want != "" {
			want = []Warning{{Name: tc.name, Effect: "there is no such variable; did you mean " + tc.want + "?"}}
		}
		if diff := cmp.Diff(want, Misspelt([]string{tc.name})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

func TestEdits(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"abc", "abc", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abd", 1}, {"abc", "acb", 1}, {"abc", "bc", 1}, {"ab", "ba", 1}, {"kitten", "sitting", 3},
	} {
		if got := edits(tc.a, tc.b); got != tc.want {
			t.Errorf("edits(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}
