package wire

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// What a call writes of a stripe and of a session is in one line of the cache each, which objects of these sizes begin with.
func TestLines(t *testing.T) {
	var s stripe
	var v virtual
	if size := unsafe.Sizeof(s); size != 128 || unsafe.Offsetof(s.count)+unsafe.Sizeof(s.count.Borrowed) > 64 {
		t.Errorf("a stripe is of %d octets, its first counter at %d", size, unsafe.Offsetof(s.count))
	}
	if size := unsafe.Sizeof(v); size != 256 || unsafe.Offsetof(v.n) >= 64 || unsafe.Offsetof(v.attached) >= 64 {
		t.Errorf("a virtual session is of %d octets, n at %d, attached at %d", size, unsafe.Offsetof(v.n), unsafe.Offsetof(v.attached))
	}
}

// An id says which stripe has its session, and ids that are equal but for that are two.
func TestStripesOfIDs(t *testing.T) {
	vs := newVirtuals(Default())
	who := &caller{}
	for i, s := range vs.stripes {
		for range 100 {
			if v := vs.create(s, who, nil, false); int(v.id.stripe()) != i || vs.of(v.id) != s {
				t.Fatalf("%x was made in stripe %d", v.id, i)
			}
		}
	}
	same := newVirtualID(0)
	var all []*virtual
	for i, s := range vs.stripes {
		v := &virtual{id: same, maker: who.hash}
		v.id[0] |= uint8(i)
		s.byID.put(v)
		all = append(all, v)
	}
	for _, v := range all {
		id, ok := parseVirtual(v.id.append(nil))
		if got, _ := vs.see(id, who, nil); !ok || got != v {
			t.Errorf("%x: %p; want %p", id, got, v)
		}
	}
}

// Never are there more sessions than allowed, in whatever stripes they are made, and none less.
func TestLimitOverStripes(t *testing.T) {
	const most, makers, rounds = 50, 2 * stripeCount, 300
	config := Default()
	config.Sessions = most
	vs, own, who, client := newVirtuals(config), new(tenant), new(caller), new(h2.Conn)
	own.lent.Store(true)
	var there, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range makers {
		wg.Go(func() {
			s := vs.stripes[i%stripeCount]
			var mine []*virtual
			for round := range rounds {
				if v := vs.create(s, who, nil, false); v == nil {
					refused.Add(1)
				} else if mine = append(mine, v); there.Add(1) > most {
					t.Error("more than allowed")
				} else if _, no := vs.enter(v.id, who, own, nil, false, client); no != nil {
					t.Error(no.text)
				} else {
					vs.settle(s, &loan{tenant: own, v: v}, &h2.Outcome{}, ydbstatus.Verdict{})
				}
				if len(mine) > 0 && (len(mine) > 5 || round%3 == 2) {
					there.Add(-1)
					vs.end(mine[0], false)
					mine = mine[1:]
				}
				if round%50 == 0 {
					vs.state(&tenants{})
				}
			}
		})
	}
	wg.Wait()
	st := vs.state(&tenants{})
	if st.Sessions != int(there.Load()) || vs.n.Load() != there.Load() || own.sessions.Load() != there.Load() || st.Refused != uint64(refused.Load()) || st.Created+st.Refused != makers*rounds {
		t.Errorf("%d sessions, %d refused; counted %+v, %d, %d", there.Load(), refused.Load(), st, vs.n.Load(), own.sessions.Load())
	}
	for vs.create(vs.stripes[int(there.Load())%stripeCount], who, nil, false) != nil {
		there.Add(1)
	}
	if there.Load() != most {
		t.Errorf("%d sessions when one was refused; want %d", there.Load(), most)
	}
	vs.close()
	if st := vs.state(&tenants{}); st.Sessions != 0 || vs.n.Load() != 0 || own.sessions.Load() != 0 {
		t.Errorf("all have ended: %+v, %d, %d of the tenant", st, vs.n.Load(), own.sessions.Load())
	}
}

// A session is made in the stripe of its connection's shard, and can be used from any other.
func TestSessionFromAnotherShard(t *testing.T) {
	h := newHouse(t, nil)
	a, b := h.guest("a"), h.guest("a")
	s := a.session()
	other := &session{guest: b, id: b.session().id}
	shardOf := func(s *session) int {
		id, ok := parseVirtual([]byte(s.id))
		if !ok {
			t.Fatalf("%q", s.id)
		}
		return slices.IndexFunc(h.server.shards, func(f *frames) bool { return f.stripe == h.server.virtual.of(id) })
	}
	if one, two := shardOf(s), shardOf(other); one < 0 || two < 0 || one == two {
		t.Fatalf("made in shards %d and %d", one, two)
	}
	other.id = s.id
	other.must(success, "select", nil)
	tx := s.must(success, "select", beginTx)
	other.must(success, "select", inTx(tx, false))
	if got := h.server.State().Virtual; got.Bound != 1 || len(h.server.Holders()) != 1 {
		t.Errorf("%+v; want 1 bound", got)
	}
	s.must(success, "select", inTx(tx, true))
	h.resting()
	alive, err := b.table.KeepAlive(b.with(h.ctx), &Ydb_Table.KeepAliveRequest{SessionId: s.id})
	if err != nil || alive.GetOperation().GetStatus() != success {
		t.Error(alive, err)
	}
	// Deleted from there, its stream here ends.
	if r, err := b.query.DeleteSession(b.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id}); err != nil || r.GetStatus() != success {
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
