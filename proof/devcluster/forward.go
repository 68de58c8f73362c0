package devcluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// peerDelay is the longest pause between two tries to reach another node.
const peerDelay = time.Second

// peers keeps one connection to each of the other nodes.
type peers struct {
	options []grpc.DialOption

	mu     sync.Mutex // guards the fields below
	conns  map[string]*grpc.ClientConn
	closed bool
}

func newPeers(config Config) *peers {
	security := insecure.NewCredentials()
	if config.TLS != nil { // only nodes started by hand meet on their public ports
		security = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = peerDelay/10, peerDelay
	p := &peers{
		conns: make(map[string]*grpc.ClientConn),
		options: []grpc.DialOption{
			grpc.WithTransportCredentials(security),
			grpc.WithDefaultCallOptions(
				grpc.ForceCodecV2(newCodec()),
				grpc.MaxCallRecvMsgSize(maxMessage),
				grpc.MaxCallSendMsgSize(maxMessage)),
			grpc.WithInitialWindowSize(windowStream),
			grpc.WithInitialConnWindowSize(windowConn),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: peerDelay}),
			grpc.WithUserAgent("ydb-devcluster"),
		},
	}
	if config.Dial != nil {
		p.options = append(p.options, grpc.WithContextDialer(config.Dial))
	}
	return p
}

func (p *peers) get(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("the node is ending")
	}
	if c := p.conns[address]; c != nil {
		return c, nil
	}
	c, err := grpc.NewClient("passthrough:///"+address, p.options...)
	if err != nil {
		return nil, fmt.Errorf("dial node at %s: %w", address, err)
	}
	p.conns[address] = c
	return c, nil
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close() // its only error says that it is closed
	}
}

// What a node waits at most for the answer of another one: see call.unanswered.
const (
	statementTimer = 5 * time.Minute // of calls on a session, unless the client's operation_timeout is shorter
	pingTimer      = 5 * time.Second // of calls that make a session or ask whether it is there
)

// forward sends the call to the node that owns its session and passes the
// answers on, no faster than the client takes them. An owner that cannot be reached
// is told at once; one that is lost later is not: see unanswered.
func (c *call) forward(owner uint32, request proto.Message, f *frame) error {
	m, ok := c.topology.find(owner)
	if !ok || !m.Alive {
		return fail(Ydb.StatusIds_BAD_SESSION, "Session not found: its node %d is not in the cluster", owner)
	}
	if err := c.hop(m); err != nil {
		return err
	}
	stream, err := c.open(m)
	if err != nil {
		return c.hopFailed(owner, err, false)
	}
	if err := stream.SendMsg(f); err != nil && !errors.Is(err, io.EOF) { // EOF: RecvMsg has the reason
		return c.hopFailed(owner, err, mayCommit(request))
	}
	if err := stream.CloseSend(); err != nil {
		return c.hopFailed(owner, err, mayCommit(request))
	}
	for {
		var part frame
		err := stream.RecvMsg(&part)
		if errors.Is(err, io.EOF) {
			c.stream.SetTrailer(stream.Trailer())
			return nil
		}
		if err != nil && status.Code(err) == codes.Unavailable {
			return c.unanswered(owner, request, err)
		}
		if err != nil {
			return c.hopFailed(owner, err, mayCommit(request))
		}
		err = c.send(&part)
		part.free()
		if err != nil {
			return err
		}
	}
}

// unanswered is what comes of a call that had reached its owner when that was lost: nothing, until the
// timer of the call ends it. The server's proxy of sessions does not watch the nodes that it has sent calls to.
func (c *call) unanswered(owner uint32, request proto.Message, err error) error {
	timer := statementTimer
	switch request.(type) {
	case *Ydb_Query.AttachSessionRequest: // the stream ends with the connection of the nodes
		return c.hopFailed(owner, err, false)
	case *Ydb_Query.DeleteSessionRequest, *Ydb_Table.DeleteSessionRequest: // the client does not wait for the owner
		return c.hopFailed(owner, err, false)
	case *Ydb_Query.CreateSessionRequest, *Ydb_Table.CreateSessionRequest, *Ydb_Table.KeepAliveRequest:
		timer = pingTimer
	}
	if err := c.pause(timer); err != nil {
		return err
	}
	return fail(Ydb.StatusIds_TIMEOUT, "Query did not complete within specified timeout, session id %s", sessionOf(request))
}

// hop waits for as long as the network to another node takes.
func (c *call) hop(m member) error {
	d := c.config.HopDelay
	if f := c.faults.Load(); f != nil && f.hop != nil {
		d = f.hop.Delay
		if m.Location == c.location {
			d = f.hop.Near
		}
	}
	return c.pause(d)
}

// open starts the call's stream to another node. It ends with the call.
func (c *call) open(m member) (grpc.ClientStream, error) {
	address := m.Peer
	if address == "" {
		address = m.Address
	}
	conn, err := c.peers.get(address)
	if err != nil {
		return nil, err
	}
	header := metadata.Pairs(headerFrom, strconv.FormatUint(uint64(c.id), 10))
	for key, values := range c.header {
		if strings.HasPrefix(key, "x-ydb-") || key == "traceparent" || key == "tracestate" {
			header[key] = values
		}
	}
	c.inject(header)
	ctx := metadata.NewOutgoingContext(c.ctx, header)
	return conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: c.method.clientStream}, c.method.name)
}

func (c *call) hopFailed(owner uint32, err error, committing bool) error {
	if committing {
		return fail(Ydb.StatusIds_UNDETERMINED, "node %d was lost while it ran the call: %v", owner, err)
	}
	return fail(Ydb.StatusIds_UNAVAILABLE, "node %d, which owns the session, did not answer: %v", owner, err)
}

// mayCommit says whether the request can have changed something for good when
// its answer is lost.
func mayCommit(request proto.Message) bool {
	switch r := request.(type) {
	case *Ydb_Query.ExecuteQueryRequest:
		return r.GetTxControl() == nil || r.GetTxControl().GetCommitTx()
	case *Ydb_Table.ExecuteDataQueryRequest:
		return r.GetTxControl().GetCommitTx()
	case *Ydb_Query.CommitTransactionRequest, *Ydb_Table.CommitTransactionRequest,
		*Ydb_Table.ExecuteSchemeQueryRequest:
		return true
	}
	return false
}

// pause waits for d, the end of the call or the end of the node.
func (c *call) pause(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.ending:
		return c.farewell
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}
