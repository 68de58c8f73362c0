package wire

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"container/list"
	"context"
	"encoding/binary"
	"errors"
	"hash/adler32"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// packer compresses as grpc-go, which has no deflate, does not. Of a message that has one of
// these words it makes what nobody should send.
type packer struct{ name string }

const (
	wordCorrupt = "corrupt this"
	wordCut     = "cut this off"
	wordBomb    = "make this a bomb"
	wordLate    = "begin with much that is nothing"
	wordCostly  = "begin with much that costs"
)

func init() {
	encoding.RegisterCompressor(packer{"deflate"})
	encoding.RegisterCompressor(packer{"odd"})
}

func (p packer) Name() string { return p.name }

func (p packer) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }

func (p packer) Compress(w io.Writer) (io.WriteCloser, error) { return &packing{to: w}, nil }

type packing struct {
	bytes.Buffer
	to io.Writer
}

func (p *packing) Close() error {
	if bytes.Contains(p.Bytes(), []byte(wordCostly)) {
		_, err := p.to.Write(costly(3300, p.Bytes()))
		return err
	}
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	if bytes.Contains(p.Bytes(), []byte(wordLate)) {
		for range mostPacked { // each is a block without contents
			_ = w.Flush() // to memory
		}
	}
	_, err := w.Write(p.Bytes())
	if bytes.Contains(p.Bytes(), []byte(wordBomb)) { // another field of a mebibyte
		_, again := w.Write(protowire.AppendBytes(protowire.AppendTag(nil, 127, protowire.BytesType), make([]byte, 1<<20)))
		err = errors.Join(err, again)
	}
	err = errors.Join(err, w.Close())
	b := out.Bytes()
	switch {
	case bytes.Contains(p.Bytes(), []byte(wordCorrupt)):
		copy(b[len(b)-4:], "oops")
	case bytes.Contains(p.Bytes(), []byte(wordCut)):
		b = b[:len(b)-8]
	}
	_, other := p.to.Write(b)
	return errors.Join(err, other)
}

// bits are those of deflate, RFC 1951.
type bits struct {
	out  []byte
	left int // of the last byte
}

// put appends n bits of v, the lowest first.
func (b *bits) put(v, n int) {
	for ; n > 0; n-- {
		if b.left == 0 {
			b.out, b.left = append(b.out, 0), 8
		}
		b.out[len(b.out)-1] |= byte(v&1) << (8 - b.left)
		b.left--
		v >>= 1
	}
}

// code appends the code of a symbol where the codes of all symbols have these lengths; 0: none.
func (b *bits) code(lengths []int, symbol int) {
	n, code := lengths[symbol], 0
	for i, other := range lengths {
		if other > 0 && (other < n || other == n && i < symbol) {
			code += 1 << (n - other)
		}
	}
	for ; n > 0; n-- {
		b.put(code>>(n-1), 1)
	}
}

// costly is a message of zlib's format, of at most 64 KiB, behind 8*n blocks without contents of less than 35 bytes each. Their codes
// need as many tables as there may be: 136 for those of more than 9 bits, with places for 15.
func costly(n int, message []byte) []byte {
	lengths := []int{1, 3, 4, 5, 6, 11, 12, 13, 14, 15, 15}
	for len(lengths) < 282 {
		lengths = append(lengths, 10)
	}
	ofLengths := make([]int, 19) // the lengths' own codes; symbol 16 repeats a length
	for _, length := range []int{4, 5, 6, 11, 12, 13} {
		ofLengths[length] = 5
	}
	for _, length := range []int{1, 3, 10, 14, 15} {
		ofLengths[length] = 4
	}
	ofLengths[16] = 1
	var b bits
	for range 8 { // of which the last ends with a byte
		b.put(0, 1) // not the last one
		b.put(2, 2) // it has codes of its own
		b.put(len(lengths)-257, 5)
		b.put(0, 5) // of distances there is one
		b.put(len(ofLengths)-4, 4)
		for _, symbol := range []int{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15} {
			b.put(ofLengths[symbol], 3)
		}
		for _, length := range lengths[:12] {
			b.code(ofLengths, length)
		}
		for range len(lengths[12:]) / 6 {
			b.code(ofLengths, 16)
			b.put(3, 2) // six times
		}
		b.code(ofLengths, 1)
		b.code(lengths, 256) // the end of the block
	}
	out := append([]byte{0x78, 0x9c}, bytes.Repeat(b.out, n)...)
	out = append(out, 1) // the last one, as it is
	out = binary.LittleEndian.AppendUint16(out, uint16(len(message)))
	out = binary.LittleEndian.AppendUint16(out, ^uint16(len(message)))
	return binary.BigEndian.AppendUint32(append(out, message...), adler32.Checksum(message))
}

