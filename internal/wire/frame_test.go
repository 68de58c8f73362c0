package wire

import (
	"bytes"
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// frameConn is a client's connection, frame by frame. What is written goes out with flush.
type frameConn struct {
	*testing.T
	net.Conn
	out, block bytes.Buffer
	framer     *http2.Framer
	encoder    *hpack.Encoder
}

func dialFrames(t *testing.T, addr string) *frameConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // never fails
	c := &frameConn{T: t, Conn: conn}
	c.encoder, c.framer = hpack.NewEncoder(&c.block), http2.NewFramer(&c.out, conn)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.out.WriteString(http2.ClientPreface)
	_ = c.framer.WriteSettings() // to memory
	return c
}

func (c *frameConn) headers(stream uint32, end bool, pairs []string) {
	c.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}) // to memory, like what follows
	}
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: end})
}

func (c *frameConn) flush() {
	c.Helper()
	if _, err := c.out.WriteTo(c.Conn); err != nil {
		c.Fatal(err)
	}
}

// requestTo are the headers of a call, the usual ones and others.
func requestTo(addr, path string, others ...string) []string {
	return append(
		[]string{":method", "POST", ":scheme", "http", ":path", path, ":authority", addr, "content-type",
			"application/grpc", "te", "trailers"},
		others...,
	)
}

// framesOf calls a method frame by frame, as no client of gRPC does, on a connection of its own: headers besides
// the usual ones, bodies in frames of their own, and trailers if there are any. It returns the headers, the body and the
// trailers that are answered.
func framesOf(
	t *testing.T, addr, path string, headers []string, trailers []string, bodies ...[]byte,
) (answer map[string]string, body []byte) {
	t.Helper()
	raw := dialFrames(t, addr)
	raw.headers(1, false, requestTo(addr, path, headers...))
	for i, b := range bodies {
		_ = raw.framer.WriteData(1, trailers == nil && i == len(bodies)-1, b) // to memory
	}
	if trailers != nil {
		raw.headers(1, true, trailers)
	}
	raw.flush()
	defer raw.Close()
	answer = map[string]string{}
	for ended := false; !ended; {
		fr, err := raw.framer.ReadFrame()
		switch fr := fr.(type) {
		case nil:
			t.Fatalf("%s: %v, after %v", path, err, answer)
		case *http2.MetaHeadersFrame:
			for _, f := range fr.Fields {
				answer[f.Name] = f.Value
			}
			ended = fr.StreamEnded()
		case *http2.DataFrame:
			body = append(body, fr.Data()...)
			ended = fr.StreamEnded()
		case *http2.RSTStreamFrame:
			answer["reset"], ended = fr.ErrCode.String(), true
		case *http2.GoAwayFrame:
			answer["go away"], ended = fr.ErrCode.String(), true
		}
	}
	return answer, body
}

// grpc-go ends a connection on which a request has trailers: other clients' calls are on it, too.
func TestTrailersOfRequestsEndNoConnectionOfANode(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var open []Ydb_Query_V1.QueryService_ExecuteQueryClient
	for range 2 { // one for each shard
		query := Ydb_Query_V1.NewQueryServiceClient(dial(t, s.addr))
		one, err := query.ExecuteQuery(
			ctx,
			&Ydb_Query.ExecuteQueryRequest{SessionId: sessionID(1),
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "begin"}}},
		)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := one.Recv(); err != nil {
			t.Fatal(err)
		}
		open = append(open, one)
	}
	request := framedMessage(bytesOf(t, &Ydb_Table.ExecuteDataQueryRequest{SessionId: sessionID(1)}))
	for range 4 {
		got, _ := framesOf(
			t, s.addr, protocol.TableService+"ExecuteDataQuery", nil,
			[]string{"authorization", "Bearer secret", "x-ydb-auth-ticket", "secret", "x-ydb-database", "/other"},
			request,
		)
		if got["grpc-status"] != "0" {
			t.Errorf("a call with trailers: %v", got)
		}
	}
	for range 4 { // what the nodes have to say about the trailers comes before these answers
		got, _ := framesOf(t, s.addr, protocol.TableService+"ExecuteDataQuery", nil, nil, request)
		if got["grpc-status"] != "0" {
			t.Errorf("a call after those: %v", got)
		}
	}
	cancel()
	for i, one := range open {
		if _, err := one.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("stream %d of a client that has nothing to do with it: %v", i, err)
		}
	}
	for _, head := range s.nodes[0].encodings.take() {
		for _, name := range []string{"authorization", "x-ydb-auth-ticket", "x-ydb-database"} {
			if got := head.Get(name); len(got) > 0 {
				t.Errorf("the node got %s: %q", name, got)
			}
		}
	}
}

