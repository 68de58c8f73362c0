package wire

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// topicNode takes messages for topics. What is written in a transaction is for the node's books.
type topicNode struct {
	Ydb_Topic_V1.UnimplementedTopicServiceServer
	q *queryNode
}

// inTx is whether a transaction is open on a session. It does not take the session.
func (n *queryNode) inTx(tx *Ydb_Topic.TransactionIdentity, client string) Ydb.StatusIds_StatusCode {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.sessions[tx.GetSession()]
	switch {
	case s == nil:
		return Ydb.StatusIds_BAD_SESSION
	case s.open[tx.GetId()] == "":
		return Ydb.StatusIds_NOT_FOUND
	case s.open[tx.GetId()] != client:
		n.wrong = append(n.wrong, fmt.Sprintf("client %q writes in a transaction of %q", client, s.open[tx.GetId()]))
	}
	return success
}

func (t topicNode) StreamWrite(stream Ydb_Topic_V1.TopicService_StreamWriteServer) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	client := strings.Join(md.Get("x-client"), ",")
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		answer := &Ydb_Topic.StreamWriteMessage_FromServer{Status: success}
		if w := m.GetWriteRequest(); w.GetTx() != nil {
			answer.Status = t.q.inTx(w.GetTx(), client)
		}
		// What came, for the client to compare.
		body, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		answer.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 100, protowire.BytesType), body))
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (t topicNode) UpdateOffsetsInTransaction(
	ctx context.Context, r *Ydb_Topic.UpdateOffsetsInTransactionRequest,
) (*Ydb_Topic.UpdateOffsetsInTransactionResponse, error) {
	s, _, st := t.q.enter(ctx, r.GetTx().GetSession(), r.GetTx().GetId())
	if s != nil {
		t.q.leave(s)
	}
	return &Ydb_Topic.UpdateOffsetsInTransactionResponse{Operation: operationOf(nil, st, nil)}, nil
}

// writing is a stream that writes to a topic.
type writing struct {
	*guest
	stream Ydb_Topic_V1.TopicService_StreamWriteClient
}

func (g *guest) writer(options ...grpc.CallOption) *writing {
	g.Helper()
	stream, err := Ydb_Topic_V1.NewTopicServiceClient(g.conn).StreamWrite(g.with(g.ctx), options...)
	if err != nil {
		g.Fatal(err)
	}
	return &writing{g, stream}
}

// write sends a message and returns what came of it on the node.
func (w *writing) write(m *Ydb_Topic.StreamWriteMessage_FromClient) (came *Ydb_Topic.StreamWriteMessage_FromClient,
	st Ydb.StatusIds_StatusCode) {
	w.Helper()
	if err := w.stream.Send(m); err != nil {
		w.Fatal(err)
	}
	answer, err := w.stream.Recv()
	if err != nil {
		w.Fatal(err)
	}
	unknown, _ := allBytes(answer.ProtoReflect().GetUnknown(), 100)
	came = new(Ydb_Topic.StreamWriteMessage_FromClient)
	if err := proto.Unmarshal(unknown[0], came); err != nil {
		w.Fatal(err)
	}
	return came, answer.GetStatus()
}

// writeIn is a message of some size in a transaction; without a session, in none.
func writeIn(session, tx string, size int) *Ydb_Topic.StreamWriteMessage_FromClient {
	r := &Ydb_Topic.StreamWriteMessage_WriteRequest{Codec: 1,
		Messages: []*Ydb_Topic.StreamWriteMessage_WriteRequest_MessageData{{SeqNo: 7, Data: bytes.Repeat([]byte("d"), size)}}}
	if session != "" {
		r.Tx = &Ydb_Topic.TransactionIdentity{Id: tx, Session: session}
	}
	return &Ydb_Topic.StreamWriteMessage_FromClient{ClientMessage: &Ydb_Topic.StreamWriteMessage_FromClient_WriteRequest{WriteRequest: r}}
}

var compressedBy = map[string][]grpc.CallOption{"plain": nil, "gzip": {grpc.UseCompressor("gzip")},
	"deflate": {grpc.UseCompressor("deflate")}}

