package wire

import (
	"context"
	"encoding/base64"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Unary runs a method that has one request, which decode reads, and one answer, as the
// Handler of a grpc.MethodDesc does. Its context is that of a call of gRPC.
type Unary func(ctx context.Context, decode func(any) error) (answer any, err error)

const (
	// visitBytes bounds the requests that are served without the server in this process:
	// larger ones are not worth a copy under the lock of the shard.
	visitBytes = 64 << 10
	// largeAnswer is what goes out one after the other, and waits while much waits for clients.
	largeAnswer = 256 << 10
	largeWait   = 10 * time.Millisecond
	// crewSize is how many goroutines are kept whose stacks have grown: copying stacks was
	// a tenth of the CPU of a small call.
	crewSize = 64
)

// visit is a call of the plain API that a goroutine of this package runs: the server in
// this process would have it decoded, handed over and encoded once more as frames, which
// is more than the call itself costs. It is what grpc.SetTrailer talks to.
type visit struct {
	f       *frames
	run     Unary
	path    string
	ticket  h2.Ticket
	ctx     context.Context
	cancel  context.CancelFunc
	buf     *[]byte // of the request, then of the answer
	message []byte
	size    int // of message
	status  h2.Status
}

var visitBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 4<<10)
	return &b
}}

// keptAnswer is the largest buffer that is kept.
const keptAnswer = visitBytes

// visit takes over a call of the server in this process, or says where else it goes.
func (f *frames) visit(c *h2.Call, k *call) (*h2.Conn, error) {
	run := f.server.deps.Unary[string(c.Path())]
	if run == nil || c.Compressed() {
		return f.local.Conn()
	}
	switch n, known := c.Announced(); {
	case !known:
		return nil, h2.ErrNeedMessage
	case n > visitBytes:
		return f.local.Conn()
	}
	message, whole := c.Message()
	if !whole {
		return nil, h2.ErrNeedWhole
	}
	headers, ok := headersOf(c)
	if !ok {
		return f.local.Conn()
	}
	f.serve(c, k, message, headers, run)
	return nil, h2.ErrMine
}

// serve has a goroutine run a method for a call, of which Route returns ErrMine.
func (f *frames) serve(c *h2.Call, k *call, message []byte, headers metadata.MD, run Unary) {
	v := &visit{f: f, run: run, path: string(c.Path()), ticket: c.Ticket(), buf: visitBuffers.Get().(*[]byte)}
	*v.buf = append((*v.buf)[:0], message...)
	v.message, v.size = *v.buf, len(message)
	// A root: the call's end ends it (frames.Done), and a parent would be a lock that all calls share.
	ctx := grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(context.Background(), headers), v)
	if left, ok := c.Left(); ok {
		v.ctx, v.cancel = context.WithTimeout(ctx, left)
	} else {
		v.ctx, v.cancel = context.WithCancel(ctx)
	}
	k.visit = v
	f.server.crew.do(v)
}

// headersOf returns the headers that a method may want to read: not gRPC's own. False:
// the server in this process knows what to say to them.
func headersOf(c *h2.Call) (metadata.MD, bool) {
	all, ok := metadata.MD{}, true
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
			key := string(name)
			all[key] = append(all[key], string(value))
		}
	})
	return all, ok
}

// Method implements grpc.ServerTransportStream.
func (v *visit) Method() string { return v.path }

// RequestSize is how many octets the request has.
func (v *visit) RequestSize() int { return v.size }

// SetHeader implements grpc.ServerTransportStream. Headers go out with the answer.
func (v *visit) SetHeader(md metadata.MD) error {
	v.status.Header = pairs(v.status.Header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream, as SetHeader.
func (v *visit) SendHeader(md metadata.MD) error { return v.SetHeader(md) }

// SetTrailer implements grpc.ServerTransportStream.
func (v *visit) SetTrailer(md metadata.MD) error {
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

func (v *visit) decode(into any) error {
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
func (v *visit) serve() {
	if err := v.call(); err != nil {
		v.fail(err)
	}
	if len(v.status.Body) > largeAnswer {
		v.replyLarge()
		return
	}
	v.cancel()
	v.f.reply(v)
}

// call runs the method. Most panics are caught further in, by who can say what may have run.
func (v *visit) call() (err error) {
	defer func() {
		if p := recover(); p != nil {
			_ = panics.Caught("a call of the plain API", p)
			v.status = h2.Status{}
			err = status.Error(codes.Internal, "the sidecar failed inside the call, which may have been executed")
		}
	}()
	answer, err := v.run(v.ctx, v.decode)
	if err == nil {
		err = v.encode(answer)
	}
	return err
}

func (v *visit) encode(answer any) error {
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

func (v *visit) fail(err error) {
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
func (v *visit) replyLarge() {
	f := v.f
	select {
	case f.large <- struct{}{}:
		v.wait()
		f.end(v)
		<-f.large
	case <-v.ctx.Done(): // nobody waits for it any more
		f.end(v)
	}
	v.cancel()
	v.recycle()
}

func (v *visit) wait() {
	timer := time.NewTicker(largeWait)
	defer timer.Stop()
	for v.f.shard.Stats().Answers > v.f.server.h2.Buffered/2 {
		select {
		case <-timer.C:
		case <-v.ctx.Done():
			return
		}
	}
}

// end answers calls; those that nobody waits for any more need none.
func (f *frames) end(all ...*visit) {
	f.shard.Do(func(e *h2.Forwarder) {
		for _, v := range all {
			e.End(v.ticket, &v.status)
		}
	})
}

func (v *visit) recycle() {
	if cap(*v.buf) <= keptAnswer {
		visitBuffers.Put(v.buf)
	}
}

// replies are answers on the way to their clients.
type replies struct {
	mu    sync.Mutex // guards what follows
	all   []*visit
	spare []*visit
	busy  bool // somebody sends
}

// reply sends an answer. Answers that come up together go out together: whoever is first
// lets the others come, and sends what there is.
func (f *frames) reply(v *visit) {
	r := &f.out
	r.mu.Lock()
	r.all = append(r.all, v)
	first := !r.busy
	r.busy = true
	r.mu.Unlock()
	if !first {
		return
	}
	runtime.Gosched()
	for {
		r.mu.Lock()
		all := r.all
		if len(all) == 0 {
			r.busy = false
			r.mu.Unlock()
			return
		}
		r.all, r.spare = r.spare, nil
		r.mu.Unlock()
		f.end(all...)
		for i, v := range all {
			v.recycle()
			all[i] = nil
		}
		r.mu.Lock()
		r.spare = all[:0]
		r.mu.Unlock()
	}
}

// crew is the goroutines that serve visits.
type crew struct {
	wg sync.WaitGroup
	mu sync.Mutex // guards what follows

	idle []chan *visit // of those that wait, the last to be called first
	over bool
}

// do has a goroutine serve a visit. Not after end.
func (c *crew) do(v *visit) {
	c.mu.Lock()
	n := len(c.idle)
	if n == 0 {
		c.wg.Add(1)
		c.mu.Unlock()
		go c.work(v)
		return
	}
	next := c.idle[n-1]
	c.idle = c.idle[:n-1]
	c.mu.Unlock()
	next <- v
}

func (c *crew) work(v *visit) {
	defer c.wg.Done()
	next := make(chan *visit, 1)
	for v != nil {
		v.serve()
		c.mu.Lock()
		if c.over || len(c.idle) == crewSize {
			c.mu.Unlock()
			return
		}
		c.idle = append(c.idle, next)
		c.mu.Unlock()
		v = <-next
	}
}

// end ends the goroutines, once their visits have ended.
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
