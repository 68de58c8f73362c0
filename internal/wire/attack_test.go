package wire

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/short"
	"github.com/ydb-sidecar/sidecar/proof/stepcount"
)

// attacked runs statements of two clients, one for each shard, until every attack has had its answer. Each
// statement must be answered in a time that is short beside that of an attack which takes a shard's turn.
func attacked(t *testing.T, h *house, attacks ...func(context.Context)) {
	t.Helper()
	over, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var attackers, bystanders sync.WaitGroup
	done := make(chan struct{})
	for _, s := range []*session{h.guest("a").session(), h.guest("b").session()} {
		bystanders.Go(func() {
			for n := 0; ; n++ {
				ctx, cancel := context.WithTimeout(over, 20*time.Second)
				st, _, err := s.run(ctx, s.id, "select", nil)
				cancel()
				if st != success || err != nil {
					t.Errorf("statement %d of a client that has nothing to do with it: %v, %v", n, st, err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for _, attack := range attacks {
		attackers.Go(func() { attack(over) })
	}
	attackers.Wait()
	close(done)
	bystanders.Wait()
	if err := over.Err(); err != nil {
		t.Error("the attacks had no answer in time")
	}
}

// Texts that are searched for TEMP TABLE stop nobody, whether their calls name a session or not.
func TestTextsFullOfTempStopNobody(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 64 }) // such a text keeps its session
	// Of 100 KiB, a search in quadratic time takes ten billion steps.
	texts := stepcount.Temps(short.Of(300, 100) << 10)
	for _, options := range [][]grpc.CallOption{nil, compressedBy["gzip"], compressedBy["deflate"]} {
		var all []func(context.Context)
		for _, named := range []bool{false, true} {
			for _, kind := range []string{"comments that do not end", "comments that end at the end",
				"lines that do not end", "a chain of comments"} {
				text := texts[kind]
				g := h.guest("attacker")
				id := "x"
				if named {
					id = g.session().id
				}
				g.options = options
				all = append(all, func(ctx context.Context) {
					ctx = g.with(ctx)
					if out, err := g.query.ExecuteQuery(
						ctx,
						&Ydb_Query.ExecuteQueryRequest{SessionId: id,
							Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: text}}},
						options...,
					); err == nil {
						for err == nil {
							_, err = out.Recv()
						}
					}
					// what it is told is another test's
					_, _ = g.table.ExecuteDataQuery(
						ctx,
						&Ydb_Table.ExecuteDataQueryRequest{SessionId: id,
							Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: text}}},
						options...,
					)
					_, _ = g.table.ExecuteSchemeQuery(ctx, &Ydb_Table.ExecuteSchemeQueryRequest{SessionId: id, YqlText: text}, options...)
				})
			}
		}
		attacked(t, h, all...)
	}
}

// blocked keeps the goroutines that inflate from their work until the function that it returns is called.
func (h *house) blocked() (release func()) { return h.server.unpackers.stop() }

// buffered is how many bytes wait in all shards.
func (h *house) buffered() (n int) {
	for _, f := range h.server.shards {
		n += f.shard.Stats().Buffered
	}
	return n
}

// Messages are inflated in the lane of large requests, which the plain API shares.
func TestMessagesAreInflatedInTheLane(t *testing.T) {
	h := newInn(t, nil)
	place, err := h.server.deps.Lane.NewDoor().Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := h.comes("a", "a/1")
	g.options = compressedBy["gzip"]
	done := make(chan struct{})
	go func() {
		defer close(done)
		text := stepcount.Temps(900 << 10)["comments that do not end"]
		if st, _, err := g.run(t.Context(), "x", text, nil); st != Ydb.StatusIds_BAD_SESSION || err != nil {
			t.Errorf("a large message: %v, %v", st, err)
		}
	}()
	us := &h.server.unpackers
	h.eventually("a goroutine has the message", func() string {
		us.mu.Lock()
		defer us.mu.Unlock()
		return strings.Repeat("x", us.len()+1-us.running)
	})
	b := h.comes("b", "b/1").session()
	for range 100 { // which takes longer than the message would
		b.must(success, "select", nil)
	}
	select {
	case <-done:
		t.Error("it did not wait for a place")
	default:
	}
	place.Leave()
	<-done
}

