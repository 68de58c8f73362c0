package facade

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/httpapi"
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write the generated part of docs/api.md")

const docs = "../../docs/api.md"

// codeTable is the error map as docs/api.md shows it.
func codeTable() string {
	var b strings.Builder
	b.WriteString("| code | HTTP | gRPC | safe | meaning | what to do |\n|---|---|---|---|---|---|\n")
	row := func(c core.Code) {
		safe := "no"
		if c.Safe {
			safe = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s | %s | %s |\n", c.Name, c.HTTP, c.GRPC, safe, c.Title, c.Hint)
	}
	for _, c := range core.Codes() {
		row(c)
	}
	return b.String()
}

func TestDocsHaveTheCodes(t *testing.T) {
	doctable.Part(t, *update, docs, "with -update -->\n", "<!-- /codes -->", codeTable())
}

func TestDocsHaveTheFeatures(t *testing.T) {
	var b strings.Builder
	b.WriteString("| feature | meaning |\n|---|---|\n")
	for _, f := range core.Features() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.Name, f.Meaning)
	}
	doctable.Part(t, *update, "../../docs/compatibility.md", "with -update -->\n", "<!-- /features -->", b.String())
}

// TestDocsNameTheSettings: whoever meets a limit finds it on the page.
func TestDocsNameTheSettings(t *testing.T) {
	raw, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"api.timeout", "api.max_timeout", "api.max_open", "api.max_body", "api.max_headers",
		"api.max_rows", "api.max_bytes", "tx.idle", "tx.max", "tx.limit", "http.hosts",
	} {
		if !strings.Contains(string(raw), "`"+key+"`") {
			t.Errorf("%s does not name %s", docs, key)
		}
	}
}

// TestKVDocsNameTheSettings is the same for the page of the key-value face, whose
// examples are entries that are taken.
func TestKVDocsNameTheSettings(t *testing.T) {
	raw, err := os.ReadFile("../../docs/kv.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"kv.max_value", "api.max_bytes", "KEY_BLOOM_FILTER", "TABLE_NOT_OPEN",
		"TABLE_READ_ONLY", "TABLE_MISMATCH", "KEY_NOT_FOUND", "KEY_TOO_LARGE", "CONDITION_FAILED"} {
		if !strings.Contains(string(raw), key) {
			t.Errorf("docs/kv.md does not name %s", key)
		}
	}
	examples := 0
	for line := range strings.Lines(string(raw)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "- "); ok && strings.Contains(text, " key=") {
			facadetest.Entry(t, text)
			examples++
		}
	}
	if examples < 2 {
		t.Errorf("docs/kv.md has %d examples of entries", examples)
	}
}

func TestEveryStatusHasACode(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range core.Codes() {
		if seen[c.Name] {
			t.Errorf("%s stands twice", c.Name)
		}
		seen[c.Name] = true
	}
	for n, name := range Ydb.StatusIds_StatusCode_name {
		s := Ydb.StatusIds_StatusCode(n)
		switch s {
		case Ydb.StatusIds_STATUS_CODE_UNSPECIFIED, Ydb.StatusIds_SUCCESS, Ydb.StatusIds_UNDETERMINED:
			continue
		}
		if c := core.CodeYDB(s); c.Name != "YDB_"+name || !seen[c.Name] {
			t.Errorf("%s has the code %v; want YDB_%s", name, c, name)
		}
	}
}

func TestConfig(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	err := Config{HTTP: httpapi.Config{Hosts: []string{"http://x"}}, API: core.API{Timeout: 2, MaxTimeout: 1, MaxDepth: 100}}.Validate()
	for _, key := range []string{
		"api.timeout", "api.cache_ttl", "api.max_open", "api.max_body", "api.max_headers", "api.max_depth", "api.max_params",
		"api.max_statements", "api.max_groups", "api.max_rows", "api.max_bytes", "api.batch_parallel", "api.cache_size",
		"tx.idle", "tx.max", "tx.limit", "http.hosts",
	} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("the fault of %s is not named: %v", key, err)
		}
	}
	if _, err := New(Config{}, core.Deps{}); err == nil {
		t.Error("New takes a configuration that cannot work")
	}
}
