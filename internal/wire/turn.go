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
// client's connection. via is for one call to a node.
type Begin func(ctx *callctx.Context, headers func(each func(name, value []byte)) bool, from *h2.Conn, request []byte, via Via) unary.Turn

// Via is the turn in which a call is begun, for its call to a node.
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
	mostAnswer  = 16 << 10 // the same of an answer
)

// begun is what a call that is begun in a turn has, of whatever protocol. It implements Via.
type begun struct {
	frames *frames
	turn   client.Turn
	rest   interface{ goOn() } // has a goroutine do the rest of the call
	send   func()              // of Park; nil: the call waits for nothing
}

// To implements Via.
func (b *begun) To(node cluster.NodeID) grpc.ClientConnInterface { return b.frames.via(node, &b.turn) }

// Park implements Via.
func (b *begun) Park(send func()) { b.send = send }

// Wake implements Via.
func (b *begun) Wake() { b.frames.post(mail{woken: b}) }

// wait is called when the call was begun.
func (b *begun) wait() {
	if b.send == nil && !b.turn.Arm() {
		b.rest.goOn()
	}
}

// goesOn sends the call to the node, which was parked.
func (b *begun) goesOn() {
	if !b.turn.Hold() {
		return // a goroutine does the rest already
	}
	armed := false
	defer func() {
		if !armed { // also after a panic, which is the shard's
			b.rest.goOn()
		}
	}()
	b.send()
	armed = b.turn.Arm()
}

// ahead is such a call of gRPC.
type ahead struct {
	begun
	call *unary.Call
	does unary.Turn
}

// begun begins a call, if it is one of those; nil: it is not.
func (f *frames) begun(c *h2.Call, begin Begin) *unary.Call {
	message, whole := c.Message()
	if !whole || len(message) > mostRequest {
		return nil
	}
	a := new(ahead)
	a.frames, a.rest = f, a
	a.turn.Most, a.turn.Ready, a.turn.Client = mostAnswer, a.ready, c.Client()
	a.call = f.port.Begin(c, func(ctx *callctx.Context) unary.Turn {
		a.does = begin(ctx, func(each func(name, value []byte)) bool { return unary.EachHeader(c, each) }, c.Client(), message, a)
		return a.does
	}, a.turn.Stop)
	if a.call != nil {
		a.wait()
	}
	return a.call
}

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
			a.frames.inTurn.Store(true) // the call that gets the session of this one is sent in this turn
			a.call.Here()
			return
		}
	}
	a.goOn()
}

func (a *ahead) goOn() { a.call.Go() }
