package systemtest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// named makes calls those of an app.
func named(ctx context.Context, app string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-sidecar-app", app)
}

// appState is a part of /state/apps.
type appState struct {
	App     string
	Open    int
	Classes []struct {
		Class   string
		Waiting int
		InUse   int `json:"in_use"`
		Share   float64
		Served  int
		Refused map[string]int
		WaitP50 float64 `json:"wait_p50_ms"`
		WaitP99 float64 `json:"wait_p99_ms"`
	}
}

// appsOf reads /state/apps.
func appsOf(t *testing.T, s *sidecar) map[string]appState {
	t.Helper()
	var all []appState
	if status := callJSON(t, http.MethodGet, "http://"+s.Admin+"/state/apps", "", &all); status != http.StatusOK {
		t.Fatalf("/state/apps: %d", status)
	}
	by := map[string]appState{}
	for _, a := range all {
		by[a.App] = a
	}
	return by
}

// queueTimes are the milliseconds that calls which succeeded spent in the queue, by app.
type queueTimes struct {
	mu  sync.Mutex
	all map[string][]float64
}

// caller makes the calls of one app.
func (q *queueTimes) caller(s *sidecar, app string) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		r, err := s.Execute(named(ctx, app), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "30s"})
		if err != nil {
			return err
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.all == nil {
			q.all = map[string][]float64{}
		}
		q.all[app] = append(q.all[app], r.Info.QueueMs)
		return nil
	}
}

// percentile sorts the times of an app and returns one of them.
func (q *queueTimes) percentile(app string, percent int) float64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	times := q.all[app]
	slices.Sort(times)
	return times[len(times)*percent/100]
}

// One app with many callers does not starve another that wants less than its share,
// over the plain API and over YDB's own protocol.
func TestAFloodDoesNotStarveAnotherApp(t *testing.T) {
	const sessions, loud, quiet = 4, 60, 2
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, fmt.Sprint("pool.max=", sessions))
	c.everywhere(t, "delay", map[string]any{"delay": "20ms", "methods": []string{"ExecuteQuery"}})

	var waits queueTimes
	flood := call(t, loud, waits.caller(s, "loud"))
	eventually(t, patience, "the flood is there", func() string {
		if n := flood.total(); n < 3*loud {
			return fmt.Sprint(n, " calls")
		}
		return ""
	})
	few := call(t, quiet, waits.caller(s, "quiet"))
	eventually(t, patience, "the other app is served", func() string {
		if n := few.total(); n < 200 {
			return fmt.Sprint(n, " calls")
		}
		return ""
	})
	var l, q appState
	eventually(t, patience, "/state/apps shows both", func() string { // at a moment at which few callers are between two calls
		seen := appsOf(t, s)
		if l, q = seen["loud"], seen["quiet"]; len(l.Classes) != 1 || len(q.Classes) != 1 || l.Classes[0].Class != "normal" ||
			l.Open < loud-sessions || l.Classes[0].Waiting < loud/2 || l.Classes[0].Share != 0.5 || q.Classes[0].Served < 190 {
			return fmt.Sprintf("%+v", seen)
		}
		return ""
	})
	few.finish()
	flood.finish()
	for _, err := range []error{few.err(), flood.err()} {
		if err != nil {
			t.Errorf("a patient caller got %v", err)
		}
	}
	p50 := waits.percentile("loud", 50)
	at := func(percent int) float64 { return waits.percentile("quiet", percent) }
	t.Logf("the wait of loud: p50 %.1f ms; of quiet: p50 %.1f, p90 %.1f, p99 %.1f ms", p50, at(50), at(90), at(99))
	if at(90) > p50/2 { // the last hundredth is that of a machine with other work
		t.Errorf("the p90 wait of the app that wants little is %.1f ms, the median of the other %.1f ms; want less than half", at(90), p50)
	}
	if q.Classes[0].WaitP99 <= 0 || q.Classes[0].WaitP50 > l.Classes[0].WaitP50 {
		t.Errorf("/state/apps: %+v, %+v", l, q)
	}
}

// learnWork makes calls in peace until the sidecar knows how long they take.
func learnWork(t *testing.T, s *sidecar, callers int) {
	t.Helper()
	warm := call(t, callers, func(ctx context.Context, _ int) error {
		_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "30s"})
		return err
	})
	eventually(t, patience, "it is known how long the work takes", func() string {
		if n := warm.total(); n < 20 {
			return fmt.Sprint(n, " calls")
		}
		return ""
	})
	warm.finish()
}

