// Command gen writes methods_gen.go: every RPC of YDB, with what its messages say
// of sessions and of statuses, read from the descriptors of the official protos, and with what they do not say.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/format"
	"hash/fnv"
	"log"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Auth_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Cms_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Coordination_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Export_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_FederationDiscovery_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Import_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Monitoring_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Operation_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_RateLimiter_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Scheme_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Scripting_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
)

const (
	query        = "Ydb.Query.V1.QueryService."
	table        = "Ydb.Table.V1.TableService."
	topic        = "Ydb.Topic.V1.TopicService."
	scripting    = "Ydb.Scripting.V1.ScriptingService."
	coordination = "Ydb.Coordination.V1.CoordinationService."
)

// said is what the descriptors do not tell of a method, in columns of its row.
type said map[protoreflect.FullName]string

// The columns, with what holds for methods that are not named.
var (
	// Whose failure means something else than that of the rest.
	kinds = said{
		query + "CreateSession": "cluster.CallOpen", query + "AttachSession": "cluster.CallOpen",
		table + "CreateSession": "cluster.CallOpen",
		query + "ExecuteQuery":  "cluster.CallExecute", table + "ExecuteDataQuery": "cluster.CallExecute",
		table + "StreamExecuteScanQuery": "cluster.CallExecute", table + "StreamReadTable": "cluster.CallExecute",
		table + "ReadRows":   "cluster.CallExecute",
		table + "BulkUpsert": "cluster.CallExecute", scripting + "ExecuteYql": "cluster.CallExecute",
		scripting + "StreamExecuteYql": "cluster.CallExecute",
		query + "CommitTransaction":    "cluster.CallCommit", table + "CommitTransaction": "cluster.CallCommit",
	}
	// RoleUse for a method that names a session, else RoleNone.
	roles = said{
		query + "CreateSession": "RoleCreate", table + "CreateSession": "RoleCreate",
		query + "AttachSession": "RoleAttach",
		query + "DeleteSession": "RoleDelete", table + "DeleteSession": "RoleDelete",
		table + "KeepAlive":        "RoleKeep",
		query + "BeginTransaction": "RoleBegin", table + "BeginTransaction": "RoleBegin",
		query + "CommitTransaction": "RoleEnd", query + "RollbackTransaction": "RoleEnd",
		table + "CommitTransaction": "RoleEnd", table + "RollbackTransaction": "RoleEnd",
		query + "ExecuteQuery": "RoleImplicit",
		// ydb/core/grpc_services/rpc_describe_table.cpp@0caec937 and those beside it
		table + "DescribeTable": "RoleFree", table + "CreateTable": "RoleFree", table + "AlterTable": "RoleFree",
		table + "DropTable": "RoleFree",
		table + "CopyTable": "RoleFree", table + "CopyTables": "RoleFree", table + "RenameTables": "RoleFree",
		table + "StreamReadTable": "RoleFree", table + "ReadRows": "RoleFree",
	}
	// sessionFirst, of methods with a role.
	requests = said{
		query + "ExecuteQuery": "executeQuery", query + "CommitTransaction": "sessionAndTx", query + "RollbackTransaction": "sessionAndTx",
		table + "ExecuteDataQuery": "executeDataQuery", table + "ExecuteSchemeQuery": "sessionAndText",
		// settings of PostgreSQL's syntax are made when a text is read
		table + "PrepareDataQuery": "sessionAndText", table + "ExplainDataQuery": "sessionAndText",
		table + "CommitTransaction": "sessionAndTx", table + "RollbackTransaction": "sessionAndTx",
		table + "CopyTables": "sessionSecond", table + "RenameTables": "sessionSecond",
		topic + "UpdateOffsetsInTransaction": "topicOffsets",
	}
	// The status.
	answers = said{
		query + "ExecuteQuery": "plainMeta6", query + "BeginTransaction": "plainMeta3",
		table + "ExecuteDataQuery": "operationMeta2", table + "BeginTransaction": "operationMeta1",
		table + "PrepareDataQuery": "operationQueryID",
	}
	// None.
	locations = said{
		topic + "DescribeTopic": "locationsOfTopic", topic + "DescribePartition": "locationsOfPartition",
		topic + "DescribeConsumer": "locationsOfConsumer",
		table + "DescribeTable":    "locationsOfTable",
	}
	endless = said{
		query + "AttachSession": "true", coordination + "Session": "true", topic + "StreamRead": "true", topic + "StreamWrite": "true",
		topic + "StreamDirectRead": "true",
	}
	// Those of topics and coordination are another thing: their clients connect again.
	rows = said{query + "ExecuteQuery": "true", table + "StreamExecuteScanQuery": "true", table + "StreamReadTable": "true"}
	// It retries for minutes on an overloaded shard.
	waits = said{table + "BulkUpsert": "true"}

	// Methods of newer protos than those at hand, with their styles (ydb/public/api/grpc/ydb_topic_v1.proto).
	newer = []struct {
		service protoreflect.FullName
		name    protoreflect.Name
		style   string
		many    bool
	}{
		{"Ydb.Topic.V1.TopicService", "DescribePartition", "StyleOperation", false},
		{"Ydb.Topic.V1.TopicService", "StreamDirectRead", "StylePlain", true},
	}

	statuses = map[string]string{"": "noStatus", "StylePlain": "plainStatus", "StyleOperation": "operationStatus",
		"StyleBare": "bareStatus"}
)

