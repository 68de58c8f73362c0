package systemtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"

	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// startXDS starts a sidecar that publishes its view.
func startXDS(t *testing.T, c *ydb, settings ...string) *sidecar {
	t.Helper()
	return startXDSAt(t, c.Endpoint(), settings...)
}

func startXDSAt(t *testing.T, url string, settings ...string) *sidecar {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "own", "admin")
	settings = append(
		[]string{"xds.enabled=true", "xds.address=127.0.0.1:0", "admin.socket=" + socket, "discovery.interval=500ms",
			"pool.min=8", "pool.max=40"},
		settings...,
	)
	s := startSidecarAt(t, url, nil, settings...)
	s.socket = socket
	if s.XDS == "" {
		t.Fatal("the sidecar does not say where it serves xDS")
	}
	return s
}

// bootstrap is the shipped one of gRPC clients, with the address of a sidecar.
func bootstrap(t *testing.T, s *sidecar) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(standtest.Root(t), "deploy", "grpc", "bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte("127.0.0.1:7403")) {
		t.Fatal("the bootstrap names another address than the default of xds.address")
	}
	return bytes.ReplaceAll(text, []byte("127.0.0.1:7403"), []byte(s.XDS))
}

// dialXDS opens a channel of gRPC's own xDS client.
func dialXDS(t *testing.T, s *sidecar, name string) *grpc.ClientConn {
	t.Helper()
	return dialBootstrap(t, bootstrap(t, s), name, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func dialBootstrap(t *testing.T, config []byte, name string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	resolver, err := xds.NewXDSResolverWithConfigForTesting(config)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///"+name, append(options, grpc.WithResolvers(resolver))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ownerHeader is the header by which a client of Envoy names the node of its session.
const ownerHeader = "x-ydb-node-id"

// selectOne runs a statement, in a session or in none ("" and 0), and returns the address of the node that answered, if that is known.
func selectOne(ctx context.Context, conn *grpc.ClientConn, session string, node int64) (string, error) {
	if node != 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, ownerHeader, fmt.Sprint(node))
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var from peer.Peer
	stream, err := Ydb_Query_V1.NewQueryServiceClient(conn).ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
		SessionId: session, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: "SELECT 1"},
		},
	}, grpc.Peer(&from))
	if err != nil {
		return "", err
	}
	parts := 0
	for {
		part, err := stream.Recv()
		if err == io.EOF && parts == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
		if part.Status != Ydb.StatusIds_SUCCESS {
			return "", fmt.Errorf("%v: %v", part.Status, part.Issues)
		}
		parts++
	}
	header, err := stream.Header()
	if err != nil {
		return "", err
	}
	if at := answeredBy(header); at != "" || from.Addr == nil {
		return at, nil
	}
	return from.Addr.String(), nil
}

// direct is a client that goes to the nodes directly, at a steady pace: eight callers with pauses of 20 ms.
type direct struct {
	name string
	stop func()

	mu    sync.Mutex
	calls []directCall // in the order of their ends
}

type directCall struct {
	begun, ended time.Time
	node         string // its address; "" if the call failed
	err          error
}

func startDirect(t *testing.T, name string, conn *grpc.ClientConn) *direct {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	d := &direct{name: name, stop: func() { cancel(); callers.Wait() }}
	for range 8 {
		callers.Go(func() {
			pace := time.NewTicker(20 * time.Millisecond)
			defer pace.Stop()
			for {
				begun := time.Now()
				node, err := selectOne(ctx, conn, "", 0)
				if ctx.Err() != nil {
					return
				}
				d.mu.Lock()
				d.calls = append(d.calls, directCall{begun, time.Now(), node, err})
				d.mu.Unlock()
				select {
				case <-ctx.Done():
					return
				case <-pace.C:
				}
			}
		})
	}
	t.Cleanup(d.stop)
	return d
}

// since returns the calls that began at or after a time.
func (d *direct) since(at time.Time) []directCall {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.calls), func(c directCall) bool { return c.begun.Before(at) })
}

// starts waits until a node gets calls and returns how long after a time the first of them began.
func (d *direct) starts(t *testing.T, node string, at time.Time) (after time.Duration) {
	t.Helper()
	eventually(t, 60*time.Second, d.name+": node "+node+" gets calls", func() string {
		calls := d.since(at)
		for _, c := range calls {
			if c.node == node {
				after = c.begun.Sub(at)
				return ""
			}
		}
		return tell(calls)
	})
	return after
}

// stops waits until for a second no call went to a node, or failed, and returns how long after a time the last one that did began.
func (d *direct) stops(t *testing.T, node string, at time.Time) (after time.Duration) {
	t.Helper()
	eventually(t, 60*time.Second, d.name+": node "+node+" gets no calls", func() string {
		calls := d.since(at)
		good, last := 0, at
		for _, c := range calls {
			switch {
			case c.node == node || c.err != nil:
				good, last = 0, c.begun
			case c.begun.After(last.Add(time.Second)):
				good++
			}
		}
		if good < 20 {
			return tell(calls)
		}
		after = last.Sub(at)
		return ""
	})
	return after
}

// tell counts calls by node and error.
func tell(calls []directCall) string {
	count := map[string]int{}
	for _, c := range calls {
		if c.err != nil {
			count[c.err.Error()]++
			continue
		}
		count[c.node]++
	}
	return fmt.Sprint(count)
}

// failed returns the first error of the calls since a time.
func (d *direct) failed(at time.Time) error {
	for _, c := range d.since(at) {
		if c.err != nil {
			return fmt.Errorf("%v after %v: %w", c.ended.Sub(c.begun), c.begun.Sub(at), c.err)
		}
	}
	return nil
}
