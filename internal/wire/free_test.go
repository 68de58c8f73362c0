package wire

import (
	"io"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// Calls of which servers ignore the session run beside each other and beside a transaction, with no session of the pool left.
func TestCallsThatNeedNoSessionRunSideBySide(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 1 })
	g := h.guest("a")
	s := g.session()
	tx := s.must(success, "select", beginTx)
	const reads = 50
	done := make(chan string, reads)
	for range reads {
		go func() {
			r, err := g.table.ReadRows(g.with(h.ctx), &Ydb_Table.ReadRowsRequest{SessionId: s.id, Path: "wait"})
			switch {
			case err != nil:
				done <- err.Error()
			case r.GetStatus() != success:
				done <- r.String()
			default:
				done <- ""
			}
		}()
	}
	for range reads { // all of them are on nodes now
		select {
		case <-h.hung:
		case fault := <-done:
			t.Fatal("a call ended before the others began: ", fault)
		}
	}
	s.must(success, "select", inTx(tx, true))
	close(h.proceed)
	for range reads {
		if fault := <-done; fault != "" {
			t.Error(fault)
		}
	}
	h.resting()
}

// A table that is read for long takes no session from the pool.
func TestReadTableLeavesThePoolAlone(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 1 })
	g := h.guest("a")
	s := g.session()
	stream, err := g.table.StreamReadTable(g.with(h.ctx), &Ydb_Table.ReadTableRequest{SessionId: s.id, Path: "wait"})
	if err != nil {
		t.Fatal(err)
	}
	if part, err := stream.Recv(); err != nil || part.GetStatus() != success {
		t.Fatal(part, err)
	}
	s.must(success, "select", nil) // on the same virtual session
	s.must(success, "select", inTx(s.must(success, "select", beginTx), true))
	g.session().must(success, "select", nil)
	close(h.proceed)
	if part, err := stream.Recv(); err != nil || part.GetStatus() != success {
		t.Fatal(part, err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Fatal(err)
	}
	h.resting()
}

// Such calls take the id of a session that has ended, and of any other, but none that the sidecar cannot have made.
func TestCallsThatNeedNoSessionTakeAnyID(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	s := g.session()
	if r, err := g.query.DeleteSession(g.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id}); err != nil ||
		r.GetStatus() != success {
		t.Fatal(r, err)
	}
	s.must(Ydb.StatusIds_BAD_SESSION, "select", nil)
	prefix := strings.TrimSuffix(string(virtual.ID{}.Append(nil)), strings.Repeat("0", 32))
	ours := prefix + "0123456789abcdef0123456789abcdef"
	for id, want := range map[string]Ydb.StatusIds_StatusCode{
		s.id: success, ours: success, "": success, prefix + "x": Ydb.StatusIds_BAD_SESSION,
	} {
		for name, options := range compressedBy {
			r, err := g.table.CopyTables(
				g.with(h.ctx),
				&Ydb_Table.CopyTablesRequest{SessionId: id, Tables: []*Ydb_Table.CopyTableItem{{SourcePath: "a"}}},
				options...,
			)
			if err != nil || r.GetOperation().GetStatus() != want {
				t.Errorf("%q, %s: %v, %v; want %v", id, name, r, err, want)
			}
		}
	}
	h.resting()
	if n := h.server.State().Virtual.CheckedOut; n > 0 {
		t.Errorf("%d sessions were in use", n)
	}
}

// The session's id is cut out of the top of the message, so it must be there.
func TestMethodsThatNeedNoSession(t *testing.T) {
	free := 0
	for _, m := range protocol.All() {
		if m.Role == protocol.RoleFree {
			if free++; len(m.Session) != 1 {
				t.Errorf("%s: the session is at %v", m.Path, m.Session)
			}
		}
	}
	if free != 9 {
		t.Errorf("%d methods need no session; want 9", free)
	}
}
