package httpapi

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/upstream"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// exampleService is what answers the examples of openapi.yaml.
func exampleService(t *testing.T) *service {
	t.Helper()
	rows := facadetest.Part(t, 0, []string{"id Uint64", "name Utf8?"}, []string{"42", `"Ann"`})
	written := &Ydb_TableStats.TableAccessStats{Name: "/local/users", Updates: &Ydb_TableStats.OperationStats{Rows: 1}}
	change := &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ExecStats: &Ydb_TableStats.QueryStats{
		QueryPhases: []*Ydb_TableStats.QueryPhaseStats{{TableAccess: []*Ydb_TableStats.TableAccessStats{written}}}}}
	second := facadetest.Part(t, 1, []string{"id Uint64", "name Utf8?"}, []string{"43", "null"})
	plan := &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ExecStats: &Ydb_TableStats.QueryStats{
		QueryPlan: `{"Plan":{"Node Type":"Query","Plans":[{"Node Type":"TableLookup","Tables":["users"]}]}}`, QueryAst: "(return 1)"}}
	db := &facadetest.Driver{
		Answer: func(_ context.Context, _ *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest) (
			[]*Ydb_Query.ExecuteQueryResponsePart, error,
		) {
			text := req.GetQueryContent().GetText()
			switch {
			case req.GetExecMode() == Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN:
				return []*Ydb_Query.ExecuteQueryResponsePart{plan}, nil
			case strings.HasPrefix(text, "SELECT") && strings.Contains(text, "; SELECT"):
				return []*Ydb_Query.ExecuteQueryResponsePart{rows, second}, nil
			case strings.Contains(text, "SELECT"):
				return []*Ydb_Query.ExecuteQueryResponsePart{rows}, nil
			case strings.HasPrefix(text, "INSERT"):
				err := facadetest.Exists()
				if e, ok := errors.AsType[*upstream.Error](err); ok {
					e.Issues[0].Message, e.Issues[0].Issues[0].Message = "Execution", "Conflict with existing key."
				}
				return nil, err
			}
			return []*Ydb_Query.ExecuteQueryResponsePart{change}, nil
		},
		Table: func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.Items(t), nil },
		Bulk:  func(*Ydb_Table.BulkUpsertRequest) error { return nil },
	}
	deps := core.Deps{Driver: db, Status: func() *sidecarv1.StatusResponse {
		return &sidecarv1.StatusResponse{Version: "1.4.0", State: "serving", UptimeS: 60,
			Nodes: []*sidecarv1.NodeStatus{
				{NodeId: 1, Address: "node-1:2136", Zone: "a", Health: "healthy", Use: "open", Sessions: 2, Busy: 1},
			},
			Pool: &sidecarv1.PoolStatus{Max: 50, Sessions: 2, Idle: 1, Busy: 1}}
	}}
	return compose(t, facadetest.Small(), deps, facadetest.Entry(t, "drafts=items key=id:Uint64 value=name:Utf8")).serve(t, db)
}

// sources are the .proto files, whose comments the descriptors in the program do not have.
func source(t *testing.T, d protoreflect.Descriptor) string {
	t.Helper()
	raw, err := os.ReadFile("../../../proto/" + d.ParentFile().Path())
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// commentsOn returns the comment before a declaration and the one behind it.
func commentsOn(t *testing.T, d protoreflect.Descriptor) (before, after string) {
	t.Helper()
	text := source(t, d)
	start := `(?m)((?:^[ \t]*//.*\n)*)^[ \t]*`
	var pattern string
	switch d := d.(type) {
	case protoreflect.MessageDescriptor:
		pattern = start + `message ` + string(d.Name()) + ` \{()`
	case protoreflect.MethodDescriptor:
		pattern = start + `rpc ` + string(d.Name()) + `\([^)]*\) returns \([^)]*\);[ \t]*(?://[ \t]*(.*))?$`
	case protoreflect.FieldDescriptor:
		_, text, _ = strings.Cut(text, "message "+string(d.Parent().Name())+" {")
		text, _, _ = strings.Cut(text, "\n}")
		pattern = start + `[\w.<>, ]+ ` + string(d.Name()) + ` = \d+(?: \[.*\])?;[ \t]*(?://[ \t]*(.*))?$`
	}
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%s is not found in its file", d.FullName())
	}
	for line := range strings.Lines(m[1]) {
		before += " " + strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "//"))
	}
	return strings.TrimSpace(before), strings.TrimSpace(m[2])
}

// commentOf returns the first sentence of the comment before a declaration, without its point, and the others.
func commentOf(t *testing.T, d protoreflect.Descriptor) (first, more string) {
	before, _ := commentsOn(t, d)
	first, more, _ = strings.Cut(before, ". ")
	return strings.TrimSuffix(first, "."), more
}