// Messages that inflate to much are inflated off the shards' turns, after it was asked whose they are, and
// what waits for that is not lost count of.
func TestBombsStopNobody(t *testing.T) {
	h := newInn(t, nil)
	release := h.blocked()
	bomb := stepcount.Temps(900 << 10)["comments that do not end"]
	g := h.comes("attacker", "a/1")
	g.options = compressedBy["gzip"]
	impatient, cancel := context.WithCancel(t.Context())
	defer cancel()
	var attackers sync.WaitGroup
	for i := range 8 {
		ctx := t.Context()
		if i < 4 {
			ctx = impatient
		}
		attackers.Go(func() {
			if st, _, err := g.run(ctx, "x", bomb, nil); ctx.Err() == nil && (st != Ydb.StatusIds_BAD_SESSION || err != nil) {
				t.Errorf("a bomb: %v, %v", st, err)
			}
		})
	}
	us := &h.server.unpackers
	h.eventually("all bombs wait", func() string {
		us.mu.Lock()
		defer us.mu.Unlock()
		return strings.Repeat("x", 8-us.len())
	})
	for _, s := range []*session{h.comes("b", "b/1").session(), h.comes("c", "c/1").session()} {
		s.must(success, "select", nil)
	}
	bad := h.comes("bad", "bad/1")
	bad.options = compressedBy["gzip"]
	if st, _, err := bad.run(t.Context(), "x", bomb, nil); st != Ydb.StatusIds_UNAUTHORIZED || err != nil {
		t.Errorf("a bomb with a ticket that the cluster does not accept: %v, %v", st, err)
	}
	cancel()
	h.eventually("half of them are over", func() string {
		held := 0
		for _, f := range h.server.shards {
			held += f.shard.Stats().Held
		}
		return strings.Repeat("x", held-4)
	})
	release()
	attackers.Wait()
	h.resting()
	h.eventually("nothing waits", func() string { return strings.Repeat("x", h.buffered()) })
}

// Messages that wait to be inflated go with their calls: nothing is kept of calls that are cancelled.
func TestCancelledCallsLeaveTheInflation(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	tx := s.must(success, "select", beginTx)
	release := h.blocked()
	us := &h.server.unpackers
	waits := func(want int) {
		t.Helper()
		h.eventually("messages wait", func() string {
			us.mu.Lock()
			defer us.mu.Unlock()
			if n := us.len(); n != want {
				return fmt.Sprint(n, "; want ", want)
			}
			return ""
		})
	}
	bomb := stepcount.Temps(900 << 10)["comments that do not end"]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls sync.WaitGroup
	stays := h.guest("b")
	stays.options = compressedBy["gzip"]
	calls.Go(func() {
		if st, _, err := stays.run(t.Context(), "x", bomb, nil); st != Ydb.StatusIds_BAD_SESSION || err != nil {
			t.Errorf("the call that stays: %v, %v", st, err)
		}
	})
	waits(1)
	for range 4 {
		g := h.guest("c")
		g.options = compressedBy["gzip"]
		calls.Go(func() { _, _, _ = g.run(ctx, "x", bomb, nil) }) // it ends with ctx
	}
	writer := s.writer(compressedBy["gzip"]...)
	if err := writer.stream.Send(writeIn(s.id, tx, 900_000)); err != nil {
		t.Fatal(err)
	}
	waits(6)
	cancel()
	writer.guest.conn.Close()
	waits(1)
	release()
	calls.Wait()
	waits(0)
	h.eventually("nothing counts", func() string {
		if n := h.buffered(); n > 0 {
			return fmt.Sprint(n)
		}
		return ""
	})
}

