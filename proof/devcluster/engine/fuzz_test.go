package engine

import (
	"context"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// FuzzExecute runs any text: it may fail, with an *Error, and must not panic or hang.
func FuzzExecute(f *testing.F) {
	for _, s := range sections {
		for _, c := range s.items {
			f.Add(c.example)
		}
	}
	shared := sampleDB(f, "")
	f.Fuzz(func(t *testing.T, text string) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		req := Request{Text: text, Database: "/local", Inferred: true}
		var out []string
		tx := begin(t, shared, Serializable)
		_, err := tx.Execute(ctx, req, gather(&out))
		if schema, _ := shared.IsSchema(req); schema {
			_, err = sampleDB(t, "").Execute(ctx, req, gather(&out))
		}
		if e, ok := err.(*Error); err != nil &&
			(!ok || e.Status == Ydb.StatusIds_INTERNAL_ERROR || e.Status == Ydb.StatusIds_TIMEOUT || len(e.Issues) == 0) {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// FuzzParameter decodes any typed value: what is accepted comes back equal.
func FuzzParameter(f *testing.F) {
	for _, v := range wireValues() {
		b, err := proto.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var v Ydb.TypedValue
		if proto.Unmarshal(b, &v) != nil {
			return
		}
		typ, err := value.FromProto(v.Type)
		if err != nil {
			return
		}
		x, err := value.Decode(typ, v.Type, v.Value)
		if err != nil {
			return
		}
		again, err := value.Decode(typ, typ.Proto(), value.Proto(typ, x))
		if err != nil {
			t.Fatalf("%v: %v", &v, err)
		}
		if string(value.AppendHash(nil, typ, x)) != string(value.AppendHash(nil, typ, again)) {
			t.Errorf("%v became %v", &v, value.Proto(typ, again))
		}
	})
}
