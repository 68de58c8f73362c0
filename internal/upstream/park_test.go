package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// parkedTurn is a Via for a request of a test.
type parkedTurn struct {
	driver *Driver
	broken bool   // To panics
	away   bool   // no connection is ready
	send   func() // of Park
	woken  chan struct{}
}

func (v *parkedTurn) To(node cluster.NodeID) grpc.ClientConnInterface {
	if v.broken {
		panic("broken")
	}
	c, err := v.driver.conn(node)
	if err != nil || v.away {
		return nil
	}
	defer c.drop()
	return c.cc
}

func (v *parkedTurn) Park(send func()) { v.send = send }

func (v *parkedTurn) Wake() { close(v.woken) }

// sendWhenWoken sends what is parked, if anything is, once it is woken.
func (v *parkedTurn) sendWhenWoken(ctx context.Context) {
	if v.send == nil {
		return
	}
	select {
	case <-v.woken:
		v.send()
	case <-ctx.Done():
	}
}

func (s *stack) parkedTurn() *parkedTurn {
	return &parkedTurn{driver: s.driver, woken: make(chan struct{})}
}

func sendPlain(ctx context.Context, s *Session) error {
	_, err := s.Execute(ctx, plain())
	return err
}

// readPlain is the rest of a request whose first call is sendPlain.
func readPlain(ctx context.Context, s *Session) error {
	stream, sent, err := s.Sent()
	if !sent {
		stream, err = s.Execute(ctx, plain())
	}
	for err == nil {
		_, err = stream.Next()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// waitCase is one way in which a request that waits for the only session of a pool goes on.
type waitCase struct {
	timeout time.Duration // 0: a minute
	change  func(*stackConfig)
	before  func(t *testing.T, s *stack)                          // run before the request comes
	while   func(s *stack, release func(keep bool), leave func()) // run while it waits
	atOnce  bool                                                  // the pool answers at once
	away    bool                                                  // no connection is ready when the session is
	want    string                                                // in what comes of it
}

// outcome is what comes of the request if it parks, or if Do waits.
func (c waitCase) outcome(t *testing.T, name string, parks bool) (all string) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, func(config *stackConfig) {
			config.pool.Max = 1
			if c.change != nil {
				c.change(config)
			}
		})
		registry, web := webOf(t, apps.Default())
		held, _, err := s.client.BeginTx(within(t, time.Minute), Call{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		release := func(keep bool) { once.Do(func() { held.Release(keep) }) }
		if name == "there is a session at once" {
			release(true)
		}
		if c.before != nil {
			c.before(t, s)
		}
		ctx, leave := context.WithTimeout(t.Context(), c.timeout)
		defer leave()
		call := Call{Name: "Execute", App: web.Stripe(0), Class: pool.Normal, Work: 1}
		v := s.parkedTurn()
		v.away = c.away
		if parks {
			call.Ahead = s.client.Ahead(ctx, &call, v, sendPlain)
			if parked := v.send != nil; parked == c.atOnce {
				t.Errorf("parked: %t", parked)
			}
		}
		var report Report
		done := make(chan struct{})
		go func() {
			defer close(done)
			v.sendWhenWoken(ctx)
			report, err = s.client.Do(ctx, call, readPlain)
		}()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		before := s.pool.Stats()
		c.while(s, release, leave)
		<-done
		round := report.Rounds[0]
		stats := s.pool.Stats()
		all = fmt.Sprintf(
			"%v (%T), %d attempts, queue %v, acquire %v, created: %t; round: %v after %v and %v %s; %d tries on "+
				"node %d; pool: %d waited, %d were late, %d refused, %d shed; app: %+v",
			err, err, report.Attempts, report.Queue, report.Acquire, report.Created,
			round.Start.UnixNano(), round.Acquire, round.Queue, round.Refused, len(report.Tries), report.Node,
			before.InLine(), stats.TimedOut, stats.Refused, stats.Shed, registry.State(classNames)[2].Classes,
		)
		release(true)
	})
	return all
}