// What was inflated counts as waiting as long as its call does.
func TestInflatedBytesCount(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 1 })
	g := h.guest("a")
	busy, end := context.WithCancel(t.Context())
	defer end()
	var calls sync.WaitGroup
	defer calls.Wait()
	calls.Go(func() { _, _, _ = g.run(busy, "", "hang", nil) }) // it ends with busy
	<-h.hung
	const size = 900 << 10
	for _, options := range [][]grpc.CallOption{compressedBy["gzip"], compressedBy["deflate"]} {
		other := h.guest("b")
		other.options = options
		ctx, cancel := context.WithCancel(t.Context())
		calls.Go(func() { _, _, _ = other.run(ctx, "", strings.Repeat(" ", size), nil) })
		h.eventually("the call waits for a session", func() string { return strings.Repeat("x", 1-h.inLine()) })
		if n := h.buffered(); n < size {
			t.Errorf("%d bytes count as waiting; the message has %d", n, size)
		}
		cancel()
		h.eventually("nothing waits", func() string { return strings.Repeat("x", min(h.buffered(), 10)) })
	}
	last := h.guest("c")
	last.options = compressedBy["gzip"]
	calls.Go(func() {
		if st, _, err := last.run(t.Context(), "", "select "+strings.Repeat(" ", size), nil); st != success || err != nil {
			t.Errorf("the call that got a session: %v, %v", st, err)
		}
	})
	h.eventually("the last call waits", func() string { return strings.Repeat("x", 1-h.inLine()) })
	end()
	calls.Wait()
	h.eventually("nothing waits", func() string { return strings.Repeat("x", min(h.buffered(), 10)) })
}

// No room is made for a message before it counts.
func TestInflatingTakesNoMemoryThatIsNotCounted(t *testing.T) {
	h := newHouse(t, nil)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(make([]byte, 1<<20)) // to memory
	_ = w.Close()
	u := &unpacking{f: h.server.shards[0], encoding: "gzip", packed: packed.Bytes()} // of a call that is over
	if err := u.inflate(new(inflater), 64<<20); !errors.Is(err, errAbandoned) || cap(u.plain) > 0 || u.held != 0 || h.buffered() != 0 {
		t.Errorf("%v; room for %d, %d held, %d count", err, cap(u.plain), u.held, h.buffered())
	}
}

// A goroutine that inflates a message stops when the message's call is over.
func TestInflationEndsWithItsCall(t *testing.T) {
	h := newHouse(t, nil)
	release := h.blocked()
	g := h.guest("a")
	g.options = compressedBy["gzip"]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls sync.WaitGroup
	calls.Go(func() { _, _, _ = g.run(ctx, "x", stepcount.Temps(900 << 10)["comments that do not end"], nil) }) // it ends with ctx
	us := &h.server.unpackers
	var u *unpacking
	h.eventually("the message waits", func() string {
		us.mu.Lock()
		defer us.mu.Unlock()
		if us.len() == 0 {
			return "it does not"
		}
		u = us.lines.Front().Value.(*line).waiting.Front().Value.(*unpacking)
		return ""
	})
	u.over.Store(true) // as its call's end does
	if err := u.inflate(new(inflater), 1<<20); !errors.Is(err, errAbandoned) || len(u.plain) > protocol.PrefixSize {
		t.Errorf("%v, and %d bytes are inflated", err, len(u.plain))
	}
	u.f.shard.Do(func(e *h2.Forwarder) {
		e.Unhold(u.ticket, u.held)
		u.held, u.plain = 0, nil
	})
	cancel()
	calls.Wait()
	release()
	h.eventually("nothing waits", func() string { return strings.Repeat("x", min(h.buffered(), 10)) })
}

