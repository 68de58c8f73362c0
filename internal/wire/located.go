package wire

import (
	"context"
	"net"
	"slices"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// Places of partitions. A client that writes to a topic directly asks on which node a partition is,
// looks for that node among the endpoints of discovery, and begins a stream there with the generation
// that it was told. A node refuses the stream if the partition is on another one.
//
// Discovery names the sidecar alone. So an answer that goes through it names the sidecar as the node,
// and the upper half of the generation is the node. The client sends the generation back: the sidecar
// sends the stream to that node with the lower half. It remembers no places, only that clients ask for
// them: until then no stream waits for its first message. A stream that comes before is refused by the
// node, and its client asks for the place again.
//
// The place of a table's partition is a hint: any node serves its calls. An SDK looks for a session on that
// node, and would open a new one each time that it has none. So where sessions are virtual, which are on the
// sidecar, the answer names the sidecar.

// locating is a method whose answer may have places.
type locating struct {
	asks   protowire.Number    // the request's field that asks for them
	path   [2]protowire.Number // of the result's fields that lead to them
	rename func([]byte) []byte // has one of them name the sidecar
	pins   bool                // a stream may be bound to it; else it is a hint for calls on sessions
}

const topicService = "/Ydb.Topic.V1.TopicService/"

var locatings = map[string]*locating{
	topicService + "DescribeTopic":     {4, [2]protowire.Number{3, 6}, renamePlace, true},
	topicService + "DescribePartition": {5, [2]protowire.Number{1, 6}, renamePlace, true},
	topicService + "DescribeConsumer":  {5, [2]protowire.Number{3, 7}, renamePlace, true},
	tableService + "DescribeTable":     {9, [2]protowire.Number{6, 1}, renameLeader, false},
}

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

// locate answers a call that asks for places: a goroutine asks a node. who is nil where sessions are
// the clients' own. ok is false for any other call.
func (f *frames) locate(c *h2.Call, k *call, who *caller) (err error, ok bool) {
	if k.method == nil || k.method.locating == nil || who == nil && !k.method.locating.pins {
		return nil, false
	}
	m := k.method.locating
	message, err := firstMessage(c)
	if err != nil || !asksFor(message, m.asks) {
		return err, err != nil
	}
	headers, ok := headersOf(c)
	if !ok {
		return nil, false
	}
	if f.server.deps.Apps.HasTokens() {
		delete(headers, "authorization")
	}
	if k.traced != nil && k.traced.parent != "" {
		headers.Set(traceparent, k.traced.parent)
	}
	if who != nil {
		headers.Set("x-ydb-database", who.database)
		if f.server.tenants.own {
			ticket, err := f.server.deps.Ticket()
			if err != nil {
				return k.refuse(errTicket), true
			}
			if headers.Set("x-ydb-auth-ticket", ticket); ticket == "" {
				delete(headers, "x-ydb-auth-ticket")
			}
		}
	}
	node, err := place(f.server.deps.Router, 0, false)
	if err != nil {
		return k.refuse(refusalOf(err, 0)), true
	}
	l := f.nodes[node]
	if l == nil { // it has just come or gone
		return k.refuse(refusalOf(errNoConn, 0)), true
	}
	k.node = node
	if m.pins {
		f.server.located.Store(true)
	}
	at, path, nodes := l.node, string(c.Path()), f.server.deps.Nodes
	f.serve(c, k, message, headers, func(ctx context.Context, decode func(any) error) (any, error) {
		in := new(emptypb.Empty) // keeps what it does not know: all
		if err := decode(in); err != nil {
			return nil, err
		}
		md, _ := metadata.FromIncomingContext(ctx)
		limited, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, md), longestWait)
		defer cancel()
		out, err := askNode(limited, nodes, at, path, in)
		switch {
		case err != nil && ctx.Err() == nil && (status.Code(err) == codes.Unavailable || limited.Err() != nil):
			// SDKs would drop the endpoint for gRPC's status, which is the sidecar.
			r := refusalOf(errNoConn, 0)
			issues := []*Ydb_Issue.IssueMessage{{Severity: severityError, Message: r.text}}
			return &Ydb_Topic.DescribeTopicResponse{Operation: &Ydb_Operations.Operation{Ready: true, Status: r.status, Issues: issues}}, nil
		case err == nil && out.GetOperation().GetResult() != nil:
			out.Operation.Result.Value = m.renameAll(out.Operation.Result.Value)
		}
		return out, err
	})
	return h2.ErrMine, true
}

// asksFor reports whether a flag of a message is set.
func asksFor(message []byte, flag protowire.Number) (set bool) {
	eachField(message, func(number protowire.Number, value []byte) {
		if number == flag {
			v, _ := protowire.ConsumeVarint(value)
			set = v != 0
		}
	})
	return set
}

