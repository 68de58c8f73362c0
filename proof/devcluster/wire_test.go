package devcluster

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Auth_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Auth"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

// statusIn finds the YDB status of any response.
func statusIn(t *testing.T, m protoreflect.Message) Ydb.StatusIds_StatusCode {
	t.Helper()
	if o, ok := m.Interface().(*Ydb_Operations.Operation); ok {
		if !o.GetReady() {
			t.Errorf("operation is not ready: %v", o)
		}
		return o.GetStatus()
	}
	for _, name := range []protoreflect.Name{"operation", "failure"} {
		if f := m.Descriptor().Fields().ByName(name); f != nil {
			return statusIn(t, m.Get(f).Message())
		}
	}
	return Ydb.StatusIds_StatusCode(m.Get(m.Descriptor().Fields().ByName("status")).Enum())
}

// Every method of every service answers a YDB status in its normal response,
// also without any meaningful request.
func TestEveryMethodAnswers(t *testing.T) {
	c := dial(t, startCluster(t, nil).Node(1).Address())
	methods, err := newMethods()
	if err != nil {
		t.Fatal(err)
	}
	if len(methods) < 80 {
		t.Errorf("%d methods known", len(methods))
	}
	for name, m := range methods {
		stream, err := c.NewStream(testContext(t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.clientStream}, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(m.request.New().Interface()); err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		if !m.clientStream {
			_ = stream.CloseSend()
		}
		response := m.response.New().Interface()
		if err := stream.RecvMsg(response); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := statusIn(t, response.ProtoReflect())
		if (m.handle == nil) != (got == Ydb.StatusIds_UNSUPPORTED) || got == Ydb.StatusIds_STATUS_CODE_UNSPECIFIED {
			t.Errorf("%s: %v", name, response)
		}
		if err := stream.RecvMsg(m.response.New().Interface()); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the answer: %v", name, err)
		}
	}
}

// Whatever a client sends, every method answers, and the node lives on.
func FuzzCalls(f *testing.F) {
	methods, err := newMethods()
	if err != nil {
		f.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(methods))
	seed := func(name string, m proto.Message) {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(slices.Index(names, name)), data)
	}
	seed("/Ydb.Query.V1.QueryService/ExecuteQuery", &Ydb_Query.ExecuteQueryRequest{
		ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: text("DECLARE $a AS List<Struct<a:Int32>>; SELECT * FROM AS_TABLE($a)"),
		TxControl:  begin(serializable(), true),
		Parameters: map[string]*Ydb.TypedValue{"$a": list([]*Ydb.StructMember{{Name: "a", Type: typed(Ydb.Type_INT32)}}, &Ydb.Value{})},
	})
	seed("/Ydb.Table.V1.TableService/BulkUpsert", &Ydb_Table.BulkUpsertRequest{
		Table: "/local/dir/t",
		Rows:  list([]*Ydb.StructMember{{Name: "id", Type: typed(Ydb.Type_UINT64)}}, &Ydb.Value{Items: []*Ydb.Value{uint64Value(1)}}),
	})
	seed("/Ydb.Table.V1.TableService/ReadRows", &Ydb_Table.ReadRowsRequest{
		Path: "/local/dir/t", Keys: list([]*Ydb.StructMember{{Name: "id", Type: typed(Ydb.Type_UINT64)}}, &Ydb.Value{}),
	})
	seed("/Ydb.Table.V1.TableService/CreateTable", &Ydb_Table.CreateTableRequest{
		Path: "/local/x", PrimaryKey: []string{"id"},
		Columns: []*Ydb_Table.ColumnMeta{{Name: "id", Type: optional(typed(Ydb.Type_UINT64))}},
	})
	seed("/Ydb.Query.V1.QueryService/AttachSession", &Ydb_Query.AttachSessionRequest{SessionId: newSessionID(1)})
	cluster := startCluster(f, func(c *Config) { c.Nodes = 1 })
	c := dial(f, cluster.Node(1).Address())
	newTableOf(f, c, 3)
	f.Fuzz(func(t *testing.T, which uint16, data []byte) {
		m := methods[names[int(which)%len(names)]]
		stream, err := c.NewStream(testContext(t), &grpc.StreamDesc{ServerStreams: true}, m.name, grpc.ForceCodecV2(newCodec()))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&frame{data: mem.BufferSlice{mem.SliceBuffer(data)}}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		response := m.response.New().Interface()
		if err := stream.RecvMsg(response); err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		if statusIn(t, response.ProtoReflect()) == Ydb.StatusIds_INTERNAL_ERROR {
			t.Errorf("%s: %v", m.name, response)
		}
	})
}

