package overhead

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"golang.org/x/sync/errgroup"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// anonymous is the figure of the memory that is no file's.
const anonymous = "anonymous-B"

// memoryCases are what a sidecar holds at rest, with calls under way that nodes do not
// answer, and with connections that say nothing.
func memoryCases(ctx context.Context, l *lab.Lab) error {
	if !l.Wanted("memory") {
		return nil
	}
	calls, conns := lab.At(l, 20, 1000, 1000), lab.At(l, 50, 10_000, 10_000)
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	states := []struct {
		name string
		most float64 // anonymous, in MB; 0: no goal
		hold func(ctx context.Context, side *lab.Sidecar) (release func(), err error)
	}{
		{"idle", 15, func(context.Context, *lab.Sidecar) (func(), error) { return func() {}, nil }},
		{fmt.Sprintf("%d calls, plain gRPC", calls), 50, openCallsOf(cluster, calls, plainHeld)},
		{fmt.Sprintf("%d calls, HTTP/JSON", calls), 50, openCallsOf(cluster, calls, webHeld)},
		{fmt.Sprintf("%d calls, wire", calls), 50, openCallsOf(cluster, calls, wireHeld)},
		{fmt.Sprintf("%d idle connections, gRPC", conns), 200, idleConns(conns, func(s *lab.Sidecar) string { return s.GRPC }, greetH2)},
		{fmt.Sprintf("%d idle connections, HTTP/1.1", conns), 120,
			idleConns(conns, func(s *lab.Sidecar) string { return s.HTTP }, greetHTTP)},
	}
	c := lab.Case{Name: "memory", Title: "Memory", Figures: []string{anonymous, lab.RSS}, Ratios: []string{},
		Text: `Each line is a sidecar of its own that has done nothing before; its memory is read a second after the last call is under way, or the last connection stands. Calls wait for nodes that answer late; each has a session of
its own, whose memory is in the figure. An idle gRPC connection has exchanged settings, one of HTTP/1.1 a request and its answer. *anonymous* is what is no file's: heap, stacks, what the collector has not collected yet.`}
	runs := make([][]lab.Run, len(states))
	for i, s := range states {
		c.Variants = append(c.Variants, lab.Variant{Name: s.name})
		if l.Size != lab.Smoke {
			c.Claims = append(c.Claims,
				lab.Claim{Text: "anonymous memory, bytes: " + s.name, Variant: s.name, Figure: anonymous,
					Kind: lab.Value, Most: s.most * 1e6})
		}
		if i == 0 {
			c.Claims = append(c.Claims,
				lab.Claim{Text: "RSS at rest, bytes", Variant: s.name, Figure: lab.RSS, Kind: lab.Value, Most: 45e6})
		}
	}
	for round := range lab.At(l, 1, 1, 6) {
		for i, s := range states {
			one, err := memoryOf(ctx, l, cluster.Endpoint(), s.hold)
			if err != nil {
				return fmt.Errorf("memory, %s: %w", s.name, err)
			}
			runs[i] = append(runs[i], one)
		}
		l.Progress("memory: round %d", round+1)
	}
	l.Report.Add(lab.Section{Table: lab.NewTable(c, runs)})
	return nil
}

// memoryOf starts a sidecar, brings it into a state and reads its memory.
func memoryOf(
	ctx context.Context, l *lab.Lab, endpoint string, hold func(context.Context, *lab.Sidecar) (func(), error),
) (run lab.Run, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	side, err := l.Sidecar(ctx, endpoint, "pool.max=1000", "pool.max_per_node=1000", "connections.each=20000")
	if err != nil {
		return run, err
	}
	defer l.End(side.Process)
	if err := side.Warm(ctx); err != nil { // before, calls of YDB's protocol are refused: no node is known
		return run, err
	}
	// A cheap call, so that the connection and its buffers exist.
	if _, err := side.Client.Status(ctx, &sidecarv1.StatusRequest{}); err != nil {
		return run, err
	}
	release, err := hold(ctx, side)
	if err != nil {
		return run, err
	}
	defer release()
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return run, context.Cause(ctx)
	}
	resident, own, err := stand.Memory(side.Pid())
	return lab.Run{Calls: 1, Figures: lab.Figures{anonymous: float64(own), lab.RSS: float64(resident)}}, err
}

