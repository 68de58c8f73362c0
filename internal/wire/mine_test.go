package wire

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// A session of a pool is nobody's who knows its id, wherever in a request it is. Sessions of other makers go on being passed through.
func TestSessionsOfPoolsAreTakenByNoID(t *testing.T) {
	for _, mode := range []string{ModeTransaction, ModeSession} {
		t.Run(mode, func(t *testing.T) {
			sessionsAreTakenByNoID(t, mode)
		})
	}
}

func sessionsAreTakenByNoID(t *testing.T, mode string) {
	h := newHouse(t, func(c *Config, _ *pool.Config) { c.Mode = mode })
	g := h.guest("a")
	g.session().must(success, "select", nil)
	h.mu.Lock()
	var mine string
	for id := range h.sessions {
		mine = id
	}
	theirs := &server{id: "ydb://session/3?node_id=1&id=theirs", node: 1, open: map[string]string{}, of: h.backend, foreign: true}
	h.sessions[theirs.id] = theirs
	h.mu.Unlock()
	t.Cleanup(func() { // before the house looks what is left
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.sessions, theirs.id)
	})
	for id, want := range map[string]Ydb.StatusIds_StatusCode{mine: Ydb.StatusIds_BAD_SESSION, theirs.id: success} {
		if st, _, err := g.run(h.ctx, id, "select", nil); st != want || err != nil {
			t.Errorf("%s, a statement: %v, %v", id, st, err)
		}
		if r, err := g.table.ExecuteDataQuery(
			g.with(h.ctx), &Ydb_Table.ExecuteDataQueryRequest{SessionId: id},
		); err != nil || r.GetOperation().GetStatus() != want {
			t.Errorf("%s, a query: %v, %v", id, r, err)
		}
	}
	if r, err := g.query.BeginTransaction(
		g.with(h.ctx), &Ydb_Query.BeginTransactionRequest{SessionId: mine},
	); err != nil || r.GetStatus() != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("a transaction: %v, %v", r, err)
	}
	stream, err := g.query.AttachSession(g.with(h.ctx), &Ydb_Query.AttachSessionRequest{SessionId: mine})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || r.GetStatus() != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("an attachment: %v, %v", r, err)
	}
	if r, err := g.query.DeleteSession(
		g.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: mine},
	); err != nil || r.GetStatus() != success || !h.mine([]byte(mine)) {
		t.Errorf("a deletion: %v, %v", r, err) // SDKs take another status for a fault
	}
	h.lastIDCounts(g, mine, theirs.id)
}

// lastIDCounts sends requests that name a session twice. A node takes the last id, which may come when the call is on its way.
func (h *house) lastIDCounts(g *guest, mine, theirs string) {
	h.Helper()
	id := bytesOf(h.T, &Ydb_Table.ExecuteDataQueryRequest{SessionId: mine})
	for name, front := range map[string]*Ydb_Table.ExecuteDataQueryRequest{
		"behind another":      {SessionId: theirs, Query: &Ydb_Table.Query{}},
		"behind an empty one": {Query: &Ydb_Table.Query{}},
		"out of order":        {TxControl: &Ydb_Table.TransactionControl{}},
	} {
		first := bytesOf(h.T, front)
		if name == "behind an empty one" {
			first = append([]byte{1<<3 | 2, 0}, first...)
		}
		all := framedMessage(append(first, id...))
		cut := len(all) - len(id)
		_, body := framesOf(
			h.T, h.addr, protocol.TableService+"ExecuteDataQuery",
			[]string{"x-ydb-database", g.database, "x-ydb-auth-ticket", g.ticket, "x-client", g.name},
			nil, all[:cut], all[cut:],
		)
		answer := new(Ydb_Table.ExecuteDataQueryResponse)
		if len(body) < protocol.PrefixSize || proto.Unmarshal(body[protocol.PrefixSize:], answer) != nil {
			h.Fatalf("%s: %q", name, body)
		}
		st := answer.GetOperation().GetStatus()
		if st != Ydb.StatusIds_BAD_REQUEST && st != Ydb.StatusIds_BAD_SESSION { // BAD_SESSION if all of it was here in time
			h.Errorf("%s: %v", name, answer)
		}
	}
}