// Compressed messages that would take the shard's turn for long are refused, and no others.
func TestCompressedMessagesOfOddForms(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	id := h2.AppendField(nil, 1, []byte(s.id))
	text := h2.AppendField(nil, 4, h2.AppendField(nil, 2, []byte("select "+strings.Repeat(" ", 100<<10))))
	noise := func(n int) []byte { return bytes.Repeat([]byte{15 << 3, 1}, n) }
	for name, c := range map[string]struct {
		request []byte
		refused string // "": it is not
	}{
		"usual":                     {slices.Concat(id, text), ""},
		"some fields":               {slices.Concat(id, noise(maxFields-1)), ""},
		"too many fields":           {slices.Concat(id, noise(maxFields)), "262144 fields"},
		"a session that comes late": {slices.Concat(text, id), "first 64 KiB"},
		"a group":                   {slices.Concat(id, text, []byte{0x0b, 0x0c}), "no client of YDB sends"},
		"a field of no length":      {slices.Concat(id, text, []byte{0x7a, 0x05}), "no client of YDB sends"},
	} {
		for encoding, options := range compressedBy {
			if options == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(s.with(t.Context()), time.Minute)
			stream, err := s.conn.NewStream(
				ctx, anyStream, protocol.QueryService+"ExecuteQuery", append(options, grpc.ForceCodecV2(passing))...,
			)
			if err != nil {
				t.Fatal(err)
			}
			answer := new(message)
			if err := errors.Join(stream.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(c.request)}}),
				stream.CloseSend(), stream.RecvMsg(answer)); err != nil {
				t.Errorf("%s, %s: %v", name, encoding, err)
			}
			part := new(Ydb_Query.ExecuteQueryResponsePart)
			if err := proto.Unmarshal(answer.data.Materialize(), part); err != nil {
				t.Error(err)
			}
			answer.free()
			cancel()
			if text := fmt.Sprint(part.GetIssues()); c.refused == "" && part.GetStatus() != success ||
				c.refused != "" && (part.GetStatus() != Ydb.StatusIds_BAD_REQUEST || !strings.Contains(text, c.refused)) {
				t.Errorf("%s, %s: %v %s; want %q", name, encoding, part.GetStatus(), text, c.refused)
			}
			h.eventually("the session rests", func() string {
				if st, _, err := s.run(t.Context(), s.id, "select", nil); st != success || err != nil {
					return fmt.Sprint(st, err)
				}
				return ""
			})
		}
	}
	h.resting()
}

// Compressed calls of the plain API are inflated as those of YDB's protocol are: off the data path, a few at a time, what
// they become counted; and they end where others do.
func TestBombsOfThePlainAPI(t *testing.T) {
	h := newInn(t, nil)
	release := h.blocked()
	conn := h.comes("attacker", "a/1").conn
	call := func(text string) (*healthv1.HealthCheckRequest, error) { // as good an answer: see largeCheck
		out := new(healthv1.HealthCheckRequest)
		return out, conn.Invoke(t.Context(), checkPath, &healthv1.HealthCheckRequest{Service: text}, out,
			append(compressedBy["gzip"], grpc.MaxCallRecvMsgSize(math.MaxInt32))...)
	}
	var attackers sync.WaitGroup
	for range 8 {
		attackers.Go(func() {
			if out, err := call(strings.Repeat("temp/*", 150_000)); err != nil || len(out.Service) != largePlain {
				t.Errorf("a bomb: %v", err)
			}
		})
	}
	us := &h.server.unpackers
	h.eventually("all bombs wait", func() string {
		us.mu.Lock()
		defer us.mu.Unlock()
		return strings.Repeat("x", 8-us.len())
	})
	h.eventually("turns may inflate again", func() (not string) {
		for _, f := range h.server.shards {
			f.shard.Do(func(e *h2.Forwarder) {
				if !f.inflated.fits(e.Now(), mostPacked) {
					not = "x"
				}
			})
		}
		return not
	})
	if out, err := call("small"); err != nil || len(out.Service) != largePlain {
		t.Errorf("a small one: %v", err)
	}
	release()
	attackers.Wait()
	if _, err := call(strings.Repeat("x", 2<<20)); status.Code(err) == codes.OK {
		t.Error("one that is too large is taken")
	}
	h.eventually("nothing waits", func() string { return strings.Repeat("x", h.buffered()) })
}

