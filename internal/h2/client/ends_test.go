package client

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// While memory is short windows are small. A reader that is elsewhere when much comes gets all of it nevertheless.
func TestStreamsGoOnWhileMemoryIsShort(t *testing.T) {
	for _, size := range []int{1 << 10, 7 << 10, 20 << 10, 100 << 10} {
		piece, pieces := strings.Repeat("x", size), max(20, 2<<20/size)
		v := &service{stream: func(_ string, s grpc.ServerStream) error {
			for range pieces {
				if err := s.SendMsg(say(piece)); err != nil {
					return err
				}
			}
			return nil
		}}
		c := start(t, v)
		c.client.shard.Do(func(f *h2.Forwarder) { f.Tight(true) })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, streaming)
		if err != nil || s.SendMsg(say("go")) != nil {
			t.Fatal(err)
		}
		n := 0
		for ; err == nil; n++ {
			if n%8 == 0 {
				time.Sleep(2 * time.Millisecond) // the reader has something else to do
			}
			err = s.RecvMsg(new(text))
		}
		if n-1 != pieces || err != io.EOF {
			t.Errorf("pieces of %d bytes: %d of %d, then %v", size, n-1, pieces, err)
		}
	}
}

// A call that lasts ends with its context although nobody reads.
func TestTheEndOfACallThatLastsReachesTheNode(t *testing.T) {
	ended := make(chan struct{})
	v := &service{stream: func(in string, s grpc.ServerStream) error {
		err := s.SendMsg(say(in))
		<-s.Context().Done()
		close(ended)
		return err
	}}
	c := start(t, v)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, streaming, Lasts{})
	if err != nil || s.SendMsg(say("attached")) != nil || s.RecvMsg(new(text)) != nil {
		t.Fatal(err)
	}
	cancel()
	<-ended
}

// The same after an attempt that came to nothing.
func TestTheEndOfACallThatWasMadeAgainReachesTheNode(t *testing.T) {
	ended := make(chan struct{})
	v := &service{stream: func(in string, s grpc.ServerStream) error {
		err := s.SendMsg(say(in))
		<-s.Context().Done()
		close(ended)
		return err
	}}
	address := v.onTCP(t)
	var attempts atomic.Int64
	c := connect(t, nil, Target{Dial: func(ctx context.Context) (net.Conn, error) {
		if attempts.Add(1) == 1 {
			return nil, errors.New("not yet")
		}
		return dialTCP(address)(ctx)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, streaming, Lasts{}, grpc.WaitForReady(true))
	if err != nil || s.SendMsg(say("attached")) != nil || s.RecvMsg(new(text)) != nil {
		t.Fatal(err)
	}
	cancel()
	<-ended
}

// Whoever reads on behind the end of a stream is told of the end again.
func TestTheEndIsToldAgain(t *testing.T) {
	v := &service{stream: func(in string, s grpc.ServerStream) error {
		if err := s.SendMsg(say(in)); err != nil || in == "well" {
			return err
		}
		return status.Error(codes.Aborted, "not well")
	}}
	c := start(t, v)
	for in, want := range map[string]codes.Code{"well": codes.OK, "not well": codes.Aborted} {
		all, s, err := read(t.Context(), c, in)
		for range 3 {
			if len(all) != 1 || want == codes.OK && err != io.EOF || want != codes.OK && status.Code(err) != want {
				t.Errorf("%s: %q, %v", in, all, err)
			}
			err = s.RecvMsg(new(text))
		}
	}
}

// A call that waits for its next attempt is cancelled like any other.
func TestCancelledBetweenTwoAttempts(t *testing.T) {
	var attempts atomic.Int64
	var headers Headers
	v := &service{unary: func(context.Context, string) (string, error) { return "", nil }}
	address := v.onTCP(t)
	c := connect(t, nil, Target{Dial: func(ctx context.Context) (net.Conn, error) {
		if attempts.Add(1) < 3 {
			time.AfterFunc(20*time.Millisecond, headers.Cancel) // the pause is 50 ms
			return nil, errors.New("not yet")
		}
		return dialTCP(address)(ctx)
	}})
	err := c.Invoke(t.Context(), unary, say(""), new(text), grpc.WaitForReady(true), &headers)
	if e, ok := errors.AsType[*Error](err); !ok || e.Code() != codes.Canceled || !e.NotSent {
		t.Errorf("%v", err)
	}
}

// panicking is an answer that cannot be read.
type panicking struct{}

func (panicking) ReadMessage([]byte) error { panic("a fault") }

// Whoever recovers knows that the node had the call.
func TestACallThatPanicsWasSent(t *testing.T) {
	c := start(t, &service{unary: func(_ context.Context, in string) (string, error) { return in, nil }})
	var p peer.Peer
	func() {
		defer func() { _ = recover() }()
		err := c.Invoke(t.Context(), unary, say("x"), panicking{}, grpc.Peer(&p))
		t.Errorf("it ended with %v", err)
	}()
	if p.Addr == nil {
		t.Error("the call was sent, and has no peer")
	}
}