func TestTopicWritesInTransactions(t *testing.T) {
	for name, options := range compressedBy {
		for _, mode := range []string{ModeTransaction, ModeSession} {
			t.Run(name+" "+mode, func(t *testing.T) {
				h := newHouse(t, func(c *Config, _ *pool.Config) { c.Mode = mode })
				s := h.guest("a").session()
				w := s.writer(options...)
				init := &Ydb_Topic.StreamWriteMessage_FromClient{
					ClientMessage: &Ydb_Topic.StreamWriteMessage_FromClient_InitRequest{
						InitRequest: &Ydb_Topic.StreamWriteMessage_InitRequest{Path: "topic"},
					},
				}
				if came, st := w.write(init); st != success || !proto.Equal(came, init) {
					t.Errorf("init: %v, %v", came, st)
				}
				sizes := []int{0, 10, 20_000, 600_000}
				for _, commit := range []bool{true, false} {
					if !commit || mode == ModeSession { // nothing of the end or of the mode depends on the size
						sizes = sizes[:short.Of(len(sizes), 2)]
					}
					for _, size := range sizes {
						tx := s.must(success, "select", beginTx)
						m := writeIn(s.id, tx, size)
						m.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1}) // field 127
						came, st := w.write(m)
						id := came.GetWriteRequest().GetTx().GetSession()
						if st != success || parsesAsVirtual(id) {
							t.Fatalf("a message of %d bytes in a transaction: %v, session %q", size, st, id)
						}
						came.GetWriteRequest().Tx.Session = s.id
						if !proto.Equal(came, m) {
							t.Errorf("more than the session is changed in a message of %d bytes", size)
						}
						// No call is under way on the session, and others pass as they are.
						s.must(success, "select", inTx(tx, false))
						if came, st := w.write(writeIn("", "", size)); st != success || !proto.Equal(came, writeIn("", "", size)) {
							t.Errorf("in no transaction: %v", st)
						}
						if commit {
							s.must(success, "select", inTx(tx, true))
						} else if r, err := s.query.RollbackTransaction(
							s.with(h.ctx), &Ydb_Query.RollbackTransactionRequest{SessionId: s.id, TxId: tx},
						); err != nil || r.GetStatus() != success {
							t.Error(r, err)
						}
						if n := h.server.sessions.InTx(); n != 0 {
							t.Errorf("%d sessions have a transaction open", n)
						}
						if _, st := w.write(writeIn(s.id, tx, size)); st == success {
							t.Error("a write in a transaction that has ended")
						}
					}
				}
				s.drop()
				h.resting()
				if h.deletes != 0 {
					t.Errorf("%d sessions deleted", h.deletes)
				}
			})
		}
	}
}

// A transaction that the first part of an answer names is known before the answer has ended: the client may write in it.
func TestTopicWritesBeforeTheStatementHasEnded(t *testing.T) {
	// The end of an answer may have a tx_meta that names none.
	for how, goesOn := range map[string]bool{"SUCCESS": true, "ABORTED": false, "ABORTED and none": false,
		"GENERIC_ERROR": false, "GENERIC_ERROR and none": false} {
		t.Run(how, func(t *testing.T) {
			name, _, _ := strings.Cut(how, " ")
			ends := Ydb.StatusIds_StatusCode(Ydb.StatusIds_StatusCode_value[name])
			h := newHouse(t, nil)
			s := h.guest("a").session()
			w := s.writer()
			if _, st := w.write(writeIn("", "", 10)); st != success {
				t.Fatal(st)
			}
			out, err := s.query.ExecuteQuery(s.with(h.ctx), &Ydb_Query.ExecuteQueryRequest{SessionId: s.id, TxControl: beginTx,
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "early " + how}}})
			if err != nil {
				t.Fatal(err)
			}
			first, err := out.Recv()
			if err != nil {
				t.Fatal(err)
			}
			tx := first.GetTxMeta().GetId()
			if _, st := w.write(writeIn(s.id, tx, 100)); st != success {
				t.Errorf("a write in %s: %v", tx, st)
			}
			if st := s.must(Ydb.StatusIds_SESSION_BUSY, "select", inTx(tx, false)); st != "" {
				t.Error(st)
			}
			h.proceed <- struct{}{}
			if last, err := out.Recv(); err != nil || last.GetStatus() != ends {
				t.Errorf("%v, %v", last, err)
			}
			if _, err := out.Recv(); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			if n := h.server.sessions.InTx(); (n == 1) != goesOn {
				t.Errorf("%d sessions have a transaction open", n)
			}
			if goesOn {
				s.must(success, "select", inTx(tx, true))
			}
			s.drop()
			h.resting()
		})
	}
}

