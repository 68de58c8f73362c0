package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// SDKs back off from OVERLOADED; the text says what it is and how to raise it.
func TestRefusalsOfApps(t *testing.T) {
	for _, tc := range []struct {
		err    error
		status Ydb.StatusIds_StatusCode
		code   codes.Code
		words  []string
	}{
		{&apps.Refusal{App: "web", Why: apps.BySessions, Limit: 5}, Ydb.StatusIds_OVERLOADED, codes.ResourceExhausted,
			[]string{"QUOTA_EXCEEDED", "web has 5", "sessions= for it in apps.limits"}},
		{&pool.ShedError{Why: pool.ShedDeadline, Needs: time.Second, Left: time.Millisecond}, Ydb.StatusIds_OVERLOADED,
			codes.ResourceExhausted, []string{"SHED_DEADLINE", "pool.max"}},
		{&pool.ShedError{Why: pool.ShedAge, Limit: time.Minute}, Ydb.StatusIds_OVERLOADED, codes.ResourceExhausted,
			[]string{"SHED_DELAY", "pool.queue_age is 1m0s"}},
		{&pool.ShedError{Why: pool.ShedDelay, Ahead: time.Millisecond}, Ydb.StatusIds_OVERLOADED,
			codes.ResourceExhausted, []string{"SHED_DELAY", "would have had to wait 1ms"}},
		{&pool.ShedError{Why: pool.ShedDelay, Limit: time.Millisecond}, Ydb.StatusIds_OVERLOADED,
			codes.ResourceExhausted, []string{"SHED_DELAY", "pool.queue_target is 1ms"}},
		{apps.ErrToken, Ydb.StatusIds_UNAUTHORIZED, codes.PermissionDenied, []string{"apps.token"}},
		{apps.ErrNotYours, Ydb.StatusIds_UNAUTHORIZED, codes.PermissionDenied, []string{"apps.users"}},
	} {
		r := refusalOf(tc.err, 0)
		if r.status != tc.status || r.code != tc.code || !strings.Contains(r.text, "the call was not sent") {
			t.Errorf("%v: %+v; want %v, %v", tc.err, r, tc.status, tc.code)
		}
		for _, word := range tc.words {
			if !strings.Contains(r.text, word) {
				t.Errorf("%v: %q lacks %q", tc.err, r.text, word)
			}
		}
	}
}

// What is open is never left open for a quota, and work of two kinds is not mixed.
func TestMethodsOfApps(t *testing.T) {
	kinds := map[uint64]string{}
	for _, m := range protocol.All() {
		path := m.Path
		if other, ok := kinds[m.Work]; ok || m.Work == 0 {
			t.Errorf("%s and %s are one kind of work", path, other)
		}
		kinds[m.Work] = path
	}
	for path, want := range map[string]bool{
		protocol.QueryService + "CommitTransaction": true, protocol.QueryService + "RollbackTransaction": true,
		protocol.QueryService + "DeleteSession": true, protocol.TableService + "KeepAlive": true,
		protocol.QueryService + "ExecuteQuery": false, protocol.QueryService + "CreateSession": false,
		protocol.QueryService + "BeginTransaction": false,
	} {
		if got := protocol.Named(path).NeedsOpen(); got != want {
			t.Errorf("%s depends on something open: %v; want %v", path, got, want)
		}
	}
}

// callAny sends a message to a method, whatever its kind, and returns the first message of the answer.
func callAny(t *testing.T, conn *grpc.ClientConn, path string, authorization []string, request []byte) ([]byte, error) {
	t.Helper()
	md := metadata.Pairs("x-ydb-auth-ticket", "caller's")
	md.Set("authorization", authorization...)
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(t.Context(), md), time.Minute)
	defer cancel()
	stream, err := conn.NewStream(ctx, anyStream, path, grpc.ForceCodecV2(passing))
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(request)}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	answer := new(message)
	if err := stream.RecvMsg(answer); err != nil {
		return nil, err
	}
	defer answer.free()
	return answer.data.Materialize(), nil
}

