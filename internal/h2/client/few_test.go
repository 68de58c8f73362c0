package client

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// Where a node allows few streams on a connection and those are taken by calls that last, others wait for a further connection: also
// if that takes several attempts, and if more calls that last came first while it was made.
func TestCallsGoWhereThereIsRoom(t *testing.T) {
	for name, tc := range map[string]struct {
		refused int64 // further connections that cannot be made
		slow    time.Duration
		streams int // streams that last
	}{
		"after attempts that fail":  {refused: 3, streams: 2},
		"beside others that last":   {slow: 100 * time.Millisecond, streams: 5},
		"where both is so":          {refused: 2, slow: 20 * time.Millisecond, streams: 4},
		"at a bound of connections": {streams: 15},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			defer close(over)
			v := &service{
				unary: func(_ context.Context, in string) (string, error) { return in, nil },
				stream: func(in string, s grpc.ServerStream) error {
					err := s.SendMsg(say(in))
					<-over
					return err
				},
			}
			address := v.onTCP(t, grpc.MaxConcurrentStreams(2))
			var dials atomic.Int64
			c := connect(t, nil, Target{Dial: func(ctx context.Context) (net.Conn, error) {
				if n := dials.Add(1); n > 1 {
					time.Sleep(tc.slow)
					if n <= 1+tc.refused {
						return nil, errors.New("not yet")
					}
				}
				return dialTCP(address)(ctx)
			}})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := c.Invoke(ctx, unary, say("first"), new(text)); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 100)
			for range tc.streams {
				go func() {
					s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, streaming, Lasts{})
					if err == nil {
						err = s.SendMsg(say("attached"))
					}
					if err == nil {
						err = s.RecvMsg(new(text))
					}
					done <- err
				}()
			}
			time.Sleep(20 * time.Millisecond) // they are first
			for range 3 {
				go func() { done <- c.Invoke(ctx, unary, say("hello"), new(text)) }()
			}
			for range tc.streams + 3 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		})
	}
}
