// Package client makes gRPC calls of this process to nodes, on package h2: unary ones, and those with one request
// and a stream of answers. An InlineStream begins one of the latter without a goroutine that waits for it.
//
// It owns what is between a goroutine that calls and the shard that has the connections: the request
// in wire form, the messages of the answer until they are read, and the wait. What always holds: a
// call costs its goroutine one wake-up for what comes with one read; the caller's deadline is told to
// the node, and when its context ends while the caller waits, or of a call that lasts, the node's
// stream is reset; what is not read holds back its own stream and no other, and counts against the
// shard's memory; a call is sent again only if surely no node has seen it. Bytes of a message are good
// until the next one is read.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
)

// Client has the connections. It is safe for concurrent use.
type Client struct {
	shard *driver.Shard
	stop  context.CancelFunc
	ended chan struct{}
}

// New returns a client, whose goroutines run until Close.
func New(config h2.Config) *Client {
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{shard: driver.New(config, nil), stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		_ = c.shard.Run(ctx) // it returns nil
	}()
	return c
}

// Close ends every connection and waits for all goroutines. Calls that are open fail.
func (c *Client) Close() {
	c.stop()
	<-c.ended
}

// Shard is what has the connections, for whoever shows or watches it.
func (c *Client) Shard() *driver.Shard { return c.shard }

// Target is where a Conn leads.
type Target struct {
	Dial      func(context.Context) (net.Conn, error)
	TLS       *tls.Config   // nil: none is spoken
	Tag       any           // of its connections: see h2.Conn.Tag
	Authority string        // host that calls name
	UserAgent string        // name of the program, in every call
	Timeout   time.Duration // of one attempt to connect; 0: 5 s
	Message   int           // bytes that a message may have, either way
	Silent    func()        // the node does not answer a ping: Shelve or Close is to follow. nil: the connection ends. It must not block
}

// Conn is the connection to one node, made when it is needed and again when it is lost. It is a
// grpc.ClientConnInterface that knows the options grpc.Peer, grpc.Trailer, grpc.Header, grpc.WaitForReady and those of this
// package, and ignores others.
type Conn struct {
	client *Client
	target Target
	up     *driver.Upstream // in the shard's turn
	ready  atomic.Bool      // a call has gone out, and no call was refused since

	// hears of one that is silent, in the shard's turn, when a call ends for that; nil: its
	// Upstream tells
	silent func(*h2.Conn)
	mu     sync.Mutex                            // serialises writers of paths
	paths  atomic.Pointer[map[string]*h2.Fields] // headers that all calls of a method have
}

// Connect returns a connection. Nothing is dialled before the first call.
func (c *Client) Connect(t Target) *Conn {
	up := c.shard.Upstream(t.Dial, t.TLS)
	up.Timeout, up.Silent, up.Tag = t.Timeout, t.Silent, t.Tag
	return newConn(c, up, t)
}

func newConn(c *Client, up *driver.Upstream, t Target) *Conn {
	conn := &Conn{client: c, target: t, up: up}
	conn.paths.Store(&map[string]*h2.Fields{})
	return conn
}

// Close ends the connection and the calls on it.
func (c *Conn) Close() { c.client.shard.Do(func(*h2.Forwarder) { c.up.Cut() }) }

// Ask pings the node: it is silent if it does not answer.
func (c *Conn) Ask() { c.client.shard.Do(func(*h2.Forwarder) { c.up.Ask() }) }

// Shelve has the connection take no more calls; those on it go on, and nothing looks after it any more.
func (c *Conn) Shelve() { c.client.shard.Do(func(*h2.Forwarder) { c.up.Shelve() }) }

// Hurry has the next attempt to connect made at once.
func (c *Conn) Hurry() { c.client.shard.Do(func(*h2.Forwarder) { c.up.Hurry() }) }

// maxPaths bounds the methods whose headers are kept.
const maxPaths = 64

