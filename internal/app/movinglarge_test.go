package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/proof/short"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// slowConn is a connection whose reader takes pace bytes a second.
type slowConn struct {
	net.Conn
	pace int
}

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), 64<<10)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(c.pace))
	return n, err
}

// slowly returns a dialer whose connections are read at that pace. 0: as fast as they can be.
func slowly(pace int) func(ctx context.Context, address string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		if pace == 0 {
			return d.DialContext(ctx, "tcp", address)
		}
		d.Control = func(_, _ string, c syscall.RawConn) error { // the kernel must not take it all
			return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 64<<10) })
		}
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return slowConn{c, pace}, nil
	}
}

// One row may take far longer than api.timeout, on its way from the node or to a caller that reads slowly. The stream lasts
// while its bytes move.
func TestStreamsOfOneLargeRowLast(t *testing.T) {
	short.Skip(t, "the rows take seconds")
	const timeout, column, columns = 2 * time.Second, 1 << 20, 14
	const slow = 2 << 20 // bytes a second: the row takes more than three times the timeout
	c := newCluster(t)
	s := start(t, c.Endpoint(), "api.timeout="+timeout.String())
	if _, err := s.client.Execute(
		t.Context(), &sidecarv1.ExecuteRequest{Sql: "CREATE TABLE wide (id Uint64, payload Utf8, PRIMARY KEY (id))"},
	); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{
		Sql: "UPSERT INTO wide (id, payload) VALUES (1, $p)", Timeout: "1m",
		Params: map[string]*sidecarv1.Value{"$p": {Kind: &sidecarv1.Value_TextValue{TextValue: strings.Repeat("x", column)}}},
	}); err != nil {
		t.Fatal(err)
	}
	sql := "SELECT payload AS c0"
	for i := 1; i < columns; i++ {
		sql += fmt.Sprintf(", payload AS c%d", i)
	}
	sql += " FROM wide"
	for _, tc := range []struct {
		name       string
		node, read int // pace; 0: as fast as can be
	}{
		{"the caller reads slowly", 0, slow},
		{"the node sends slowly", slow, 0},
	} {
		for id := uint32(1); id <= 3 && tc.node > 0; id++ {
			if err := c.Node(id).Throttle(tc.node); err != nil {
				t.Fatal(err)
			}
		}
		t.Run(tc.name, func(t *testing.T) {
			for api, read := range map[string]func(*testing.T, *sidecar, int, string) (int, error){"gRPC": grpcRow, "HTTP": httpRow} {
				t.Run(api, func(t *testing.T) {
					t.Parallel()
					began := time.Now()
					n, err := read(t, s, tc.read, sql)
					if took := time.Since(began); err != nil || n < column*columns || took < 2*timeout {
						t.Errorf("%d bytes in %v, %v; want the whole row, in more than %v", n, took, err, 2*timeout)
					}
				})
			}
		})
	}
}

// grpcRow reads the rows of a statement over gRPC, to the end.
func grpcRow(t *testing.T, s *sidecar, pace int, sql string) (n int, _ error) {
	conn, err := grpc.NewClient("passthrough:///"+s.at.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(slowly(pace)), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stream, err := sidecarv1.NewSidecarClient(conn).ExecuteStream(t.Context(), &sidecarv1.ExecuteRequest{Sql: sql})
	if err != nil {
		return 0, err
	}
	for {
		part, err := stream.Recv()
		if err != nil {
			return n, err
		}
		if part.GetEnd() != nil {
			return n, nil
		}
		for _, row := range part.GetRows().GetRows() {
			for _, v := range row.GetValues() {
				n += len(v.GetTextValue())
			}
		}
	}
}

// httpRow reads the lines of a statement over HTTP, to the end.
func httpRow(t *testing.T, s *sidecar, pace int, sql string) (int, error) {
	dial := slowly(pace)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) }}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(
		t.Context(), http.MethodPost, "http://"+s.at.HTTP+"/v1/query", strings.NewReader(fmt.Sprintf(`{"sql":%q}`, sql)),
	)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/x-ndjson")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && !bytes.Contains(body, []byte("\n"+`{"end":`)) {
		err = fmt.Errorf("%d, and no end: %.300s", response.StatusCode, body[max(0, len(body)-300):])
	}
	return len(body), err
}
