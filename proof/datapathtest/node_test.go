package datapathtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/conformance"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// node is a server of gRPC's interoperability cases that also has as much of YDB's
// query service as makes it a node in the sidecar's eyes. It sends what comes for any
// other method back as it is, with its id in the header nodeHeader.
type node struct {
	Ydb_Query_V1.UnimplementedQueryServiceServer
	id string
}

const nodeHeader = "x-node"

func newNode(id string) *grpc.Server {
	n := &node{id: id}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(conformance.MaxMessage), grpc.MaxSendMsgSize(1<<30),
		grpc.UnknownServiceHandler(n.echo), grpc.ForceServerCodecV2(codec))
	testpb.RegisterTestServiceServer(g, conformance.NewServer())
	Ydb_Query_V1.RegisterQueryServiceServer(g, n)
	return g
}

// startNode runs a node in this process, for as long as the test.
func startNode(t testing.TB, id int) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := newNode(strconv.Itoa(id))
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(l) }) // it fails only when it is stopped
	t.Cleanup(func() { g.Stop(); wg.Wait() })
	return l.Addr().String()
}

// startNodes runs three.
func startNodes(t testing.TB) (addresses []string) {
	for id := range 3 {
		addresses = append(addresses, startNode(t, id+1))
	}
	return addresses
}

// nodeEnv makes this program a node: its value is ID@host:port.
const nodeEnv = "DATAPATHTEST_NODE"

// startNodeProcess runs a node in a process of its own.
func startNodeProcess(t testing.TB, id int, address string) (p *stand.Process, at string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p = standtest.Start(t, stand.Spec{Path: self, Env: []string{fmt.Sprintf("%s=%d@%s", nodeEnv, id, address)}})
	return p, standtest.Ready(t, p)["grpc"]
}

func runNode(what string) {
	id, address, _ := strings.Cut(what, "@")
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	g := newNode(id)
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"ready": true, "grpc": l.Addr().String()})
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() { <-term; g.Stop() }()
	_ = g.Serve(l) // it fails only when it is stopped
}

// sessionOn is the id of a session of a node.
func sessionOn(id int) string { return fmt.Sprintf("ydb://session/3?node_id=%d&id=x", id) }

func (n *node) CreateSession(context.Context, *Ydb_Query.CreateSessionRequest) (*Ydb_Query.CreateSessionResponse, error) {
	id, err := strconv.Atoi(n.id)
	return &Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_SUCCESS, SessionId: sessionOn(id), NodeId: int64(id)}, err
}

func (n *node) DeleteSession(context.Context, *Ydb_Query.DeleteSessionRequest) (*Ydb_Query.DeleteSessionResponse, error) {
	return &Ydb_Query.DeleteSessionResponse{Status: Ydb.StatusIds_SUCCESS}, nil
}

func (n *node) AttachSession(_ *Ydb_Query.AttachSessionRequest, stream Ydb_Query_V1.QueryService_AttachSessionServer) error {
	if err := stream.Send(&Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Texts of queries that mean something to a node.
const (
	hold   = "hold"   // one part, and nothing more
	silent = "silent" // not even that
)

// ExecuteQuery answers with the node's id in an issue.
func (n *node) ExecuteQuery(r *Ydb_Query.ExecuteQueryRequest, stream Ydb_Query_V1.QueryService_ExecuteQueryServer) error {
	text := r.GetQueryContent().GetText()
	if text != silent {
		if err := stream.Send(
			&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, Issues: []*Ydb_Issue.IssueMessage{{Message: n.id}}},
		); err != nil {
			return err
		}
	}
	if text == hold || text == silent {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	return nil
}

// echo sends messages back as they came.
func (n *node) echo(_ any, stream grpc.ServerStream) error {
	if err := stream.SetHeader(metadata.Pairs(nodeHeader, n.id)); err != nil {
		return err
	}
	for {
		var m raw
		if err := stream.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(&m); err != nil {
			return err
		}
	}
}

// raw is a message that is sent as it is.
type raw []byte

// rawCodec passes raw messages as they are.
type rawCodec struct{ encoding.CodecV2 }

var codec = rawCodec{encoding.GetCodecV2(encodingproto.Name)}

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*raw); ok {
		return mem.BufferSlice{mem.SliceBuffer(*m)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*raw); ok {
		*m = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
