package peers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// answer is the place for one message of an answer. While it is received it is
// compared with what each node must answer.
type answer struct {
	want   [nodes][]byte
	from   int // the node whose answer it is
	stream bool
	rows   *counted // not nil: there are many, which are counted instead
}

var errBody = errors.New("the body is not what any node answers")

// refused tells why there is another answer than was wanted, as far as it says so.
func (a *answer) refused(data mem.BufferSlice) error {
	status, issues := Ydb.StatusIds_STATUS_CODE_UNSPECIFIED, []*Ydb_Issue.IssueMessage(nil)
	if a.stream {
		var part Ydb_Query.ExecuteQueryResponsePart
		_ = proto.Unmarshal(data.Materialize(), &part) // if it is none there is no status
		status, issues = part.GetStatus(), part.GetIssues()
	} else {
		var whole Ydb_Table.ExecuteDataQueryResponse
		_ = proto.Unmarshal(data.Materialize(), &whole)
		status, issues = whole.GetOperation().GetStatus(), whole.GetOperation().GetIssues()
	}
	if status == Ydb.StatusIds_STATUS_CODE_UNSPECIFIED || status == Ydb.StatusIds_SUCCESS {
		return errBody
	}
	return fmt.Errorf("%w: %v %v", errBody, status, issues)
}

// checking is the codec of requests, which are encoded already, and answers.
type checking struct{}

func (checking) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (checking) Unmarshal(data mem.BufferSlice, v any) error {
	a := v.(*answer)
	if a.rows != nil {
		return a.count(data)
	}
	for i, want := range a.want {
		if equal(data, want) {
			a.from = i + 1
			return nil
		}
	}
	return a.refused(data)
}

func (checking) Name() string { return "proto" }

func equal(data mem.BufferSlice, want []byte) bool {
	if data.Len() != len(want) {
		return false
	}
	for _, b := range data {
		part := b.ReadOnlyData()
		if !bytes.Equal(part, want[:len(part)]) {
			return false
		}
		want = want[len(part):]
	}
	return true
}

// caller makes calls of one scenario on one session.
type caller struct {
	scenario Scenario
	conn     *grpc.ClientConn
	method   string
	request  []byte
	want     [][nodes][]byte // of each part
	owner    int             // the node that must answer; 0: any
	random   *rand.Rand      // of trace ids

	plain func(context.Context) error // makes a call of the plain API instead; nil
}

const database = "/ru-central1/b1g0000000000000000/etn0000000000000000"

// headers are those of an SDK. Values are invented; lengths are not.
var headers = metadata.Pairs(
	"x-ydb-database", database,
	"x-ydb-auth-ticket", "bench-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
	"x-ydb-sdk-build-info", "ydb-go-sdk/3.156.1",
	"x-ydb-client-pid", strconv.Itoa(os.Getpid()),
	"x-ydb-client-capabilities", "session-balancer",
)

// call makes one call, whose trace id is new, and checks the answer.
func (c *caller) call(ctx context.Context) error {
	if c.plain != nil {
		return c.plain(ctx)
	}
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:], c.random.Uint64())
	binary.BigEndian.PutUint64(id[8:], c.random.Uint64())
	ctx = metadata.AppendToOutgoingContext(ctx, "x-ydb-trace-id", id.String())
	a := answer{want: c.want[0], stream: c.scenario.Stream}
	if !c.scenario.Stream {
		if err := c.conn.Invoke(ctx, c.method, c.request, &a); err != nil {
			return err
		}
		return c.check(a.from)
	}
	if c.scenario.Rows > 0 {
		a.rows = new(counted)
	}
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(c.request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for _, a.want = range c.want {
		if err := stream.RecvMsg(&a); err != nil {
			return err
		}
		if err := c.check(a.from); err != nil {
			return err
		}
	}
	if err := stream.RecvMsg(&a); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the stream goes on after its last part: %v", err)
	}
	if a.rows != nil {
		return a.rows.check(c.scenario)
	}
	return nil
}

// open makes a session and attaches to it. It lasts as long as ctx, or the connection.
func (c *caller) open(ctx context.Context) (string, error) {
	client := Ydb_Query_V1.NewQueryServiceClient(c.conn)
	codec := grpc.ForceCodecV2(encoding.GetCodecV2("proto"))
	made, err := client.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{}, codec)
	if err != nil || made.GetStatus() != Ydb.StatusIds_SUCCESS {
		return "", fmt.Errorf("create a session: %v: %w", made.GetIssues(), err)
	}
	stream, err := client.AttachSession(ctx, &Ydb_Query.AttachSessionRequest{SessionId: made.GetSessionId()}, codec)
	if err == nil {
		_, err = stream.Recv()
	}
	return made.GetSessionId(), err
}

func (c *caller) check(from int) error {
	if c.owner != 0 && from != c.owner {
		return fmt.Errorf("node %d answered a call on a session of node %d", from, c.owner)
	}
	return nil
}

// dial opens the connections to an address.
func (f *field) dial(transport credentials.TransportCredentials, address string) (of []*grpc.ClientConn, err error) {
	for range f.options.Conns {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(transport),
			grpc.WithDisableRetry(), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(checking{})))
		if err != nil {
			return of, err
		}
		of = append(of, conn)
	}
	return of, nil
}

