package upstream

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// dialled keeps the connections that are made, and those of them that are open.
type dialled struct {
	mu   sync.Mutex // guards all
	all  []net.Conn
	open int
}

type counted struct {
	net.Conn
	of   *dialled
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		c.of.open--
		c.of.mu.Unlock()
	})
	return c.Conn.Close()
}

func (d *dialled) over(dial dialer) dialer {
	return func(ctx context.Context, address string) (net.Conn, error) {
		raw, err := dial(ctx, address)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.open++
		d.all = append(d.all, raw)
		return &counted{Conn: raw, of: d}, nil
	}
}

// cut breaks all connections from outside.
func (d *dialled) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.all {
		_ = c.Close()
	}
	d.all = nil
}

func (d *dialled) counts() (made, open int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all), d.open
}

// All that is lost with one connection, streams of sessions and calls, is reported with one number, and that of the
// next connection has another.
func TestWhatIsLostWithOneConnection(t *testing.T) {
	for _, client := range []string{ClientH2, ClientGRPC} {
		t.Run(client, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var conns dialled
				b := newBench(t, 1, func(c *Config, d *Deps) { c.Client, d.Dial = client, conns.over(d.Dial) })
				b.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
					<-stream.Context().Done()
					return stream.Context().Err()
				}
				loss := func() uint64 {
					t.Helper()
					for range 3 {
						b.mustOpen(1)
					}
					s, _ := b.mustOpen(1)
					ended := make(chan error, 1)
					go func() {
						stream, err := s.Execute(context.Background(), Statement{})
						if err == nil {
							_, err = stream.Next()
						}
						ended <- err
					}()
					synctest.Wait()
					conns.cut()
					if err := <-ended; err == nil {
						t.Error("the call did its work")
					}
					synctest.Wait()
					b.judge.mu.Lock()
					defer b.judge.mu.Unlock()
					numbers := map[uint64]int{}
					for _, o := range b.judge.all {
						if o.Blame == cluster.BlameTransport {
							numbers[o.Lost]++
						}
					}
					b.judge.all = nil
					if len(numbers) != 1 || numbers[0] > 0 {
						t.Fatalf("lost with connections %v; want one, with all that was on it", numbers)
					}
					for number, times := range numbers {
						if times != 5 {
							t.Errorf("%d reports; want those of four streams and a call", times)
						}
						return number
					}
					return 0
				}
				first := loss()
				time.Sleep(time.Second)
				if second := loss(); first == second {
					t.Errorf("both connections have the number %d", first)
				}
			})
		})
	}
}
