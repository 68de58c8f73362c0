package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A call that waits for the connection to a node goes to the address that the node has now.
func TestWaitingCallsFollowTheirNode(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	lost := hanging{address: "lost:1"}
	s.server.deps.Nodes = lost
	at := func(address string) {
		s.router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: address}, {ID: 2, Address: s.nodes[1].addr}}, ""))
	}
	at(lost.address)
	done := make(chan error, 1)
	go func() {
		st, node, err := s.run(t.Context(), sessionID(1), "SELECT 1")
		if err == nil && (st != Ydb.StatusIds_SUCCESS || node != 1) {
			err = fmt.Errorf("%v by node %d", st, node)
		}
		done <- err
	}()
	s.callWaits(t)
	at(s.nodes[0].addr)
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.blamesNone(t)
}

// A node is not to blame for calls that were not sent to it because the sidecar stops.
func TestAStopBlamesNoNode(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	lost := hanging{address: "lost:1"}
	s.server.deps.Nodes = lost
	s.router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: lost.address}}, ""))
	done := make(chan error, 1)
	go func() {
		_, _, err := s.run(t.Context(), sessionID(1), "SELECT 1")
		done <- err
	}()
	s.callWaits(t)
	s.server.Stop()
	if err := <-done; err == nil {
		t.Error("the call succeeded")
	}
	s.blamesNone(t)
}

func TestCallsGoToTheOwner(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-ydb-auth-ticket", "secret", "x-ydb-database", "/local", "x-bin", "b")
	for i := range 30 {
		owner := cluster.NodeID(i%3 + 1)
		if state, node, err := s.run(ctx, sessionID(owner), "SELECT 1"); err != nil || node != owner || state != Ydb.StatusIds_SUCCESS {
			t.Fatalf("a call of node %d: %v from node %d, %v", owner, state, node, err)
		}
		r, err := s.table.ExecuteDataQuery(ctx, &Ydb_Table.ExecuteDataQueryRequest{SessionId: sessionID(owner)})
		if err != nil || r.GetOperation().GetId() != fmt.Sprint(owner) {
			t.Fatalf("a call of node %d to its table service: %v, %v", owner, r, err)
		}
	}
	for name, want := range map[string]string{"x-ydb-auth-ticket": "secret", "x-ydb-database": "/local", "x-bin": "b"} {
		if got := s.nodes[0].saw(name); !slices.Equal(got, []string{want}) {
			t.Errorf("%s arrives as %q", name, got)
		}
	}
	spread := map[cluster.NodeID]int{}
	for range 60 {
		_, node, err := s.run(ctx, "", "SELECT 1")
		if err != nil {
			t.Fatal(err)
		}
		spread[node]++
	}
	if len(spread) < 2 { // which ones depends on how fast they were so far
		t.Errorf("calls without a session go to %v", spread)
	}
	s.settled(t)
}

// settled waits until the router counts no call as open.
func (s *stack) settled(t *testing.T) {
	t.Helper()
	await.Right(t, "no call is counted as open", func() string {
		open := int64(0)
		for _, n := range s.router.Stats().Nodes {
			open += n.Calls
		}
		if open == 0 {
			return ""
		}
		return fmt.Sprintf("%d are", open)
	})
}