func parsesAsVirtual(id string) bool {
	_, ok := virtual.Parse([]byte(id))
	return ok
}

// What names no session that has a transaction, or another's, is left as it is.
func TestTopicWritesAreLeft(t *testing.T) {
	h := newInn(t, nil)
	a, b := h.comes("a", "ann/1").session(), h.comes("b", "bob/1").session()
	tx := a.must(success, "select", beginTx)
	w, again := b.writer(), h.comes("a", "ann/2").writer()
	left := func(w *writing, session string) {
		t.Helper()
		m := writeIn(session, tx, 100)
		if came, st := w.write(m); !proto.Equal(came, m) || st == success {
			t.Errorf("%s: %v, %v", session, came, st)
		}
	}
	left(w, a.id)
	left(w, b.id)
	left(w, "ydb://session/3?node_id=1&id=unknown")
	left(w, string(virtual.ID{1}.Append(nil)))
	left(w, strings.ToUpper(a.id))
	left(again, b.id)
	// The same user with a new ticket is the same user.
	if came, st := again.write(writeIn(a.id, tx, 100)); st != success {
		t.Errorf("with a new ticket: %v, %v", came, st)
	}
	a.must(success, "select", inTx(tx, true))
	left(again, a.id)
	h.resting()
}

// A stream that was opened before anything was known of its caller serves it all the same.
func TestTopicWriterBeforeItsSession(t *testing.T) {
	h := newInn(t, nil)
	w := h.comes("a", "ann/1").writer()
	if _, st := w.write(writeIn("", "", 10)); st != success {
		t.Fatal(st)
	}
	h.mu.Lock()
	asked := h.asked
	h.mu.Unlock()
	if asked != 0 {
		t.Error("somebody asked who writes, while there is no transaction")
	}
	s := h.comes("a", "ann/2").session()
	tx := s.must(success, "select", beginTx)
	w.guest.run(h.ctx, w.guest.session().id, "select", nil) // its ticket is known by now
	if _, st := w.write(writeIn(s.id, tx, 10)); st != success {
		t.Error(st)
	}
	s.must(success, "select", inTx(tx, true))
	for _, ticket := range []string{"bad/1", "away/1"} { // for the node to judge
		other := h.comes("a", "ann/2").session()
		tx := other.must(success, "select", beginTx)
		if _, st := h.comes("a", ticket).writer().write(writeIn(other.id, tx, 10)); st != Ydb.StatusIds_BAD_SESSION {
			t.Errorf("%s: %v", ticket, st)
		}
		other.must(success, "select", inTx(tx, true))
	}
	h.resting()
}

func TestOffsetsInATransaction(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	topics := Ydb_Topic_V1.NewTopicServiceClient(s.conn)
	offsets := func(tx string) Ydb.StatusIds_StatusCode {
		t.Helper()
		r, err := topics.UpdateOffsetsInTransaction(
			s.with(h.ctx),
			&Ydb_Topic.UpdateOffsetsInTransactionRequest{Tx: &Ydb_Topic.TransactionIdentity{Id: tx, Session: s.id}, Consumer: "c",
				Topics: []*Ydb_Topic.UpdateOffsetsInTransactionRequest_TopicOffsets{{Path: strings.Repeat("topic", 10000)}}},
		)
		if err != nil {
			t.Fatal(err)
		}
		return r.GetOperation().GetStatus()
	}
	begun, err := s.query.BeginTransaction(s.with(h.ctx), &Ydb_Query.BeginTransactionRequest{SessionId: s.id})
	if err != nil {
		t.Fatal(err)
	}
	for _, tx := range []string{begun.GetTxMeta().GetId(), s.must(success, "select", beginTx)} {
		for range 3 {
			if st := offsets(tx); st != success {
				t.Errorf("offsets in %s: %v", tx, st)
			}
		}
		s.must(success, "select", inTx(tx, false)) // it is still there
		s.must(success, "select", inTx(tx, true))
	}
	h.resting()
	if st := offsets("tx1"); st != Ydb.StatusIds_NOT_FOUND || h.deletes != 0 {
		t.Errorf("after its end: %v, %d sessions deleted", st, h.deletes)
	}
}

// len is how many messages wait.
func (us *unpackers) len() (n int) {
	for e := us.lines.Front(); e != nil; e = e.Next() {
		n += e.Value.(*line).waiting.Len()
	}
	return n
}