// One request waits for the only session of a pool. Whether it parks or Do waits for it makes no
// difference to its caller, its app and the pool.
func TestARequestParksAsDoWaits(t *testing.T) {
	for name, c := range map[string]waitCase{
		"there is a session at once": {
			atOnce: true,
			while:  func(*stack, func(bool), func()) {}, want: "<nil> (<nil>), 1 attempts, queue 0s, acquire 0s",
		},
		"granted later": {
			while: func(_ *stack, release func(bool), _ func()) { release(true) }, want: "<nil> (<nil>), 1 attempts, queue 2s, acquire 2s",
		},
		"granted while no connection is ready": {
			away: true, while: func(_ *stack, release func(bool), _ func()) { release(true) },
			want: "<nil> (<nil>), 1 attempts, queue 2s, acquire 2s",
		},
		"granted a new session": {
			while: func(_ *stack, release func(bool), _ func()) { release(false) }, want: "created: true",
		},
		"its time is up": {
			timeout: 3 * time.Second, while: func(*stack, func(bool), func()) {},
			want: "pool: waited 3s for a session: 1 of at most 1 in use: context deadline exceeded",
		},
		"its caller leaves": {
			while: func(_ *stack, _ func(bool), leave func()) { leave() },
			want:  "pool: waited 2s for a session: 1 of at most 1 in use: context canceled",
		},
		"its time was up before": {
			atOnce:  true,
			timeout: -time.Second, while: func(*stack, func(bool), func()) {}, want: "pool: waited 0s for a session",
		},
		"too old for the queue": {
			change: func(c *stackConfig) { c.pool.QueueAge = time.Second }, while: func(*stack, func(bool), func()) {},
			want: "*pool.ShedError",
		},
		"the queue is full": {
			atOnce: true,
			change: func(c *stackConfig) { c.pool.Queue = 1 },
			before: func(t *testing.T, s *stack) {
				go func() { _, _ = s.query(within(t, time.Minute), Call{Class: pool.Interactive}, plain) }()
				synctest.Wait()
			},
			while: func(_ *stack, release func(bool), _ func()) { release(true) }, want: "*errors.errorString",
		},
		"another call takes its place": {
			change: func(c *stackConfig) { c.pool.Queue = 1 },
			while: func(s *stack, release func(bool), _ func()) {
				go func() { _, _ = s.query(context.Background(), Call{Class: pool.Interactive}, plain) }()
				synctest.Wait()
				release(true)
			}, want: "*errors.errorString",
		},
		"the pool closes": {
			while: func(s *stack, release func(bool), _ func()) {
				go func() { time.Sleep(time.Second); release(true) }()
				_ = s.pool.Close(context.Background())
			}, want: "*errors.errorString",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.timeout == 0 {
				c.timeout = time.Minute
			}
			parked, waited := c.outcome(t, name, true), c.outcome(t, name, false)
			if parked != waited || !strings.Contains(parked, c.want) {
				t.Errorf("parked: %s\nwaited: %s\nwant:   %s", parked, waited, c.want)
			}
		})
	}
}

// A call whose session is granted but not used leaves nothing behind in the pool.
func TestAGrantThatMissesItsTurn(t *testing.T) {
	for name, c := range map[string]struct {
		after func(v *parkedTurn, s *Session, leave func()) // the grant
		want  string                                        // of the error
	}{
		"its caller leaves": {func(_ *parkedTurn, _ *Session, leave func()) { leave() }, "context canceled"},
		"its caller leaves just before": {func(v *parkedTurn, _ *Session, leave func()) {
			leave()
			v.send()
		}, "context canceled"},
		"its caller leaves just after": {func(v *parkedTurn, _ *Session, leave func()) {
			v.send()
			leave()
		}, "context canceled"},
		"its session is killed": {func(v *parkedTurn, s *Session, _ func()) {
			_ = s.Kill(context.Background())
			v.send()
		}, ErrKilled.Error()},
		"its turn panics": {func(v *parkedTurn, _ *Session, _ func()) {
			v.broken = true
			defer func() {
				if recover() == nil {
					panic("no panic")
				}
			}()
			v.send()
		}, (&panics.Error{Where: "the first call of a request", Value: "broken"}).Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStack(t, 1, func(config *stackConfig) { config.pool.Max = 1 })
				held, _, err := s.client.BeginTx(within(t, time.Minute), Call{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				ctx, leave := context.WithTimeout(t.Context(), time.Minute)
				defer leave()
				v, call := s.parkedTurn(), Call{}
				call.Ahead = s.client.Ahead(ctx, &call, v, sendPlain)
				if v.send == nil {
					t.Fatal("it does not wait")
				}
				session := held.Session()
				held.Release(true)
				<-v.woken
				c.after(v, session, leave)
				if _, err := s.client.Do(ctx, call, readPlain); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v; want %s", err, c.want)
				}
				time.Sleep(time.Second) // the session recovers, or is deleted
				if st := s.pool.Stats(); st.InUse != 0 || st.InLine() != 0 {
					t.Errorf("%d sessions are leased, %d calls wait", st.InUse, st.InLine())
				}
				if _, err := s.query(within(t, time.Second), Call{}, plain); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// panickingConn is a connection whose calls panic.
type panickingConn struct{ grpc.ClientConnInterface }

func (panickingConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("broken")
}

// A statement that panics while it is sent leaves nothing of its hop behind.
func TestAStatementThatPanicsEndsItsHop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		_, err := s.client.Do(within(t, time.Minute), Call{}, func(ctx context.Context, session *Session) error {
			c, err := s.driver.conn(session.Node())
			if err != nil {
				t.Fatal(err)
			}
			defer c.drop()
			before := c.refs.Load()
			defer func() {
				if now := c.refs.Load(); now != before {
					t.Errorf("%d calls are on the connection, %d before", now, before)
				}
			}()
			session.via = panickingConn{}
			return sendPlain(ctx, session)
		})
		if _, ok := errors.AsType[*panics.Error](err); !ok {
			t.Errorf("%v; want a panic", err)
		}
	})
}