func TestOutcomesAreReported(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	if _, _, err := s.run(t.Context(), sessionID(1), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	good := s.judge.wait(t, "a good call", func(o cluster.Outcome) bool { return o.Node == 1 })
	if good.Blame != cluster.BlameSuccess || good.Kind != cluster.CallExecute || good.Latency <= 0 || good.Detail != "SUCCESS" {
		t.Errorf("a good call: %+v", good)
	}
	s.nodes[1].set(Ydb.StatusIds_OVERLOADED)
	if state, _, err := s.run(t.Context(), sessionID(2), "SELECT 1"); err != nil || state != Ydb.StatusIds_OVERLOADED {
		t.Errorf("%v, %v", state, err)
	}
	refused := s.judge.wait(t, "a refusal", func(o cluster.Outcome) bool { return o.Node == 2 })
	if refused.Blame != cluster.BlameNone || refused.Detail != "OVERLOADED" || refused.Congestion != cluster.CongestedUnknown {
		t.Errorf("a refusal: %+v", refused)
	}
	if r, err := s.table.ExecuteDataQuery(
		t.Context(), &Ydb_Table.ExecuteDataQueryRequest{SessionId: sessionID(2)},
	); err != nil || r.Operation.Status != Ydb.StatusIds_OVERLOADED {
		t.Errorf("%v, %v", r, err)
	}
	if refused = s.judge.wait(
		t, "a refused operation", func(o cluster.Outcome) bool { return o.Node == 2 },
	); refused.Detail != "OVERLOADED" {
		t.Errorf("a refused operation: %+v", refused)
	}

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.nodes[2].hung
		cancel()
	}()
	if _, _, err := s.run(ctx, sessionID(3), "hang"); status.Code(err) != codes.Canceled {
		t.Errorf("a caller that gave up: %v", err)
	}
	gaveUp := s.judge.wait(t, "a caller that gave up", func(o cluster.Outcome) bool { return o.Node == 3 })
	if gaveUp.Blame != cluster.BlameNone || gaveUp.Waited <= 0 {
		t.Errorf("a caller that gave up: %+v", gaveUp)
	}
	s.settled(t)
}

func TestDeathsOfNodesAreReported(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	parts, err := s.query.ExecuteQuery(t.Context(), &Ydb_Query.ExecuteQueryRequest{SessionId: sessionID(3),
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "begin"}}})
	if err != nil {
		t.Fatal(err)
	}
	if part, err := parts.Recv(); err != nil || part.Status != Ydb.StatusIds_SUCCESS {
		t.Errorf("the first part: %v, %v", part, err)
	}
	<-s.nodes[2].hung
	hung := make(chan error, 1)
	go func() {
		state, _, err := s.run(t.Context(), sessionID(3), "hang")
		if err == nil && state != Ydb.StatusIds_UNDETERMINED {
			err = errors.New(state.String())
		}
		hung <- err
	}()
	<-s.nodes[2].hung
	s.nodes[2].server.Stop()
	if err := <-hung; err != nil {
		t.Errorf("a call on a node that died: %v; want UNDETERMINED", err)
	}
	// In the middle of a stream that is said in its last message.
	if part, err := parts.Recv(); err != nil || part.Status != Ydb.StatusIds_UNDETERMINED {
		t.Errorf("the last part of a stream of a node that died: %v, %v; want UNDETERMINED", part, err)
	}
	if _, err := parts.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after it: %v", err)
	}
	died := s.judge.wait(t, "the death of a node", func(o cluster.Outcome) bool { return o.Node == 3 })
	if died.Blame == cluster.BlameSuccess || died.Lost == 0 {
		t.Errorf("the death of a node: %+v; want it with the number of the connection that was lost", died)
	}
	for i := range 3 { // and now it cannot be reached
		state, _, err := s.run(t.Context(), sessionID(3), "SELECT 1")
		if err != nil || state != Ydb.StatusIds_BAD_SESSION && state != Ydb.StatusIds_UNDETERMINED {
			t.Errorf("call %d on a session of a dead node: %v, %v", i, state, err)
		}
	}
	away := s.judge.wait(t, "a node that is away", func(o cluster.Outcome) bool { return o.Node == 3 && o.Blame == cluster.BlameTransport })
	if away.Detail != "UNAVAILABLE" {
		t.Errorf("a node that is away: %+v", away)
	}
	s.settled(t)
}

