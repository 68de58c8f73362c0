package facade

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// BenchmarkExecute is what this package itself costs for a point read of one row
// of 100 bytes: decoding, typing, encoding, without transport and driver.
func BenchmarkExecute(b *testing.B) {
	answer := rowsOf(b, 1)
	db := &fake{answer: func(context.Context, *fakeSession, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		return answer, nil
	}}
	s, err := New(Default(), Deps{Driver: db, Database: "/local"})
	if err != nil {
		b.Fatal(err)
	}
	const sql = "DECLARE $id AS Uint64; SELECT id, v FROM items WHERE id = $id"
	b.Run("http", func(b *testing.B) {
		b.ReportAllocs()
		handler := s.Handler()
		for b.Loop() {
			r := httptest.NewRequest("POST", "http://localhost/v1/query", strings.NewReader(`{"sql":"`+sql+`","params":{"id":42}}`))
			r.Header.Set("Content-Type", mediaJSON)
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, r); w.Code != 200 {
				b.Fatal(w.Body)
			}
			db.taken()
			db.calls = nil
		}
	})
	b.Run("grpc", func(b *testing.B) {
		b.ReportAllocs()
		req := &sidecarv1.ExecuteRequest{Sql: sql, Params: map[string]*sidecarv1.Value{"id": {Kind: &sidecarv1.Value_Int64Value{Int64Value: 42}}}}
		for b.Loop() {
			if _, err := s.Execute(b.Context(), req); err != nil {
				b.Fatal(err)
			}
			db.taken()
			db.calls = nil
		}
	})
}