// With far more calls than can be done in time, what sessions are used for is answered
// in time: nothing is sent that must be late.
func TestOverloadWastesNothing(t *testing.T) {
	const sessions, callers = 4, 80
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, fmt.Sprint("pool.max=", sessions), fmt.Sprint("pool.min=", sessions))
	c.everywhere(t, "delay", map[string]any{"delay": "50ms", "methods": []string{"ExecuteQuery"}})
	learnWork(t, s, sessions)

	// 80 callers for what four sessions do in 50 ms each, none of which waits for longer
	// than 250 ms: about five times as much as can be done.
	before := c.sum(t, "calls")
	var good, shed, late, other atomic.Int64
	var first atomic.Pointer[error]
	busy := call(t, callers, func(ctx context.Context, _ int) error {
		_, err := s.Execute(named(ctx, "web"), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "250ms"})
		switch code(err) {
		case "":
			good.Add(1)
		case "SHED_DEADLINE", "SHED_DELAY":
			shed.Add(1)
			time.Sleep(50 * time.Millisecond) // as the hint says
		case "DEADLINE_EXCEEDED", "POOL_TIMEOUT", "OUTCOME_UNKNOWN", "UPSTREAM_LOST": // the last: as its time ended, before it was sent
			late.Add(1)
		default:
			other.Add(1)
			first.CompareAndSwap(nil, &err)
		}
		return nil
	})
	eventually(t, 60*time.Second, "enough calls", func() string {
		if n := good.Load(); n < 300 && late.Load() < 2000 {
			return fmt.Sprint(n, " good calls")
		}
		return ""
	})
	busy.finish()
	sent := c.sum(t, "calls") - before
	t.Logf("%d calls reached the nodes, %d were answered in time; %d were shed, %d ran out of time", sent, good.Load(),
		shed.Load(), late.Load())
	if e := first.Load(); e != nil {
		t.Errorf("%d calls: %v", other.Load(), *e)
	}
	if 5*good.Load() < sent { // without, it is one in fifty; with, nearly all, or three fifths on a machine that is busy otherwise
		t.Errorf("of %d calls that reached the nodes %d were answered in time; want at least a fifth", sent, good.Load())
	}
	if shed.Load() < good.Load() {
		t.Errorf("%d calls were shed, %d good; want most shed", shed.Load(), good.Load())
	}
	if n := appsOf(t, s)["web"].Classes[0].Refused; int64(n["deadline"]+n["delay"]) != shed.Load() {
		t.Errorf("/state/apps counts %v; want %d calls shed", n, shed.Load())
	}
}

// Names with a token are their owners' alone; quotas are told over every way in.
func TestAppsOverEveryFace(t *testing.T) {
	const token = "an-example-of-a-token"
	c := startCluster(t, nil)
	s := startSidecar(t, c, []string{"SIDECAR_APPS_TOKEN=shop=" + token}, "apps.limits=sdk calls_per_second=1 calls_burst=3")

	tokensOfThePlainAPI(t, s, token)
	if status, text := sdkCall(t, s, "shop"); status != Ydb.StatusIds_UNAUTHORIZED {
		t.Errorf("an SDK with the name of a token's owner: %v %s", status, text)
	}
	codes := map[Ydb.StatusIds_StatusCode]int{}
	text := ""
	// on a busy machine six may take so long that all are allowed
	for i := 0; i < 6 || codes[Ydb.StatusIds_OVERLOADED] == 0 && i < 600; i++ {
		status, said := sdkCall(t, s, "sdk")
		if codes[status]++; status == Ydb.StatusIds_OVERLOADED {
			text = said
		}
	}
	if codes[Ydb.StatusIds_SUCCESS] < 3 || codes[Ydb.StatusIds_OVERLOADED] == 0 || len(codes) != 2 {
		t.Errorf("calls with a burst of three: %v", codes)
	}
	if want := "calls_per_second= for it in apps.limits"; !strings.Contains(text, want) {
		t.Errorf("the refusal says %q; want %q", text, want)
	}
	var seen map[string]appState
	eventually(t, patience, "nothing is open when nobody calls", func() string { // of a stream the sidecar hears later that it is over
		seen = appsOf(t, s)
		for _, a := range seen {
			for _, c := range a.Classes {
				if a.Open != 0 || c.InUse != 0 || c.Waiting != 0 {
					return fmt.Sprintf("%s: %d calls open, %d sessions in use, %d waiting", a.App, a.Open, c.InUse, c.Waiting)
				}
			}
		}
		return ""
	})
	if len(seen["shop"].Classes) == 0 || seen["shop"].Classes[0].Served == 0 || len(seen["sdk"].Classes) == 0 ||
		seen["sdk"].Classes[0].Refused["calls_per_second"] != codes[Ydb.StatusIds_OVERLOADED] {
		t.Errorf("/state/apps: %+v", seen)
	}
}

// tokensOfThePlainAPI calls with and without the token of the app "shop", while no call without a token is allowed.
func tokensOfThePlainAPI(t *testing.T, s *sidecar, token string) {
	t.Helper()
	bearer := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	}
	execute := func(ctx context.Context) error {
		_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "10s"})
		return err
	}
	for name, one := range map[string]struct {
		ctx  context.Context
		want string
	}{
		"token":                    {bearer(token), ""},
		"token and name":           {named(bearer(token), "shop"), ""},
		"token and another's name": {named(bearer(token), "other-shop"), "APP_FORBIDDEN"},
		"no token":                 {t.Context(), "UNAUTHENTICATED"},
		"no token, claimed":        {named(t.Context(), "shop"), "APP_FORBIDDEN"},
		"wrong token":              {bearer(token + "x"), "UNAUTHENTICATED"},
	} {
		if err := execute(one.ctx); code(err) != one.want || one.want == "" && err != nil {
			t.Errorf("%s: %v; want %q", name, err, one.want)
		}
	}
	var problem struct{ Code string }
	if status := callJSON(
		t, http.MethodPost, "http://"+s.HTTP+"/v1/query", `{"sql":"SELECT 1"}`, &problem,
	); status != http.StatusUnauthorized || problem.Code != "UNAUTHENTICATED" {
		t.Errorf("HTTP without a token: %d %s", status, problem.Code)
	}
}

// sdkCall makes a statement of an app over YDB's own protocol, and returns the status and the text of the answer.
func sdkCall(t *testing.T, s *sidecar, app string) (Ydb.StatusIds_StatusCode, string) {
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-ydb-database", "/local", "x-ydb-application-name", app)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := Ydb_Query_V1.NewQueryServiceClient(s.Conn).ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
		ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{
			Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: "SELECT 1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	part, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	if len(part.Issues) > 0 {
		text = part.Issues[0].Message
	}
	return part.Status, text
}
