package client

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
)

// Join returns a Conn over a connection of a shard that somebody else runs, who closes both. silent hears, in the shard's turn, of a
// connection that was given up as silent under a call; nil: nobody does.
func Join(shard *driver.Shard, up *driver.Upstream, t Target, silent func(*h2.Conn)) *Conn {
	c := newConn(&Client{shard: shard}, up, t)
	c.silent = silent
	return c
}

// InlineStream is a grpc.ClientConnInterface for one stream, whose request goes out in the turn of
// Conn's shard in which SendMsg is called: that does not wait. Nobody must receive before Ready is
// called, or Arm has said so. Then the stream is one like any other; in a turn of the shard it may be
// read if it is over.
type InlineStream struct {
	Conn   *Conn
	Client *h2.Conn        // for whose call it is: see h2.Request; nil: nobody's
	Most   int             // bytes of an answer after which Ready is called although more is to come
	Ready  func(over bool) // called once. over: the answer has ended, and this is a method of an h2.Listener

	call  *call
	mu    sync.Mutex // guards what follows
	sent  bool
	armed bool
	told  bool
	held  bool // from Hold to Arm
	left  bool // Stop was called meanwhile
}

// Invoke implements grpc.ClientConnInterface.
func (*InlineStream) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return &Error{Status: status.New(codes.Unimplemented, "h2/client: only a stream begins in a turn"), NotSent: true, Here: true}
}

// NewStream implements grpc.ClientConnInterface.
func (t *InlineStream) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := t.Conn.newStream(ctx, desc, method, opts, t)
	if err == nil {
		t.call = (*call)(s.(*stream))
	}
	return s, err
}

// Arm has Ready called when it is time. False: Ready is not called, because it is time already,
// nothing was sent, or Stop was called since Hold. Call Arm in the turn in which the call is sent.
func (t *InlineStream) Arm() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told {
		return true // by Stop
	}
	t.held = false
	if t.left || t.call == nil || !t.sent || t.call.ready() {
		t.told = true
		return false
	}
	t.armed = true
	return true
}

// Hold precedes the sending of a call in a later turn than that in which it began. From Hold to Arm, Stop returns false; if Stop was called
// meanwhile, so does Arm. Hold returns false if Stop was called before: then the call must not be sent.
func (t *InlineStream) Hold() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = !t.told
	return t.held
}

// Stop keeps Ready from being called. False: it was called or is being called, or the call is held; in that case Arm returns false.
func (t *InlineStream) Stop() bool { return t.claim(true) }

// claim has the caller be the one that goes on with the call.
func (t *InlineStream) claim(unarmed bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		t.left = t.left || unarmed
		return false
	}
	if t.told || !t.armed && !unarmed {
		return false
	}
	t.told = true
	return true
}

// Bytes are the messages of the answer that are here, with their prefixes; ok: it has ended well.
func (t *InlineStream) Answer() (b []byte, ok bool) {
	k := t.call
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.in.b, k.over && k.err == nil
}

// beginHere sends the call in the turn of its shard.
func (k *call) beginHere() {
	k.prepare()
	(*starting)(k).Turn(k.conn.client.shard.Forwarder())
	k.inline.mu.Lock()
	k.inline.sent = true
	k.inline.mu.Unlock()
}

// ready reports whether it is time for InlineStream.Ready.
func (k *call) ready() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.over || len(k.in.b) > k.inline.Most
}

// tellInline calls Ready if it is time. inTurn: this is the shard's turn.
func (k *call) tellInline(inTurn bool) {
	if k.inline == nil || !k.ready() || !k.inline.claim(false) {
		return
	}
	k.mu.Lock()
	over := k.over && inTurn
	k.mu.Unlock()
	k.inline.Ready(over)
}