func TestCostlyMessagesCanBeRead(t *testing.T) {
	r, err := zlib.NewReader(bytes.NewReader(costly(10, []byte("text"))))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); string(b) != "text" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// encodings is a stats.Handler that remembers how the requests of calls are compressed, and their headers.
type encodings struct {
	mu    sync.Mutex
	all   []string
	heads []metadata.MD
}

func (e *encodings) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (e *encodings) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (e *encodings) HandleConn(context.Context, stats.ConnStats)                       {}

func (e *encodings) HandleRPC(_ context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InHeader); ok {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.all, e.heads = append(e.all, in.Compression), append(e.heads, in.Header)
	}
}

// take returns the headers of the calls since it was called last.
func (e *encodings) take() []metadata.MD {
	e.mu.Lock()
	defer e.mu.Unlock()
	heads := e.heads
	e.heads = nil
	return heads
}

func (e *encodings) last() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all[len(e.all)-1]
}

func TestCompressedRequests(t *testing.T) {
	noise := make([]byte, 400_000)
	for i := range noise {
		noise[i] = byte('a' + rand.N(26))
	}
	for name, options := range compressedBy {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			g := h.guest("a")
			g.options = options
			s := g.session()
			tx := s.must(success, "select", beginTx)
			s.must(success, "select "+strings.Repeat("long ", 100_000), inTx(tx, false))
			s.must(success, "select "+string(noise), inTx(tx, true)) // longer than the window
			h.resting()
			if st, _, err := g.run(h.ctx, "", "select", nil); st != success || err != nil {
				t.Errorf("without a session: %v, %v", st, err)
			}
			// What is looked for in requests is found.
			s.must(success, strings.Repeat("-- \n", 10000)+"CREATE TEMPORARY TABLE t (a Int32)", nil)
			if n := h.server.State().Virtual.Bound; n != 1 {
				t.Error("a temporary table did not bind the session")
			}
			if r, err := g.query.DeleteSession(
				g.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id}, options...,
			); err != nil || r.GetStatus() != success {
				t.Error(r, err)
			}
			s.must(Ydb.StatusIds_BAD_SESSION, "select", nil)
			if r, err := g.table.CopyTables(
				g.with(h.ctx), &Ydb_Table.CopyTablesRequest{SessionId: g.session().id}, options...,
			); err != nil || r.GetOperation().GetStatus() != success {
				t.Error(r, err)
			}
			h.resting()
			if h.deletes != 1 {
				t.Errorf("%d sessions deleted; want that of the temporary table", h.deletes)
			}
			if got := h.encodings.last(); got != "" {
				t.Errorf("a call came with the encoding %q", got)
			}
		})
	}
}

