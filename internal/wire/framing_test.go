package wire

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Scheme_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Scheme"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

const schemeService = "/Ydb.Scheme.V1.SchemeService/"

// schemes is a node's scheme service.
type schemes struct {
	Ydb_Scheme_V1.UnimplementedSchemeServiceServer
	of *node
}

func (n schemes) ListDirectory(ctx context.Context, r *Ydb_Scheme.ListDirectoryRequest) (*Ydb_Scheme.ListDirectoryResponse, error) {
	if r.GetPath() == "a fault of the node" {
		return nil, status.Error(codes.Internal, r.GetPath())
	}
	return &Ydb_Scheme.ListDirectoryResponse{Operation: &Ydb_Operations.Operation{Ready: true, Status: n.of.answer(ctx)}}, nil
}

// topics is a node's topic service.
type topics struct {
	Ydb_Topic_V1.UnimplementedTopicServiceServer
}

// StreamWrite answers each message. What is wrong with the stream is told as servers of gRPC tell it; one
// that ends without a message is an error, too, as for the development cluster.
func (topics) StreamWrite(stream Ydb_Topic_V1.TopicService_StreamWriteServer) error {
	for n := 0; ; n++ {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) && n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if m.GetInitRequest().GetPath() == "a fault of the node" {
			return status.Error(codes.Internal, "a fault of the node")
		}
		if err := stream.Send(&Ydb_Topic.StreamWriteMessage_FromServer{Status: Ydb.StatusIds_SUCCESS}); err != nil {
			return err
		}
	}
}

func (n tables) BulkUpsert(ctx context.Context, r *Ydb_Table.BulkUpsertRequest) (*Ydb_Table.BulkUpsertResponse, error) {
	if r.GetTable() == "a fault of the node" {
		return nil, status.Error(codes.Internal, r.GetTable())
	}
	return &Ydb_Table.BulkUpsertResponse{Operation: &Ydb_Operations.Operation{Ready: true, Status: n.of.answer(ctx)}}, nil
}

// packedMessage is a message with the flag that says that it is compressed.
func packedMessage(p []byte) []byte {
	b := framedMessage(p)
	b[0] = 1
	return b
}

func zipped(p []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(p) // to memory
	_ = w.Close()
	return b.Bytes()
}

// brokenRow is a request that breaks gRPC's framing.
type brokenRow struct {
	name, encoding string
	body           []byte
	want           codes.Code
}

// brokenRows are made of a message that is in order.
func brokenRows(message []byte, stream bool) []brokenRow {
	good, none := framedMessage(message), codes.Internal
	if stream {
		none = codes.Unknown
	}
	length := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0}, n) }
	return []brokenRow{
		{"compressed without an encoding", "", packedMessage(zipped(message)), codes.Internal},
		{"compressed as identity", "identity", packedMessage(zipped(message)), codes.Internal},
		{"bad gzip", "gzip", packedMessage([]byte("this is no gzip")), codes.Internal},
		{"gzip that is cut", "gzip", packedMessage(zipped(message)[:15]), codes.Internal},
		{"an unknown encoding", "zstd", packedMessage(message), codes.Unimplemented},
		{"an end within a message", "", good[:len(good)-1], codes.Internal},
		{"an end within a prefix", "", good[:3], codes.Internal},
		{"no message", "", nil, none},
		{"4 GiB", "", append(length(1<<32-1), good...), codes.ResourceExhausted},
		{"one byte more than servers take", "", append(length(mostBytes+1), good...), codes.ResourceExhausted},
		{"a flag that does not exist", "", append([]byte{7}, good[1:]...), codes.Internal},
		{"part of a second message", "", append(bytes.Clone(good), 0, 0, 0), codes.Internal},
	}
}

// send calls a method with the request, in one frame or in pieces.
func (row *brokenRow) send(t *testing.T, addr, path string, headers []string, inPieces bool) (answer map[string]string, body []byte) {
	t.Helper()
	if row.encoding != "" {
		headers = append(slices.Clone(headers), "grpc-encoding", row.encoding)
	}
	bodies := [][]byte{row.body}
	if inPieces && len(row.body) > 0 {
		bodies = [][]byte{row.body[:1], row.body[1:3], row.body[3:], {}}
	}
	return framesOf(t, addr, path, headers, nil, bodies...)
}

// reported returns all outcomes of calls that have been answered, once the calls have left their nodes.
func reported(server *Server, judge *outcomes) []cluster.Outcome {
	for _, f := range server.shards {
		// the judge hears of a call in the turn in which the client is answered, or in which the
		// node's stream ends
		f.shard.Do(func(*h2.Forwarder) {})
	}
	judge.mu.Lock()
	defer judge.mu.Unlock()
	all := judge.all
	judge.all = nil
	return all
}

