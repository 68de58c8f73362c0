package wire

import (
	"slices"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// A session is made in the stripe of its connection's shard, and can be used from any other.
func TestSessionFromAnotherShard(t *testing.T) {
	h := newHouse(t, nil)
	a, b := h.guest("a"), h.guest("a")
	s := a.session()
	other := &session{guest: b, id: b.session().id}
	shardOf := func(s *session) int {
		id, ok := virtual.Parse([]byte(s.id))
		if !ok {
			t.Fatalf("%q", s.id)
		}
		return slices.IndexFunc(h.server.shards, func(f *frames) bool { return f.stripe == h.server.sessions.Of(id) })
	}
	if one, two := shardOf(s), shardOf(other); one < 0 || two < 0 || one == two {
		t.Fatalf("made in shards %d and %d", one, two)
	}
	other.id = s.id
	other.must(success, "select", nil)
	tx := s.must(success, "select", beginTx)
	other.must(success, "select", inTx(tx, false))
	if got := h.server.State().Virtual; got.Bound != 1 || len(h.server.SessionUses()) != 1 {
		t.Errorf("%+v; want 1 bound", got)
	}
	s.must(success, "select", inTx(tx, true))
	h.resting()
	alive, err := b.table.KeepAlive(b.with(h.ctx), &Ydb_Table.KeepAliveRequest{SessionId: s.id})
	if err != nil || alive.GetOperation().GetStatus() != success {
		t.Error(alive, err)
	}
	// Deleted from there, its stream here ends.
	if r, err := b.query.DeleteSession(b.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id}); err != nil ||
		r.GetStatus() != success {
		t.Error(r, err)
	}
	if _, err := s.stream.Recv(); err != nil {
		t.Error(err)
	}
	s.must(Ydb.StatusIds_BAD_SESSION, "select", nil)
	// The end of the connection that used it last ends its transaction, wherever it was made.
	r, err := a.query.CreateSession(a.with(h.ctx), &Ydb_Query.CreateSessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	other.id = r.GetSessionId()
	if tx = other.must(success, "select", beginTx); tx == "" || h.openTx() != 1 {
		t.Errorf("%d transactions; want 1", h.openTx())
	}
	b.conn.Close()
	h.resting()
	if st := h.server.State().Virtual; st.Lost != 1 || st.Sessions != 1 {
		t.Errorf("%+v; want 1 lost, 1 left", st)
	}
}