// What stands in headers Authorization may be a token of the sidecar's, misspelt: while any app has a token, no node
// gets one, whatever is in it.
func TestMisspeltTokensAreHidden(t *testing.T) {
	const secret = "the-secret-of-the-app"
	config := apps.Default()
	config.Token = []string{"web=" + secret}
	for _, mode := range []string{ModeTransaction, ModeSession, ModePassthrough} {
		all, err := apps.New(config, nil)
		if err != nil {
			t.Fatal(err)
		}
		h := newHouseOf(t, all, func(c *Config, _ *pool.Config) { c.Mode = mode })
		conn := dial(t, h.addr)
		query := bytesOf(t,
			&Ydb_Query.ExecuteQueryRequest{SessionId: sessionID(1),
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "select"}}})
		for _, values := range [][]string{
			{"Token " + secret}, {secret}, {"Bearer" + secret}, {"BEARER=" + secret}, {"Bearer:" + secret},
			{"Bearer: " + secret}, {"tOKEN  " + secret}, {"\"Bearer " + secret + "\""},
			{"Basic x", secret}, {secret, secret}, {"Basic x, " + secret}, {secret + ",Token " + secret},
			{", " + secret}, {"Bearer," + secret}, {" " + secret + " "},
			{"Basic x", "Token " + secret, "Bearer " + secret}, {""}, {"Bearer"},
		} {
			for path, request := range map[string][]byte{
				protocol.QueryService + "ExecuteQuery": query, schemeService + "ListDirectory": nil,
				protocol.TopicService + "StreamWrite": nil, "/Ydb.Future.V1.FutureService/Do": nil,
			} {
				h.encodings.take()
				answer, err := callAny(t, conn, path, values, request)
				heads := h.encodings.take()
				if len(heads) == 0 {
					t.Errorf("%s, %s, %q: the call came to no node: %q, %v", mode, path, values, answer, err)
				}
				for _, head := range heads {
					for name, got := range head {
						if name == "authorization" || strings.Contains(strings.Join(got, " "), secret) {
							t.Errorf("%s, %s, %q: a node got %s: %q", mode, path, values, name, got)
						}
					}
				}
			}
		}
	}
}

// tokenCall is a call of a method with tokens of the sidecar.
type tokenCall struct {
	*house
	conn    *grpc.ClientConn
	mode    string
	method  *protocol.Method
	id      string // of a session; "": none
	request []byte
	secret  string
}

// isRejected checks that the call comes to no node with a wrong token.
func (x *tokenCall) isRejected(t *testing.T, values []string, want string) {
	answer, err := callAny(t, x.conn, x.method.Path, values, x.request)
	if text := string(answer) + fmt.Sprint(err); !strings.Contains(text, want) {
		t.Errorf("%s, session %q, %q: %q, %v", x.method.Path, x.id, values, answer, err)
	}
	if heads := x.encodings.take(); len(heads) > 0 {
		t.Errorf("%s, session %q: a call with %q came to a node: %v", x.method.Path, x.id, values, heads)
	}
}

// isHidden checks that the call is served with the right token, and that no node sees it.
func (x *tokenCall) isHidden(t *testing.T, right []string) {
	answer, err := callAny(t, x.conn, x.method.Path, right, x.request)
	if text := string(answer) + fmt.Sprint(err); strings.Contains(text, "token") {
		t.Errorf("%s, session %q: the right token: %q, %v", x.method.Path, x.id, answer, err)
	}
	heads := x.encodings.take()
	if x.mode == ModePassthrough && len(heads) == 0 && x.method != listEndpointsMethod {
		t.Errorf("%s, session %q: the call came to no node: %q, %v", x.method.Path, x.id, answer, err)
	}
	for _, head := range heads {
		for name, values := range head {
			if name == "authorization" || strings.Contains(strings.Join(values, " "), x.secret) {
				t.Errorf("%s, session %q: a node got %s: %q", x.method.Path, x.id, name, values)
			}
		}
	}
}