// stop has no goroutine inflate until start is called.
func (us *unpackers) stop() (start func()) {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.running += us.most
	return func() {
		us.mu.Lock()
		defer us.mu.Unlock()
		us.running -= us.most - 1
		us.start(lane.Slot{})
	}
}

// Large messages of topics in transactions, compressed or not, are inflated and edited off the
// shard's turn, in the order in which they came, and what waits for that counts.
func TestCompressedTopicMessagesWaitAside(t *testing.T) {
	for name, options := range compressedBy {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			s := h.guest("a").session()
			tx := s.must(success, "select", beginTx)
			w := s.writer(options...)
			us := &h.server.unpackers
			start := us.stop()
			var sent []*Ydb_Topic.StreamWriteMessage_FromClient
			for _, size := range []int{900_000, 10, 0, 700_000, 20} {
				m := writeIn(s.id, tx, size)
				m.GetWriteRequest().Messages[0].SeqNo = int64(size)
				sent = append(sent, m)
				if err := w.stream.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			if options != nil {
				h.eventually("the first message waits, and others behind it", func() string {
					us.mu.Lock()
					defer us.mu.Unlock()
					if us.len() != 1 {
						return fmt.Sprint(us.len(), " wait")
					}
					if first := us.lines.Front().Value.(*line).waiting.Front().Value.(*inflation).came; h.buffered() < first+800 {
						return fmt.Sprint(h.buffered(), " bytes count; the first message has ", first)
					}
					return ""
				})
				for range 10 { // the shard serves others
					s.must(success, "select", inTx(tx, false))
				}
			}
			start()
			for _, m := range sent {
				answer, err := w.stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				unknown, _ := allBytes(answer.ProtoReflect().GetUnknown(), 100)
				came := new(Ydb_Topic.StreamWriteMessage_FromClient)
				if err := proto.Unmarshal(unknown[0], came); err != nil || answer.GetStatus() != success {
					t.Fatal(answer.GetStatus(), err)
				}
				came.GetWriteRequest().Tx.Session = s.id
				if !proto.Equal(came, m) {
					t.Fatalf("message %d is another", m.GetWriteRequest().Messages[0].SeqNo)
				}
			}
			h.eventually("nothing waits", func() string { return strings.Repeat("x", h.buffered()) })
			s.must(success, "select", inTx(tx, true))
			h.resting()
		})
	}
}

// Messages that inflate to more than there is memory for end their stream, and nothing stays.
func TestCompressedTopicMessagesCount(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	tx := s.must(success, "select", beginTx)
	f := h.server.shards[0]
	w := &messages{frames: f, encoding: "gzip", most: 64 << 20, topic: new(topicWriter)}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(bytesOf(t, writeIn(s.id, tx, 1<<20))) // to memory
	_ = z.Close()
	m := &inflation{w: w, packed: [][]byte{append(make([]byte, protocol.PrefixSize), packed.Bytes()...)}} // of a call that is over
	if err := m.inflate(new(inflater)); !errors.Is(err, errAbandoned) || len(m.plain) > 0 || m.held != 0 || h.buffered() != 0 {
		t.Errorf("%v; %d pieces, %d held, %d count", err, len(m.plain), m.held, h.buffered())
	}
	us := &h.server.unpackers
	start := us.stop()
	stream := s.writer(compressedBy["gzip"]...).stream
	if err := stream.Send(writeIn(s.id, tx, 900_000)); err != nil {
		t.Fatal(err)
	}
	var waits *inflation
	h.eventually("the message waits", func() string {
		us.mu.Lock()
		defer us.mu.Unlock()
		if us.len() == 0 {
			return "nothing waits"
		}
		waits = us.lines.Front().Value.(*line).waiting.Front().Value.(*inflation)
		return ""
	})
	most := 0
	shard := waits.w.frames.shard
	shard.Do(func(e *h2.Forwarder) {
		if most = h.server.h2.Buffered - waits.came; !e.Hold(waits.ticket, most) {
			t.Error("there is no room for what the test holds")
		}
	})
	start()
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "do not compress it by grpc-encoding") {
		t.Error(err)
	}
	shard.Do(func(e *h2.Forwarder) { e.Unhold(waits.ticket, most) })
	h.eventually("nothing waits", func() string { return strings.Repeat("x", h.buffered()) })
	s.must(success, "select", inTx(tx, true))
}
