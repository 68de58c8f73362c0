package facade

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// TestHeadersThatMayComeOnce: both APIs reject a header that is there twice, in the same words.
func TestHeadersThatMayComeOnce(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	for _, name := range []string{"X-Ydb-Priority", "X-Sidecar-App"} {
		want := "the header " + name + " is there 2 times; send it once"
		code, _, got := facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, func(r *http.Request) {
			r.Header[name] = []string{"batch", "batch"}
		})
		if code != http.StatusBadRequest || !contains(got, `"message":"`+want) {
			t.Errorf("HTTP: %d %s; want %q", code, got, want)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), strings.ToLower(name), "batch", strings.ToLower(name), "batch")
		_, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S"})
		if st := status.Convert(err); st.Code() != codes.InvalidArgument || !contains(st.Message(), want) {
			t.Errorf("gRPC: %v; want %q", err, want)
		}
		stream, err := b.api.ExecuteStream(ctx, &sidecarv1.ExecuteRequest{Sql: "S"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = stream.Recv(); !contains(status.Convert(err).Message(), want) {
			t.Errorf("a stream of gRPC: %v; want %q", err, want)
		}
		ctx = metadata.AppendToOutgoingContext(t.Context(), strings.ToLower(name), "batch")
		if _, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S"}); err != nil {
			t.Errorf("%s once: %v", name, err)
		}
	}
	if n := len(b.Taken()); n != 2 {
		t.Errorf("%d statements ran; want the two of calls with a header once", n)
	}
}
