package wire

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

func TestDrainLetsSessionsGo(t *testing.T) {
	for _, mode := range []string{ModeTransaction, ModeSession} {
		t.Run(mode, func(t *testing.T) { drainLetsSessionsGo(t, mode) })
	}
}

func drainLetsSessionsGo(t *testing.T, mode string) {
	h := newHouse(t, func(c *Config, _ *pool.Config) { c.Mode = mode })
	a, b := h.guest("a").session(), h.guest("b").session()
	tx := b.must(success, "select", beginTx)
	var wg sync.WaitGroup
	wg.Go(h.server.GracefulStop)
	if state, err := a.stream.Recv(); err != nil || state.GetStatus() != success {
		t.Errorf("told %v, %v", state, err)
	}
	b.must(success, "select", inTx(tx, true))
	if _, err := b.stream.Recv(); err != nil {
		t.Error(err)
	}
	a.conn.Close()
	b.conn.Close()
	wg.Wait()
}

// told waits until the server has told a client to go.
func (g *guest) told() {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.ctx, 20*time.Second)
	defer cancel()
	if !g.conn.WaitForStateChange(ctx, connectivity.Ready) {
		g.Fatalf("client %s hears no GOAWAY", g.name)
	}
}

// stops begins a stop and waits until two idle clients, one of each shard, have been told to go;
// clients then are those that have not. stopped waits for the end of the stop.
func (h *house) stops(clients int) (stopped func()) {
	h.Helper()
	idle := []*session{h.guest("idle 1").session(), h.guest("idle 2").session()} // dealt to the shards in turn
	var wg sync.WaitGroup
	wg.Go(h.server.GracefulStop)
	h.Cleanup(h.server.Stop)
	for _, s := range idle {
		if state, err := s.stream.Recv(); err != nil || state.GetStatus() != success {
			h.Errorf("told %v, %v", state, err)
		}
		s.told()
		s.conn.Close()
	}
	n := 0
	for _, c := range stateOf(h.server).Connections {
		if c.Peer == "client" && !c.Draining {
			n++
		}
	}
	if n != clients {
		h.Errorf("%d clients are not told to go; want %d", n, clients)
	}
	return wg.Wait
}

// A stop leaves a client's connection open to new calls for as long as a transaction needs it that
// was open, or was about to be, and tells all others at once.
func TestStopLetsTransactionsEnd(t *testing.T) {
	for name, begin := range map[string]func(h *house) (needed []*guest, stopped func(), step func(commit bool)){
		"attached": func(h *house) ([]*guest, func(), func(bool)) {
			s := h.guest("a").session()
			tx := s.must(success, "select", beginTx)
			return []*guest{s.guest}, h.stops(1), func(commit bool) { s.must(success, "select", inTx(tx, commit)) }
		},
		"about to begin": func(h *house) ([]*guest, func(), func(bool)) {
			s, tx := h.guest("a").session(), make(chan string)
			go func() {
				_, id, _ := s.run(h.ctx, s.id, "wait", beginTx)
				tx <- id
			}()
			<-h.hung
			stopped := h.stops(1)
			close(h.proceed)
			id := <-tx
			return []*guest{s.guest}, stopped, func(commit bool) { s.must(success, "select", inTx(id, commit)) }
		},
		"on another connection than its session": func(h *house) ([]*guest, func(), func(bool)) {
			s := h.guest("a").session()
			other := &session{guest: h.guest("a"), id: s.id}
			tx := other.must(success, "select", beginTx)
			return []*guest{s.guest, other.guest}, h.stops(2), func(commit bool) { other.must(success, "select", inTx(tx, commit)) }
		},
		"not attached": func(h *house) ([]*guest, func(), func(bool)) {
			g := h.guest("a")
			created, err := g.table.CreateSession(g.with(h.ctx), &Ydb_Table.CreateSessionRequest{})
			session := new(Ydb_Table.CreateSessionResult)
			if err != nil || created.GetOperation().GetResult().UnmarshalTo(session) != nil {
				h.Fatal(created, err)
			}
			run := func(control *Ydb_Table.TransactionControl) string {
				r, err := g.table.ExecuteDataQuery(
					g.with(h.ctx),
					&Ydb_Table.ExecuteDataQueryRequest{SessionId: session.GetSessionId(), TxControl: control,
						Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "select"}}},
				)
				result := new(Ydb_Table.ExecuteQueryResult)
				if err != nil || r.GetOperation().GetStatus() != success || r.GetOperation().GetResult().UnmarshalTo(result) != nil {
					h.Fatal(r, err)
				}
				return result.GetTxMeta().GetId()
			}
			tx := run(
				&Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{}}},
			)
			return []*guest{g}, h.stops(1), func(commit bool) {
				run(&Ydb_Table.TransactionControl{CommitTx: commit, TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}})
			}
		},
	} {
		for _, shards := range []int{1, 2} {
			for _, mode := range []string{ModeTransaction, ModeSession} {
				t.Run(fmt.Sprintf("%s/%d shards/%s", name, shards, mode), func(t *testing.T) {
					h := newHouseOn(t, shards, nil, func(c *Config, _ *pool.Config) { c.Mode = mode })
					needed, stopped, step := begin(h)
					step(false)
					step(false)
					step(true)
					if got := stateOf(h.server).Accepted; got != uint64(len(needed))+2 {
						t.Errorf("%d connections; want none made after the stop began", got)
					}
					for _, g := range needed {
						g.told()
					}
					stopped()
					open := h.openTx()
					h.mu.Lock()
					defer h.mu.Unlock()
					if h.rolledBack != 0 || open != 0 {
						t.Errorf("%d transactions rolled back, %d open", h.rolledBack, open)
					}
				})
			}
		}
	}
}

