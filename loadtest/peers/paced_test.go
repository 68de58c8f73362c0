package peers

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Many calls at a time take no less than the service time each, and not one after the other.
func TestPacedAnswersAfterItsTime(t *testing.T) {
	const service, calls = 100 * time.Millisecond, 200
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Paced(ctx, write, service) }()
	line := make([]byte, 100)
	n, err := read.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	_, address, _ := strings.Cut(strings.TrimSpace(string(line[:n])), "node=")
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client := Ydb_Query_V1.NewQueryServiceClient(conn)
	if _, err := client.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{}); err != nil {
		t.Error(err)
	}
	begun := time.Now()
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			begun := time.Now()
			stream, err := client.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{Parameters: parameters(Scenario{Size: 100, Parts: 1})})
			if err != nil {
				t.Error(err)
				return
			}
			part, err := stream.Recv()
			if err != nil || part.Status != Ydb.StatusIds_SUCCESS || time.Since(begun) < service {
				t.Errorf("got %v, %v after %v; want an answer after %v", part.GetStatus(), err, time.Since(begun), service)
			}
			if _, err := stream.Recv(); err != io.EOF {
				t.Errorf("got %v; want the end", err)
			}
		})
	}
	all.Wait()
	if took := time.Since(begun); took > calls*service/2 {
		t.Errorf("%d calls at a time took %v; want them to wait beside each other", calls, took)
	}
	conn.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
