// Package unary is the server side of calls of gRPC that have one request and end on a shard of package h2: the method runs where
// the call arrives, without a server of its own behind the data path.
//
// It owns such a call from Port.Take, in the shard's turn, to its answer: the request's bytes, the goroutine that
// runs the method, and the encoded answer, or a stream of them (Streaming). A call of Port.Begin has a goroutine only once it has to
// wait for something else than its node. What always holds: a method's context ends with its call; a panic of a
// method ends its call and nothing else; answers that come up together go out together, and large ones one after the
// other, so that no more of them waits for clients than half of what may; no more of a stream waits than
// h2.Config.Window; a call that it does not take is left as it was; Server.Close waits for every method.
package unary

import (
	"context"
	"encoding/base64"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Method runs a method that has one request, which decode reads, and one answer, as the
// Handler of a grpc.MethodDesc does. Its context is that of a call of gRPC.
type Method func(ctx context.Context, decode func(any) error) (answer any, err error)

// MaxRequest bounds the requests that are copied, in bytes: of larger ones the method has what the
// shard gathered, which is not worth a copy under its lock. They do not count there any more: the
// method is to count them, and be told from others by their length.
const MaxRequest = 64 << 10

const (
	// largeAnswer is what goes out one after the other, and waits while much waits for clients.
	largeAnswer = 256 << 10
	largeWait   = 10 * time.Millisecond
	// crewSize is how many goroutines are kept whose stacks have grown: copying stacks was
	// a tenth of the CPU of a small call.
	crewSize = 64
)

// ErrElsewhere says that a call is not taken: a server of gRPC has to serve it.
var ErrElsewhere = errors.New("h2/unary: the call is not taken")

// Server runs methods for the calls of some shards. The zero value is ready.
type Server struct{ crew crew }

// Close waits for the methods that run. The shards must have ended, and with them the contexts of the calls.
func (s *Server) Close() { s.crew.end() }

// Job is something that a goroutine of the server does.
type Job interface{ Serve() }

// Do has a goroutine do a job that is no call of gRPC. Not after Close.
func (s *Server) Do(j Job) { s.crew.do(j) }

// Port takes calls of one shard.
type Port struct {
	server *Server
	shard  *driver.Shard
	most   int           // bytes that may wait for clients: h2.Config.Buffered
	large  chan struct{} // holds one while a large answer goes out
}

// Port returns that of a shard. most is its h2.Config.Buffered.
func (s *Server) Port(shard *driver.Shard, most int) *Port {
	return &Port{server: s, shard: shard, most: most, large: make(chan struct{}, 1)}
}

// client is the other end of the connection that a call came over.
type client struct {
	from  uint64 // h2.Conn.Number of its connection
	user  uint32 // driver.User of its connection
	local bool   // user is known

	remote      net.Addr          // of the client; nil: unknown
	certificate *apps.Certificate // driver.Certificate of its connection
}

// Call is a call that was taken. It is what grpc.SetTrailer talks to.
type Call struct {
	port    *Port
	run     Method
	path    string // empty if the call began in a turn
	ticket  h2.Ticket
	ctx     context.Context
	cancel  context.CancelFunc // nil: begun is the context
	begun   callctx.Context    // of a call that was begun without a goroutine
	buf     *[]byte            // of the request, then of the answer
	message []byte
	client
	status h2.Status
	inline InlineCall // it was begun without a goroutine; nil
	here   bool       // it was answered in the turn
	stream *stream    // its answers are sent one by one; nil

	// Note is the method's, for whoever took the call: it may be read once the call has its answer.
	Note any
}

// Cancel ends the context of the method. It is to be called when the call is over (h2.Router.Done), and may be called again.
func (v *Call) Cancel() {
	v.stop()
	if v.here { // the forwarder has copied the answer, or nobody is told of it
		v.here = false
		v.recycle()
	}
}

var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 1<<10)
	return &b
}}

