package protocol

import (
	"slices"
	"strings"
	"testing"

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

// The names that fields may have that a scan looks for as such.
var namesOfWants = map[what][]protoreflect.Name{
	wantSession: {"session_id", "session"},
	wantTx:      {"tx_id", "id"},
	wantBegin:   {"begin_tx"},
	wantCommit:  {"commit_tx"},
	wantText:    {"text", "yql_text"},
	wantSyntax:  {"syntax"},
	wantStatus:  {"status"},
	wantMeta:    {"tx_meta"},
	wantMetaTx:  {"id"},
	wantQueryID: {"query_id"},
	wantOnce:    {"id"},
	wantMessage: {"tx_control", "query_content", "query", "tx", "operation"},
}

// Scans look for fields by number. The numbers are those of the official protos, of every method.
func TestFieldsAreThoseOfTheProtos(t *testing.T) {
	for _, m := range All() {
		at := strings.LastIndexByte(m.Path, '/')
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(
			protoreflect.FullName(strings.ReplaceAll(m.Path[1:at], "/", ".") + "." + m.Path[at+1:]),
		)
		if err != nil { // of newer protos
			if m.Session != nil || m.Role != RoleNone {
				t.Errorf("%s: %v", m.Path, err)
			}
			continue
		}
		method := d.(protoreflect.MethodDescriptor)
		if m.Session != nil {
			compareFields(t, m.Path+", request", m.Request, method.Input())
		}
		compareFields(t, m.Path+", answer", m.Answer, method.Output())
	}
}

func compareFields(t *testing.T, path string, fields *Fields, message protoreflect.MessageDescriptor) {
	t.Helper()
	for _, w := range fields.all {
		f := message.Fields().ByNumber(protoreflect.FieldNumber(w.number))
		switch {
		case f == nil:
			t.Errorf("%s: %s has no field %d", path, message.FullName(), w.number)
		case f.FullName() == "Ydb.Operations.Operation.result": // an Any: its type is the method's
			result := protoreflect.FullName(
				strings.TrimSuffix(string(path[strings.LastIndexByte(path, '/')+1:strings.IndexByte(path, ',')]), "DataQuery") + "Result",
			)
			switch {
			case strings.Contains(path, "ExecuteDataQuery"):
				result = "Ydb.Table.ExecuteQueryResult"
			case strings.Contains(path, "PrepareDataQuery"):
				result = "Ydb.Table.PrepareQueryResult"
			default:
				result = "Ydb.Table." + result
			}
			d, err := protoregistry.GlobalFiles.FindDescriptorByName(result)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			compareFields(t, path, w.in.all[0].in, d.(protoreflect.MessageDescriptor))
		case !slices.Contains(namesOfWants[w.what], f.Name()):
			t.Errorf("%s: field %d of %s is %s", path, w.number, message.FullName(), f.Name())
		case w.in != nil:
			compareFields(t, path, w.in, f.Message())
		}
	}
}
