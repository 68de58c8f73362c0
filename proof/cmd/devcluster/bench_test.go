package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

const (
	benchCalls       = 64 // in flight
	benchConnections = 4
	benchRows        = 1000
)

// benchSession is an attached session with its connection.
type benchSession struct {
	client Ydb_Query_V1.QueryServiceClient
	id     string
}

func (s benchSession) run(ctx context.Context, request *Ydb_Query.ExecuteQueryRequest) error {
	request.SessionId = s.id
	request.ExecMode = Ydb_Query.ExecMode_EXEC_MODE_EXECUTE
	stream, err := s.client.ExecuteQuery(ctx, request)
	if err != nil {
		return err
	}
	rows := 0
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if part.GetStatus() != Ydb.StatusIds_SUCCESS {
			return fmt.Errorf("%v", part)
		}
		rows += len(part.GetResultSet().GetRows())
	}
	if strings.HasPrefix(request.GetQueryContent().GetText(), "SELECT") && rows != 1 {
		return fmt.Errorf("%d rows", rows)
	}
	return nil
}

func text(sql string) *Ydb_Query.ExecuteQueryRequest_QueryContent {
	return &Ydb_Query.ExecuteQueryRequest_QueryContent{
		QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: sql},
	}
}

// BenchmarkNode reports the CPU that the process of a node spends on one call,
// gRPC included, with 64 calls in flight. The aims are 60 µs of SELECT 1 and
// 100 µs of a point read of 100 bytes.
func BenchmarkNode(b *testing.B) {
	read := func(i uint64) *Ydb_Query.ExecuteQueryRequest {
		return &Ydb_Query.ExecuteQueryRequest{
			Query: text("DECLARE $id AS Uint64; SELECT v FROM t WHERE id = $id"),
			Parameters: map[string]*Ydb.TypedValue{"$id": {
				Type:  &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}},
				Value: &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: i % benchRows}},
			}},
		}
	}
	snapshot := &Ydb_Query.TransactionControl{CommitTx: true, TxSelector: &Ydb_Query.TransactionControl_BeginTx{
		BeginTx: &Ydb_Query.TransactionSettings{
			TxMode: &Ydb_Query.TransactionSettings_SnapshotReadOnly{SnapshotReadOnly: &Ydb_Query.SnapshotModeSettings{}},
		}}}
	for name, request := range map[string]func(uint64) *Ydb_Query.ExecuteQueryRequest{
		"select_1": func(uint64) *Ydb_Query.ExecuteQueryRequest {
			return &Ydb_Query.ExecuteQueryRequest{Query: text("SELECT 1")}
		},
		"point_read": read,
		"point_read_snapshot": func(i uint64) *Ydb_Query.ExecuteQueryRequest {
			r := read(i)
			r.TxControl = snapshot
			return r
		},
	} {
		b.Run(name, func(b *testing.B) { benchNode(b, request) })
	}
}

func benchNode(b *testing.B, request func(uint64) *Ydb_Query.ExecuteQueryRequest) {
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	p := launch(b, "-control", "", "-nodes", "1")
	sessions := benchSessions(ctx, b, p.ready.Nodes[0].Address)
	setup := []string{"CREATE TABLE t (id Uint64, v String, PRIMARY KEY (id))"}
	for id := range benchRows {
		setup = append(setup, fmt.Sprintf("UPSERT INTO t (id, v) VALUES (%dul, '%s')", id, strings.Repeat("v", 100)))
	}
	for _, sql := range setup {
		if err := sessions[0].run(ctx, &Ydb_Query.ExecuteQueryRequest{Query: text(sql)}); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	var next atomic.Uint64
	callers := func(calls uint64) {
		var all sync.WaitGroup
		limit := next.Load() + calls
		for _, s := range sessions {
			all.Go(func() {
				for i := next.Add(1); i <= limit; i = next.Add(1) {
					if err := s.run(ctx, request(i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	callers(2000) // warm-up
	before, err := stand.ReadUsage(p.cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	callers(uint64(b.N))
	b.StopTimer()
	after, err := stand.ReadUsage(p.cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64((after.CPU-before.CPU).Microseconds())/float64(b.N), "node-cpu-us/op")
}

// benchSessions attaches one session for each call in flight.
func benchSessions(ctx context.Context, b *testing.B, address string) []benchSession {
	var sessions []benchSession
	for range benchConnections {
		client := Ydb_Query_V1.NewQueryServiceClient(dial(b, address))
		for range benchCalls / benchConnections {
			created, err := client.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
			if err != nil {
				b.Fatal(err)
			}
			states, err := client.AttachSession(ctx, &Ydb_Query.AttachSessionRequest{SessionId: created.GetSessionId()})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := states.Recv(); err != nil {
				b.Fatal(err)
			}
			sessions = append(sessions, benchSession{client, created.GetSessionId()})
		}
	}
	return sessions
}