// What the sidecar itself has to say comes as a status of YDB.
func TestRefusalsAreStatuses(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	if state, _, err := s.run(t.Context(), sessionID(77), "SELECT 1"); err != nil || state != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("a session of a node that is gone: %v, %v", state, err)
	}
	s.router.SetConditions(cluster.Conditions{1: {Health: cluster.Ejected, Unreachable: true}})
	if state, _, err := s.run(t.Context(), sessionID(1), "SELECT 1"); err != nil || state != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("a session of a node out of reach: %v, %v", state, err)
	}
	for range 20 {
		if _, node, err := s.run(t.Context(), "", "SELECT 1"); err != nil || node == 1 {
			t.Errorf("a call without a session went to node %d, out of use; %v", node, err)
		}
	}
	r, err := s.table.ExecuteDataQuery(t.Context(), &Ydb_Table.ExecuteDataQueryRequest{SessionId: sessionID(1)})
	if err != nil || r.Operation.Status != Ydb.StatusIds_BAD_SESSION || !strings.Contains(r.Operation.Issues[0].Message, "ydb-sidecar") {
		t.Errorf("an operation on a node out of reach: %v, %v", r, err)
	}
	for _, id := range []string{sessionID(1), sessionID(77)} { // servers do not look at it
		r, err := s.table.CopyTables(
			t.Context(), &Ydb_Table.CopyTablesRequest{OperationParams: &Ydb_Operations.OperationParams{}, SessionId: id},
		)
		if err != nil || r.Operation.Status != Ydb.StatusIds_SUCCESS || r.Operation.Id == "1" {
			t.Errorf("an operation without a session that names %s: %v, %v", id, r, err)
		}
	}
	for _, id := range []string{sessionID(1), sessionID(77)} { // what is gone is deleted: an SDK ends its process at anything else
		if r, err := s.query.DeleteSession(t.Context(), &Ydb_Query.DeleteSessionRequest{SessionId: id}); err != nil ||
			r.Status != Ydb.StatusIds_SUCCESS {
			t.Errorf("deleting a session that is out of reach: %v, %v", r, err)
		}
		if r, err := s.table.DeleteSession(t.Context(), &Ydb_Table.DeleteSessionRequest{SessionId: id}); err != nil ||
			r.Operation.Status != Ydb.StatusIds_SUCCESS {
			t.Errorf("deleting a table session that is out of reach: %v, %v", r, err)
		}
	}
}

func TestListEndpointsNamesTheSidecar(t *testing.T) {
	for advertise, want := range map[string]string{"": "", "db.example:2136": "db.example:2136"} {
		s := newStack(t, Config{Mode: ModePassthrough, Advertise: advertise})
		if want == "" {
			want = s.addr
		}
		c := Ydb_Discovery_V1.NewDiscoveryServiceClient(dial(t, s.addr))
		r, err := c.ListEndpoints(
			metadata.AppendToOutgoingContext(t.Context()), &Ydb_Discovery.ListEndpointsRequest{Database: "/local"},
			grpc.CallAuthority(s.addr),
		)
		var list Ydb_Discovery.ListEndpointsResult
		if err == nil {
			err = r.GetOperation().GetResult().UnmarshalTo(&list)
		}
		if err != nil || len(list.Endpoints) != 1 ||
			net.JoinHostPort(list.Endpoints[0].Address, fmt.Sprint(list.Endpoints[0].Port)) != want ||
			list.Endpoints[0].Ssl || list.Endpoints[0].NodeId != virtual.NodeID {
			t.Errorf("%v, %v; want %s", &list, err, want)
		}
		if r, err = c.ListEndpoints(t.Context(), &Ydb_Discovery.ListEndpointsRequest{}, grpc.CallAuthority("nowhere")); advertise == "" &&
			(err != nil || r.Operation.Status != Ydb.StatusIds_BAD_REQUEST) {
			t.Errorf("without an address: %v, %v", r, err)
		}
		// The rest of the service is the cluster's.
		if _, err := c.WhoAmI(t.Context(), &Ydb_Discovery.WhoAmIRequest{}); status.Code(err) != codes.Unimplemented ||
			!strings.Contains(err.Error(), "unknown service") {
			t.Errorf("WhoAmI: %v; want what the nodes say, who do not have it", err)
		}
		if h, err := healthv1.NewHealthClient(s.conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil ||
			h.Status != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("a service of this process: %v, %v", h, err)
		}
	}
}

