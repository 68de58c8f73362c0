package facade

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/grpcapi"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// What callers are told of quotas and of what is shed: that nothing was sent, which
// setting it is, and when to try again.
func TestFaultsOfApps(t *testing.T) {
	for _, tc := range []struct {
		name  string
		err   error
		code  *core.Code
		words string // in the message
		after time.Duration
	}{
		{"quota", &apps.Refusal{App: "web", Why: apps.ByCalls, Limit: 5, Retry: 200 * time.Millisecond}, core.CodeQuota,
			"calls_per_second= for it in apps.limits", 200 * time.Millisecond},
		{"too late as it comes",
			&pool.ShedError{Why: pool.ShedDeadline, Needs: time.Second, Left: time.Millisecond, Retry: 10 * time.Millisecond},
			core.CodeShedDeadline, "the deadline is in 1ms, and such calls take about 1s", 10 * time.Millisecond},
		{"too long a line",
			&pool.ShedError{Why: pool.ShedDeadline, Ahead: 2 * time.Second, Needs: time.Second, Left: time.Second, Retry: 2 * time.Second},
			core.CodeShedDeadline, "the wait for a session would be about 2s, and", 2 * time.Second},
		{"too late at the head",
			&pool.ShedError{Why: pool.ShedDeadline, Waited: time.Second, Needs: time.Second, Left: time.Millisecond, Retry: time.Second},
			core.CodeShedDeadline, "the call has 1ms left after 1s in the queue", time.Second},
		{"too old", &pool.ShedError{Why: pool.ShedAge, Waited: time.Minute, Retry: time.Second}, core.CodeShedDelay,
			"pool.queue_age", time.Second},
		{"too many in the line",
			&pool.ShedError{Why: pool.ShedDelay, Ahead: 40 * time.Millisecond, Retry: 100 * time.Millisecond},
			core.CodeShedDelay, "would have waited about 40ms for one", 100 * time.Millisecond},
		{"too slow", &pool.ShedError{Why: pool.ShedDelay, Waited: time.Second, Retry: time.Second}, core.CodeShedDelay,
			"pool.queue_target", time.Second},
		{"paused", &pool.ShedError{Why: pool.ShedDelay, Waited: time.Second, Retry: time.Second, Paused: true}, core.CodeShedDelay,
			"paused by an operator", time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := core.FaultOf(tc.err, core.Deed{})
			if f.Code != tc.code || !strings.Contains(f.Message, tc.words) || !f.Safe || f.Unknown || f.After != tc.after {
				t.Errorf("%s: %+v; want %s with %q", f.Message, f, tc.code.Name, tc.words)
			}
			if f := core.FaultOf(tc.err, core.Deed{Unsure: true}); !f.Unknown || strings.HasPrefix(f.Proto("").Hint, "Nothing was") {
				t.Errorf("what an earlier attempt may have kept is forgotten: %+v", f)
			}
		})
	}
}

