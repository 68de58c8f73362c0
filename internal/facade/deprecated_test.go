package facade

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// TestDeprecatedPartsAreTold: callers over both APIs learn that they use a call, a field or a code that is deprecated, and others do not.
func TestDeprecatedPartsAreTold(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	since := time.Date(2027, 1, 2, 0, 0, 0, 0, time.UTC)
	old := core.Deprecation{Since: since, Sunset: since.AddDate(1, 0, 0), Instead: "https://example.org/stats"}
	b.s.core.Deprecated = core.Deprecated{
		"sidecar.v1.ExecuteRequest.stats": old, "sidecar.v1.Limits.bytes": old,
		"Explain": {Since: since, Instead: "https://example.org/explain"}, "UNSUPPORTED_MEDIA_TYPE": old, "BAD_REQUEST": old,
	}
	const link = `<https://example.org/stats>; rel="deprecation"`
	for _, tt := range []struct {
		path, body, want, link, sunset string
	}{
		{"/v1/query", `{"sql":"S"}`, "", "", ""},
		{"/v1/query", `{"sql":"S","stats":"none"}`, "@1798848000", link, "Sun, 02 Jan 2028 00:00:00 GMT"},
		{"/v1/query", `{"sql":"S","limits":{"bytes":"8MiB"}}`, "@1798848000", link, "Sun, 02 Jan 2028 00:00:00 GMT"},
		{"/v1/query", `{"sql":"S","limits":{"rows":8}}`, "", "", ""},
		{"/v1/query", `{"sql":""}`, "@1798848000", link, "Sun, 02 Jan 2028 00:00:00 GMT"},
		{"/v1/explain", `{"sql":"S"}`, "@1798848000", `<https://example.org/explain>; rel="deprecation"`, ""},
	} {
		_, header, text := facadetest.Send(t, "POST", b.base+tt.path, tt.body, nil)
		if header.Get("Deprecation") != tt.want || header.Get("Link") != tt.link || header.Get("Sunset") != tt.sunset {
			t.Errorf("%s %s: %v, %s; want %s", tt.path, tt.body, header, text, tt.want)
		}
		var m struct {
			SQL, Stats string
			Limits     struct{ Rows, Bytes any }
		}
		if err := json.Unmarshal([]byte(tt.body), &m); err != nil {
			t.Fatal(err)
		}
		req := &sidecarv1.ExecuteRequest{Sql: m.SQL, Stats: m.Stats}
		if m.Limits.Bytes != nil {
			req.Limits = &sidecarv1.Limits{Bytes: 8 << 20}
		}
		var trailer metadata.MD
		if tt.path == "/v1/explain" {
			_, _ = b.api.Explain(t.Context(), &sidecarv1.ExplainRequest{Sql: m.SQL}, grpc.Trailer(&trailer))
		} else {
			_, _ = b.api.Execute(t.Context(), req, grpc.Trailer(&trailer))
		}
		for key, want := range map[string]string{"deprecation": tt.want, "link": tt.link, "sunset": tt.sunset} {
			if got := strings.Join(trailer.Get(key), ""); got != want {
				t.Errorf("gRPC %s: %s is %q; want %q", tt.body, key, got, want)
			}
		}
	}
	inline := map[string]bool{}
	b.s.grpc.InlineCalls(func(path string, _ Begin) { inline[path] = true })
	if inline[sidecarv1.Sidecar_Execute_FullMethodName] {
		t.Error("Execute is read by hand, which notes no deprecated field")
	}
}

// TestDeprecatedPartsAreMarked: what the table of deprecated parts has, the .proto files mark, and the other way round.
func TestDeprecatedPartsAreMarked(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	marked := 0
	check := func(part string, is bool) {
		if _, listed := b.s.core.Deprecated[part]; listed != is {
			t.Errorf("%s is marked: %v, and in the table: %v", part, is, listed)
		}
		if is {
			marked++
		}
	}
	for _, file := range []protoreflect.FileDescriptor{
		sidecarv1.File_sidecar_v1_sidecar_proto, sidecarv1.File_sidecar_v1_kv_proto, sidecarv1.File_sidecar_v1_ingest_proto,
	} {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for i := range s.Methods().Len() {
				m, part := s.Methods().Get(i), string(s.Methods().Get(i).Name())
				if s.Name() != "Sidecar" {
					part = string(s.Name()) + "/" + part
				}
				check(part, m.Options().(*descriptorpb.MethodOptions).GetDeprecated())
			}
		}
		for i := range file.Messages().Len() {
			fields := file.Messages().Get(i).Fields()
			for i := range fields.Len() {
				check(string(fields.Get(i).FullName()), fields.Get(i).Options().(*descriptorpb.FieldOptions).GetDeprecated())
			}
		}
	}
	for _, c := range core.Codes() {
		if _, listed := b.s.core.Deprecated[c.Name]; listed {
			marked++
		}
	}
	if len(b.s.core.Deprecated) != marked {
		t.Errorf("the table has %d parts, of which %d exist", len(b.s.core.Deprecated), marked)
	}
}