func main() {
	var lines []string
	known := map[protoreflect.FullName]bool{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			if !strings.HasPrefix(string(service.FullName()), "Ydb.") {
				continue
			}
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				session := sessionPath(m.Input(), 2)
				if m.IsStreamingClient() {
					session = nil
				}
				lines, known[m.FullName()] = append(lines, line(m.FullName(), session, styleOf(m.Output()), m.IsStreamingClient())), true
			}
		}
		return true
	})
	for _, m := range newer {
		name := m.service.Append(m.name)
		if known[name] {
			log.Fatalf("%s is known", name)
		}
		lines, known[name] = append(lines, line(name, nil, m.style, m.many)), true
	}
	for _, column := range []said{kinds, roles, requests, answers, locations, endless, rows, waits} {
		for name := range column {
			if !known[name] {
				log.Fatalf("there is no method %s", name)
			}
		}
	}
	slices.Sort(lines)
	var b bytes.Buffer
	fmt.Fprintln(&b,
		"// Code generated by internal/protocol/gen; DO NOT EDIT.\n\npackage protocol\n\nimport "+
			"\"github.com/ydb-sidecar/sidecar/internal/cluster\"\n\nvar table = [...]Method{")
	for row, l := range lines {
		fmt.Fprintln(&b, strings.Replace(l, rowMark, fmt.Sprint(row), 1))
	}
	fmt.Fprintln(&b, "}")
	text, err := format.Source(b.Bytes())
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile("methods_gen.go", text, 0o644); err != nil {
		log.Fatal(err)
	}
}

// rowMark stands for the row's number until the rows are in order.
const rowMark = "ROW"

func line(name protoreflect.FullName, session []int, style string, many bool) string {
	path := fmt.Sprintf("/%s/%s", name.Parent(), name.Name())
	work := fnv.New64a()
	_, _ = work.Write([]byte(path)) // never fails
	text := fmt.Sprintf("{Path: %q, Row: %s, Kind: %s, Work: %#x", path, rowMark, cmp.Or(kinds[name], "cluster.CallControl"), work.Sum64())
	if session != nil {
		text += fmt.Sprintf(", Session: []int{%s}", join(session))
	}
	role := roles[name]
	if role == "" && session != nil {
		role = "RoleUse"
	}
	for _, column := range []struct{ name, value string }{
		{"Style", style}, {"Role", role}, {"Locations", locations[name]}, {"Endless", endless[name]},
		{"Rows", rows[name]}, {"Waits", waits[name]},
		{"Request", cmp.Or(requests[name], "sessionFirst")}, {"Answer", cmp.Or(answers[name], statuses[style])},
	} {
		if column.value != "" {
			text += fmt.Sprintf(", %s: %s", column.name, column.value)
		}
	}
	if many {
		text += ", Many: true"
	}
	return text + "},"
}

// sessionPath finds the field that holds the id of a session on a node: session_id,
// or the session of the transaction that a message belongs to.
func sessionPath(m protoreflect.MessageDescriptor, depth int) []int {
	name := protoreflect.Name("session_id")
	if m.FullName() == "Ydb.Topic.TransactionIdentity" {
		name = "session"
	}
	if f := m.Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind {
		return []int{int(f.Number())}
	}
	if f := m.Fields().ByName("tx"); f != nil && depth > 0 && f.Kind() == protoreflect.MessageKind {
		if rest := sessionPath(f.Message(), depth-1); rest != nil {
			return append([]int{int(f.Number())}, rest...)
		}
	}
	return nil
}

// styleOf tells where an answer holds its status. It fails when the numbers are not
// those that every YDB message uses.
func styleOf(m protoreflect.MessageDescriptor) string {
	number := func(m protoreflect.MessageDescriptor, name protoreflect.Name) int {
		if f := m.Fields().ByName(name); f != nil {
			return int(f.Number())
		}
		return 0
	}
	switch {
	case m.FullName() == "Ydb.Operations.Operation":
		return "StyleBare"
	case number(m, "operation") == 1:
		return "StyleOperation"
	case number(m, "status") == 1 && number(m, "issues") == 2:
		return "StylePlain"
	}
	return ""
}

func join(path []int) string {
	text := ""
	for i, n := range path {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(n)
	}
	return text
}
