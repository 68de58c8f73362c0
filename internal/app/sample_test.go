package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

// sampleFile is a file of settings to copy from.
const sampleFile = "../../deploy/sidecar.yaml"

// TestSampleFile holds the sample of a file of settings to the table of settings: each is there with what it means, what it
// is by default, and whether a running sidecar takes another value.
func TestSampleFile(t *testing.T) {
	settings, docs, types := describedSettings(t)
	var b strings.Builder
	b.WriteString("# Every setting of ydb-sidecar with its default: take away the \"# \" before those that you change.\n" +
		"#\n#   sidecar check-config -config sidecar.yaml\n#   sidecar serve -config sidecar.yaml\n#\n" +
		"# A running sidecar reads the file again when it changes; settings marked (restart) count from the next start on.\n" +
		"# Variables go before the file: SIDECAR_POOL_MAX is pool.max. Secrets fit better in variables, or in files of their own.\n" +
		"# Names may be nested as well: \"pool: {max: 50}\".\n\n" +
		"ydb.url: grpc://127.0.0.1:2136/local\n")
	section := ""
	for _, s := range settings.List() {
		if _, old := retired[s.Name]; old || s.Name == "ydb.url" {
			continue
		}
		if name, _, _ := strings.Cut(s.Name, "."); name != section {
			section = name
			b.WriteString("\n# ---- " + section + " ----\n")
		}
		effect, _ := EffectOf(s.Name)
		what := docs[s.Name]
		if effect == AfterRestart {
			what += " (restart)"
		}
		b.WriteString("\n" + wrapped("## ", what) + "# " + s.Name + ": " + sampleValue(t, types[s.Name], s.Default) + "\n")
	}
	doctable.Whole(t, *update, sampleFile, b.String())
}

// wrapped breaks a text into lines of a comment.
func wrapped(mark, text string) string {
	const columns = 120
	var b strings.Builder
	line := mark
	for i, word := range strings.Fields(text) {
		if i > 0 && len(line)+len(word) > columns {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = mark
		}
		line += word + " "
	}
	return b.String() + strings.TrimRight(line, " ") + "\n"
}

// sampleValue writes a default as YAML.
func sampleValue(t *testing.T, kind, value string) string {
	t.Helper()
	switch kind {
	case "duration", "on or off", "number", "whole number":
		return value
	case "text":
		if regexp.MustCompile(`^[a-z][a-z_]*$`).MatchString(value) && value != "off" && value != "on" {
			return value
		}
	default:
		if value == "" {
			return "[]"
		}
		return "[" + value + "]"
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The sample is a good configuration, and stays the same one when each of its defaults is spelt out.
func TestSampleFileIsTheDefault(t *testing.T) {
	text, err := os.ReadFile(sampleFile)
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^# ([a-z_]+\.[a-z_.]+:) `)
	spelt := lines.ReplaceAllString(string(text), "$1 ")
	if n := strings.Count(spelt, "\n") - strings.Count(string(text), "\n"); n != 0 || spelt == string(text) {
		t.Fatal("no setting of the sample was found")
	}
	for name, content := range map[string]string{"as it is": string(text), "spelt out": spelt} {
		path := filepath.Join(t.TempDir(), "sidecar.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, settings, err := Load(path, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		set, want := 0, 0
		for _, s := range settings.List() {
			if _, old := retired[s.Name]; !old {
				want++
			}
			if s.Value != s.Default {
				t.Errorf("%s: %s is %q; want its default, %q", name, s.Name, s.Value, s.Default)
			}
			if s.Source != "default" {
				set++
			}
		}
		if name == "spelt out" && set != want {
			t.Errorf("%s: %d settings are set; want all %d", name, set, want)
		}
	}
}
