package wire

import (
	"context"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// Locations of partitions. A client that writes to a topic directly asks on which node a partition is,
// looks for that node among the endpoints of discovery, and begins a stream there with the generation
// that it was told. A node refuses the stream if the partition is on another one.
//
// Discovery names the sidecar alone. So an answer that goes through it names the sidecar as the node,
// and the upper half of the generation is the node. The client sends the generation back: the sidecar
// sends the stream to that node with the lower half. It remembers no locations, only that clients ask for
// them: until then no stream waits for its first message. A stream that comes before is refused by the
// node, and its client asks for the location again.
//
// The location of a table's partition is a hint: any node serves its calls. An SDK looks for a session on that
// node, and would open a new one each time that it has none. So where sessions are virtual, which are on the
// sidecar, the answer names the sidecar.

// maxLocated bounds the requests that are looked at; a path and a few flags are far shorter.
const maxLocated = 64 << 10

// firstMessage returns a call's first message if it is short and not compressed: nil otherwise.
func firstMessage(c *h2.Call) ([]byte, error) {
	switch n, known := c.Announced(); {
	case !known:
		return nil, h2.ErrNeedMessage
	case n > maxLocated || c.Compressed():
		return nil, nil
	}
	message, whole := c.Message()
	if !whole {
		return nil, h2.ErrNeedWhole
	}
	return message, nil
}

// locate answers a call that asks for locations: a goroutine asks a node. who is nil where sessions are
// the clients' own. ok is false for any other call.
func (f *frames) locate(c *h2.Call, k *call, who *caller) (err error, ok bool) {
	if k.method == nil || k.method.Locations == nil || who == nil && !k.method.Locations.Pins {
		return nil, false
	}
	locations := k.method.Locations
	message, err := firstMessage(c)
	if err != nil || !locations.Asked(message) {
		return err, err != nil
	}
	headers, err := f.server.headersToLocate(c, k, who)
	if headers == nil {
		return err, err != nil
	}
	_, node, err := hop.Reach(&f.server.deps.Ways, hop.To{}, &k.at, func() (*link, error) { return f.link(k) })
	if err != nil {
		return k.refuse(refusalOf(err, 0)), true
	}
	if locations.Pins {
		f.server.located.Store(true)
	}
	l := &locating{nodes: f.server.deps.Nodes, node: node, path: string(c.Path()), method: k.method}
	k.served = f.port.Serve(c, message, headers, l.invoke)
	return h2.ErrMine, true
}

// headersToLocate are the headers with which a call for locations goes to a node; nil: they cannot be decoded, or err is the answer.
func (s *Server) headersToLocate(c *h2.Call, k *call, who *caller) (metadata.MD, error) {
	headers, ok := unary.Headers(c)
	if !ok {
		return nil, nil
	}
	if s.deps.Apps.HasTokens() {
		delete(headers, "authorization")
	}
	if k.traced != nil && k.traced.parent != "" {
		headers.Set(traceparent, k.traced.parent)
	}
	if who != nil {
		headers.Set("x-ydb-database", who.Database)
		if s.own {
			ticket, err := s.deps.Ticket()
			if err != nil {
				return nil, k.refuse(errTicket)
			}
			if headers.Set("x-ydb-auth-ticket", ticket); ticket == "" {
				delete(headers, "x-ydb-auth-ticket")
			}
		}
	}
	return headers, nil
}

// locating is a call for locations that a goroutine makes.
type locating struct {
	nodes  Nodes
	node   cluster.NodeID
	path   string
	method *protocol.Method
}

// invoke asks the node, and names the sidecar in its answer.
func (l *locating) invoke(ctx context.Context, decode func(any) error) (any, error) {
	in := new(emptypb.Empty) // keeps what it does not know: all
	if err := decode(in); err != nil {
		return nil, err
	}
	md, _ := metadata.FromIncomingContext(ctx)
	limited, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, md), longestWait)
	defer cancel()
	out := new(Ydb_Topic.DescribeTopicResponse) // all methods with locations have answers of one form
	signs, err := l.nodes.Invoke(limited, l.node, l.path, in, out)
	if op := out.GetOperation(); err == nil {
		signs.Status = op.GetStatus()
		if body, bad := proto.Marshal(out); bad == nil {
			signs.Congestion, signs.Subject = congestion(l.method, body)
		}
	}
	if v, ok := grpc.ServerTransportStreamFromContext(ctx).(*unary.Call); ok {
		v.Note = &signs
	}
	switch {
	case err != nil && ctx.Err() == nil && (status.Code(err) == codes.Unavailable || limited.Err() != nil):
		// SDKs would drop the endpoint for gRPC's status, which is the sidecar.
		r := refusalOf(hop.ErrUnknownNode, 0)
		issues := []*Ydb_Issue.IssueMessage{{Severity: protocol.SeverityError, Message: r.text}}
		return &Ydb_Topic.DescribeTopicResponse{Operation: &Ydb_Operations.Operation{Ready: true, Status: r.status, Issues: issues}}, nil
	case err == nil && out.GetOperation().GetResult() != nil:
		out.Operation.Result.Value = l.method.Locations.Rename(out.Operation.Result.Value, virtual.NodeID)
	}
	return out, err
}

// pin finds the node that a stream to a topic is for, and has the first message name the node's own
// generation; 0: any node.
func (s *Server) pin(c *h2.Call) (node cluster.NodeID, err error) {
	if !s.located.Load() {
		return 0, nil
	}
	message, err := firstMessage(c)
	if err != nil {
		return 0, err
	}
	renamed, pinned := protocol.Pin(message)
	node = cluster.NodeID(pinned)
	if node != 0 {
		c.Splice(0, len(message), renamed)
	}
	return node, nil
}

// errLocation is what a stream is told whose node is not there: clients ask for the place again.
var errLocation = refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE,
	"ydb-sidecar: the node that has the partition cannot be reached; the call was not sent"}

// connectTo is connect for a stream that is for one node; 0: for any.
func (f *frames) connectTo(c *h2.Call, k *call, node cluster.NodeID) (*h2.Conn, error) {
	if node == 0 || f.nodes[node] == nil { // a node that does not have the partition says so
		return f.connect(c, k, 0)
	}
	conn, err := f.reach(k, node, false)
	if err != nil {
		return nil, k.refuse(errLocation)
	}
	return conn, nil
}
