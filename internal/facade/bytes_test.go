package facade

import (
	"context"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/short"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// postAsWeb returns what sends a request of the app "web" over HTTP, and returns the words of a failure.
func postAsWeb(path, body string) func(*Service) string {
	return func(s *Service) string {
		r := httptest.NewRequest("POST", "http://localhost"+path, strings.NewReader(body))
		facadetest.Header("Content-Type", core.MediaJSON, "X-Sidecar-App", "web")(r)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code == 200 {
			return ""
		}
		return strconv.Itoa(w.Code) + " " + w.Body.String()
	}
}

// callAsWeb returns what makes a call of the app "web" over gRPC, and returns the words of a failure.
func callAsWeb(call func(context.Context, *Service) error) func(*Service) string {
	return func(s *Service) string {
		err := call(metadata.NewIncomingContext(context.Background(), metadata.Pairs("x-sidecar-app", "web")), s)
		if err == nil {
			return ""
		}
		return status.Convert(err).Message()
	}
}

// An app that goes on calling while it is in debt gets its rate of bytes, and is served as
// soon as what was served is paid for: refusals cost nothing.
func TestRefusedCallsCostNoBytes(t *testing.T) {
	const rate, size = 1000, 4000 // bytes a second, and bytes of a call at least
	long := strings.Repeat("x", size)
	query := postAsWeb("/v1/query", `{"sql":"`+long+`"}`)
	for _, tc := range []struct {
		name   string
		call   func(*Service) string // returns the words of a failure
		failed string                // the words of every call; "": some are served
	}{
		{"query", query, ""},
		{"list", postAsWeb("/v1/batch", `{"statements":[{"sql":"`+long+`"}]}`), ""},
		{"list_in_a_transaction", postAsWeb("/v1/tx", `{"statements":[{"sql":"`+long+`"}]}`), ""},
		{"explain", postAsWeb("/v1/explain", `{"sql":"`+long+`"}`), ""},
		{"grpc", callAsWeb(func(ctx context.Context, s *Service) error {
			_, err := s.grpc.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: long})
			return err
		}), ""},
		{"grpc_list", callAsWeb(func(ctx context.Context, s *Service) error {
			_, err := s.grpc.Batch(ctx, &sidecarv1.BatchRequest{Statements: []*sidecarv1.BatchStatement{{Sql: long}}})
			return err
		}), ""},
		{"no_JSON", postAsWeb("/v1/query", long), "BAD_REQUEST"},
		{"no_transaction", postAsWeb("/v1/query", `{"sql":"`+long+`","tx":{"id":"tx_none"}}`), "not the id"},
		{"no_transaction_to_end", postAsWeb("/v1/tx/tx_none/commit", `{"timeout":"`+strings.Repeat("0", size)+`1s"}`), "not the id"},
		{"grpc_no_transaction", callAsWeb(func(ctx context.Context, s *Service) error {
			_, err := s.grpc.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: long, Tx: &sidecarv1.TxSelector{Id: "tx_none"}})
			return err
		}), "not the id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, err := apps.New(apps.Config{Max: 5, Quotas: []string{"web bytes_per_second=" + strconv.Itoa(rate)}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				s, err := New(small(), core.Deps{Driver: &facadetest.Driver{Answer: facadetest.Echo}, Database: "/local", Apps: all})
				if err != nil {
					t.Fatal(err)
				}
				const minute = 60 * time.Second
				calls := time.Duration(short.Of(600, 150))
				served, last := 0, time.Time{}
				for began := time.Now(); time.Since(began) < minute; time.Sleep(minute / calls) {
					switch words := tc.call(s); {
					case words == "":
						served, last = served+1, time.Now()
					case tc.failed == "" && !contains(words, "bytes a second") || !contains(words, tc.failed):
						t.Fatalf("%s; want a refusal for bytes a second, or %q", words, tc.failed)
					}
				}
				if tc.failed != "" {
					if words := query(s); words != "" {
						t.Errorf("a statement after calls that failed: %s", words)
					}
					return
				}
				most := int(minute.Seconds()) * rate / size
				if served < most*2/3 || served > most+1 {
					t.Errorf("%d calls of %d bytes were served in %v; the rate is %d", served, size, minute, rate)
				}
				time.Sleep(time.Until(last.Add(2 * size / rate * time.Second)))
				if words := tc.call(s); words != "" {
					t.Errorf("a call when the last one is paid for: %s", words)
				}
			})
		})
	}
}