// A transaction that does not end keeps its client's connection until Stop, and no other.
func TestStopCutsTransactionThatStays(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	s.must(success, "select", beginTx)
	stopped := h.stops(1)
	h.server.Stop()
	stopped()
	if _, err := s.stream.Recv(); err == nil {
		t.Error("the session is still attached")
	}
	h.eventually("rolled back", func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.rolledBack != 1 {
			return fmt.Sprint(h.rolledBack)
		}
		return ""
	})
}

// A transaction that begins after the stop keeps no connection: a client that is never idle goes, too.
func TestLaterTransactionsKeepNoConnection(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	first := g.session()
	tx := first.must(success, "select", beginTx)
	stopped := h.stops(1)
	late := g.session()
	late.must(success, "select", beginTx)
	first.must(success, "select", inTx(tx, true))
	g.told()
	g.conn.Close()
	stopped()
}

// A session that is attached, or whose last call fails, after the stop began does not hold up its client's
// connection: the client can send nothing more for it over that.
func TestLaterSessionsKeepNoConnection(t *testing.T) {
	for name, last := range map[string]func(first, late *session, tx string){
		"attached": func(first, _ *session, tx string) { first.must(success, "select", inTx(tx, true)) },
		"with a transaction": func(first, late *session, tx string) {
			late.must(success, "select", beginTx)
			first.must(success, "select", inTx(tx, true))
		},
		"after a failure": func(first, late *session, tx string) {
			late.drop()
			first.must(Ydb.StatusIds_PRECONDITION_FAILED, "fail PRECONDITION_FAILED", inTx(tx, false))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			g := h.guest("a")
			first := g.session()
			tx := first.must(success, "select", beginTx)
			stopped := h.stops(1)
			last(first, g.session(), tx)
			g.told()
			var over atomic.Bool
			go func() { stopped(); over.Store(true) }()
			h.eventually("the stop ends", func() string {
				if over.Load() {
					return ""
				}
				return fmt.Sprintf("%+v", h.server.State())
			})
			h.eventually("rolled back", func() string { return strings.Repeat("x", h.openTx()) })
		})
	}
}

// Each byte is a digit in one spelling, wherever it stands, or the id is none.
// A message whose session's id comes after other fields is not sent on with two.
func TestSessionOutOfOrder(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	s := g.session()
	text := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), make([]byte, 100_000))
	b := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), text)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), s.id)
	for range 8 { // at first while the nodes are being connected to
		stream, err := g.conn.NewStream(g.with(h.ctx), anyStream, protocol.QueryService+"ExecuteQuery", grpc.ForceCodecV2(passing))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(b)}}); err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		answer, part := new(message), new(Ydb_Query.ExecuteQueryResponsePart)
		if err := stream.RecvMsg(answer); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(answer.data.Materialize(), part); err != nil || part.GetStatus() != Ydb.StatusIds_BAD_REQUEST {
			t.Errorf("%v, %v", part, err)
		}
		answer.data.Free()
	}
	h.resting()
	s.must(success, "select", nil)
}

// When its connection is too old, a session ends with its stream as soon as nothing is open on it. One without a
// stream keeps its transaction although the connection ends: the client comes again over another one.
func TestSessionsOfOldConnections(t *testing.T) {
	h := newHouseBy(t, DataPath{Shards: 1, MaxAge: 2 * time.Second}, nil, nil, nil)
	idle, busy, g := h.guest("idle").session(), h.guest("busy").session(), h.guest("without a stream")
	created, err := g.table.CreateSession(g.with(h.ctx), &Ydb_Table.CreateSessionRequest{})
	session := new(Ydb_Table.CreateSessionResult)
	if err != nil || created.GetOperation().GetResult().UnmarshalTo(session) != nil {
		t.Fatal(created, err)
	}
	run := func(control *Ydb_Table.TransactionControl) string {
		r, err := g.table.ExecuteDataQuery(
			g.with(h.ctx), &Ydb_Table.ExecuteDataQueryRequest{SessionId: session.GetSessionId(), TxControl: control,
				Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "select"}}},
		)
		result := new(Ydb_Table.ExecuteQueryResult)
		if err != nil || r.GetOperation().GetStatus() != success || r.GetOperation().GetResult().UnmarshalTo(result) != nil {
			t.Fatal(r, err)
		}
		return result.GetTxMeta().GetId()
	}
	ofBusy := busy.must(success, "select", beginTx)
	tx := run(&Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{}}})
	g.told()
	if state, err := idle.stream.Recv(); err != nil || state.GetStatus() != success {
		t.Errorf("told %v, %v", state, err)
	}
	if _, err := idle.stream.Recv(); err != io.EOF {
		t.Errorf("the stream of the idle one ends with %v", err)
	}
	idle.told()
	busy.told()
	h.eventually("the clients' old connections are over", func() string {
		if n := h.server.shards[0].shard.Clients(); n > 1 {
			return fmt.Sprintf("%d connections", n)
		}
		return ""
	})
	run(&Ydb_Table.TransactionControl{CommitTx: true, TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}})
	busy.must(success, "select", inTx(ofBusy, true))
	if state, err := busy.stream.Recv(); err != nil || state.GetStatus() != success {
		t.Errorf("told %v, %v", state, err)
	}
	h.resting()
}