func TestMethodsThatAreNotYDBs(t *testing.T) {
	c := dial(t, startCluster(t, nil).Node(1).Address())
	err := c.Invoke(testContext(t), "/other.Service/Method", &Ydb_Query.CreateSessionRequest{}, &Ydb_Query.CreateSessionResponse{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

func TestGarbageIsABadRequest(t *testing.T) {
	c := dial(t, startCluster(t, nil).Node(1).Address())
	// Field 1 of CreateTableRequest is a string; 0xff is no UTF-8.
	garbage := &Ydb_Query.CreateSessionRequest{}
	garbage.ProtoReflect().SetUnknown([]byte{0x0a, 0x01, 0xff})
	response := &Ydb_Query.DeleteSessionResponse{}
	if err := c.Invoke(testContext(t), "/Ydb.Query.V1.QueryService/DeleteSession", garbage, response); err != nil {
		t.Fatal(err)
	}
	if response.GetStatus() != Ydb.StatusIds_BAD_REQUEST {
		t.Errorf("got %v", response)
	}
}

func TestDiscovery(t *testing.T) {
	cluster := startCluster(t, func(c *Config) { c.Locations = []string{"vla", "sas"} })
	c := dial(t, cluster.Node(2).Address())
	r, err := c.discovery.ListEndpoints(testContext(t), &Ydb_Discovery.ListEndpointsRequest{Database: "/local/"})
	if err != nil {
		t.Fatal(err)
	}
	result := unpack[*Ydb_Discovery.ListEndpointsResult](t, r.GetOperation())
	if result.GetSelfLocation() != "sas" || len(result.GetEndpoints()) != 3 {
		t.Fatalf("got %v", result)
	}
	for i, e := range result.GetEndpoints() {
		if e.GetNodeId() != uint32(i+1) || e.GetSsl() || len(e.GetIpV4())+len(e.GetIpV6()) > 0 ||
			e.GetLocation() != []string{"vla", "sas"}[i%2] {
			t.Errorf("endpoint %v", e)
		}
	}
	for _, same := range []string{"local", "/local", "/local/"} { // the server writes paths its own way
		r, err = c.discovery.ListEndpoints(testContext(t), &Ydb_Discovery.ListEndpointsRequest{Database: same})
		if err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_SUCCESS {
			t.Errorf("database %q: %v, %v", same, r, err)
		}
	}
	r, err = c.discovery.ListEndpoints(testContext(t), &Ydb_Discovery.ListEndpointsRequest{Database: "/elsewhere"})
	if err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_NOT_FOUND {
		t.Errorf("another database: %v, %v", r, err)
	}
}

func TestLifeOfAQuerySession(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	created := c.createSession()
	if owner, err := ownerOf(created.GetSessionId()); owner != 1 || created.GetNodeId() != 1 || err != nil {
		t.Fatalf("created %v, %v", created, err)
	}
	e := c.execute(&Ydb_Query.ExecuteQueryRequest{SessionId: created.GetSessionId(), Query: text("SELECT 1")})
	if e.err != nil || e.status != Ydb.StatusIds_BAD_REQUEST || len(e.parts) != 1 {
		t.Errorf("before attach: %v", e)
	}
	a := c.attach(created.GetSessionId())
	if s := a.next(); s.GetStatus() != Ydb.StatusIds_SUCCESS {
		t.Fatalf("first state %v", s)
	}
	if s := c.attach(a.id).next(); s.GetStatus() != Ydb.StatusIds_SESSION_BUSY {
		t.Errorf("second attach: %v", s)
	}
	if got := a.begin(serializable()); got.GetStatus() != Ydb.StatusIds_SUCCESS || got.GetTxMeta().GetId() == "" {
		t.Errorf("begin: %v", got)
	}
	if got := c.delete(a.id); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("delete: %v", got)
	}
	a.ended()
	if got := c.delete(a.id); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("delete again: %v", got)
	}
	if s := c.attach(a.id).next(); s.GetStatus() != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("attach after delete: %v", s)
	}
	if s := c.attach("").next(); s.GetStatus() != Ydb.StatusIds_BAD_REQUEST {
		t.Errorf("attach to nothing: %v", s)
	}
	if got := c.delete("nonsense"); got != Ydb.StatusIds_BAD_REQUEST {
		t.Errorf("delete nonsense: %v", got)
	}
	if got := cluster.Sessions(); len(got) != 0 {
		t.Errorf("sessions left: %v", got)
	}
}