// Every method in every mode takes an app's token, wherever in the headers it stands, rejects one that no app has, and
// two that differ, and shows none to the nodes.
func TestTokensOfAppsAreCheckedAndHidden(t *testing.T) {
	const secret = "the secret of the app"
	right := []string{"Bearer " + secret}
	rights := [][]string{right, {"Basic x", "Bearer " + secret}, {"bearer " + secret, "Bearer " + secret},
		{"Basic x, Bearer " + secret}, {"Basic x,Bearer " + secret + " , bearer " + secret}, {"Basic x, Basic y", "Bearer  " + secret}}
	const unknown, two = "the token belongs to no app", "two tokens"
	wrongs := []struct {
		values []string
		want   string
	}{
		{[]string{"Basic x", "Bearer a secret that nobody has"}, unknown},
		{[]string{"Basic x, Bearer a secret that nobody has"}, unknown},
		{[]string{"Bearer " + secret + ", Basic x"}, unknown},
		{[]string{"Basic x", "Bearer " + secret, "Bearer another"}, two},
		{[]string{"Basic x, Bearer " + secret + ", Bearer another"}, two},
	}
	for _, mode := range []string{ModeTransaction, ModeSession, ModePassthrough} {
		t.Run(mode, func(t *testing.T) {
			config := apps.Default()
			config.Token = []string{"web=" + secret}
			all, err := apps.New(config, nil)
			if err != nil {
				t.Fatal(err)
			}
			h := newHouseOf(t, all, func(c *Config, _ *pool.Config) { c.Mode = mode })
			conn := dial(t, h.addr)
			for i, m := range protocol.All() {
				ids := []string{""}
				if m.Session != nil {
					ids = []string{sessionID(1), ""}
					if mode != ModePassthrough && m.Role != protocol.RoleCreate {
						r, err := callAny(t, conn, protocol.QueryService+"CreateSession", right, nil)
						created := new(Ydb_Query.CreateSessionResponse)
						if err = errors.Join(err, proto.Unmarshal(r, created)); err != nil || created.GetStatus() != success {
							t.Fatalf("%v, %v", created, err)
						}
						ids = append(ids, created.GetSessionId())
					}
				}
				for j, id := range ids {
					request := []byte(nil)
					if id != "" {
						request = []byte(id)
						for _, number := range slices.Backward(m.Session) {
							request = h2.AppendField(nil, number, request)
						}
					}
					x := tokenCall{house: h, conn: conn, mode: mode, method: m, id: id, request: request, secret: secret}
					for k := range short.Of(len(wrongs), 1) { // another one for each call
						wrong := wrongs[(i+j+k)%len(wrongs)]
						x.isRejected(t, wrong.values, wrong.want)
					}
					x.isHidden(t, rights[(i+j)%len(rights)])
				}
				if len(ids) > 2 { // a virtual session may keep one of the few server sessions
					if _, err := callAny(
						t, conn, protocol.QueryService+"DeleteSession", right, h2.AppendField(nil, 1, []byte(ids[2])),
					); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// A call of the plain API without a token of an app is answered before its request is here, let alone gathered or inflated.
func TestUnprovedCallsOfThePlainAPIAreAnsweredAtOnce(t *testing.T) {
	const secret = "the secret of the app"
	config := apps.Default()
	config.Token = []string{"web=" + secret}
	all, err := apps.New(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan error, 1)
	deny := func(_ context.Context, decode func(any) error) (any, error) {
		m := new(healthv1.HealthCheckRequest)
		err := decode(m)
		if err == nil && m.Service != "" {
			err = errors.New("there is a request")
		}
		requests <- err
		return nil, status.Error(codes.Unauthenticated, "denied")
	}
	h := newHouseWith(t, 1, all, nil, nil, func(d *Deps) { d.Denied = map[string]unary.Method{checkPath: deny, watchPath: deny} })
	for _, path := range []string{checkPath, watchPath} {
		for name, headers := range map[string][]string{
			"no token":          nil,
			"an unknown token":  {"authorization", "Bearer another"},
			"two tokens":        {"authorization", "Bearer " + secret, "authorization", "Bearer another"},
			"compressed":        {"grpc-encoding", "gzip"},
			"a binary header":   {"x-bin", "AAA"},
			"the name of it":    {"x-sidecar-app", "web"},
			"not what gRPC has": {"authorization", secret},
		} {
			message := append([]byte{0, 0, 8, 0, 0}, make([]byte, 1000)...) // of 512 KiB
			if len(headers) > 0 && headers[0] == "grpc-encoding" {
				message[0] = 1
			}
			o := h.holds(path, headers, message, false)
			<-o.ended
			if o.status != "16" || o.text != "denied" {
				t.Errorf("%s, %s: %s, %s", path, name, o.status, o.text)
			} else if err := <-requests; err != nil {
				t.Errorf("%s, %s: %v", path, name, err)
			}
			o.close()
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secret)
	got := new(healthv1.HealthCheckRequest)
	if err := dial(t, h.addr).Invoke(ctx, checkPath, got, got); err != nil || len(got.Service) != largePlain {
		t.Errorf("with the right token: %v", err)
	}
	h.eventually("nothing waits", func() string { return strings.Repeat("x", min(h.buffered(), 10)) })
}

// What nodes report of the cost of calls is counted for the app that calls, and goes on to the client.
func TestConsumedUnitsOfApps(t *testing.T) {
	for _, mode := range []string{ModeTransaction, ModeSession, ModePassthrough} {
		t.Run(mode, func(t *testing.T) {
			all, err := apps.New(apps.Default(), nil)
			if err != nil {
				t.Fatal(err)
			}
			h := newHouseOf(t, all, func(c *Config, _ *pool.Config) { c.Mode = mode })
			conn := dial(t, h.addr)
			query := Ydb_Query_V1.NewQueryServiceClient(conn)
			counted := func(app string) uint64 {
				for _, s := range all.State([apps.Classes]string{}) {
					if s.App == app {
						return s.Units
					}
				}
				return 0
			}
			as := func(app string) context.Context {
				return metadata.AppendToOutgoingContext(h.ctx, "x-ydb-application-name", app, "x-ydb-auth-ticket", "caller's")
			}
			sessions := map[string]string{"web": h.sessionOf(as("web"), mode), "jobs": h.sessionOf(as("jobs"), mode)}
			for _, step := range []struct {
				app, text string
				trailer   []string
				web, jobs uint64 // afterwards
			}{
				{"web", "select", nil, 0, 0},
				{"web", "units 5", []string{"5"}, 5, 0},
				{"jobs", "units 12", []string{"12"}, 5, 12},
				{"web", "units 0", []string{"0"}, 5, 12},
				{"web", "units 1.5", []string{"1.5"}, 5, 12},
				{"web", "units -1", []string{"-1"}, 5, 12},
				{"web", "units 99999999999999999999", []string{"99999999999999999999"}, 5, 12},
				{"web", "select", nil, 5, 12},
				{"web", "units 37", []string{"37"}, 42, 12},
			} {
				var trailer metadata.MD
				stream, err := query.ExecuteQuery(
					as(step.app),
					&Ydb_Query.ExecuteQueryRequest{SessionId: sessions[step.app],
						Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: step.text}}},
					grpc.Trailer(&trailer),
				)
				if err != nil {
					t.Fatal(err)
				}
				for err == nil {
					_, err = stream.Recv()
				}
				if err != io.EOF {
					t.Errorf("%s: %v", step.text, err)
				}
				if got := trailer.Get("x-ydb-consumed-units"); !slices.Equal(got, step.trailer) {
					t.Errorf("%s: the client got %q; want %q", step.text, got, step.trailer)
				}
				if web, jobs := counted("web"), counted("jobs"); web != step.web || jobs != step.jobs {
					t.Errorf("after %s of %s: web %d, jobs %d; want %d, %d", step.text, step.app, web, jobs, step.web, step.jobs)
				}
			}
		})
	}
}

// sessionOf returns the id of a session that the caller of ctx may use in this mode.
func (h *house) sessionOf(ctx context.Context, mode string) string {
	h.Helper()
	if mode == ModePassthrough {
		own, err := h.Open(h.ctx, 1, nil)
		if err != nil {
			h.Fatal(err)
		}
		h.Cleanup(func() { _ = own.Close(context.WithoutCancel(h.ctx)) })
		return own.(*server).id
	}
	r, err := Ydb_Query_V1.NewQueryServiceClient(dial(h.T, h.addr)).CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
	if err != nil || r.GetStatus() != success {
		h.Fatal(r, err)
	}
	return r.GetSessionId()
}

// namedPools are the apps that have pools; "": the pool without a name.
func (h *house) namedPools() (list []string) {
	for _, p := range h.server.State().Virtual.Pools {
		list = append(list, p.App)
	}
	slices.Sort(list)
	return list
}

// An app that came when as many as may be had sessions of their own gets some when another one's are gone,
// on the connection that it has.
func TestNamesThatComeFree(t *testing.T) {
	all, err := apps.New(apps.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var most atomic.Int64
	most.Store(1)
	h := newHouseWith(t, 2, all, func(c *Config, _ *pool.Config) { c.Auth = AuthCaller }, nil,
		func(d *Deps) { d.Names = func() int { return int(most.Load()) } })
	call := func(g *guest, app string) {
		t.Helper()
		ctx := metadata.AppendToOutgoingContext(h.ctx, "x-ydb-application-name", app)
		if st, _, err := g.run(ctx, "", "SELECT 1", nil); err != nil || st != Ydb.StatusIds_SUCCESS {
			t.Fatalf("%s: %v, %v", app, st, err)
		}
	}
	first, second := h.guest("first"), h.guest("second")
	call(first, "one")
	for range 3 {
		call(second, "two")
	}
	if got := h.namedPools(); !slices.Equal(got, []string{"", "one"}) {
		t.Errorf("pools of the apps %q; want one, and one without a name", got)
	}
	if n := h.server.State().Virtual.Unnamed; n != 1 {
		t.Errorf("%d callers counted as without a name; want 1: a connection is not asked about again before a name comes free", n)
	}
	// A session keeps the pool that bears no name.
	h.guest("third").session().must(success, "select", nil)
	now := time.Now()
	h.eventually("the pool of the first app is swept away", func() string { // the end of its call may have to come
		now = now.Add(time.Hour)
		h.server.identities.Sweep(now)
		if slices.Contains(h.namedPools(), "one") {
			return "it is there"
		}
		return ""
	})
	call(second, "two")
	if got := h.namedPools(); !slices.Equal(got, []string{"", "two"}) {
		t.Errorf("pools of the apps %q; want two, and the one without a name", got)
	}
	call(first, "one")
	if got := h.namedPools(); !slices.Equal(got, []string{"", "two"}) {
		t.Errorf("pools of the apps %q; want two, and the one without a name", got)
	}
	unnamed := h.server.State().Virtual.Unnamed
	most.Store(2)
	call(first, "one")
	if got := h.namedPools(); !slices.Equal(got, []string{"", "one", "two"}) {
		t.Errorf("pools of the apps %q; want one and two, too, where more are allowed", got)
	}
	if n := h.server.State().Virtual.Unnamed; n != unnamed || n > 2 {
		t.Errorf("%d callers counted as without a name, and %d before; want each once", n, unnamed)
	}
}
