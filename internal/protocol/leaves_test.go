package protocol

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"
)

// What a statement leaves on its session is seen by its text or its syntax, in one piece and in several.
func TestWhatStatementsLeaveOnTheirSessions(t *testing.T) {
	for text, want := range map[string]bool{
		"":                                false,
		"SELECT 1":                        false,
		"SELECT temp FROM t":              false,
		"create temp table t (id Uint64)": true,
		"CREATE  TEMPORARY /* x */ TABLE t (id Uint64)": true,
		"--!syntax_pg\nSET search_path TO x":            true,
		"--!syntax_v1\nSELECT 1":                        false,
		"-- !syntax_pg\nSELECT 1":                       false,
		// What ParseTranslationSettings of YDB takes for that syntax, and what not.
		"\n\r\n \t--!syntax_pg\nSET x TO y": true,
		"  --!syntax_pg \t":                 true,
		"--!syntax_pg":                      true,
		"--!ansi_lexer\n\n--!\r\t--!antlr4_parser\n--!syntax_pg\nSET": true,
		"--!unheard_of\n--!syntax_pg\nSET x TO y":                     true, // of a newer server
		"--\n--!syntax_pg\nSELECT 1":                                  false,
		"-- a comment\n--!syntax_pg\nSELECT 1":                        false,
		"SELECT 1;\n--!syntax_pg\nSELECT 1":                           false,
		"/**/--!syntax_pg\nSELECT 1":                                  false,
		"\v--!syntax_pg\nSELECT 1":                                    false,
		"--!ansi_lexer --!syntax_pg\nSELECT 1":                        false, // which is refused
	} {
		if got := TextLeavesSomething(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
		for m, request := range map[string]proto.Message{
			"PrepareDataQuery": &Ydb_Table.PrepareDataQueryRequest{SessionId: "s", YqlText: text},
			"ExplainDataQuery": &Ydb_Table.ExplainDataQueryRequest{SessionId: "s", YqlText: text},
		} {
			if s := scanned(Named(TableService+m).Request, 0, bytesOf(t, request)); s.Temporary != want {
				t.Errorf("%s of %q: %v", m, text, s.Temporary)
			}
		}
		for syntax, always := range map[Ydb_Query.Syntax]bool{Ydb_Query.Syntax_SYNTAX_UNSPECIFIED: false,
			Ydb_Query.Syntax_SYNTAX_YQL_V1: false, SyntaxPG: true} {
			message, err := proto.Marshal(
				&Ydb_Query.ExecuteQueryRequest{SessionId: "s",
					Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Syntax: syntax, Text: text}}},
			)
			if err != nil {
				t.Fatal(err)
			}
			for size := range len(message) {
				var s Scan
				s.Start(Named(QueryService + "ExecuteQuery").Request)
				framed := append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
				for rest := framed; len(rest) > 0; {
					n := min(len(rest), size+1)
					s.Write(rest[:n])
					rest = rest[n:]
				}
				// What comes in pieces may be taken for one that leaves something; one that does is never missed.
				if must := want || always; must && !s.Temporary || !must && s.Temporary && size+1 == len(framed) {
					t.Errorf("%q, %v, in pieces of %d: %v", text, syntax, size+1, s.Temporary)
				}
			}
		}
	}
}