// keptAnswer is the largest buffer that is kept.
const keptAnswer = MaxRequest

// Take takes a call in the shard's turn, from h2.Router.Route: with h2.ErrMine it is taken, with ErrElsewhere it is
// not, and any other error is for Route to return.
func (p *Port) Take(c *h2.Call, run Method) (*Call, error) {
	if c.Compressed() {
		return nil, ErrElsewhere
	}
	if _, known := c.Announced(); !known {
		return nil, h2.ErrNeedMessage
	}
	message, whole := c.Message()
	if !whole {
		return nil, h2.ErrNeedWhole
	}
	headers, ok := Headers(c)
	if !ok {
		return nil, ErrElsewhere
	}
	return p.Serve(c, message, headers, run), h2.ErrMine
}

// Serve has a goroutine run a method for a call, of which Route returns h2.ErrMine, with its first message, or none, and those headers.
func (p *Port) Serve(c *h2.Call, message []byte, headers metadata.MD, run Method) *Call {
	v := p.newCall(c)
	v.run, v.path = run, string(c.Path())
	if len(message) > MaxRequest {
		v.message = c.Lend()
	} else {
		*v.buf = append((*v.buf)[:0], message...)
		v.message = *v.buf
	}
	v.start(c, grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(context.Background(), headers), v))
	p.server.crew.do((*serving)(v))
	return v
}

// serving is a call that a goroutine serves.
type serving Call

// Serve implements Job.
func (v *serving) Serve() { (*Call)(v).serve() }

// InlineCall is a call that was begun in the turn of its shard, and has no goroutine while it waits.
type InlineCall interface {
	// Context ends when the node's answer is no longer waited for.
	Context() *callctx.Context
	// Here reports whether Resume does not wait, when all bytes of an answer of a node are here, and that has ended well.
	Here(answer []byte) bool
	// Resume does the rest, and appends the encoded answer to b. The trailer alternates names and values.
	Resume(b []byte) (answer []byte, trailer []string, err error)
}

// Begin begins a call in the shard's turn. It calls begin with the call's context. If begin returns no
// InlineCall, the call is not taken and Begin returns nil. Otherwise Route must return h2.ErrMine, and
// Go or Here must be called, once. When the InlineCall's context ends, Go is called if stop allows it.
func (p *Port) Begin(c *h2.Call, begin func(ctx *callctx.Context) InlineCall, stop func() bool) *Call {
	v := p.newCall(c)
	if left, ok := c.Left(); ok {
		v.begun.Limit(left)
	}
	v.ctx = &v.begun
	v.inline = begin(&v.begun)
	if v.inline == nil {
		v.stop()
		v.recycle()
		return nil
	}
	p.server.crew.wg.Add(1) // until the rest is done
	v.inline.Context().Watch(func() {
		if stop() {
			v.Go()
		}
	})
	return v
}

func (p *Port) newCall(c *h2.Call) *Call {
	v := &Call{port: p, ticket: c.Ticket(), buf: buffers.Get().(*[]byte)}
	v.from = c.Client().Number()
	v.user, v.local = driver.User(c.Client())
	v.remote, v.certificate = driver.Remote(c.Client()), driver.Certificate(c.Client())
	return v
}

// start gives the call its context. ctx is a root: the call's end ends it (Cancel), and a parent would be a lock that all calls share.
func (v *Call) start(c *h2.Call, ctx context.Context) {
	if left, ok := c.Left(); ok {
		v.ctx, v.cancel = context.WithTimeout(ctx, left)
	} else {
		v.ctx, v.cancel = context.WithCancel(ctx)
	}
}

// stop ends the context.
func (v *Call) stop() {
	if v.cancel == nil {
		v.begun.Cancel(nil)
		return
	}
	v.cancel()
}

// Go has a goroutine do the rest of a call that was begun.
func (v *Call) Go() {
	v.inline.Context().Unwatch()
	v.port.server.crew.do((*serving)(v))
}