// burst sends calls of a path, each with the same compressed message, at once. wait returns when all are answered.
func burst(t *testing.T, addr, path, encoding string, packed []byte, calls int) (wait func()) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer, encoder := http2.NewFramer(&out, conn), hpack.NewEncoder(&block)
	framer.WriteSettings()
	for id := range uint32(calls) {
		block.Reset()
		for all := []string{":method", "POST", ":scheme", "http", ":path", path, ":authority", addr, "content-type",
			"application/grpc", "te", "trailers", "grpc-encoding", encoding}; len(all) > 0; all = all[2:] {
			encoder.WriteField(hpack.HeaderField{Name: all[0], Value: all[1]})
		}
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*id + 1, BlockFragment: block.Bytes(), EndHeaders: true})
		framer.WriteData(2*id+1, true, append(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(packed))), packed...))
	}
	if _, err := conn.Write(out.Bytes()); err != nil { // the sidecar reads it in a piece or two
		t.Fatal(err)
	}
	return func() {
		for left := calls; left > 0; {
			fr, err := framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if fr.Header().Type == http2.FrameHeaders && fr.Header().Flags.Has(http2.FlagHeadersEndStream) {
				left--
			}
		}
	}
}

// waitsOf is how many messages wait for goroutines that inflate once so many calls have come.
func waitsOf(t *testing.T, s *Server, calls uint64) int {
	t.Helper()
	await.Right(t, "the calls have come", func() string {
		n := uint64(0)
		for _, f := range s.shards {
			n += f.shard.Stats().Calls
		}
		if n < calls {
			return fmt.Sprint(n, " have")
		}
		return ""
	})
	us := &s.unpackers
	us.mu.Lock()
	defer us.mu.Unlock()
	return us.len()
}

// Small messages that inflate to much each, or that take long to inflate to little, are inflated in a
// turn as far as that takes no long time; the others wait for the goroutines that inflate.
func TestManySmallBombsDoNotFillATurn(t *testing.T) {
	request := func(size int) []byte {
		return bytesOf(t,
			&Ydb_Table.ExecuteDataQueryRequest{SessionId: "x",
				Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: strings.Repeat("x", size)}}})
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(request(60 << 10))
	z.Close()
	for _, tc := range []struct {
		name, encoding string
		packed         []byte
		calls          int
	}{
		{"much each", "gzip", packed.Bytes(), 64},
		{"much work each", "deflate", costly(14, request(10)), 15}, // nearly 4 KiB each: two would be more than a turn's part
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHouse(t, nil)
			release := h.blocked()
			wait := burst(t, h.addr, protocol.TableService+"ExecuteDataQuery", tc.encoding, tc.packed, tc.calls)
			if n := waitsOf(t, h.server, uint64(tc.calls)); n < tc.calls/2 {
				t.Errorf("%d of %d messages wait for others that inflate", n, tc.calls)
			}
			release()
			wait()
		})
	}
}

// The same where calls go on as they came, and their sessions are looked for in the start of what they inflate to. All go to the owner.
func TestManySmallHeadsDoNotFillATurn(t *testing.T) {
	const calls = 15
	s := newStack(t, Config{Mode: ModePassthrough})
	start := s.server.unpackers.stop()
	message := bytesOf(t, &Ydb_Query.ExecuteQueryRequest{SessionId: sessionID(2)})
	wait := burst(t, s.addr, protocol.QueryService+"ExecuteQuery", "deflate", costly(14, message), calls)
	if n := waitsOf(t, s.server, calls); n < calls/2 {
		t.Errorf("%d of %d messages wait for others that inflate", n, calls)
	}
	start()
	wait()
	if n := len(s.nodes[1].encodings.take()); n != calls {
		t.Errorf("%d of %d calls went to the session's node", n, calls)
	}
}