func TestForwardedCallsAreTraced(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	run := func(spans int, flags string, session string) []sdktrace.ReadOnlySpan {
		t.Helper()
		before := len(s.spans.Ended())
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+id+"-"+parent+"-"+flags, "tracestate", "vendor=1")
		_, _, _ = s.run(ctx, session, "SELECT 1")
		s.settled(t)
		await.True(t, "the spans have ended", func() bool { return len(s.spans.Ended()) >= before+spans })
		return s.spans.Ended()[before:]
	}
	spans := run(2, "01", sessionID(2))
	if len(spans) != 2 {
		t.Fatalf("%d spans; want the call and the hop", len(spans))
	}
	call, hop := spans[0], spans[1]
	if call.Parent().TraceID().String() != id || call.Parent().SpanID().String() != parent ||
		call.Name() != "Ydb.Query.V1.QueryService/ExecuteQuery" || call.SpanKind() != trace.SpanKindServer {
		t.Errorf("%s below %v", call.Name(), call.Parent())
	}
	if hop.Parent().SpanID() != call.SpanContext().SpanID() || hop.Name() != "ydb.ExecuteQuery" || hop.SpanKind() != trace.SpanKindClient {
		t.Errorf("%s below %v", hop.Name(), hop.Parent())
	}
	want := []string{"00-" + id + "-" + hop.SpanContext().SpanID().String() + "-01"}
	if got := s.nodes[1].saw("traceparent"); !slices.Equal(got, want) {
		t.Errorf("the node gets %q; want %q", got, want)
	}
	if got := s.nodes[1].saw("tracestate"); !slices.Equal(got, []string{"vendor=1"}) {
		t.Errorf("the node gets %q", got)
	}
	attributes := fmt.Sprint(call.Attributes(), hop.Attributes())
	if !strings.Contains(attributes, "ydb.node.id") || strings.Contains(attributes, "SELECT") || strings.Contains(attributes, "session/3") {
		t.Errorf("attributes %s", attributes)
	}
	// Of a trace that is not recorded, the caller's own span goes on to the node, and nothing is made.
	if spans := run(0, "00", sessionID(2)); len(spans) != 0 {
		t.Errorf("%d spans of a trace that is not recorded", len(spans))
	}
	if got, want := s.nodes[1].saw("traceparent"), []string{"00-" + id + "-" + parent + "-00"}; !slices.Equal(got, want) {
		t.Errorf("the node gets %q; want %q", got, want)
	}
	// Unless it fails.
	if spans := run(1, "00", sessionID(77)); len(spans) != 1 || spans[0].Status().Description == "" ||
		spans[0].Parent().SpanID().String() != parent {
		t.Errorf("spans of a call that failed: %v", spans)
	}
}

