package yql

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql/yqltest"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// TestTheDocumentIsTrue reads the table of docs/reference/types.md: what it says is
// written is written, what it says is read is read, and the gRPC form is the
// one that it names.
func TestTheDocumentIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/types.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || !strings.HasPrefix(cells[0], " `") {
			continue
		}
		name := quoted.FindStringSubmatch(cells[0])[1]
		typ, err := ParseType(name)
		if err != nil || FormatType(typ) != name {
			t.Errorf("%s: %s, %v", name, FormatType(typ), err)
			continue
		}
		seen[name] = true
		written := make(map[string]bool)
		for _, form := range quoted.FindAllStringSubmatch(cells[1], -1) {
			written[form[1]] = true
			v, err := ParseJSON([]byte(form[1]), typ)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if text, err := AppendJSON(nil, v, typ, JSONOptions{}); err != nil || string(text) != form[1] {
				t.Errorf("%s: %s is written as %s, %v", name, form[1], text, err)
			}
			checkForms(t, typ, v)
			checkKind(t, name, cells[3], v, typ)
		}
		for _, form := range quoted.FindAllStringSubmatch(cells[2], -1) {
			if _, err := ParseJSON([]byte(form[1]), typ); err != nil || written[form[1]] {
				t.Errorf("%s: also read: %s: %v", name, form[1], err)
			}
		}
		if len(written) == 0 {
			t.Errorf("%s: nothing is written", name)
		}
	}
	for _, id := range yqltest.Primitives {
		if name := FormatType(yqltest.Primitive(id)); !seen[name] {
			t.Errorf("the document has no %s", name)
		}
	}
	if len(seen) < len(yqltest.Primitives)+15 {
		t.Errorf("the document has only %d types", len(seen))
	}
}

// checkKind finds the member of the gRPC form in the table's cell, if the cell
// names members.
func checkKind(t *testing.T, name, cell string, v *Ydb.Value, typ *Ydb.Type) {
	t.Helper()
	form, err := ToValue(v, typ)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	m := form.ProtoReflect()
	kind := m.WhichOneof(m.Descriptor().Oneofs().ByName("kind")).Name()
	if strings.Contains(cell, "the value") || strings.Contains(cell, "as without") {
		return
	}
	if !strings.Contains(cell, "`"+string(kind)+"`") {
		t.Errorf("%s: gRPC has %s, the document says%s", name, kind, cell)
	}
	if back, err := FromValue(form, typ); err != nil || !proto.Equal(back, v) {
		t.Errorf("%s: %v comes back as %v, %v", name, form, back, err)
	}
}
