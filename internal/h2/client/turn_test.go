package client

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// turned is a call that was begun in a turn.
type turned struct {
	turn  InlineStream
	rpc   grpc.ClientStream
	armed bool
	sent  error
	ready chan bool // over, of Ready
}

// inTurn begins a call in the turn of the connection's shard, which is there.
func inTurn(ctx context.Context, t *testing.T, c *Conn, request string, most int, before func(*Headers)) *turned {
	t.Helper()
	if err := c.Invoke(ctx, "/test.S/Unary", say(""), new(text)); err != nil {
		t.Fatal(err)
	}
	x := &turned{ready: make(chan bool, 1)}
	x.turn = InlineStream{Conn: Join(c.client.shard, c.up, c.target, nil), Most: most, Ready: func(over bool) { x.ready <- over }}
	var headers Headers
	if before != nil {
		before(&headers)
	}
	c.client.shard.Do(func(*h2.Forwarder) {
		x.rpc, x.sent = x.turn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/test.S/Stream", &headers)
		if x.sent == nil {
			x.sent = x.rpc.SendMsg(say(request))
		}
		x.armed = x.turn.Arm()
	})
	return x
}

// all receives what is left of the answer.
func (x *turned) all() (got []string, err error) {
	for {
		m := new(text)
		if err := x.rpc.RecvMsg(m); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return got, err
		}
		got = append(got, m.Value)
	}
}

// What is begun in a turn of the shard has its answer, or its end, as a call of a goroutine has.
//
// Long: it is a flat list of cases on one connection.
func TestTurn(t *testing.T) {
	release := make(chan struct{})
	hold := sync.OnceFunc(func() { close(release) })
	t.Cleanup(hold)
	v := &service{
		unary: func(context.Context, string) (string, error) { return "", nil },
		stream: func(in string, s grpc.ServerStream) error {
			switch in {
			case "refused":
				return status.Error(codes.NotFound, "no")
			case "held for ever":
				<-s.Context().Done()
				return s.Context().Err()
			case "held":
				select {
				case <-release:
				case <-s.Context().Done():
					return s.Context().Err()
				}
			}
			for range 3 {
				if err := s.SendMsg(say(in)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn := connect(t, nil, Target{Dial: dialTCP(v.onTCP(t)), Message: 64 << 20})
	for _, c := range []struct {
		name, request string
		most          int
		over, well    bool
		code          codes.Code
	}{
		{"answered", "a", 1 << 10, true, true, codes.OK},
		{"refused", "refused", 1 << 10, true, false, codes.NotFound},
		{"too_much_to_wait_for", strings.Repeat("a", 10<<10), 1 << 10, false, false, codes.OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := inTurn(ctx, t, conn, c.request, c.most, nil)
			if x.sent != nil || !x.armed {
				t.Fatalf("%v; armed: %t", x.sent, x.armed)
			}
			over := <-x.ready
			answer, well := x.turn.Answer()
			if whole := over && len(answer) > c.most; c.over != over && !whole || c.over && well != c.well {
				t.Errorf("over: %t, well: %t, %d bytes", over, well, len(answer))
			}
			if x.turn.Stop() {
				t.Error("it was stopped after Ready")
			}
			got, err := x.all()
			if status.Code(err) != c.code || c.code == codes.OK && strings.Join(got, "") != strings.Repeat(c.request, 3) {
				t.Errorf("%d messages, %v", len(got), err)
			}
		})
	}
	// Nobody has a turn to tell the shard what was read.
	t.Run("read_in_a_turn", func(t *testing.T) {
		request := strings.Repeat("a", 30<<10)
		x := inTurn(ctx, t, conn, request, 1<<20, nil)
		if over := <-x.ready; !over {
			t.Fatal("it is not over")
		}
		conn.client.shard.Do(func(*h2.Forwarder) {
			if got, err := x.all(); err != nil || len(got) != 3 {
				t.Errorf("%d messages, %v", len(got), err)
			}
		})
	})
	t.Run("stopped", func(t *testing.T) {
		x := inTurn(ctx, t, conn, "held", 1<<10, nil)
		if !x.armed || !x.turn.Stop() || x.turn.Stop() {
			t.Error("it is to be stopped once")
		}
		hold()
		if got, err := x.all(); err != nil || len(got) != 3 {
			t.Errorf("%q, %v", got, err)
		}
		if len(x.ready) > 0 {
			t.Error("Ready was called")
		}
	})
	t.Run("stopped_while_it_is_sent", func(t *testing.T) {
		x := &turned{
			turn: InlineStream{Conn: Join(conn.client.shard, conn.up, conn.target, nil), Ready: func(bool) { t.Error("Ready was called") }},
		}
		conn.client.shard.Do(func(*h2.Forwarder) {
			if !x.turn.Hold() {
				t.Error("it cannot be held")
			}
			rpc, err := x.turn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/test.S/Stream", new(Headers))
			if err == nil {
				err = rpc.SendMsg(say("held for ever"))
			}
			if x.rpc = rpc; err != nil {
				t.Error(err)
			}
			if x.turn.Stop() || x.turn.Arm() {
				t.Error("it was stopped while it was sent, or is armed after that")
			}
		})
		if x.turn.Stop() {
			t.Error("it was stopped twice")
		}
	})
	t.Run("stopped_before_it_is_sent", func(t *testing.T) {
		x := new(InlineStream)
		if !x.Stop() || x.Hold() {
			t.Error("what was stopped is sent")
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		var headers *Headers
		x := inTurn(ctx, t, conn, "held for ever", 0, func(h *Headers) { headers = h })
		if !x.armed {
			t.Fatal("it is not waited for")
		}
		headers.Cancel()
		<-x.ready
		if _, err := x.all(); status.Code(err) != codes.Canceled {
			t.Errorf("%v; want Canceled", err)
		}
	})
	// The one who cancels has no turn, and must not wait for the one that this is.
	t.Run("cancelled_before", func(t *testing.T) {
		x := inTurn(ctx, t, conn, "a", 1<<10, (*Headers).Cancel)
		if x.armed {
			t.Error("something is to come of it")
		}
		if _, err := x.all(); status.Code(err) != codes.Canceled {
			t.Errorf("%v; want Canceled", err)
		}
	})
	t.Run("no_connection", func(t *testing.T) {
		x := inTurn(ctx, t, conn, "a", 1<<10, func(*Headers) { conn.client.shard.Do(func(*h2.Forwarder) { conn.up.Shelve() }) })
		if x.armed {
			t.Error("something is to come of it")
		}
		if _, err := x.all(); err != nil && status.Code(err) != codes.Unavailable {
			t.Errorf("%v; want an answer, or Unavailable", err)
		}
	})
}
