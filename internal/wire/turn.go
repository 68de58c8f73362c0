package wire

import (
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
)

// Calls of the plain API that are begun in the turn of the shard where they arrive, and whose calls to nodes go out over the shard's own
// connections: in that turn, or in a later one if the call waits for a session. No goroutine waits for the session or the answer.

// Begin begins a call in the turn, and does not wait. nil: the call cannot be begun so, and nothing has happened. headers are those
// that a method may want to read, until Begin returns, false: only a server of gRPC knows what to say to them. from is the
// client's connection. via is for one call to a node.
type Begin func(ctx *callctx.Context, headers func(each func(name, value []byte)) bool, from *h2.Conn, request []byte,
	via Via) unary.InlineCall

// Via sends the one call to a node that a call begun in a turn makes.
type Via interface {
	// To is the way of that call to a node; nil: it cannot go out at once.
	To(cluster.NodeID) grpc.ClientConnInterface
	// Park says that the call has to wait for something. After Wake, send is called in a turn, once, unless the call's context ends before.
	Park(send func())
	// Wake is called on any goroutine, and does not block.
	Wake()
}

const (
	mostRequest = 16 << 10 // bytes of a request that is read in the turn
	mostAnswer  = 16 << 10 // bytes of an answer
)

// inlineState is the state that calls begun in a turn share, over gRPC and HTTP. It implements Via.
type inlineState struct {
	frames *frames
	stream client.InlineStream
	rest   interface{ toGoroutine() } // has a goroutine do the rest of the call
	send   func()                     // of Park; nil: the call waits for nothing
}

// To implements Via.
func (b *inlineState) To(node cluster.NodeID) grpc.ClientConnInterface {
	return b.frames.via(node, &b.stream)
}

// Park implements Via.
func (b *inlineState) Park(send func()) { b.send = send }

// Wake implements Via.
func (b *inlineState) Wake() { b.frames.post(mail{woken: b}) }

// wait arms the call, or leaves it parked. If the rest can be done already, or nothing was sent, a goroutine does it.
func (b *inlineState) wait() {
	if b.send == nil && !b.stream.Arm() {
		b.rest.toGoroutine()
	}
}

// sendParked sends a parked call to its node, at the end of a turn.
func (b *inlineState) sendParked() {
	if !b.stream.Hold() {
		return // a goroutine does the rest already
	}
	armed := false
	defer func() {
		if !armed { // also after a panic, which is the shard's
			b.rest.toGoroutine()
		}
	}()
	b.send()
	armed = b.stream.Arm()
}

// ahead is a call of gRPC that was begun in a turn.
type ahead struct {
	inlineState
	call *unary.Call
	does unary.InlineCall
}

// begun begins a call of the plain API. nil: it cannot be begun in the turn.
func (f *frames) begun(c *h2.Call, begin Begin) *unary.Call {
	message, whole := c.Message()
	if !whole || len(message) > mostRequest {
		return nil
	}
	a := new(ahead)
	a.frames, a.rest = f, a
	a.stream.Most, a.stream.Ready, a.stream.Client = mostAnswer, a.ready, c.Client()
	a.call = f.port.Begin(c, func(ctx *callctx.Context) unary.InlineCall {
		a.does = begin(ctx, func(each func(name, value []byte)) bool { return unary.EachHeader(c, each) }, c.Client(), message, a)
		return a.does
	}, a.stream.Stop)
	if a.call != nil {
		a.wait()
	}
	return a.call
}

// via is the way of a call to a node; nil: there is none at once.
func (f *frames) via(node cluster.NodeID, turn *client.InlineStream) grpc.ClientConnInterface {
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
		l.own = client.Join(f.shard, l.up, f.server.deps.Target(l.node), func(conn *h2.Conn) { f.server.silent(node, conn) })
	}
	turn.Conn = l.own
	return turn
}

// ready goes on with the call.
func (a *ahead) ready(over bool) {
	if over {
		if answer, ok := a.stream.Answer(); ok && len(answer) <= mostAnswer && a.does.Here(answer) {
			a.frames.inTurn.Store(true) // the call that gets the session of this one is sent in this turn
			a.call.Here()
			return
		}
	}
	a.toGoroutine()
}

func (a *ahead) toGoroutine() { a.call.Go() }