func TestCompressedRequestsThatAreRefused(t *testing.T) {
	h := newHouse(t, nil)
	for text, want := range map[string]Ydb.StatusIds_StatusCode{
		wordCorrupt: Ydb.StatusIds_BAD_REQUEST, wordCut: Ydb.StatusIds_BAD_REQUEST, wordBomb: Ydb.StatusIds_BAD_REQUEST,
		wordCostly: Ydb.StatusIds_BAD_REQUEST, "odd": Ydb.StatusIds_UNSUPPORTED,
	} {
		g := h.guest("a")
		s := g.session()
		if g.options = compressedBy["deflate"]; text == "odd" {
			g.options = []grpc.CallOption{grpc.UseCompressor("odd")}
		}
		s.must(want, "select "+text, nil)
		if _, err := g.table.CreateTable(
			g.with(h.ctx), &Ydb_Table.CreateTableRequest{SessionId: s.id, Path: text}, g.options...,
		); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		g.options = nil
		s.must(success, "select", nil)
	}
	h.resting()
	if h.deletes != 0 {
		t.Errorf("%d sessions deleted", h.deletes)
	}
}

// A compressed call on a session of the cluster's own finds its node, and goes on as it came.
func TestCompressedCallsGoToTheOwner(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	for name, options := range compressedBy {
		for i := range 9 {
			owner := cluster.NodeID(i%3 + 1)
			s.options = options
			state, node, err := s.run(t.Context(), sessionID(owner), "SELECT 1"+strings.Repeat(" ", i*i*i*1000))
			if err != nil || node != owner || state != success {
				t.Errorf("%s: a call of node %d: %v from node %d, %v", name, owner, state, node, err)
			}
			if got := s.nodes[owner-1].encodings.last(); name != "plain" && got != name {
				t.Errorf("%s came as %q", name, got)
			}
		}
	}
	// Of a message of which much inflates to nothing only the start is looked at.
	s.options = compressedBy["deflate"]
	spread := map[cluster.NodeID]int{}
	for n := 0; n < 60 && len(spread) < 2; n++ {
		state, node, err := s.run(t.Context(), sessionID(2), wordLate)
		if err != nil || state != success {
			t.Fatalf("much that is nothing: %v, %v", state, err)
		}
		spread[node]++
	}
	if len(spread) < 2 {
		t.Errorf("all of it is looked at: calls go to %v", spread)
	}
	// What cannot be read is for a node to judge.
	s.options = compressedBy["deflate"]
	if _, _, err := s.run(t.Context(), sessionID(2), wordCorrupt); status.Code(err) != codes.Internal {
		t.Errorf("a corrupt message: %v", err)
	}
	s.options = []grpc.CallOption{grpc.UseCompressor("odd")}
	if state, _, err := s.run(t.Context(), sessionID(2), "SELECT 1"); err != nil || state != success {
		t.Errorf("an encoding that nobody knows: %v, %v", state, err)
	}
}

// packedFunc is something that takes a goroutine of unpackers.
type packedFunc func(*inflater)

func (f packedFunc) serve(i *inflater) { f(i) }

