package datapathtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"google.golang.org/grpc"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-sidecar/sidecar/proof/conformance"
)

// peer speaks HTTP/2 frame by frame.
type peer struct {
	*http2.Framer
	net.Conn
	block   bytes.Buffer
	encoder *hpack.Encoder
	decoder *hpack.Decoder
}

func newPeer(c net.Conn) *peer {
	p := &peer{Framer: http2.NewFramer(c, c), Conn: c, decoder: hpack.NewDecoder(4096, nil)}
	p.encoder = hpack.NewEncoder(&p.block)
	return p
}

// headers sends a header block of name, value, name, value ...
func (p *peer) headers(id uint32, end bool, pairs ...string) error {
	p.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		if err := p.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}); err != nil {
			return err
		}
	}
	b := p.block.Bytes()
	first := b[:min(len(b), 16<<10)]
	err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndHeaders: len(first) == len(b), EndStream: end})
	for rest := b[len(first):]; len(rest) > 0 && err == nil; {
		part := rest[:min(len(rest), 16<<10)]
		rest = rest[len(part):]
		err = p.WriteContinuation(id, len(rest) == 0, part)
	}
	return err
}

// serve has the peer be a node: its preface and settings are exchanged, and each request
// goes to fn with its number on this connection, from 1.
func serve(fn func(p *peer, number int, id uint32)) func(net.Conn) {
	return func(c net.Conn) {
		p := newPeer(c)
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		if p.WriteSettings() != nil || p.WriteSettingsAck() != nil {
			return
		}
		for number := 1; ; {
			f, err := p.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.HeadersFrame:
				fn(p, number, f.StreamID)
				number++
			case *http2.PingFrame:
				if !f.IsAck() {
					_ = p.WritePing(true, f.Data) // the next read fails if this does
				}
			}
		}
	}
}

var (
	head     = []string{":status", "200", "content-type", "application/grpc"}
	trailers = []string{"grpc-status", "0"}
)

// A node ends calls by frames: the sidecar says the truth of each, the others go on,
// and the node is not ejected for taking its leave.
func TestNodesThatEndStreams(t *testing.T) {
	d := newDoor(t, startNode(t, 1))
	s := startSidecar(t, []string{d.address})
	conn := dial(t, s.GRPC, nil)
	if err := echo(t.Context(), conn, future); err != nil {
		t.Fatal(err)
	}
	before := s.held(t)
	resetInTheMiddle(t, d, s, conn)
	leavesAfterTwoCalls(t, d, conn)
	d.put(nil)
	d.reset()
	eventually(t, 60*time.Second, "the node is back", func() string {
		if err := echo(t.Context(), conn, future); err != nil {
			return err.Error()
		}
		return ""
	})
	before.goroutines += 8 // probes have a connection of their own, and its loop an epoll
	before.descriptors += 2
	s.backAt(t, before)
}

// answersAgain waits until a call through the sidecar is answered by what stands behind the door now.
func answersAgain(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	eventually(t, patience, "the node answers again", func() string {
		var answer raw
		if err := conn.Invoke(t.Context(), future, &raw{}, &answer, grpc.ForceCodecV2(codec)); err != nil {
			return err.Error()
		}
		return ""
	})
}

// resetInTheMiddle has every second call reset in the middle of its answer.
func resetInTheMiddle(t *testing.T, d *door, s *sidecar, conn *grpc.ClientConn) {
	d.put(serve(func(p *peer, number int, id uint32) {
		_ = p.headers(id, false, head...)
		_ = p.WriteData(id, false, framed([]byte("part"))[:7])
		if number%2 == 0 {
			_ = p.WriteRSTStream(id, http2.ErrCodeInternal)
			return
		}
		_ = p.WriteData(id, false, framed([]byte("part"))[7:])
		_ = p.headers(id, true, trailers...)
	}))
	d.reset()
	answersAgain(t, conn)
	got := map[codes.Code]int{}
	for range 20 {
		eventually(t, patience, "the node can be used", func() string {
			if n := s.node(t, 1); n.Use != "new" {
				return n.Use
			}
			return ""
		})
		at, end := tell(t.Context(), 20*time.Second)
		var answer raw
		err := conn.Invoke(at, future, &raw{}, &answer, grpc.ForceCodecV2(codec))
		end()
		if err == nil && string(answer) != "part" {
			t.Errorf("%q", answer)
		}
		got[status.Code(err)]++
	}
	t.Logf("reset in the middle: %v", got)
	if got[codes.OK] < 3 || got[codes.DeadlineExceeded] > 0 || got[codes.Internal]+got[codes.Unavailable] < 3 {
		t.Errorf("every second call is reset: %v", got)
	}
}

