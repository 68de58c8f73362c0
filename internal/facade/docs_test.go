package facade

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/httpapi"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write the generated parts of docs/reference/api.md and docs/reference/errors.md")

const (
	docs       = "../../docs/reference/api.md"
	errorsPage = "../../docs/reference/errors.md"
)

// codeTable is the error map as docs/reference/api.md shows it.
func codeTable() string {
	var b strings.Builder
	b.WriteString("| code | HTTP | gRPC | safe | meaning |\n|---|---|---|---|---|\n")
	for _, c := range core.Codes() {
		fmt.Fprintf(&b, "| [`%s`](errors.md#%s) | %d | %s | %s | %s |\n", c.Name, strings.ToLower(c.Name), c.HTTP,
			c.GRPC, yes(c.Safe), c.Title)
	}
	return b.String()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// codeSections are the sections of docs/reference/errors.md, one for each code.
func codeSections() string {
	var b strings.Builder
	for _, c := range core.Codes() {
		if c.Case == "" {
			fmt.Fprintf(&b, "\n### %s\n\n%s.\n", c.Name, c.Title)
		} else {
			fmt.Fprintf(&b, "\n**When %s**: %s.\n", c.Case, c.Title)
		}
		operator := c.Operator
		if operator == "" {
			operator = "Nothing."
		}
		fmt.Fprintf(&b, "\n| HTTP | gRPC | safe | counts as |\n|---|---|---|---|\n| %d | %s | %s | %s |\n\n"+
			"**Caller.** %s\n\n**Operator.** %s\n",
			c.HTTP, c.GRPC, yes(c.Safe), sideOf(c), c.Hint, doctable.Link("docs/reference/errors.md", operator))
	}
	return b.String()
}

// sideOf says how the page and the alerts count the code.
func sideOf(c core.Code) string {
	if c.Caller {
		return "caller error"
	}
	return "service error"
}

// sdkTable lists the statuses of calls of SDKs by the side that they count on.
func sdkTable() string {
	sides := map[bool][]string{}
	for number, name := range Ydb.StatusIds_StatusCode_name {
		if s := Ydb.StatusIds_StatusCode(number); s != 0 && s != Ydb.StatusIds_SUCCESS {
			of := ydbstatus.OfCaller(s, 0)
			sides[of] = append(sides[of], "`"+name+"`")
		}
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		of, name := ydbstatus.OfCaller(0, c), "`"+ydbstatus.CodeName(c)+"`"
		if !slices.Contains(sides[of], name) {
			sides[of] = append(sides[of], name)
		}
	}
	for _, names := range sides {
		slices.Sort(names)
	}
	return "| calls of SDKs count as | statuses of YDB and gRPC |\n|---|---|\n| caller error | " + strings.Join(sides[true], ", ") +
		" |\n| service error | " + strings.Join(sides[false], ", ") + " |\n"
}

// sections are the names of documents and of their sections in a hint.
var sections = regexp.MustCompile(`docs/([a-z]+/[a-z-]+\.md)(#[a-z_-]+)?`)

// oldTable lists the statuses that were others in the version before.
func oldTable() string {
	var b strings.Builder
	b.WriteString("| code | HTTP | before | gRPC | before |\n|---|---|---|---|---|\n")
	for _, c := range core.Codes() {
		if status, code, differs := c.Old(); differs {
			when := ""
			if c.Case != "" {
				when = ", when " + c.Case
			}
			fmt.Fprintf(&b, "| [`%s`](#%s)%s | %d | %d | %s | %s |\n", c.Name, strings.ToLower(c.Name), when, c.HTTP, status, c.GRPC, code)
		}
	}
	return b.String()
}

func TestDocsHaveTheCodes(t *testing.T) {
	const begin, end = "<!-- codes: compared with the code by `go test ./internal/facade -run TestDocs`, written " +
		"with -update -->\n", "<!-- /codes -->"
	doctable.Part(t, *update, docs, begin, end, codeTable())
	doctable.Part(t, *update, errorsPage, begin, end, codeSections())
	doctable.Part(t, *update, errorsPage, strings.Replace(begin, "codes", "old", 1), "<!-- /old -->", oldTable())
	doctable.Part(t, *update, errorsPage, strings.Replace(begin, "codes", "sdks", 1), "<!-- /sdks -->", sdkTable())
}

// headings are the anchors of a document.
func headings(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, strings.ReplaceAll(strings.ToLower(m[1]), " ", "-"))
	}
	return all
}