// openCallsOf has n calls under way, which end with the release. As long as none is answered, each
// has a session of its own: the sessions tell how many there are.
func openCallsOf(cluster *lab.Cluster, n int,
	held func(ctx context.Context, side *lab.Sidecar) (func(context.Context), error)) func(context.Context, *lab.Sidecar) (func(), error) {
	return func(ctx context.Context, side *lab.Sidecar) (func(), error) {
		late := func(what string, body any) error {
			return cluster.Everywhere(context.WithoutCancel(ctx), what, body)
		}
		before, err := cluster.Counter(ctx, "sessions")
		if err == nil {
			err = late("delay", map[string]any{"delay": "30s", "share": 1, "methods": []string{"ExecuteQuery"}})
		}
		if err != nil {
			return nil, err
		}
		open, end := context.WithCancel(ctx)
		var calls sync.WaitGroup
		release := func() {
			end()
			calls.Wait()
			_ = late("clear", nil) // a cluster that does not answer is seen by the next sidecar
		}
		for range n {
			call, err := held(open, side)
			if err != nil {
				release()
				return nil, err
			}
			calls.Go(func() { call(open) })
		}
		for {
			now, err := cluster.Counter(ctx, "sessions")
			if err == nil && now-before >= int64(n) {
				return release, nil
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				err = errors.Join(err, context.Cause(ctx))
			}
			if err != nil {
				release()
				return nil, fmt.Errorf("%d of %d calls are under way: %w", now-before, n, err)
			}
		}
	}
}

// plainHeld is a call of the plain API; all are on one connection, as an app has it.
func plainHeld(_ context.Context, side *lab.Sidecar) (func(context.Context), error) {
	return func(ctx context.Context) {
		// It ends by the release; what it says is of no interest. So it is with the others.
		_, _ = side.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "50s"})
	}, nil
}

// webHeld is a request over HTTP/1.1, which takes a connection for each.
func webHeld(_ context.Context, side *lab.Sidecar) (func(context.Context), error) {
	return func(ctx context.Context) {
		_, _ = traffic.Post(ctx, http.DefaultClient, "http://"+side.HTTP+"/v1/query", []byte(`{"sql":"SELECT 1","timeout":"50s"}`))
	}, nil
}

// wireHeld is a statement on a session as an SDK has it; all are on one connection.
func wireHeld(ctx context.Context, side *lab.Sidecar) (func(context.Context), error) {
	d := &traffic.Direct{Sessions: make(chan traffic.DirectSession, 1), Cancel: func() {}}
	if err := d.Open(ctx, Ydb_Query_V1.NewQueryServiceClient(side.Conn)); err != nil {
		return nil, err
	}
	return func(ctx context.Context) { _ = d.Read(ctx) }, nil
}

// idleConns has n connections that have said something and then no more.
func idleConns(n int, address func(*lab.Sidecar) string, greet func(net.Conn) error) func(context.Context, *lab.Sidecar) (func(), error) {
	return func(ctx context.Context, side *lab.Sidecar) (func(), error) {
		conns := make([]net.Conn, n)
		release := func() {
			for _, conn := range conns {
				if conn != nil {
					_ = conn.Close()
				}
			}
		}
		dialer := net.Dialer{Timeout: 10 * time.Second}
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(16)
		for i := range conns {
			group.Go(func() (err error) {
				if conns[i], err = dialer.DialContext(ctx, "tcp", address(side)); err != nil {
					return err
				}
				if err = conns[i].SetDeadline(time.Now().Add(10 * time.Second)); err == nil {
					err = greet(conns[i])
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			release()
			return nil, fmt.Errorf("connections that say nothing (each is a descriptor here and one in the sidecar: ulimit -n): %w", err)
		}
		return release, nil
	}
}

// greetH2 exchanges the settings of HTTP/2.
func greetH2(conn net.Conn) error {
	const settings, acknowledged = "\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x00\x04\x01\x00\x00\x00\x00"
	_, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings))
	var head [9]byte
	if err == nil {
		_, err = io.ReadFull(conn, head[:])
	}
	if err == nil && head[3] != 4 {
		err = fmt.Errorf("the first frame is of type %d; want SETTINGS", head[3])
	}
	if err == nil {
		_, err = conn.Write([]byte(acknowledged))
	}
	return err
}

// greetHTTP makes a request and reads its answer.
func greetHTTP(conn net.Conn) error {
	if _, err := conn.Write([]byte("GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || !bytes.HasPrefix(text, []byte("{"))) {
		err = fmt.Errorf("HTTP %d: %.100s", answer.StatusCode, text)
	}
	return err
}