// A request that no protobuf can decode is its caller's fault, although nodes answer INTERNAL: those
// of grpc-go, and YDB's own, in words of C++. INTERNAL with another message is the node's.
func TestRequestsThatCannotBeDecodedBlameNoNode(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	id := bytesOf(t, &Ydb_Query.ExecuteQueryRequest{SessionId: sessionID(1)})
	text := func(text string) []byte {
		return bytesOf(t,
			&Ydb_Query.ExecuteQueryRequest{SessionId: sessionID(1),
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: text}}})
	}
	for _, tc := range []struct {
		name, path string
		request    []byte
		want       cluster.Blame
	}{
		{"cut", "ExecuteQuery", append(slices.Clone(id), 0x22, 0x7f), cluster.BlameNone},
		{"no field", "ExecuteQuery", append(slices.Clone(id), 0xff, 0xff), cluster.BlameNone},
		{"whole", "ExecuteQuery", id, cluster.BlameSuccess},
		{"cut inside", "ExecuteQuery", h2.AppendField(slices.Clone(id), 4, []byte{0x12, 0x7f}), cluster.BlameNone},
		{"of another method", "CommitTransaction", append(slices.Clone(id), 0x12, 0x7f), cluster.BlameNone},
		{"words of C++", "ExecuteQuery", text("Unable to parse request"), cluster.BlameNone},
		{"another message", "ExecuteQuery", text("a fault of the node"), cluster.BlameTransport},
	} {
		s.judge.mu.Lock()
		s.judge.all = nil
		s.judge.mu.Unlock()
		got, _ := framesOf(t, s.addr, protocol.QueryService+tc.path, nil, nil, framedMessage(tc.request))
		o := s.judge.wait(t, tc.name, func(cluster.Outcome) bool { return true })
		if want := map[bool]string{true: "0", false: "13"}[tc.want == cluster.BlameSuccess]; got["grpc-status"] != want ||
			o.Blame != tc.want {
			t.Errorf("%s: %v, %+v; want status %s and %v", tc.name, got, o, want, tc.want)
		}
	}
}

// What a node of grpc-go refuses for its headers the sidecar refuses itself, with the same code, and blames no node.
func TestMalformedHeadersBlameNoNode(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	request := framedMessage(bytesOf(t, &Ydb_Table.ExecuteDataQueryRequest{SessionId: sessionID(1)}))
	for _, tc := range []struct{ name, value, want string }{
		{"grpc-timeout", "zz", "13"}, {"grpc-timeout", "", "13"}, {"grpc-timeout", "123456789S", "13"}, {"grpc-timeout", "10S", "0"},
		{"x-a-bin", "!!!", "13"}, {"x-a-bin", "A", "13"}, {"x-a-bin", "AA=", "13"}, {"x-a-bin", "AA==", "0"},
		{"x-a-bin", "AA", "0"}, {"x-a-bin", "", "0"},
		{"host", "a", "0"},
	} {
		model, _ := framesOf(t, s.nodes[0].addr, protocol.TableService+"ExecuteDataQuery", []string{tc.name, tc.value}, nil, request)
		s.nodes[0].encodings.take()
		got, _ := framesOf(t, s.addr, protocol.TableService+"ExecuteDataQuery", []string{tc.name, tc.value}, nil, request)
		if model["grpc-status"] != tc.want || got["grpc-status"] != tc.want {
			t.Errorf("%s %q: %v; a node answers %v; want %s", tc.name, tc.value, got, model, tc.want)
		}
		if heads := s.nodes[0].encodings.take(); tc.want != "0" && len(heads) > 0 {
			t.Errorf("%s %q: a node got %v", tc.name, tc.value, heads)
		}
	}
	s.settled(t)
	s.judge.mu.Lock()
	defer s.judge.mu.Unlock()
	for _, o := range s.judge.all {
		if o.Blame != cluster.BlameSuccess {
			t.Errorf("a node is blamed: %+v", o)
		}
	}
}