// parts are the parts of an answer as each node sends them.
func parts(s Scenario) (want [][nodes][]byte, err error) {
	bodies, err := expected(s)
	if err != nil {
		return nil, err
	}
	want = make([][nodes][]byte, s.Parts)
	for part := range want {
		for i := range nodes {
			want[part][i] = bodies[i][part]
		}
	}
	return want, nil
}

// prepare makes ready what a caller sends to a target: over YDB's API a session of a node, if there is to be one.
func (c *caller) prepare(ctx context.Context, t *target, owner, number int) (err error) {
	if t.api == plainAPI {
		c.plain, err = plainCaller(c.scenario, c.conn)
		return err
	}
	session := sessionID(owner, number)
	switch {
	case c.scenario.Implicit:
		session = ""
	case t.virtual:
		if session, err = c.open(ctx); err != nil {
			return err
		}
	}
	if t.routes && !c.scenario.Implicit {
		c.owner = owner
	}
	c.method, c.request, err = request(c.scenario, session)
	return err
}

// callers connects to a target and returns n callers, whose sessions are spread over the nodes.
func (f *field) callers(ctx context.Context, t *target, s Scenario, n int) (all []*caller, hangUp func(), err error) {
	end := t.at(s)
	if t.api == webAPI {
		return webCallers(end.addresses[0], s, n)
	}
	var conns [nodes][]*grpc.ClientConn // to be used for sessions of each node
	hangUp = func() {
		for _, of := range conns {
			for _, conn := range of {
				_ = conn.Close() // nothing is in flight
			}
		}
	}
	transport := insecure.NewCredentials()
	if s.TLS == both || s.TLS == toNodes && end.process == nil { // straight to the nodes
		if transport, err = credentials.NewClientTLSFromFile(certFile(f.dir), serverName); err != nil {
			return nil, hangUp, err
		}
	}
	for i, address := range end.addresses {
		if conns[i], err = f.dial(transport, address); err != nil {
			return nil, hangUp, err
		}
	}
	want, err := parts(s)
	if err != nil {
		return nil, hangUp, err
	}
	for i := range n {
		owner := i%nodes + 1
		of := conns[0]
		if len(end.addresses) > 1 {
			of = conns[owner-1]
		}
		c := &caller{scenario: s, conn: of[i/nodes%len(of)], want: want, random: rand.New(rand.NewPCG(uint64(i), rand.Uint64()))}
		if err := c.prepare(ctx, t, owner, i); err != nil {
			return nil, hangUp, err
		}
		all = append(all, c)
	}
	return all, hangUp, nil
}

// grace bounds how long calls may go on after the end of a run.
const grace = 10 * time.Second

// load is the calls of one scenario to one target.
type load struct {
	field    *field
	target   *target
	scenario Scenario
	callers  []*caller
	hangUp   func() // nil: there is no connection
}

// variant measures the load. Each run has connections of its own and a warm-up before it.
func (o *load) variant() lab.Variant {
	v := lab.Variant{Name: o.target.Name, Foreign: !o.target.Own && o.target.Name != direct, Ready: o.ready, Run: o.run,
		WarmUp: func(context.Context) error { return nil }} // Ready has one
	if p := o.target.at(o.scenario).process; p != nil {
		v.Under = []*lab.Process{p}
	}
	return v
}

// ready connects again and warms up.
func (o *load) ready(ctx context.Context) (err error) {
	o.end()
	l := o.field.lab
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, headers), l.WarmUp+l.Duration+2*grace)
	var hangUp func()
	o.callers, hangUp, err = o.field.callers(ctx, o.target, o.scenario, o.scenario.InFlight)
	o.hangUp = func() {
		hangUp()
		cancel() // ends the sessions that were opened
	}
	if err == nil {
		_, err = o.run(ctx, l.WarmUp)
	}
	return err
}

func (o *load) end() {
	if o.hangUp != nil {
		o.hangUp()
		o.hangUp = nil
	}
}

// run makes calls: without a pause in the closed loop, whenever one is due in the open one. There, a call that finds
// no caller waits for one, and the wait counts.
func (o *load) run(ctx context.Context, d time.Duration) (lab.Result, error) {
	ctx = metadata.NewOutgoingContext(ctx, headers)
	calls := make([]lab.Call, len(o.callers))
	free := make(chan lab.Call, len(o.callers))
	for i, c := range o.callers {
		calls[i] = c.call
		free <- c.call
	}
	s := o.scenario
	var r lab.Result
	if s.Rate > 0 {
		r = lab.OpenExactly(ctx, lab.Rate(s.Rate), d, func(ctx context.Context) error {
			call := <-free
			defer func() { free <- call }()
			return call(ctx)
		})
	} else {
		r = lab.ClosedEach(ctx, d, calls...)
	}
	r.Figures = lab.Figures{}
	answered := r.Calls - r.Failed
	switch {
	case s.Rows > 0:
		r.Rows = answered * int64(s.Rows*s.Parts)
	case s.bulk():
		r.Figures[payloads] = float64(answered*int64(s.Size*s.Parts)) / r.Took.Seconds()
	}
	var err error
	if p := o.target.at(s).process; p != nil {
		var own int64
		own, err = lab.AnonymousOf(p.Pid())
		r.Figures[anonymous] = float64(own)
	}
	return r, err
}