// leavesAfterTwoCalls has the node go away after its second call; it does not know of what came after.
func leavesAfterTwoCalls(t *testing.T, d *door, conn *grpc.ClientConn) {
	d.put(serve(func(p *peer, number int, id uint32) {
		if number == 3 {
			_ = p.WriteGoAway(id-2, http2.ErrCodeNo, nil)
			return
		}
		if number > 3 {
			return
		}
		_ = p.headers(id, false, head...)
		_ = p.WriteData(id, false, framed([]byte("part")))
		_ = p.headers(id, true, trailers...)
	}))
	d.reset()
	answersAgain(t, conn)
	for i := range 12 {
		at, end := tell(t.Context(), 20*time.Second)
		var answer raw
		err := conn.Invoke(at, future, &raw{}, &answer, grpc.ForceCodecV2(codec))
		end()
		if late := time.Until(at.deadline); late < 0 {
			t.Errorf("call %d was answered %v after its deadline", i, -late)
		}
		// The sidecar says which calls were not executed, and grpc-go repeats those. It says a bare
		// io.EOF (1.85.0), not the status, if the repeat is refused before it has sent its message.
		if c := status.Code(err); c != codes.OK && c != codes.Unavailable && !errors.Is(err, io.EOF) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// rss is the sidecar's resident memory, bytes.
func (s *sidecar) rss(t testing.TB) int64 {
	t.Helper()
	u, err := usage(s.Process.Pid())
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// 300 MB go to a reader that pauses: the sidecar keeps little of them.
func TestLongStreamToASlowReader(t *testing.T) {
	const parts, size, most = 300, 1 << 20, 64 << 20
	s := startSidecar(t, []string{startNode(t, 1)})
	conn, other := dial(t, s.GRPC, nil), dial(t, s.GRPC, nil)
	for _, c := range []*grpc.ClientConn{conn, other} {
		if err := echo(t.Context(), c, future); err != nil {
			t.Fatal(err)
		}
	}
	before, start := s.held(t), s.rss(t)
	var sizes []int32
	for range parts {
		sizes = append(sizes, size)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(
		ctx, &testpb.StreamingOutputCallRequest{ResponseParameters: conformance.Output(sizes...)},
	)
	if err != nil {
		t.Fatal(err)
	}
	want, peak := conformance.Payload(size).Body, int64(0)
	for i := range parts {
		if i%30 == 0 { // the reader pauses, and others go on meanwhile
			for range 20 {
				if err := echo(ctx, other, future); err != nil {
					t.Fatal(err)
				}
			}
			peak = max(peak, s.rss(t)-start)
		}
		a, err := stream.Recv()
		if err != nil || !bytes.Equal(a.Payload.Body, want) {
			t.Fatalf("part %d: %v", i, err)
		}
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Error(err)
	}
	t.Logf("memory grew by at most %d KiB", peak>>10)
	if peak > most {
		t.Errorf("the sidecar took %d MiB for a stream of %d; want at most %d", peak>>20, parts*size>>20, most>>20)
	}
	s.backAt(t, before)
}

// A thousand connections come, make a call each, and go.
func TestManyConnections(t *testing.T) {
	const connections, atATime = 1000, 100
	s := startSidecar(t, []string{startNode(t, 1)})
	if err := echo(t.Context(), dial(t, s.GRPC, nil), future); err != nil {
		t.Fatal(err)
	}
	before := s.held(t)
	for range connections / atATime {
		var conns []*grpc.ClientConn
		for range atATime {
			c := dial(t, s.GRPC, nil)
			if err := echo(t.Context(), c, future); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	}
	s.backAt(t, before)
}

// What is not of YDB's protocol as the sidecar knows it.
func TestOddCalls(t *testing.T) {
	nodes := startNodes(t)
	s := startSidecar(t, nodes)
	conn := dial(t, s.GRPC, nil)
	seen := map[string]bool{}
	for range 30 {
		for _, method := range []string{future, "/Ydb.Query.V1.QueryService/Brandnew",
			"/Ydb.Discovery.V1.DiscoveryService/Brandnew", "/of.another/Service"} {
			var header metadata.MD
			if err := echo(t.Context(), conn, method, grpc.Header(&header)); err != nil && method != "/Ydb.Query.V1.QueryService/Brandnew" {
				t.Errorf("%s: %v", method, err)
			} else if err == nil {
				seen[header.Get(nodeHeader)[0]] = true
			}
		}
	}
	if len(seen) != len(nodes) {
		t.Errorf("unknown calls go to the nodes %v; want all", seen)
	}
	for _, method := range []string{"/sidecar.v1.Sidecar/Brandnew", "/grpc.health.v1.Health/Brandnew", "/Method", "/"} {
		if err := echo(t.Context(), conn, method); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v; want UNIMPLEMENTED", method, err)
		}
	}
	if err := echo(t.Context(), conn, "no-path"); err == nil {
		t.Error("a path without a slash is answered")
	}

	compressed(t, conn)
	// Above what a node takes: it says so itself.
	for range 2 {
		_, err := testpb.NewTestServiceClient(conn).UnaryCall(
			t.Context(), &testpb.SimpleRequest{Payload: conformance.Payload(conformance.MaxMessage + 1)},
		)
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a message above 64 MB: %v", err)
		}
	}
	largeHeaders(t, s)
	if err := echo(t.Context(), conn, future); err != nil {
		t.Error(err)
	}
}

// compressed makes calls whose requests are compressed.
func compressed(t *testing.T, conn *grpc.ClientConn) {
	for id := 1; id <= 3; id++ {
		stream, err := Ydb_Query_V1.NewQueryServiceClient(conn).ExecuteQuery(
			t.Context(), &Ydb_Query.ExecuteQueryRequest{SessionId: sessionOn(id),
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
					QueryContent: &Ydb_Query.QueryContent{Text: strings.Repeat("SELECT 1; ", 1000)},
				}},
			grpc.UseCompressor(
				gzip.Name,
			),
		)
		var part *Ydb_Query.ExecuteQueryResponsePart
		if err == nil {
			part, err = stream.Recv()
		}
		if err != nil || part.Status != Ydb.StatusIds_SUCCESS {
			t.Errorf("a compressed call: %v, %v", part, err)
		}
	}
}

// largeHeaders sends headers above the limit, which end the call and nothing else.
func largeHeaders(t *testing.T, s *sidecar) {
	c, err := net.Dial("tcp", s.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // a socket takes one
	p := newPeer(c)
	request := []string{":method", "POST", ":scheme", "http", ":path", future, ":authority", "x", "content-type",
		"application/grpc", "te", "trailers"}
	_, err = io.WriteString(c, http2.ClientPreface)
	for _, do := range []func() error{
		func() error { return p.WriteSettings() },
		func() error { return p.headers(1, true, append(request, "x-large", strings.Repeat("abc", 25<<10))...) },
		func() error { return p.headers(3, false, request...) },
		func() error { return p.WriteData(3, true, framed([]byte("small"))) },
	} {
		if err == nil {
			err = do()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	large := answersToTwo(t, p)
	t.Logf("large headers: %s", large)
	if large == "" || strings.Contains(large, "grpc-status=0") {
		t.Errorf("large headers: %q", large)
	}
}

// answersToTwo reads how the first call ended, until the second one has ended well.
func answersToTwo(t *testing.T, p *peer) (large string) {
	for done := false; !done; {
		f, err := p.ReadFrame()
		if err != nil {
			t.Fatalf("after large headers: %v; so far %q", err, large)
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			fields, err := p.decoder.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				t.Fatal(err)
			}
			for _, field := range fields {
				if f.StreamID == 1 && (field.Name == ":status" || field.Name == "grpc-status") {
					large += field.Name + "=" + field.Value + " "
				}
				if f.StreamID == 3 && field.Name == "grpc-status" {
					if done = true; field.Value != "0" {
						t.Errorf("the call after it: status %s", field.Value)
					}
				}
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == 1 {
				large += f.ErrCode.String()
			}
		case *http2.GoAwayFrame:
			t.Fatalf("large headers end the connection: %v", f)
		}
	}
	return large
}

// A browser that asks the port is told what it is.
func TestPlainGet(t *testing.T) {
	s := startSidecar(t, startNodes(t))
	for _, path := range []string{"/", "/any/path", "/Ydb.Query.V1.QueryService/ExecuteQuery"} {
		if got := string(command(t, "curl", "-sS", "--http2-prior-knowledge", "http://"+s.GRPC+path)); got != "This port speaks gRPC.\n" {
			t.Errorf("%s: %q", path, got)
		}
	}
}
