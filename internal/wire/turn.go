package wire

import (
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
)

// Calls of the plain API that are begun in the turn of the shard where they arrive, and whose calls to nodes go out in that turn over the
// shard's own connections. No goroutine waits for their answers.

// Begin begins such a call, and does not wait; nil: the call is none for that, and nothing has happened. headers are those
// that a method may want to read, until Begin returns, false: only a server of gRPC knows what to say to them. from is the
// client's connection. via carries one call to a node; nil: it cannot do so at once.
type Begin func(ctx *callctx.Context, headers func(each func(name, value []byte)) bool, from *h2.Conn, request []byte, via func(cluster.NodeID) grpc.ClientConnInterface) unary.Turn

const (
	mostRequest = 16 << 10 // bytes of a request that is read in the turn
	mostAnswer  = 16 << 10 // the same of an answer
)

// ahead is a call whose call to a node is under way.
type ahead struct {
	frames *frames
	turn   client.Turn
	call   *unary.Call
	does   unary.Turn
}

// begun begins a call, if it is one of those; nil: it is not.
func (f *frames) begun(c *h2.Call, begin Begin) *unary.Call {
	message, whole := c.Message()
	if !whole || len(message) > mostRequest {
		return nil
	}
	a := &ahead{frames: f}
	a.turn.Most, a.turn.Ready, a.turn.Client = mostAnswer, a.ready, c.Client()
	a.call = f.port.Begin(c, func(ctx *callctx.Context) unary.Turn {
		a.does = begin(ctx, func(each func(name, value []byte)) bool { return unary.EachHeader(c, each) }, c.Client(), message, a.via)
		return a.does
	}, a.turn.Stop)
	if a.call != nil && !a.turn.Arm() {
		a.call.Go()
	}
	return a.call
}

// via is the way of the call to a node.
func (a *ahead) via(node cluster.NodeID) grpc.ClientConnInterface { return a.frames.via(node, &a.turn) }

// via is the way of a call to a node; nil: there is none at once.
func (f *frames) via(node cluster.NodeID, turn *client.Turn) grpc.ClientConnInterface {
	l := f.nodes[node]
	if l == nil {
		return nil
	}
	conn, err := l.up.Conn()
	if err != nil || !conn.Ready() {
		return nil
	}
	if conn.Tag == nil {
		conn.Tag = &tag{node: node}
	}
	if l.own == nil {
		l.own = client.Join(f.shard, l.up, f.server.deps.Target(l.node), func(conn *h2.Conn) { f.silent(node, conn) })
	}
	turn.Conn = l.own
	return turn
}

// ready goes on with the call.
func (a *ahead) ready(over bool) {
	if over {
		if answer, ok := a.turn.Octets(); ok && len(answer) <= mostAnswer && a.does.Here(answer) {
			a.call.Here()
			return
		}
	}
	a.call.Go()
}
