package driver

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/conformance"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// noLeaks fails the test if goroutines, descriptors or memory are left when all of its
// other clean-up is done.
func noLeaks(t *testing.T) {
	listen(t).Close() // the runtime's own descriptors
	goroutines, files, memory := goleak.IgnoreCurrent(), openFiles(), heap()
	t.Cleanup(func() {
		goleak.VerifyNone(t, goroutines)
		if now := openFiles(); now > files {
			t.Errorf("%d descriptors are open; %d were", now, files)
		}
		if now := heap(); now > memory+8<<20 {
			t.Errorf("%d bytes are in use; %d were", now, memory)
		}
	})
}

func openFiles() int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // not on Linux
	}
	return len(all)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // what pools hold
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// node is a server on another implementation of HTTP/2 that does as it likes.
type node struct {
	*http2.Framer
	*net.TCPConn
	encoder *hpack.Encoder
	block   bytes.Buffer
	stop    chan struct{} // closed when the test is over
}

// answer sends headers, or trailers.
func (n *node) answer(id uint32, end bool, pairs ...string) {
	n.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		n.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	n.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: n.block.Bytes(), EndHeaders: true, EndStream: end})
}

// requests reads until n requests have come, or as many have ended.
func (n *node) requests(count int, ended bool) bool {
	for count > 0 {
		fr, err := n.ReadFrame()
		if err != nil {
			return false
		}
		switch fr := fr.(type) {
		case *http2.HeadersFrame:
			if !ended || fr.StreamEnded() {
				count--
			}
		case *http2.DataFrame:
			if ended && fr.StreamEnded() {
				count--
			}
		}
	}
	return true
}

// startNode runs do on each connection, the number of which it gets.
func startNode(t *testing.T, do func(n *node, number int)) (addr string) {
	l, stop := listen(t), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for number := 0; ; number++ {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer nc.Close()
				n := &node{TCPConn: nc.(*net.TCPConn), stop: stop}
				n.encoder = hpack.NewEncoder(&n.block)
				n.Framer = http2.NewFramer(n.TCPConn, n.TCPConn)
				io.ReadFull(nc, make([]byte, len(http2.ClientPreface)))
				n.WriteSettings()
				n.WriteSettingsAck()
				do(n, number)
			})
		}
	})
	t.Cleanup(func() { l.Close(); close(stop); wg.Wait() })
	return l.Addr().String()
}

// patient takes nobody for dead who is only slow, as on a machine with much to do.
func patient() h2.Config {
	c := h2.Default()
	c.Silence, c.ClientSilence = time.Hour, time.Hour
	return c
}

// front runs a shard in front of one node and returns a client of it.
func front(t *testing.T, config h2.Config, nodeAddr string) (s *Shard, addr string) {
	r := &toUpstreams{}
	s = New(config, r)
	r.all = []*Upstream{s.Upstream(dialTCP(nodeAddr), nil)}
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() { accept(s, l, nil) })
	keep(t, s)
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return s, l.Addr().String()
}

func dialCaller(t *testing.T, addr string) *caller {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return newCaller(nc)
}

// endings reads until so many calls have ended and returns how, with how often.
func (c *caller) endings(t *testing.T, calls int) map[string]int {
	all, ended, decoder := map[string]int{}, map[uint32]bool{}, hpack.NewDecoder(4096, nil)
	end := func(id uint32, how string) {
		if !ended[id] {
			ended[id] = true
			all[how]++
		}
	}
	for len(ended) < calls {
		fr, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("%v, after %v", err, all)
		}
		switch fr := fr.(type) {
		case *http2.HeadersFrame:
			fields, err := decoder.DecodeFull(fr.HeaderBlockFragment())
			if err != nil {
				t.Fatal(err)
			}
			if i := slices.IndexFunc(fields, func(f hpack.HeaderField) bool { return f.Name == "grpc-status" }); fr.StreamEnded() {
				end(fr.StreamID, "status "+fields[i].Value)
			}
		case *http2.RSTStreamFrame:
			end(fr.StreamID, fr.ErrCode.String())
		case *http2.PingFrame:
			if !fr.IsAck() {
				c.WritePing(true, fr.Data)
			}
		}
	}
	return all
}

const faultCalls = 20