// A list takes as many calls from the quota as it has statements, or none of them; what can never
// fit is refused for good.
func TestListsCountTheirStatements(t *testing.T) {
	// As much as comes back in a minute, so that a pause of the machine gives nothing away.
	all, err := apps.New(apps.Config{Max: 8, Quotas: []string{"* calls_per_second=1 calls_burst=60"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := small()
	cfg.API.MaxStatements = 100
	f := facadetest.NewWriter(t).Driver
	f.Answer = facadetest.Echo
	b := start(t, cfg, f, func(d *core.Deps) { d.Apps = all })
	list := func(n int) string { return `{"statements":[` + strings.Repeat(`{"sql":"S"},`, n-1) + `{"sql":"S"}]}` }
	for _, path := range []string{"/v1/batch", "/v1/tx"} {
		h := facadetest.Header("X-Sidecar-App", strings.TrimPrefix(path, "/v1/"))
		post := func(n int) (int, string) {
			status, _, got := facadetest.Send(t, "POST", b.base+path, list(n), h)
			return status, got
		}
		if status, got := post(61); status != 413 || !contains(got, `"safe_to_retry":false`) || !contains(got, "calls_burst") {
			t.Errorf("%s: 61 statements of at most 60: %d %s; want LIMIT_EXCEEDED for good", path, status, got)
		}
		if status, got := post(59); status != 200 {
			t.Errorf("%s: 59 statements of at most 60: %d %s", path, status, got)
		}
		if status, got := post(60); status != 429 || !contains(got, `"QUOTA_EXCEEDED"`) || !contains(got, `"safe_to_retry":true`) {
			t.Errorf("%s: 60 more: %d %s; want QUOTA_EXCEEDED", path, status, got)
		}
		if status, got := post(1); status != 200 {
			t.Errorf("%s: what was refused took the rest of the quota: %d %s", path, status, got)
		}
	}
	one := &sidecarv1.Statement{Sql: "S"}
	for name, call := range map[string]func(ctx context.Context, n int) error{
		"grpc-batch": func(ctx context.Context, n int) error {
			_, err := b.api.Batch(ctx, &sidecarv1.BatchRequest{Statements: slices.Repeat([]*sidecarv1.BatchStatement{{Sql: "S"}}, n)})
			return err
		},
		"grpc-transact": func(ctx context.Context, n int) error {
			_, err := b.api.Transact(ctx, &sidecarv1.TransactRequest{Statements: slices.Repeat([]*sidecarv1.Statement{one}, n)})
			return err
		},
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", name)
		for _, c := range []struct {
			n    int
			want string
		}{{61, "counts as 61 calls"}, {60, ""}, {60, "calls a second"}} {
			if err := call(ctx, c.n); (err == nil) != (c.want == "") || err != nil && !contains(err.Error(), c.want) {
				t.Errorf("%s: %d statements: %v; want %q", name, c.n, err, c.want)
			}
		}
	}
	// Writes without a session count as well, one by one.
	for path, c := range map[string][2]string{
		"/v1/bulk":             {core.MediaJSON, `{"table":"dir/items","rows":[{"id":1,"name":"a"},{"id":2,"name":"b"}]}`},
		"/v1/ingest/dir/items": {mediaNDJSON, `{"id":1,"name":"a"}`},
	} {
		for tries := 1; ; tries++ {
			status, _, got := facadetest.Send(
				t, "POST", b.base+path, c[1], facadetest.Header("Content-Type", c[0], "X-Sidecar-App", "bulk"),
			)
			if status == 429 {
				break
			}
			if status != 200 || tries == 1000 {
				t.Fatalf("%s, try %d: %d %s; want 200, and then 429", path, tries, status, got)
			}
		}
	}
}

// A quota refuses what is new over both faces, and nothing that is open depends on it;
// what is counted is taken back.
func TestQuotasOverBothFaces(t *testing.T) {
	all, err := apps.New(apps.Config{Max: 5, Quotas: []string{"web calls_per_second=1 calls_burst=2"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo}, func(d *core.Deps) { d.Apps = all })
	status, h, got := facadetest.Send(t, "POST", b.base+"/v1/tx/begin", `{}`, facadetest.Header("X-Sidecar-App", "web"))
	if status != 200 {
		t.Fatalf("%d %s", status, got)
	}
	id := got[strings.Index(got, "tx_"):]
	id = id[:strings.IndexByte(id, '"')]
	// On a slow machine one more call may come back before the next is made.
	for tries := 0; status == 200 && tries < 1000; tries++ {
		status, h, got = facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, facadetest.Header("X-Sidecar-App", "web"))
	}
	if status != 429 || !strings.Contains(got, `"QUOTA_EXCEEDED"`) || !strings.Contains(got, "apps.limits") || h.Get("Retry-After") == "" {
		t.Errorf("%d %s, Retry-After %q; want QUOTA_EXCEEDED", status, got, h.Get("Retry-After"))
	}
	if status, _, got := facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, facadetest.Header()); status != 200 {
		t.Errorf("another app: %d %s", status, got)
	}
	if status, _, got := facadetest.Send(
		t, "POST", b.base+"/v1/query", `{"sql":"S","tx":{"id":"`+id+`"}}`, facadetest.Header("X-Sidecar-App", "web"),
	); status != 200 {
		t.Errorf("a statement of an open transaction: %d %s", status, got)
	}
	if status, _, got := facadetest.Send(
		t, "POST", b.base+"/v1/tx/"+id+"/commit", `{}`, facadetest.Header("X-Sidecar-App", "web"),
	); status != 200 {
		t.Errorf("its commit: %d %s", status, got)
	}
	if status, _, got := facadetest.Send(
		t, "POST", b.base+"/v1/query", `{"sql":"S"}`, facadetest.Header("X-Sidecar-App", "no name"),
	); status != 400 || !strings.Contains(got, "X-Sidecar-App") {
		t.Errorf("no name: %d %s", status, got)
	}
	for _, s := range all.State([apps.Classes]string{"a", "b", "c", "d"}) {
		if s.Open != 0 {
			t.Errorf("%s has %d calls open", s.App, s.Open)
		}
	}
}

// TestWhereCredentialsComeFromIsNotTold: the addresses and files of the sidecar are none of an app's business.
func TestWhereCredentialsComeFromIsNotTold(t *testing.T) {
	t.Parallel() // it waits more than it works
	says := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer says.Close()
	absent := httptest.NewServer(nil)
	absent.Close()
	file := filepath.Join(t.TempDir(), "subject-token")
	for name, tc := range map[string]struct {
		auth  upstream.Auth
		place string // in the error
	}{
		"refused":   {upstream.Auth{Kind: "metadata", MetadataURL: says.URL + "/token"}, says.URL + "/token"},
		"no_answer": {upstream.Auth{Kind: "metadata", MetadataURL: absent.URL + "/token"}, absent.URL + "/token"},
		"no_file":   {upstream.Auth{Kind: "oauth", OAuth: upstream.OAuth{URL: says.URL, SubjectTokenFile: file}}, file},
		"no_account": {upstream.Auth{Kind: "oauth", OAuth: upstream.OAuth{URL: says.URL + "/exchange", SubjectToken: "s"}},
			says.URL + "/exchange"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte("s"), 0o600); err != nil {
				t.Fatal(err)
			}
			log := slog.New(slog.DiscardHandler)
			config := upstream.Default()
			config.URL, config.Auth = "grpc://127.0.0.1:1/local", tc.auth
			router := routing.New(routing.Default())
			driver, err := upstream.New(
				config,
				upstream.Deps{Ways: hop.Ways{Router: router, Health: pessimize.New(pessimize.Default(), nil, log)}, Log: log},
			)
			if err != nil {
				t.Fatal(err)
			}
			client, err := upstream.NewClient(driver, pool.New(pool.Default(), driver, log), upstream.DefaultRetry(), 1)
			if err != nil {
				t.Fatal(err)
			}
			router.Subscribe(driver.SetView)
			router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "127.0.0.1:1"}}, ""))
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var run sync.WaitGroup
			run.Go(func() { _ = driver.Run(ctx) })
			defer func() { stop(); run.Wait(); _ = driver.Close() }()
			limited, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err = client.Any(
				limited,
				upstream.Call{Name: "DescribeTable", Method: protocol.Named(protocol.TableService + "DescribeTable")},
				func(context.Context, grpc.ClientConnInterface) error { return nil },
			)
			if err == nil || !strings.Contains(err.Error(), tc.place) {
				t.Fatalf("%v; want %s in it, for the log", err, tc.place)
			}
			f := core.FaultOf(err, core.Deed{})
			if f.Code != core.CodeYDB(Ydb.StatusIds_UNAUTHORIZED) || !strings.Contains(f.Message, "cannot get credentials") {
				t.Errorf("%v", f)
			}
			if told := f.Proto("").String() +
				grpcapi.StatusOf(f, "").Error(); strings.Contains(told, tc.place) ||
				strings.Contains(told, "127.0.0.1") || strings.Contains(
				told, filepath.Dir(file),
			) {
				t.Errorf("callers are told %s", told)
			}
		})
	}
}