func TestCancelledAttachDeletesTheSession(t *testing.T) {
	cluster := startCluster(t, nil)
	for node := uint32(1); node <= 2; node++ { // at the owner, and through another node
		a := dial(t, cluster.Node(1).Address()).open()
		if node == 2 {
			a.detach()
			other := dial(t, cluster.Node(2).Address())
			created := dial(t, cluster.Node(1).Address()).createSession()
			a = other.attach(created.GetSessionId())
			a.next()
		}
		a.begin(serializable())
		a.detach()
		await.True(t, "the session is deleted", func() bool { return len(cluster.Sessions()) == 0 })
	}
}

func TestTransactionControl(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(1).Address()).open()
	tx := a.begin(serializable()).GetTxMeta().GetId()
	if got := a.commit(tx); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("commit of nothing: %v", got)
	}
	if got := a.commit(tx); got != Ydb.StatusIds_NOT_FOUND {
		t.Errorf("commit again: %v", got)
	}
	tx = a.begin(serializable()).GetTxMeta().GetId()
	if got := a.rollback(tx); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("rollback: %v", got)
	}
	if got := a.rollback(tx); got != Ydb.StatusIds_NOT_FOUND {
		t.Errorf("rollback again: %v", got)
	}
	for name, settings := range map[string]*Ydb_Query.TransactionSettings{
		"online": {TxMode: &Ydb_Query.TransactionSettings_OnlineReadOnly{OnlineReadOnly: &Ydb_Query.OnlineModeSettings{}}},
		"stale":  {TxMode: &Ydb_Query.TransactionSettings_StaleReadOnly{StaleReadOnly: &Ydb_Query.StaleModeSettings{}}},
	} {
		if got := a.begin(settings); got.GetStatus() != Ydb.StatusIds_BAD_REQUEST {
			t.Errorf("interactive %s: %v", name, got)
		}
		a.must(Ydb.StatusIds_SUCCESS, "SELECT 1", begin(settings, false)) // begun with its first statement it stays open
	}
	for name, settings := range map[string]*Ydb_Query.TransactionSettings{"no settings": nil, "no mode": {}} {
		if got := a.begin(settings); got.GetStatus() != Ydb.StatusIds_BAD_REQUEST {
			t.Errorf("begin with %s: %v", name, got)
		}
		a.must(Ydb.StatusIds_BAD_REQUEST, "SELECT 1", begin(settings, true))
	}
	a.must(Ydb.StatusIds_NOT_FOUND, "SELECT 1", inside("nonsense", true))
	a.must(Ydb.StatusIds_BAD_REQUEST, "SELECT 1", &Ydb_Query.TransactionControl{CommitTx: true})
}