// verdictsOn are those of the product's judge after such outcomes.
func verdictsOn(t *testing.T, all []cluster.Outcome) (last cluster.Conditions) {
	synctest.Test(t, func(t *testing.T) {
		judge := pessimize.New(pessimize.Default(), reachable{}, slog.New(slog.DiscardHandler))
		judge.Subscribe(func(v cluster.Conditions) { last = v })
		ctx, stop := context.WithCancel(t.Context())
		var runs sync.WaitGroup
		runs.Go(func() { _ = judge.Run(ctx) })
		judge.SetTopology(
			cluster.NewTopology([]cluster.Node{{ID: 1, Address: "a:1"}, {ID: 2, Address: "a:2"}, {ID: 3, Address: "a:3"}}, ""),
		)
		time.Sleep(time.Second)
		for _, o := range all {
			o.Latency, o.Waited = 0, 0 // this machine's
			judge.Report(o)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		stop()
		runs.Wait()
	})
	return last
}

type reachable struct{}

func (reachable) Probe(context.Context, cluster.NodeID) error { return nil }

// blameless fails unless no node is to blame for anything.
func blameless(t *testing.T, what string, all []cluster.Outcome) {
	t.Helper()
	for _, o := range all {
		if o.Blame != cluster.BlameNone && o.Blame != cluster.BlameSuccess {
			t.Errorf("%s: %+v", what, o)
			break
		}
	}
	for id, v := range verdictsOn(t, all) {
		if v.Health != cluster.Healthy {
			t.Errorf("%s: node %d is %+v", what, id, v)
		}
	}
}

// Clients that break gRPC's framing have their calls ended, and cost no node its health, whatever is done with a method's
// messages. A node that answers INTERNAL to a call that is in order is to blame.
func TestBrokenFramingBlamesNoNode(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	const fault = "a fault of the node"
	query := func(text string) []byte {
		return bytesOf(t,
			&Ydb_Query.ExecuteQueryRequest{SessionId: sessionID(1),
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: text}}})
	}
	write := func(path string) []byte {
		return bytesOf(t,
			&Ydb_Topic.StreamWriteMessage_FromClient{
				ClientMessage: &Ydb_Topic.StreamWriteMessage_FromClient_InitRequest{
					InitRequest: &Ydb_Topic.StreamWriteMessage_InitRequest{Path: path},
				},
			})
	}
	for _, m := range []struct {
		name, path  string
		good, fault []byte
		stream      bool
	}{
		{"decoded", protocol.QueryService + "ExecuteQuery", query("SELECT 1"), query(fault), false},
		{"passed through", schemeService + "ListDirectory", bytesOf(t, &Ydb_Scheme.ListDirectoryRequest{Path: "/local"}),
			bytesOf(t, &Ydb_Scheme.ListDirectoryRequest{Path: fault}), false},
		{"rows", protocol.TableService + "BulkUpsert", bytesOf(t, &Ydb_Table.BulkUpsertRequest{Table: "table"}),
			bytesOf(t, &Ydb_Table.BulkUpsertRequest{Table: fault}), false},
		{"stream", protocol.TopicService + "StreamWrite", write("topic"), write(fault), true},
	} {
		for _, row := range brokenRows(m.good, m.stream) {
			for i := range short.Of(20, 4) {
				if got, _ := row.send(t, s.addr, m.path, nil, i%2 == 1); got["grpc-status"] != strconv.Itoa(int(row.want)) {
					t.Errorf("%s, %s: %v; want %v", m.name, row.name, got, row.want)
					break
				}
			}
			for _, good := range []brokenRow{{body: framedMessage(m.good)}, {encoding: "gzip", body: packedMessage(zipped(m.good))}} {
				if got, _ := good.send(t, s.addr, m.path, nil, false); got["grpc-status"] != "0" {
					t.Errorf("%s, in order, after %s: %v", m.name, row.name, got)
				}
			}
			s.settled(t)
			blameless(t, m.name+", "+row.name, reported(s.server, s.judge))
		}
		if got, _ := framesOf(t, s.addr, m.path, nil, nil, framedMessage(m.fault)); got["grpc-status"] != "13" {
			t.Errorf("%s, a fault of the node: %v", m.name, got)
		}
		s.settled(t)
		if all := reported(s.server, s.judge); len(all) != 1 || all[0].Blame != cluster.BlameTransport {
			t.Errorf("%s, a fault of the node: %+v", m.name, all)
		}
	}
}

// The same where sessions are the sidecar's own, and requests on them are inflated here.
func TestBrokenFramingOnVirtualSessionsBlamesNoNode(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	virtual := g.session()
	headers := []string{"x-ydb-database", g.database, "x-ydb-auth-ticket", g.ticket, "x-client", g.name}
	judge := h.server.deps.Health.(brokenReporter).outcomes
	query := func(id string) []byte {
		return bytesOf(t,
			&Ydb_Query.ExecuteQueryRequest{SessionId: id,
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "select"}}})
	}
	for _, m := range []struct {
		name, path string
		message    []byte
		stream     bool
	}{
		{"on a session", protocol.QueryService + "ExecuteQuery", query(virtual.id), false},
		{"without a session", protocol.QueryService + "ExecuteQuery", query(""), false},
		{"on no session", protocol.TableService + "DescribeTable",
			bytesOf(t, &Ydb_Table.DescribeTableRequest{SessionId: virtual.id, Path: "table"}), false},
		{"passed through", protocol.TableService + "BulkUpsert", bytesOf(t, &Ydb_Table.BulkUpsertRequest{Table: "table"}), false},
		{"stream", protocol.TopicService + "StreamWrite", bytesOf(t, &Ydb_Topic.StreamWriteMessage_FromClient{}), true},
	} {
		for _, row := range brokenRows(m.message, m.stream) {
			for i := range short.Of(20, 4) {
				got, body := row.send(t, h.addr, m.path, headers, i%2 == 1)
				// the nodes take a stream without messages
				if got["grpc-status"] == "" || got["grpc-status"] == "0" && len(body) == 0 && row.want != codes.Unknown {
					t.Errorf("%s, %s: %v", m.name, row.name, got)
					break
				}
			}
			virtual.must(success, "select", nil)
			h.resting()
			blameless(t, m.name+", "+row.name, reported(h.server, judge))
		}
	}
}