// Messages that take long have their turns with others: of other connections, and of their own.
func TestLongInflationsTakeTurns(t *testing.T) {
	var us unpackers
	us.in(t.Context(), lane.New(1))
	var place *list.Element
	var quick sync.WaitGroup
	over := make(chan struct{})
	time.AfterFunc(20*time.Second, func() { // nobody took turns
		select {
		case <-over:
		default:
			t.Error("the others wait for those that take long")
		}
	})
	endless := packedFunc(func(i *inflater) {
		i.aside.from = zeros{}
		b := make([]byte, 512)
		for begun := time.Now(); time.Since(begun) < 30*time.Second; {
			select {
			case <-over:
				return
			default:
				_, _ = i.aside.Read(b)
				i.aside.barren = 0
			}
		}
	})
	for range 3 * us.most {
		us.do(new(h2.Conn), endless, &place)
	}
	own := new(h2.Conn)
	us.do(own, endless, &place)
	for _, conn := range []*h2.Conn{own, new(h2.Conn), new(h2.Conn)} {
		quick.Add(1)
		us.do(conn, packedFunc(func(*inflater) { quick.Done() }), &place)
	}
	quick.Wait()
	close(over)
	us.runs.Wait()
	if us.running != 0 || us.yielded != 0 || us.lines.Len() != 0 {
		t.Errorf("%d run, %d wait, %d connections", us.running, us.yielded, us.lines.Len())
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// What turns inflate has a pace, however many of them there are.
func TestInflationInTurnsHasAPace(t *testing.T) {
	var n inflatedNow
	const packed, step = 2 << 10, 10 * time.Microsecond
	most := 0
	for now := time.Duration(1); now < time.Second; now += step {
		if n.fits(now, packed) {
			n.add(packed, 0)
			most += packed
		}
	}
	if want := int(time.Second/inflateEach) * mostAtOnce / leastOfByte; most > want || most < want/2 {
		t.Errorf("%d bytes in a second of turns; want %d", most, want)
	}
}

// FuzzInflate: of any bytes no more is read than is allowed, and an inflater that has
// failed works again.
func FuzzInflate(f *testing.F) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte("text"))
	_ = w.Close()
	f.Add(packed.Bytes(), 100, true)
	f.Add([]byte{0x78, 0x9c, 3, 0, 0, 0, 0, 1}, 0, false)
	f.Fuzz(func(t *testing.T, p []byte, most int, isGzip bool) {
		if most < 0 || most > 1<<20 {
			return
		}
		encoding := "deflate"
		if isGzip {
			encoding = "gzip"
		}
		var i inflater
		b, err := i.inflate([]byte("head"), encoding, p, most)
		if len(b) > 4+most || string(b[:4]) != "head" || errors.Is(err, errTooLong) && len(b) != 4+most {
			t.Fatalf("%d bytes of at most %d, %v", len(b), most, err)
		}
		if b, err := i.inflate(nil, "gzip", packed.Bytes(), 4); string(b) != "text" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
	})
}

func BenchmarkInflate(b *testing.B) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(bytes.Repeat([]byte("SELECT 1; "), 100)); err != nil {
		b.Fatal(err)
	}
	_ = w.Close()
	for name, m := range map[string]struct {
		encoding string
		packed   []byte
	}{"usual": {"gzip", packed.Bytes()}, "costly": {"deflate", costly(mostPacked/300, []byte("text"))}} {
		b.Run(name, func(b *testing.B) {
			var i inflater
			var out []byte
			b.SetBytes(int64(len(m.packed)))
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if out, err = i.inflate(out[:0], m.encoding, m.packed, 1<<20); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A compressed message without bytes is none, and is not taken for an empty one.
func TestNothingIsNoCompressedMessage(t *testing.T) {
	for _, encoding := range []string{"gzip", "deflate"} {
		var i inflater
		if b, err := i.inflate(nil, encoding, nil, 100); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %q, %v", encoding, b, err)
		}
		m := &inflation{w: &messages{encoding: encoding, most: 100}, packed: [][]byte{make([]byte, protocol.PrefixSize)}}
		if err := m.inflate(&i); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s, of a stream: %v", encoding, err)
		}
	}
}

// Connections take turns: one with many messages does not stand before one that has few.
func TestConnectionsTakeTurnsToBeInflated(t *testing.T) {
	var us unpackers
	us.in(t.Context(), lane.New(1))
	start := us.stop()
	many, few := new(h2.Conn), new(h2.Conn)
	all := make([]unpacking, 8)
	for i := range all {
		if all[i].conn = many; i >= 6 {
			all[i].conn = few
		}
		us.do(all[i].conn, &all[i], &all[i].elem)
	}
	if !us.drop(many, &all[1].elem) || us.drop(many, &all[1].elem) {
		t.Error("a message that waits is dropped once")
	}
	for n, want := range []int{0, 6, 2, 7, 3, 4, 5} {
		if got, _ := us.next(); got != packed(&all[want]) {
			t.Fatalf("message %d is not number %d", n, want)
		}
		if us.drop(all[want].conn, &all[want].elem) {
			t.Errorf("message %d is dropped after it was taken", n)
		}
	}
	if next, _ := us.next(); next != nil || len(us.of) != 0 || us.lines.Len() != 0 {
		t.Error("something is left")
	}
	start()
	us.runs.Wait()
}