// Here does the rest of a call that was begun, in the shard's turn and within a method of an h2.Listener.
func (v *Call) Here() {
	v.inline.Context().Unwatch()
	if err := v.call(); err != nil {
		v.fail(err)
	}
	v.here = true
	v.port.shard.Later(v.ticket, &v.status)
	v.port.server.crew.wg.Done()
}

// Headers returns the headers of a call that a method may want to read: not gRPC's own. False:
// a server of gRPC knows what to say to them.
func Headers(c *h2.Call) (metadata.MD, bool) {
	all := metadata.MD{}
	ok := EachHeader(c, func(name, value []byte) {
		key := string(name)
		all[key] = append(all[key], string(value))
	})
	return all, ok
}

// EachHeader calls f with each of Headers, which are valid until f returns.
func EachHeader(c *h2.Call, f func(name, value []byte)) bool {
	ok := true
	c.Headers(func(name, value []byte) {
		switch {
		case string(name) == "content-type":
			ok = ok && (string(value) == "application/grpc" || string(value) == "application/grpc+proto")
		case string(name) == ":method":
			ok = ok && string(value) == "POST"
		case name[0] == ':', string(name) == "te", string(name) == "user-agent", string(name) == "grpc-timeout",
			string(name) == "grpc-encoding", string(name) == "grpc-accept-encoding":
		case len(name) > 4 && string(name[len(name)-4:]) == "-bin":
			// More than one value in one header, padding: gRPC's own knows.
			ok = false
		default:
			f(name, value)
		}
	})
	return ok
}

// Method implements grpc.ServerTransportStream.
func (v *Call) Method() string { return v.path }

// Request returns the request as it came. It is there until the method returns.
func (v *Call) Request() []byte { return v.message }

// Connection is a number that the connection of the client has and no other one of this process.
func (v *Call) Connection() uint64 { return v.from }

// User is the user that the client's program runs as; false: nobody knows.
func (v *Call) User() (uid uint32, ok bool) { return v.user, v.local }

// Certificate is what the client has shown by TLS, verified; nil: nothing.
func (v *Call) Certificate() *apps.Certificate { return v.certificate }

// Remote is the address of the client; nil: unknown.
func (v *Call) Remote() net.Addr { return v.remote }

// SetHeader implements grpc.ServerTransportStream. Headers go out with the answer.
func (v *Call) SetHeader(md metadata.MD) error {
	v.status.Header = pairs(v.status.Header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream, as SetHeader.
func (v *Call) SendHeader(md metadata.MD) error { return v.SetHeader(md) }

// SetTrailer implements grpc.ServerTransportStream.
func (v *Call) SetTrailer(md metadata.MD) error {
	v.status.Trailer = pairs(v.status.Trailer, md)
	return nil
}

func pairs(all []string, md metadata.MD) []string {
	for name, values := range md {
		for _, value := range values {
			if strings.HasSuffix(name, "-bin") {
				value = base64.RawStdEncoding.EncodeToString([]byte(value))
			}
			all = append(all, name, value)
		}
	}
	return all
}

func (v *Call) decode(into any) error {
	m, ok := into.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "a request is no %T", into)
	}
	if err := proto.Unmarshal(v.message, m); err != nil {
		return status.Errorf(codes.Internal, "the request cannot be decoded: %v", err)
	}
	return nil
}

// serve runs the method and answers the call.
func (v *Call) serve() {
	if v.inline != nil {
		defer v.port.server.crew.wg.Done()
	}
	if err := v.call(); err != nil {
		v.fail(err)
	}
	if len(v.status.Body) > largeAnswer {
		v.replyLarge()
		return
	}
	v.stop()
	v.port.shard.Together((*answering)(v))
}