// Attached sessions are no calls, however many.
func TestAttachedSessionsAreNotCounted(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	for range 65 { // one more than routing.max_calls_per_node here
		attached, err := s.query.AttachSession(t.Context(), &Ydb_Query.AttachSessionRequest{SessionId: sessionID(1)})
		if err == nil {
			_, err = attached.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range s.router.Stats().Nodes {
		if n.Calls != 0 {
			t.Errorf("%d calls are counted on node %d", n.Calls, n.Node.ID)
		}
	}
	if state, node, err := s.run(t.Context(), sessionID(1), "SELECT 1"); err != nil || state != Ydb.StatusIds_SUCCESS || node != 1 {
		t.Errorf("a call beside them: %v from node %d, %v", state, node, err)
	}
}

// A stop ends sessions that are only attached, and no other call.
func TestStop(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	attached, err := s.query.AttachSession(t.Context(), &Ydb_Query.AttachSessionRequest{SessionId: sessionID(1)})
	if err == nil {
		_, err = attached.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() {
		_, _, err := s.run(ctx, sessionID(2), "hang")
		hung <- err
	}()
	<-s.nodes[1].hung
	stopped := make(chan struct{})
	go func() {
		s.server.Release(false)
		s.server.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
		t.Error("stopped while a call was open")
	case <-hung:
		t.Error("a call was cut off")
	case <-time.After(100 * time.Millisecond): // only to give a wrong stop its chance
	}
	cancel()
	<-hung
	<-stopped
	<-s.nodes[0].ended
	if _, err := attached.Recv(); err == nil {
		t.Error("the session is still attached")
	}
	s.settled(t)
}

// While another process takes over, a client learns that its session is over, and the node
// does not yet: a call may run in it that came over another connection.
func TestStopKeepsSessions(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	s.server.keeps = time.Hour
	attached, err := s.query.AttachSession(t.Context(), &Ydb_Query.AttachSessionRequest{SessionId: sessionID(1)})
	if err == nil {
		_, err = attached.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		s.server.Release(true)
		s.server.GracefulStop()
		close(stopped)
	}()
	if _, err := attached.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the client heard %v; want the end of the stream", err)
	}
	select {
	case <-s.nodes[0].ended:
		t.Fatal("the node has ended the session")
	case <-stopped:
		t.Fatal("stopped while sessions are kept")
	case <-time.After(100 * time.Millisecond): // only to give a wrong stop its chance
	}
	s.server.Stop()
	<-stopped
	<-s.nodes[0].ended
	s.settled(t)
}

// A stop tells the clients of all shards at once, whatever those of one have under way.
func TestStopTellsAllShards(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan struct{}, 2)
	clients := []*grpc.ClientConn{dial(t, s.addr), dial(t, s.addr)} // dealt to the two shards in turn
	for _, client := range clients {
		s.query = Ydb_Query_V1.NewQueryServiceClient(client)
		one := *s
		go func() {
			_, _, _ = one.run(ctx, sessionID(2), "hang") // it is cancelled
			hung <- struct{}{}
		}()
		<-s.nodes[1].hung
	}
	for i, f := range s.server.shards {
		if n := f.shard.Stats().Clients; n != 1 {
			t.Fatalf("%d clients of shard %d; want 1", n, i)
		}
	}
	stopped := make(chan struct{})
	go func() {
		s.server.GracefulStop()
		close(stopped)
	}()
	limited, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	for i, client := range clients {
		if !client.WaitForStateChange(limited, connectivity.Ready) {
			t.Errorf("client %d hears no GOAWAY while calls of both are open", i)
		}
	}
	cancel()
	<-hung
	<-hung
	<-stopped
	s.settled(t)
}

// stateOf is State with the figures of all shards as they are now, however busy the machine is.
func stateOf(s *Server) State {
	for {
		before := s.unread.Load()
		if st := s.State(); s.unread.Load() == before {
			return st
		}
	}
}

func TestState(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	for range 3 {
		if _, _, err := s.run(t.Context(), sessionID(2), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
	}
	s.judge.wait(t, "the last call", func(o cluster.Outcome) bool { return o.Node == 2 })
	s.settled(t)
	state := stateOf(s.server)
	if state.Clients != 1 || state.Nodes != 1 || state.Calls != 3 || state.Forwarded != 3 ||
		state.Ends["answered"] != 3 || len(state.Connections) != 2 {
		t.Errorf("%+v", state)
	}
	for _, c := range state.Connections {
		if c.Peer == "client" && (c.Node != 0 || c.Calls != 3 || c.BytesIn == 0 || c.BytesOut == 0) ||
			c.Peer == "node" && (c.Node != 2 || c.Calls != 3 || c.Remote != s.nodes[1].addr) {
			t.Errorf("%+v", c)
		}
	}
}

// When clients of one shard have left, the next ones come to it.
func TestClientsAreDealtToTheShardWithFewest(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	come := func() net.Conn {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	have := func(want ...int) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for {
			var got []int
			for _, f := range s.server.shards {
				got = append(got, f.shard.Clients())
			}
			if slices.Sort(got); slices.Equal(got, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d clients of the shards; want %d", got, want)
			}
			runtime.Gosched()
		}
	}
	var all []net.Conn
	for i := range 6 {
		all = append(all, come())
		have((i+1)/2, (i+2)/2)
	}
	for i := 0; i < 6; i += 2 {
		all[i].Close()
	}
	have(0, 3)
	for range 3 {
		come()
	}
	have(3, 3)
}