func TestLogin(t *testing.T) {
	cluster := startCluster(t, func(c *Config) {
		c.Users = map[string]string{"root": "secret"}
		c.Tokens = []string{"fixed"}
	})
	c := dial(t, cluster.Node(1).Address())
	call := func(ticket string) (Ydb.StatusIds_StatusCode, codes.Code) {
		r, err := c.query.CreateSession(withTicket(t, ticket), &Ydb_Query.CreateSessionRequest{})
		return r.GetStatus(), status.Code(err)
	}
	for _, ticket := range []string{"none", "", "wrong", "a.b.c"} {
		if got, code := call(ticket); code != codes.Unauthenticated {
			t.Errorf("ticket %q: %v, %v", ticket, got, code)
		}
	}
	if got, code := call("fixed"); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("fixed ticket: %v, %v", got, code)
	}
	if got, code := call(logIn(t, c, "root", "secret")); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("ticket of Login: %v, %v", got, code)
	}
	if got := logIn(t, c, "root", "wrong"); got != "" {
		t.Errorf("wrong password: %q", got)
	}
	stream, err := Ydb_Topic_V1.NewTopicServiceClient(c).StreamRead(withTicket(t, "wrong"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unauthenticated { // before any message of the client's
		t.Errorf("a stream of topics: %v", err)
	}
}

// withTicket is the context of a call with a ticket; "none" sends no header.
func withTicket(t *testing.T, ticket string) context.Context {
	if ticket == "none" {
		return testContext(t)
	}
	return metadata.AppendToOutgoingContext(testContext(t), headerTicket, ticket)
}

// Without enforcement every call passes, and WhoAmI names the users of valid tickets only.
func TestAuthOff(t *testing.T) {
	c := dial(t, startCluster(t, func(c *Config) { c.Auth, c.Tokens = AuthOff, []string{"fixed"} }).Node(1).Address())
	for ticket, want := range map[string]string{"none": "No token provided", "": "No token provided",
		"wrong": "Could not find correct token validator", "fixed": ""} {
		if r, err := c.query.CreateSession(withTicket(t, ticket), &Ydb_Query.CreateSessionRequest{}); err != nil ||
			r.GetStatus() != Ydb.StatusIds_SUCCESS {
			t.Errorf("ticket %q: %v, %v", ticket, r, err)
		}
		r, err := c.discovery.WhoAmI(withTicket(t, ticket), &Ydb_Discovery.WhoAmIRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if o := r.GetOperation(); want == "" {
			if user := unpack[*Ydb_Discovery.WhoAmIResult](t, o).GetUser(); user != "token" {
				t.Errorf("WhoAmI of %q: %q", ticket, user)
			}
		} else if o.GetStatus() != Ydb.StatusIds_GENERIC_ERROR || len(o.GetIssues()) != 1 || o.GetIssues()[0].GetMessage() != want {
			t.Errorf("WhoAmI of %q: %v", ticket, o)
		}
	}
}

// logIn logs in and returns the ticket; "" if that was refused.
func logIn(t *testing.T, c *client, user, password string) string {
	t.Helper()
	r, err := Ydb_Auth_V1.NewAuthServiceClient(c).Login(testContext(t), &Ydb_Auth.LoginRequest{User: user, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.GetOperation().GetStatus(); got == Ydb.StatusIds_UNAUTHORIZED {
		return ""
	}
	return unpack[*Ydb_Auth.LoginResult](t, r.GetOperation()).GetToken()
}

// The header's database is looked at where there is a ticket or must be one, in all methods.
func TestDatabaseOfTheHeader(t *testing.T) {
	free := startCluster(t, nil)
	enforced := startCluster(t, func(c *Config) { c.Tokens = []string{"fixed"} })
	for name, tc := range map[string]struct {
		cluster          *Cluster
		ticket, database string
		want             codes.Code
	}{
		"this one":               {free, "any", "/local", codes.OK},
		"without its slash":      {free, "any", "local", codes.OK},
		"escaped":                {free, "any", "%2Flocal", codes.OK},
		"none":                   {free, "any", "", codes.OK},
		"another one":            {free, "any", "/other", codes.Unauthenticated},
		"within this one":        {free, "any", "/local/dir", codes.Unauthenticated},
		"another one, no ticket": {free, "", "/other", codes.OK},
		"enforced":               {enforced, "fixed", "/local", codes.OK},
		"enforced, none":         {enforced, "fixed", "", codes.OK},
		"enforced, another one":  {enforced, "fixed", "/other", codes.Unauthenticated},
		"enforced, no ticket":    {enforced, "", "/other", codes.Unauthenticated},
	} {
		c := dial(t, tc.cluster.Node(1).Address())
		ctx := metadata.AppendToOutgoingContext(testContext(t), headerTicket, tc.ticket)
		if tc.database != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, headerDatabase, tc.database)
		}
		_, err := c.discovery.ListEndpoints(ctx, &Ydb_Discovery.ListEndpointsRequest{Database: "/local"})
		if status.Code(err) != tc.want {
			t.Errorf("%s: ListEndpoints: %v; want %v", name, err, tc.want)
		}
		stream, err := c.query.ExecuteQuery(
			ctx, &Ydb_Query.ExecuteQueryRequest{Query: text("SELECT 1"), ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE},
		)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != tc.want ||
			err != nil && status.Convert(err).Message() != "unauthenticated, unauthenticated, Unknown database" {
			t.Errorf("%s: ExecuteQuery: %v; want %v", name, err, tc.want)
		}
	}
}

// compressions are those of the answers of a connection.
type compressions struct {
	mu  sync.Mutex
	all []string
}

func (*compressions) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (*compressions) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (*compressions) HandleConn(context.Context, stats.ConnStats) {}

func (c *compressions) HandleRPC(_ context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InHeader); ok {
		c.mu.Lock()
		c.all = append(c.all, in.Compression)
		c.mu.Unlock()
	}
}

// Requests may be compressed; answers are not, as those of YDB are not unless it is configured so
// (ydb/library/grpc/server/grpc_server.h, DefaultCompressionLevel).
func TestAnswersAreNotCompressed(t *testing.T) {
	seen := new(compressions)
	conn, err := grpc.NewClient(
		startCluster(t, nil).Node(1).Address(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(seen),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := Ydb_Discovery_V1.NewDiscoveryServiceClient(conn).ListEndpoints(
		testContext(t), &Ydb_Discovery.ListEndpointsRequest{Database: "/local"}, grpc.UseCompressor(gzip.Name),
	)
	if err != nil || statusIn(t, r.ProtoReflect()) != Ydb.StatusIds_SUCCESS {
		t.Fatalf("%v, %v", r, err)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.all) != 1 || seen.all[0] != "" && seen.all[0] != "identity" {
		t.Errorf("answers are compressed with %q", seen.all)
	}
}