// askNode calls a node over a connection of its own: such calls are few. All methods of locatings
// have answers of one form.
func askNode(ctx context.Context, nodes Nodes, node cluster.Node, path string, in proto.Message) (*Ydb_Topic.DescribeTopicResponse, error) {
	secured := insecure.NewCredentials()
	if config := nodes.TLS(node); config != nil {
		secured = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient("passthrough:///"+node.Address, grpc.WithTransportCredentials(secured),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return nodes.Dial(ctx, node) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostBytes)))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "ydb-sidecar: %v", err)
	}
	defer conn.Close()
	out := new(Ydb_Topic.DescribeTopicResponse)
	return out, conn.Invoke(ctx, path, in, out)
}

// renameAll names the sidecar in the places of a result. What cannot be read stays as it is.
func (m *locating) renameAll(result []byte) []byte {
	return mapField(result, m.path[0], func(outer []byte) []byte {
		return mapField(outer, m.path[1], m.rename)
	})
}

// The fields of a place, and of a partition with a generation in the first message of a stream.
const (
	placeNode       = 1
	placeGeneration = 2

	leaderNode = 3 // of the statistics of a table's partition

	initRequest      = 1
	initPartition    = 7 // of that, partition_with_generation
	expectGeneration = 2 // of that
)

func renamePlace(place []byte) []byte {
	node, generation := uint64(0), uint64(0)
	eachField(place, func(number protowire.Number, value []byte) {
		switch number {
		case placeNode:
			node, _ = protowire.ConsumeVarint(value)
		case placeGeneration:
			generation, _ = protowire.ConsumeVarint(value)
		}
	})
	if node == 0 || node >= 1<<31 || generation == 0 || generation >= 1<<32 {
		return place
	}
	place = protowire.AppendVarint(protowire.AppendTag(nil, placeNode, protowire.VarintType), endpointID)
	return protowire.AppendVarint(protowire.AppendTag(place, placeGeneration, protowire.VarintType), node<<32|generation)
}

// renameLeader names the sidecar as the node of a table's partition, if one is named: a field that comes
// again counts instead of the first.
func renameLeader(shard []byte) []byte {
	named := false
	eachField(shard, func(number protowire.Number, _ []byte) { named = named || number == leaderNode })
	if !named {
		return shard
	}
	shard = protowire.AppendTag(slices.Clip(shard), leaderNode, protowire.VarintType)
	return protowire.AppendVarint(shard, endpointID)
}

// mapField returns a message with what f makes of each field of that number.
func mapField(message []byte, which protowire.Number, f func([]byte) []byte) []byte {
	var out []byte
	for rest := message; len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n < 0 {
			return message
		}
		if number == which && kind == protowire.BytesType {
			_, _, head := protowire.ConsumeTag(rest)
			value, _ := protowire.ConsumeBytes(rest[head:])
			out = protowire.AppendBytes(protowire.AppendTag(out, number, kind), f(value))
		} else {
			out = append(out, rest[:n]...)
		}
		rest = rest[n:]
	}
	return out
}

// pin finds the node that a stream to a topic is for, and has the first message name the node's own
// generation; 0: any node.
func (f *frames) pin(c *h2.Call) (node cluster.NodeID, err error) {
	if !f.server.located.Load() {
		return 0, nil
	}
	message, err := firstMessage(c)
	if err != nil {
		return 0, err
	}
	renamed := mapField(message, initRequest, func(init []byte) []byte {
		return mapField(init, initPartition, func(partition []byte) []byte {
			out, pinned := own(partition)
			if pinned != 0 {
				node = pinned
			}
			return out
		})
	})
	if node != 0 {
		c.Splice(0, len(message), renamed)
	}
	return node, nil
}

// own takes the node out of a partition's generation.
func own(partition []byte) (out []byte, node cluster.NodeID) {
	for rest := partition; len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n < 0 {
			return partition, 0
		}
		field := rest[:n]
		if number == expectGeneration && kind == protowire.VarintType {
			_, _, head := protowire.ConsumeTag(field)
			if v, _ := protowire.ConsumeVarint(field[head:]); v>>32 != 0 && v < 1<<63 {
				node = cluster.NodeID(v >> 32)
				field = protowire.AppendVarint(protowire.AppendTag(nil, number, kind), v&(1<<32-1))
			}
		}
		out, rest = append(out, field...), rest[n:]
	}
	return out, node
}

// errPlace is what a stream is told whose node is not there: clients ask for the place again.
var errPlace = refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE, "ydb-sidecar: the node that has the partition cannot be reached; the call was not sent"}

// connectTo is connect for a stream that is for one node; 0: for any.
func (f *frames) connectTo(c *h2.Call, k *call, node cluster.NodeID) (*h2.Conn, error) {
	if node == 0 || f.nodes[node] == nil { // a node that does not have the partition says so
		return f.connect(c, k, 0)
	}
	conn, err := f.reach(k, node, false)
	if err != nil {
		return nil, k.refuse(errPlace)
	}
	return conn, nil
}
