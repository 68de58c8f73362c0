package wire

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// What is given up costs no session if it can have left nothing behind.
func TestGivenUp(t *testing.T) {
	control := func(c *Ydb_Query.TransactionControl) proto.Message {
		return &Ydb_Query.ExecuteQueryRequest{TxControl: c}
	}
	tx := strings.Repeat("0", 26)
	for name, c := range map[string]struct {
		method  string
		request proto.Message
		end     h2.Outcome
		status  Ydb.StatusIds_StatusCode
		closing bool
		want    bool
	}{
		"cancelled":             {"ExecuteQuery", control(commitTx), h2.Outcome{End: h2.Cancelled}, 0, false, true},
		"no transaction":        {"ExecuteQuery", control(nil), h2.Outcome{End: h2.Cancelled}, 0, false, true},
		"the client's deadline": {"ExecuteQuery", control(commitTx), h2.Outcome{End: h2.Expired}, 0, false, true},
		"the same, and the node's word": {"ExecuteQuery", control(commitTx),
			h2.Outcome{Status: int(codes.DeadlineExceeded)}, 0, false, true},
		"out of the node's time": {"ExecuteQuery", control(commitTx), h2.Outcome{}, Ydb.StatusIds_TIMEOUT, false, true},
		"cancelled by the node":  {"ExecuteQuery", control(commitTx), h2.Outcome{Status: int(codes.Canceled)}, 0, false, false},
		"the node is lost":       {"ExecuteQuery", control(commitTx), h2.Outcome{End: h2.Lost}, 0, false, false},
		"answered":               {"ExecuteQuery", control(commitTx), h2.Outcome{}, Ydb.StatusIds_ABORTED, false, false},
		"begins":                 {"ExecuteQuery", control(beginTx), h2.Outcome{End: h2.Cancelled}, 0, false, false},
		"in a transaction":       {"ExecuteQuery", control(inTx(tx, false)), h2.Outcome{End: h2.Cancelled}, 0, false, false},
		"commits":                {"ExecuteQuery", control(inTx(tx, true)), h2.Outcome{End: h2.Cancelled}, 0, false, false},
		"begins, by a call for it": {"BeginTransaction", &Ydb_Query.BeginTransactionRequest{},
			h2.Outcome{End: h2.Cancelled}, 0, false, false},
		"its node wants it closed": {"ExecuteQuery", control(commitTx), h2.Outcome{End: h2.Cancelled}, 0, true, false},
	} {
		k := new(call)
		k.method = protocol.Named(protocol.QueryService + c.method)
		l := k.startUse()
		s := scanned(k.method.Request, bytesOf(t, c.request))
		l.Use = virtual.Use{Identity: new(virtual.IdentityPool), Server: new(pool.Session), Request: requestOf(&s.Found),
			Closing: c.closing}
		l.answer.Status = c.status
		c.end.Began, c.end.Forwarded, c.end.Node = time.Second, time.Second, new(h2.Conn)
		out := l.outcome(new(texts), &c.end, ydbstatus.Verdict{DropSession: true})
		vs := virtual.New(virtual.Config{})
		if back, _ := vs.Settle(vs.Stripe(0), &l.Use, &out); (back.Fate == virtual.Recovered) != c.want {
			t.Errorf("%s: %v", name, back.Fate)
		}
	}
}

// A request that ends before it is whole costs no session, and no transaction: its node has executed nothing.
func TestPartsOfRequestsCostNothing(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 1 })
	g := h.guest("a")
	s := g.session()
	s.must(success, "select", nil)
	h.resting()
	cancelled := func() (n uint64) {
		for _, f := range h.server.shards {
			f.shard.Do(func(e *h2.Forwarder) { n += e.Stats().Ends[h2.Cancelled] })
		}
		return n
	}
	cut := func(what, id string, control *Ydb_Query.TransactionControl) {
		t.Helper()
		all := framedMessage(
			bytesOf(t,
				&Ydb_Query.ExecuteQueryRequest{SessionId: id, TxControl: control,
					Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
						QueryContent: &Ydb_Query.QueryContent{Text: strings.Repeat("select ", 100)},
					}}),
		)
		before := cancelled()
		raw := dialFrames(t, h.addr)
		raw.headers(1, false,
			requestTo(h.addr, protocol.QueryService+"ExecuteQuery", "x-ydb-database", g.database, "x-ydb-auth-ticket",
				g.ticket, "x-client", g.name))
		_ = raw.framer.WriteData(1, false, all[:len(all)-100])
		_ = raw.framer.WriteRSTStream(1, http2.ErrCodeCancel)
		raw.flush()
		h.eventually(what, func() string {
			if now := cancelled(); now == before {
				return "the call is not over"
			}
			return ""
		})
	}
	cut("on a session", s.id, commitTx)
	cut("that begins", s.id, beginTx)
	cut("on no session", "", commitTx)
	h.resting()
	tx := s.must(success, "select", beginTx)
	cut("in a transaction", s.id, inTx(tx, false))
	cut("that commits", s.id, inTx(tx, true))
	s.must(success, "select", inTx(tx, true))
	h.resting()
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.server.State().Virtual.InDoubt; n != 0 || h.next != 1+1 || h.deletes != 0 {
		t.Errorf("%d sessions in doubt, %d sessions and transactions, %d sessions deleted", n, h.next, h.deletes)
	}
}

// twoMessages sends a statement that begins a transaction and, in a second message, a flag that asks for a commit.
func (g *guest) twoMessages(id string) (st Ydb.StatusIds_StatusCode, err error) {
	ctx, cancel := context.WithCancel(g.with(g.ctx))
	defer cancel()
	stream, err := g.conn.NewStream(
		ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, protocol.QueryService+"ExecuteQuery",
		g.options...,
	)
	if err != nil {
		return 0, err
	}
	for _, control := range []*Ydb_Query.TransactionControl{beginTx, {CommitTx: true}} {
		if err := stream.SendMsg(&Ydb_Query.ExecuteQueryRequest{SessionId: id, TxControl: control}); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		id = ""
	}
	if err := stream.CloseSend(); err != nil {
		return 0, err
	}
	part := new(Ydb_Query.ExecuteQueryResponsePart)
	err = stream.RecvMsg(part)
	return part.GetStatus(), err
}

func TestSecondMessageLeavesNothingOpen(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	s := g.session()
	for name, options := range compressedBy {
		g.options = options
		for _, id := range []string{s.id, ""} {
			if st, err := g.twoMessages(id); st != Ydb.StatusIds_BAD_REQUEST || err != nil {
				t.Errorf("%s, session %q: %v, %v", name, id, st, err)
			}
		}
	}
	g.options = nil
	h.resting()
	s.must(success, "select", nil)
}

func TestExplainedStatementsCommitNothing(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	tx := s.must(success, "select", beginTx)
	if got := s.must(success, "explain", inTx(tx, true)); got != tx {
		t.Fatalf("the node says that %q is open; want %q", got, tx)
	}
	if n := h.server.State().Virtual.Bound; n != 1 {
		t.Errorf("%d sessions are bound; the transaction is open", n)
	}
	other := h.guest("b").session()
	for range 8 {
		other.must(success, "select", nil) // on no session with a transaction: the backend looks
	}
	s.must(success, "select", inTx(tx, true))
	h.resting()
}