// fields returns the headers that all calls of a method have.
func (c *Conn) fields(path string) *h2.Fields {
	if f := (*c.paths.Load())[path]; f != nil {
		return f
	}
	scheme := "http"
	if c.target.TLS != nil {
		scheme = "https"
	}
	f := h2.NewFields(":method", "POST", ":scheme", scheme, ":path", path, ":authority", c.target.Authority,
		"content-type", "application/grpc", "user-agent", c.target.UserAgent, "te", "trailers")
	c.mu.Lock()
	defer c.mu.Unlock()
	old := *c.paths.Load()
	if len(old) >= maxPaths {
		return f
	}
	next := make(map[string]*h2.Fields, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	next[path] = f
	c.paths.Store(&next)
	return f
}

// Error is why a call failed, besides what its context says. It is a status of gRPC.
type Error struct {
	*status.Status
	NotSent bool // surely no node has seen the call
	Here    bool // this process ended the call when it had begun, and no node is to blame
	Silent  bool // its connection was shelved
	Reset   bool // the node reset the stream: it may have done what was asked, whatever the code

	Lost uint64 // the number of the connection that ended under the call, see h2.Conn.Number; 0: none did
}

// Error says what a status of gRPC does.
func (e *Error) Error() string { return e.Status.Err().Error() }

// GRPCStatus satisfies what package status looks for.
func (e *Error) GRPCStatus() *status.Status { return e.Status }

// options are the options of a call.
type options struct {
	headers *Headers
	peer    *grpc.PeerCallOption
	header  *grpc.HeaderCallOption
	trailer *grpc.TrailerCallOption
	patient bool // it waits for a connection as long as its context allows
	lasts   bool
}

func (o *options) read(all []grpc.CallOption) {
	for _, option := range all {
		switch x := option.(type) {
		case *Headers:
			o.headers = x
		case Lasts:
			o.lasts = true
		case grpc.PeerCallOption:
			o.peer = &x
		case grpc.HeaderCallOption:
			o.header = &x
		case grpc.TrailerCallOption:
			o.trailer = &x
		case grpc.FailFastCallOption:
			o.patient = !x.FailFast
		}
	}
}

// Headers is an option: headers of a call in place of the outgoing metadata of its context. Clients of
// grpc-go ignore it.
//
// Cancel ends the call that has it, from any goroutine, as the end of its context would.
type Headers struct {
	grpc.EmptyCallOption
	Fields *h2.Fields // of many calls
	Once   []string   // names, in lower case, and values in turn, of this one

	// Arrived is called for each piece of the answer, in the turn of the shard: it must neither block nor call the client. Nil: no call.
	Arrived func()

	call      atomic.Pointer[call]
	cancelled atomic.Bool
}

// Cancel ends the call, once it has begun, if it is not over.
func (h *Headers) Cancel() {
	h.cancelled.Store(true)
	if k := h.call.Load(); k != nil {
		k.abort()
	}
}

// Lasts is an option: the call goes on when its connection is shelved. Clients of grpc-go ignore it.
type Lasts struct{ grpc.EmptyCallOption }

// Sender is what a call may send in place of a proto.Message.
type Sender interface {
	// AppendMessage appends the message in wire form.
	AppendMessage(b []byte) ([]byte, error)
}

// Receiver is what a call may receive in place of a proto.Message.
type Receiver interface {
	// ReadMessage reads a message, which is good until the next one of the call is read, or the call ends.
	ReadMessage(p []byte) error
}

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	k, err := c.newCall(ctx, method, opts, nil)
	if err != nil {
		return err
	}
	defer k.tell() // also after a panic: what was sent may have run
	k.whole = true
	if err = k.send(args); err == nil {
		err = k.receive(reply)
	}
	return err
}

// NewStream implements grpc.ClientConnInterface, for streams with one request. Without ServerStreams
// the answer is one message, as that of Invoke.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.newStream(ctx, desc, method, opts, nil)
}

func (c *Conn) newStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts []grpc.CallOption,
	turn *InlineStream) (grpc.ClientStream, error) {
	if desc.ClientStreams {
		return nil, &Error{Status: status.New(codes.Unimplemented, "h2/client: a stream of requests"), NotSent: true, Here: true}
	}
	k, err := c.newCall(ctx, method, opts, turn)
	if err != nil {
		return nil, err
	}
	k.whole = !desc.ServerStreams
	return (*stream)(k), nil
}

var errTwice = errors.New("h2/client: the call has sent its request")