// TestHintsLeadSomewhere: the link of every error has its heading, and so have the sections that the hints
// for operators name. What a caller is told to do needs no access to the sidecar's settings.
func TestHintsLeadSomewhere(t *testing.T) {
	setting := regexp.MustCompile(`\b(adaptive|admin|api|apps|drain|grpc|http|ingest|kv|memory|pool|retry|tx|ydb)\.[a-z_]+`)
	here := headings(t, errorsPage)
	for _, c := range core.Codes() {
		page, anchor, _ := strings.Cut(c.Link(), "#")
		if page != "https://github.com/ydb-sidecar/sidecar/blob/main/docs/reference/errors.md" || !slices.Contains(here, anchor) {
			t.Errorf("%s leads to %s, which is no heading of %s", c.Name, c.Link(), errorsPage)
		}
		if c.Title == "" || c.Hint == "" {
			t.Errorf("%s has no title, or no hint for the caller", c.Name)
		}
		if found := setting.FindString(c.Hint); found != "" {
			t.Errorf("%s tells the caller of the setting %s: %s", c.Name, found, c.Hint)
		}
		for _, m := range sections.FindAllStringSubmatch(c.Operator, -1) {
			if there := headings(t, "../../docs/"+m[1]); m[2] != "" && !slices.Contains(there, strings.TrimPrefix(m[2], "#")) {
				t.Errorf("%s leads the operator to %s, which is not there", c.Name, m[0])
			}
		}
	}
}

// TestBackPressureIsOneClass: whatever says that there is too much to do has one status over either API, and a
// pause. Too large a request is told apart from it by gRPC's RetryInfo alone.
func TestBackPressureIsOneClass(t *testing.T) {
	var class []string
	for _, c := range core.Codes() {
		exhausted := c.GRPC == codes.ResourceExhausted && c.Name != "LIMIT_EXCEEDED"
		if exhausted != (c.HTTP == http.StatusTooManyRequests) {
			t.Errorf("%s is %d over HTTP and %v over gRPC", c.Name, c.HTTP, c.GRPC)
		}
		if exhausted {
			class = append(class, c.Name)
			if f := core.Faultf(&c, "x"); !f.Safe {
				t.Errorf("%s is not safe to send again", c.Name)
			}
		}
		if c.HTTP == http.StatusBadGateway && c.Operator == "" && c.Name != "YDB_EXTERNAL_ERROR" {
			t.Errorf("%s is an operator's matter, and tells the operator nothing", c.Name)
		}
	}
	want := []string{"TOO_MANY_OPEN", "QUOTA_EXCEEDED", "MEMORY_SHORT", "QUEUE_FULL", "SHED_DELAY", "YDB_OVERLOADED"}
	if !slices.Equal(class, want) {
		t.Errorf("back-pressure is %v; want %v", class, want)
	}
}

func TestDocsHaveTheFeatures(t *testing.T) {
	var b strings.Builder
	b.WriteString("| feature | meaning |\n|---|---|\n")
	for _, f := range core.Features() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.Name, f.Meaning)
	}
	doctable.Part(t, *update, "../../docs/reference/compatibility.md", "with -update -->\n", "<!-- /features -->", b.String())
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
	raw, err := os.ReadFile("../../docs/reference/kv.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"kv.max_value", "api.max_bytes", "KEY_BLOOM_FILTER", "TABLE_NOT_OPEN",
		"TABLE_READ_ONLY", "TABLE_MISMATCH", "KEY_NOT_FOUND", "KEY_TOO_LARGE", "CONDITION_FAILED"} {
		if !strings.Contains(string(raw), key) {
			t.Errorf("docs/reference/kv.md does not name %s", key)
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
		t.Errorf("docs/reference/kv.md has %d examples of entries", examples)
	}
}

func TestEveryStatusHasACode(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range core.Codes() {
		if seen[c.Name] != (c.Case != "") {
			t.Errorf("%s stands twice, or for a case alone", c.Name)
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
