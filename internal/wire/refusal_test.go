package wire

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/routing"
)

// Clients look for the words of YDB's server, and for the code of its issue.
func TestRefusalsHaveTheServersWords(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	query := func(session string, control *Ydb_Query.TransactionControl) (Ydb.StatusIds_StatusCode, []*Ydb_Issue.IssueMessage) {
		t.Helper()
		out, err := s.query.ExecuteQuery(s.with(h.ctx), &Ydb_Query.ExecuteQueryRequest{SessionId: session, TxControl: control})
		if err != nil {
			t.Fatal(err)
		}
		part, err := out.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return part.GetStatus(), part.GetIssues()
	}
	for _, c := range []struct {
		what   string
		ask    func() (Ydb.StatusIds_StatusCode, []*Ydb_Issue.IssueMessage)
		status Ydb.StatusIds_StatusCode
		words  string
		code   uint32
	}{
		{"a transaction that is not there",
			func() (Ydb.StatusIds_StatusCode, []*Ydb_Issue.IssueMessage) { return query(s.id, inTx("tx0", false)) },
			Ydb.StatusIds_NOT_FOUND, "Transaction not found", 2015},
		{"a commit of none", func() (Ydb.StatusIds_StatusCode, []*Ydb_Issue.IssueMessage) {
			r, err := s.query.CommitTransaction(s.with(h.ctx), &Ydb_Query.CommitTransactionRequest{SessionId: s.id, TxId: "tx0"})
			if err != nil {
				t.Fatal(err)
			}
			return r.GetStatus(), r.GetIssues()
		}, Ydb.StatusIds_NOT_FOUND, "Transaction not found", 2015},
		{"a commit of none in the table service", func() (Ydb.StatusIds_StatusCode, []*Ydb_Issue.IssueMessage) {
			r, err := s.table.CommitTransaction(s.with(h.ctx), &Ydb_Table.CommitTransactionRequest{SessionId: s.id, TxId: "tx0"})
			if err != nil {
				t.Fatal(err)
			}
			return r.GetOperation().GetStatus(), r.GetOperation().GetIssues()
		}, Ydb.StatusIds_NOT_FOUND, "Transaction not found", 2015},
		{"a session that is not there", func() (Ydb.StatusIds_StatusCode, []*Ydb_Issue.IssueMessage) {
			other := []byte(s.id)
			other[len(other)-1] ^= 1 // another digit
			return query(string(other), nil)
		}, Ydb.StatusIds_BAD_SESSION, "Session not found", 0},
		{"a session that is in use", func() (Ydb.StatusIds_StatusCode, []*Ydb_Issue.IssueMessage) {
			ctx, cancel := context.WithCancel(h.ctx)
			hung := make(chan struct{})
			go func() { defer close(hung); _, _, _ = s.run(ctx, s.id, "hang", nil) }() // it is cancelled
			<-h.hung
			defer func() { cancel(); <-hung }()
			return query(s.id, nil)
		}, Ydb.StatusIds_SESSION_BUSY, "Pending previous query completion", 0},
	} {
		status, issues := c.ask()
		if status != c.status || len(issues) != 1 || !strings.HasPrefix(issues[0].GetMessage(), c.words) ||
			!strings.Contains(issues[0].GetMessage(), "ydb-sidecar") || issues[0].GetIssueCode() != c.code {
			t.Errorf("%s: %v, %v; want %v, %q and code %d", c.what, status, issues, c.status, c.words, c.code)
		}
	}
	for _, r := range []refusal{refusalOf(routing.ErrGone, 2), refusalOf(errors.New("refused"), 2), errLost} {
		if r.status != Ydb.StatusIds_BAD_SESSION || !strings.HasPrefix(r.text, "Session not found") {
			t.Errorf("%v %q; want BAD_SESSION and the server's words", r.status, r.text)
		}
	}
}

// A statement may fail after its first part. Everybody hears of that, and not of the success that the first part told of.
func TestTheStatusOfTheWholeAnswerCounts(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	judge := h.server.deps.Health.(brokenReporter).outcomes
	for _, text := range []string{"fail UNAVAILABLE", "late UNAVAILABLE"} {
		if st, _, err := s.run(h.ctx, s.id, text, nil); st != Ydb.StatusIds_UNAVAILABLE || err != nil {
			t.Fatalf("%s: %v, %v", text, st, err)
		}
		out := judge.wait(t, "a statement", func(o cluster.Outcome) bool { return o.Kind == cluster.CallExecute })
		if out.Detail != "UNAVAILABLE" || out.Congestion != cluster.CongestedUnknown {
			t.Errorf("%s: %+v; want it to be UNAVAILABLE, for whatever reason", text, out)
		}
	}
}

// picks is a router that counts them.
type picks struct {
	*routing.Router
	n int
}

// unheard is a judge that must hear nothing.
type unheard struct{ *testing.T }

func (b unheard) Report(o cluster.Outcome) { b.Errorf("reported %+v", o) }

func (p *picks) Pick() (cluster.ViewNode, error) { p.n++; return p.Router.Pick() }

// The router may know a node before the connections of a shard do. A call that is bound to none tries another, and leaves what it entered.
func TestANodeWithoutAConnectionYet(t *testing.T) {
	config := routing.Default()
	config.MaxCallsPerNode = 1
	router := &picks{Router: routing.New(config)}
	router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "a:1"}}, ""))
	f := &frames{server: &Server{deps: Deps{Ways: hop.Ways{Router: router, Health: unheard{t}}}}}
	for owner, want := range map[cluster.NodeID]int{0: hop.Picks, 1: 0} {
		router.n = 0
		k := new(call)
		if _, err := f.reach(k, owner, false); !errors.Is(err, hop.ErrUnknownNode) || router.n != want || k.at != (hop.Entry{}) {
			t.Errorf("of node %d: %v after %d picks, at %+v; want %v after %d, and no place", owner, err, router.n, k.at,
				hop.ErrUnknownNode, want)
		}
	}
}

// Streams that last as long as their clients like, and are mostly idle, take no place of calls.
func TestEndlessStreamsEnterAFullNode(t *testing.T) {
	config := routing.Default()
	config.MaxCallsPerNode = 1
	router := routing.New(config)
	router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "a:1"}}, ""))
	f := &frames{server: &Server{deps: Deps{Ways: hop.Ways{Router: router, Health: unheard{t}}}}}
	if !router.Enter(1) {
		t.Fatal("the node is full")
	}
	for _, m := range protocol.All() {
		want := hop.ErrFull
		if m.Endless {
			want = hop.ErrUnknownNode // it went on to look for the connection
		}
		k := new(call)
		k.method = m
		if _, err := f.reach(k, 1, false); !errors.Is(err, want) {
			t.Errorf("%s: %v; want %v", m.Path, err, want)
		}
	}
}