// call runs the method. Most panics are caught further in, by code that can say what may have run.
func (v *Call) call() (err error) {
	defer func() {
		if p := recover(); p != nil {
			_ = panics.Caught("a call of the plain API", p)
			v.status = h2.Status{}
			err = status.Error(codes.Internal, "the sidecar failed inside the call, which may have been executed")
		}
	}()
	if v.inline != nil {
		var body []byte
		if body, v.status.Trailer, err = v.inline.Resume((*v.buf)[:0]); err == nil {
			*v.buf, v.status.Body = body, body
		}
		return err
	}
	answer, err := v.run(v.ctx, v.decode)
	if err == nil && v.stream == nil {
		err = v.encode(answer)
	}
	return err
}

func (v *Call) encode(answer any) error {
	m, ok := answer.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "an answer is no %T", answer)
	}
	body, err := proto.MarshalOptions{}.MarshalAppend((*v.buf)[:0], m)
	if err != nil {
		return status.Errorf(codes.Internal, "the answer cannot be encoded: %v", err)
	}
	*v.buf, v.status.Body = body, body
	return nil
}

func (v *Call) fail(err error) {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	v.status.Code, v.status.Message = int(s.Code()), s.Message()
	if p := s.Proto(); len(p.GetDetails()) > 0 {
		if details, err := proto.Marshal(p); err == nil { // else the client gets the message alone
			v.status.Trailer = append(v.status.Trailer, "grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(details))
		}
	}
}

// replyLarge sends a large answer when it is its turn and no more waits for clients than half of
// what may: beyond that half readers who take nothing are ended, so every answer gets its turn,
// and what else is on its way to clients has room. What is held of requests does not count: the calls
// that hold most of it are ended where room is needed.
func (v *Call) replyLarge() {
	p := v.port
	end := func() { p.shard.Do(func(f *h2.Forwarder) { f.End(v.ticket, &v.status) }) }
	select {
	case p.large <- struct{}{}:
		v.wait()
		end()
		<-p.large
	case <-v.ctx.Done(): // nobody waits for it any more
		end()
	}
	v.stop()
	v.recycle()
}

func (v *Call) wait() {
	timer := time.NewTicker(largeWait)
	defer timer.Stop()
	for v.port.shard.Stats().Answers > v.port.most/2 {
		select {
		case <-timer.C:
		case <-v.ctx.Done():
			return
		}
	}
}

// answering is a call whose answer goes out.
type answering Call

// Turn implements driver.Job. A call that nobody waits for any more needs no answer.
func (a *answering) Turn(f *h2.Forwarder) {
	v := (*Call)(a)
	f.End(v.ticket, &v.status)
	v.recycle()
}

func (v *Call) recycle() {
	if cap(*v.buf) <= keptAnswer {
		buffers.Put(v.buf)
	}
}

// crew is the goroutines that run methods.
type crew struct {
	wg sync.WaitGroup
	mu sync.Mutex // guards what follows

	idle []chan Job // of goroutines that wait, the last to be called first
	over bool
}

// do has a goroutine do a job. Not after end.
func (c *crew) do(j Job) {
	c.mu.Lock()
	n := len(c.idle)
	if n == 0 {
		c.wg.Add(1)
		c.mu.Unlock()
		go c.work(j)
		return
	}
	next := c.idle[n-1]
	c.idle = c.idle[:n-1]
	c.mu.Unlock()
	next <- j
}

func (c *crew) work(j Job) {
	defer c.wg.Done()
	next := make(chan Job, 1)
	for j != nil {
		j.Serve()
		c.mu.Lock()
		if c.over || len(c.idle) == crewSize {
			c.mu.Unlock()
			return
		}
		c.idle = append(c.idle, next)
		c.mu.Unlock()
		j = <-next
	}
}

// end ends the goroutines, once their calls have been served.
func (c *crew) end() {
	c.mu.Lock()
	c.over = true
	for _, next := range c.idle {
		close(next)
	}
	c.idle = nil
	c.mu.Unlock()
	c.wg.Wait()
}