// Whatever a node does, each call has an end, which says the truth, and nothing is left.
func TestFaultsOfNodes(t *testing.T) {
	head := []string{":status", "200", "content-type", "application/grpc"}
	trailer := []string{"grpc-status", "0"}
	begin := func(n *node) bool { // an answer to each call
		if !n.requests(faultCalls, false) {
			return false
		}
		for id := uint32(1); id < 2*faultCalls; id += 2 {
			n.answer(id, false, head...)
			n.WriteData(id, false, []byte("\x00\x00\x00\x00\x20part"))
		}
		return true
	}
	for name, tc := range map[string]struct {
		node func(n *node)
		want map[string]int
	}{
		"killed": {func(n *node) {
			n.requests(faultCalls, false)
			n.SetLinger(0) // resets the connection
		}, map[string]int{"status 14": faultCalls}},
		"killed_in_answers": {func(n *node) { begin(n) }, map[string]int{"status 14": faultCalls}},
		"killed_in_a_frame": {func(n *node) {
			begin(n)
			n.Write([]byte{0, 0, 100, 0, 0, 0, 0, 0, 1, 'x'})
		}, map[string]int{"status 14": faultCalls}},
		"black_hole": {func(n *node) {
			n.requests(faultCalls, false)
			<-n.stop
		}, map[string]int{"status 14": faultCalls}},
		"black_hole_in_answers": {func(n *node) {
			begin(n)
			<-n.stop
		}, map[string]int{"status 14": faultCalls}},
		"other_words": {func(n *node) {
			begin(n)
			io.WriteString(n, "HTTP/1.1 500 Internal Server Error\r\n\r\n")
			<-n.stop
		}, map[string]int{"status 14": faultCalls}},
		"resets": {func(n *node) {
			begin(n)
			for id := uint32(1); id < 2*faultCalls; id += 2 {
				n.WriteRSTStream(id, http2.ErrCodeInternal)
			}
			n.requests(1, false)
		}, map[string]int{"INTERNAL_ERROR": faultCalls}},
		"goes_away": {func(n *node) {
			if !n.requests(faultCalls, false) {
				return
			}
			n.WriteGoAway(9, http2.ErrCodeNo, nil) // the fifth call
			for id := uint32(1); id <= 9; id += 2 {
				n.answer(id, true, append(head, trailer...)...)
			}
			n.requests(1, false)
		}, map[string]int{"status 0": 5, "REFUSED_STREAM": faultCalls - 5}},
		"refuses": {func(n *node) {
			n.requests(faultCalls, false)
			for id := uint32(1); id < 2*faultCalls; id += 2 {
				n.WriteRSTStream(id, http2.ErrCodeRefusedStream)
			}
			n.requests(1, false)
		}, map[string]int{"REFUSED_STREAM": faultCalls}},
		"trailers_only": {func(n *node) {
			n.requests(faultCalls, true)
			for id := uint32(1); id < 2*faultCalls; id += 2 {
				n.answer(id, true, append(head, "grpc-status", "5")...)
			}
			n.requests(1, false)
		}, map[string]int{"status 5": faultCalls}},
		"answers_before_the_request_is_whole": {func(n *node) {
			n.requests(faultCalls, false)
			for id := uint32(1); id < 2*faultCalls; id += 2 {
				n.answer(id, true, append(head, "grpc-status", "5")...)
				n.WriteRSTStream(id, http2.ErrCodeNo)
			}
			n.requests(1, false)
		}, map[string]int{"status 5": faultCalls}},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			config := patient()
			if strings.HasPrefix(name, "black_hole") {
				config.Silence, config.KeepaliveTimeout = time.Second, time.Second
			}
			s, addr := front(t, config, startNode(t, func(n *node, _ int) { tc.node(n) }))
			c := dialCaller(t, addr)
			for range faultCalls {
				id := c.call(false)
				c.WriteData(id, false, make([]byte, 3000))
				if name == "trailers_only" {
					c.WriteData(id, true, nil)
				}
			}
			if diff := cmp.Diff(tc.want, c.endings(t, faultCalls)); diff != "" {
				t.Error(diff)
			}
			c.Close()
			if err := s.Drain(t.Context(), nil); err != nil {
				t.Error(err)
			}
			if st := s.Stats(); st.Calls != faultCalls || st.Buffered != 0 || st.Held != 0 || st.Clients != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// The calls of a client that vanished, or died, are cancelled at the node.
func TestFaultsOfClients(t *testing.T) {
	for name, fault := range map[string]func(c *caller, nc *net.TCPConn){
		"vanished": func(*caller, *net.TCPConn) {},
		"killed":   func(_ *caller, nc *net.TCPConn) { nc.SetLinger(0); nc.Close() },
		"closed":   func(_ *caller, nc *net.TCPConn) { nc.Close() },
		"resets": func(c *caller, _ *net.TCPConn) {
			for id := uint32(1); id < 2*faultCalls; id += 2 {
				c.WriteRSTStream(id, http2.ErrCodeCancel)
			}
		},
		"other_words": func(_ *caller, nc *net.TCPConn) { io.WriteString(nc, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			cancelled, done := make(chan struct{}), make(chan struct{})
			defer close(done)
			config := patient()
			if name == "vanished" { // not before it has made its calls, on a machine that stands still for two seconds
				config.ClientSilence, config.ClientTimeout = 3*time.Second, 3*time.Second
			}
			s, addr := front(t, config, startNode(t, func(n *node, _ int) {
				n.requests(faultCalls, false)
				for id := uint32(1); id < 2*faultCalls; id += 2 { // more than the client takes
					n.answer(id, false, ":status", "200")
					for range 4 {
						n.WriteData(id, false, make([]byte, 16000))
					}
				}
				cancelled <- struct{}{}
				for resets := 0; resets < faultCalls; {
					fr, err := n.ReadFrame()
					if err != nil {
						t.Errorf("%v, after %d resets", err, resets)
						break
					}
					switch fr := fr.(type) {
					case *http2.RSTStreamFrame:
						resets++
					case *http2.PingFrame:
						n.WritePing(true, fr.Data)
					}
				}
				close(cancelled)
				<-done
			}))
			c := dialCaller(t, addr)
			for range faultCalls {
				c.call(false)
			}
			<-cancelled
			fault(c, c.Conn.(*net.TCPConn))
			<-cancelled
			if st := s.Stats(); st.Ends[h2.Cancelled] != faultCalls || st.Buffered != 0 || st.Held != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// trickle passes bytes one at a time, in both directions.
func trickle(t *testing.T, addr string) string {
	l := listen(t)
	var wg sync.WaitGroup
	join := func(from, to net.Conn) {
		b := make([]byte, 1)
		for {
			if _, err := from.Read(b); err != nil {
				to.Close()
				return
			}
			if _, err := to.Write(b); err != nil {
				from.Close()
				return
			}
		}
	}
	wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", addr)
			if err != nil {
				a.Close()
				continue
			}
			wg.Go(func() { join(a, b) })
			wg.Go(func() { join(b, a) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestOneByteAtATime(t *testing.T) {
	noLeaks(t)
	l := listen(t)
	serve(t, l)
	s, addr := front(t, patient(), trickle(t, l.Addr().String()))
	direct, through := connect(t, l.Addr().String(), insecure.NewCredentials()), connect(t, trickle(t, addr), insecure.NewCredentials())
	for _, name := range []string{"empty", "ping_pong", "empty_stream", "cancel_after_first_answer", "custom_metadata",
		"unimplemented", "special_status_message", "status_after_begin"} {
		if name == "ping_pong" && testing.Short() { // cancel_after_first_answer has a message each way, half as long
			continue
		}
		var want, got conformance.Result
		conformance.Cases[name](t.Context(), direct, &want)
		conformance.Cases[name](t.Context(), through, &got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s differs from direct:\n%.2000s", name, diff)
		}
	}
	rests(t, s)
}

// What a slow reader takes counts as it takes it, and not when it has taken all that was to be written at a time.
func TestSlowReadersMakeProgress(t *testing.T) {
	short.Skip(t, "its peers take seconds each")
	noLeaks(t)
	const sent = 15 * 16 << 10
	s, _ := front(t, patient(), startNode(t, func(n *node, _ int) {
		if n.requests(1, false) {
			n.answer(1, false, ":status", "200")
			for range sent >> 14 {
				n.WriteData(1, false, make([]byte, 16<<10))
			}
			n.requests(1, false) // until it ends
		}
	}))
	client, server := net.Pipe() // keeps nothing
	defer client.Close()
	s.Accept(server, nil)
	c := newCaller(client)
	c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	c.WriteWindowUpdate(0, 1<<20)
	c.call(true)
	state := func() (st h2.State) {
		all, _ := s.Connections(t.Context(), 10)
		for _, one := range all {
			if one.IsClient {
				st = one.State
			}
		}
		return st
	}
	await.True(t, "all waits for the client", func() bool { return state().Buffered > sent })
	if _, err := io.ReadFull(client, make([]byte, sent/2)); err != nil {
		t.Fatal(err)
	}
	await.True(t, "what the client took counts", func() bool { st := state(); return st.Out >= 64<<10 && st.Buffered < sent })
	if st := state(); st.Out > sent/2 {
		t.Errorf("%d bytes count of %d that were read", st.Out, sent/2)
	}
}

// The memory that a stream takes does not depend on its length, however slow its reader.
func TestLongStreamsToSlowReaders(t *testing.T) {
	for _, tc := range []struct{ megabytes, window int }{{3, 1000}, {short.Of(300, 12), 256 << 10}} {
		t.Run(fmt.Sprintf("%d_MB_to_a_client", tc.megabytes), func(t *testing.T) {
			longStreamToAClient(t, tc.megabytes, tc.window)
		})
		t.Run(fmt.Sprintf("%d_MB_to_a_node", tc.megabytes), func(t *testing.T) {
			longStreamToANode(t, tc.megabytes, tc.window)
		})
	}
}

func longStreamToANode(t *testing.T, megabytes, window int) {
	noLeaks(t)
	var s *Shard
	addr := startNode(t, func(n *node, _ int) {
		got, unread := 0, 0
		for {
			fr, err := n.ReadFrame()
			if err != nil {
				return
			}
			switch fr := fr.(type) {
			case *http2.PingFrame:
				n.WritePing(true, fr.Data)
			case *http2.DataFrame:
				got += len(fr.Data())
				if unread += len(fr.Data()); unread >= min(window, 65535)/2 || got < 65535 {
					if kept := s.Stats().Buffered; kept > h2.Default().MaxWindow {
						t.Errorf("%d bytes wait", kept)
					}
					n.WriteWindowUpdate(0, uint32(unread))
					n.WriteWindowUpdate(fr.StreamID, uint32(unread))
					unread = 0
				}
				if fr.StreamEnded() {
					answer, _ := proto.Marshal(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(got)})
					n.answer(fr.StreamID, false, ":status", "200", "content-type", "application/grpc")
					n.WriteData(fr.StreamID, false, append([]byte{0, 0, 0, 0, byte(len(answer))}, answer...))
					n.answer(fr.StreamID, true, "grpc-status", "0")
				}
			}
		}
	})
	s, addr = front(t, patient(), addr)
	c := connect(t, addr, insecure.NewCredentials())
	stream, err := c.StreamingInputCall(t.Context())
	for range megabytes {
		if err == nil {
			err = stream.Send(&testpb.StreamingInputCallRequest{Payload: conformance.Payload(1 << 20)})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := stream.CloseAndRecv()
	if n := int(a.GetAggregatedPayloadSize()); err != nil || n < megabytes<<20 || n > megabytes<<20+30*megabytes {
		t.Errorf("%d bytes came, %v", n, err)
	}
}

func longStreamToAClient(t *testing.T, megabytes, window int) {
	noLeaks(t)
	l := listen(t)
	serve(t, l)
	s, addr := front(t, patient(), l.Addr().String())
	c := dialCaller(t, addr)
	c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(window)})
	var sizes []int32
	for range megabytes {
		sizes = append(sizes, 1<<20)
	}
	request, err := proto.Marshal(&testpb.StreamingOutputCallRequest{ResponseParameters: conformance.Output(sizes...)})
	if err != nil {
		t.Fatal(err)
	}
	id := c.callTo("/grpc.testing.TestService/StreamingOutputCall", false)
	c.WriteData(id, true, append([]byte{0, 0, 0, byte(len(request) >> 8), byte(len(request))}, request...))
	got, unread := 0, 0
	for {
		fr, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if fr, ok := fr.(*http2.DataFrame); ok {
			got += len(fr.Data())
			if unread += len(fr.Data()); unread >= min(window, 65535)/2 {
				if kept := s.Stats().Buffered; kept > h2.Default().MaxWindow {
					t.Fatalf("%d bytes wait", kept)
				}
				c.WriteWindowUpdate(0, uint32(unread))
				c.WriteWindowUpdate(id, uint32(unread))
				unread = 0
			}
		}
		if fr, ok := fr.(*http2.HeadersFrame); ok && fr.StreamEnded() {
			break
		}
	}
	if got < megabytes<<20 || got > megabytes<<20+30*megabytes {
		t.Errorf("%d bytes came", got)
	}
}
