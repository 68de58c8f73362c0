package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// A call on a session of the pool has one message. Another one is refused wherever it begins, whether the first was
// scanned when the call was placed or is scanned as it passes.
func TestSecondMessageIsRefused(t *testing.T) {
	first := framedMessage(bytesOf(t, &Ydb_Query.ExecuteQueryRequest{ExecMode: 50, TxControl: beginTx}))
	second := framedMessage(bytesOf(t, &Ydb_Query.ExecuteQueryRequest{TxControl: &Ydb_Query.TransactionControl{CommitTx: true}}))
	empty := framedMessage(nil)
	answer := framedMessage(bytesOf(t, &Ydb_Query.ExecuteQueryResponsePart{Status: success}))
	for _, scanned := range []bool{true, false} {
		for _, behind := range [][]byte{nil, second[:1], second, empty, append(slices.Clone(empty), empty...)} {
			for _, piece := range []int{1, 7, len(first), len(first) + 1, 1000} {
				k := new(call)
				k.method = protocol.Named(protocol.QueryService + "ExecuteQuery")
				l := k.startUse()
				if scanned {
					l.Request, l.skip = virtual.Request{Begin: true}, uint32(len(first))
				} else {
					l.scanAll()
				}
				l.answer.Start(l.method.Answer)
				var err error
				if scanned { // what was scanned is shown at once
					err = k.Observe(true, append(slices.Clone(first), behind[:min(piece, len(behind))]...))
					for rest := behind[min(piece, len(behind)):]; len(rest) > 0 && err == nil; rest = rest[min(piece, len(rest)):] {
						err = k.Observe(true, rest[:min(piece, len(rest))])
					}
				} else {
					for all := append(slices.Clone(first), behind...); len(all) > 0 && err == nil; all = all[min(piece, len(all)):] {
						err = k.Observe(true, all[:min(piece, len(all))])
					}
				}
				var st *h2.Status
				if refused := errors.As(err, &st) &&
					strings.Contains(string(st.Body), "more than one message"); refused != (len(behind) > 0) || !refused && err != nil {
					t.Errorf("scanned %v, %d bytes behind, in pieces of %d: %v", scanned, len(behind), piece, err)
				}
				if len(behind) > 0 {
					continue
				}
				if l.Request != (virtual.Request{Begin: true}) {
					t.Errorf("scanned %v, in pieces of %d: %+v", scanned, piece, l.Request)
				}
				if err := k.Observe(false, answer); err != nil {
					t.Fatal(err)
				}
				o := &h2.Outcome{Began: time.Second, Forwarded: time.Second, Node: new(h2.Conn)}
				l.Server = new(pool.Session)
				if !l.outcome(new(texts), o, ydbstatus.Verdict{}).Clean {
					t.Errorf("scanned %v, in pieces of %d: in doubt", scanned, piece)
				}
				if l.forget(); l.scanning || l.Request != (virtual.Request{}) || l.skip != 0 {
					t.Errorf("forgotten: %+v", l)
				}
			}
		}
	}
}

// The answers tell what is open, wherever in them tx_meta is, and a request that asks for a commit does not.
func TestAnswersTellWhatIsOpen(t *testing.T) {
	const tx = "tx1"
	control := func(c *Ydb_Query.TransactionControl) proto.Message {
		return &Ydb_Query.ExecuteQueryRequest{SessionId: "s", TxControl: c}
	}
	part := func(meta *Ydb_Query.TransactionMeta) proto.Message {
		return &Ydb_Query.ExecuteQueryResponsePart{Status: success, TxMeta: meta}
	}
	table := func(meta *Ydb_Table.TransactionMeta) proto.Message {
		return &Ydb_Table.ExecuteDataQueryResponse{Operation: operationOf(t, success, &Ydb_Table.ExecuteQueryResult{TxMeta: meta})}
	}
	tableCommit := &Ydb_Table.ExecuteDataQueryRequest{SessionId: "s",
		TxControl: &Ydb_Table.TransactionControl{CommitTx: true, TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}}}
	open, ended := &Ydb_Query.TransactionMeta{Id: tx}, &Ydb_Query.TransactionMeta{}
	for name, c := range map[string]struct {
		path    string
		before  bool // tx is open already
		request proto.Message
		answers []proto.Message
		open    int  // transactions after it
		sure    bool // else the session is in doubt
		back    bool // a session without a virtual one goes back to the pool
	}{
		"begins, said first":   {"Query", false, control(beginTx), []proto.Message{part(open), part(nil)}, 1, true, false},
		"begins, said last":    {"Query", false, control(beginTx), []proto.Message{part(nil), part(open)}, 1, true, false},
		"begins, said in each": {"Query", false, control(beginTx), []proto.Message{part(open), part(open)}, 1, true, false},
		"begins, not said":     {"Query", false, control(beginTx), []proto.Message{part(nil)}, 0, false, false},
		"at once, said first":  {"Query", false, control(commitTx), []proto.Message{part(ended), part(nil)}, 0, true, true},
		"at once, said last": {"Query", false, control(commitTx),
			[]proto.Message{part(nil), part(nil), part(ended)}, 0, true, true},
		"at once, not said":            {"Query", false, control(commitTx), []proto.Message{part(nil)}, 0, false, false},
		"at once, and open":            {"Query", false, control(commitTx), []proto.Message{part(nil), part(open)}, 1, true, false},
		"commits, said first":          {"Query", true, control(inTx(tx, true)), []proto.Message{part(ended), part(nil)}, 0, true, true},
		"commits, said last":           {"Query", true, control(inTx(tx, true)), []proto.Message{part(nil), part(ended)}, 0, true, true},
		"commits, not said":            {"Query", true, control(inTx(tx, true)), []proto.Message{part(nil)}, 1, false, false},
		"explained, and not committed": {"Query", true, control(inTx(tx, true)), []proto.Message{part(open)}, 1, true, false},
		"open first, ended last":       {"Query", true, control(inTx(tx, true)), []proto.Message{part(open), part(ended)}, 0, true, true},
		"goes on":                      {"Query", true, control(inTx(tx, false)), []proto.Message{part(nil), part(open)}, 1, true, false},
		"goes on, not said":            {"Query", true, control(inTx(tx, false)), []proto.Message{part(nil)}, 1, true, true},
		"no transaction":               {"Query", false, control(nil), []proto.Message{part(nil)}, 0, true, true},
		"no transaction, said":         {"Query", false, control(nil), []proto.Message{part(ended)}, 0, true, true},
		"table, commits":               {"Table", true, tableCommit, []proto.Message{table(&Ydb_Table.TransactionMeta{})}, 0, true, true},
		"table, commits, not said":     {"Table", true, tableCommit, []proto.Message{table(nil)}, 1, false, false},
		"table, commits, and still open": {"Table", true, tableCommit,
			[]proto.Message{table(&Ydb_Table.TransactionMeta{Id: tx})}, 1, true, false},
	} {
		k := new(call)
		if k.method = protocol.Named(protocol.QueryService + "ExecuteQuery"); c.path == "Table" {
			k.method = protocol.Named(protocol.TableService + "ExecuteDataQuery")
		}
		l := k.startUse()
		s := scanned(k.method.Request, bytesOf(t, c.request))
		l.answer.Start(k.method.Answer)
		for _, a := range c.answers {
			if err := k.Observe(false, framedMessage(bytesOf(t, a))); err != nil {
				t.Fatal(err)
			}
		}
		l.Server = new(pool.Session)
		out := l.outcome(new(texts), &h2.Outcome{Began: time.Second, Forwarded: time.Second, Node: new(h2.Conn)}, ydbstatus.Verdict{})
		vs, own, who := virtual.New(virtual.Config{Sessions: 1}), new(virtual.IdentityPool), new(virtual.Credentials)
		v := vs.Create(vs.Stripe(0), who, nil, false)
		settle := func(v *virtual.Session, request virtual.Request, out virtual.Outcome) virtual.Fate {
			use := virtual.Use{Identity: own, Session: v, Server: new(pool.Session), Request: request}
			if v != nil {
				e, err := vs.Enter(v.ID(), who, own, nil, false, nil)
				if err != nil {
					t.Fatal(err)
				}
				if e.Server != nil {
					use.Server, use.Bound = e.Server, true
				}
			}
			back, _ := vs.Settle(vs.Stripe(0), &use, &out)
			return back.Fate
		}
		if c.before {
			settle(v, virtual.Request{Begin: true},
				virtual.Outcome{Role: protocol.RoleUse, Status: success, HasMeta: true, MetaTx: txID(tx), Ran: true, Clean: true})
		}
		want := virtual.Discarded
		if c.sure {
			want = map[int]virtual.Fate{0: virtual.Released, 1: virtual.Kept}[c.open]
		}
		if fate := settle(v, requestOf(&s.Found), out); fate != want || (vs.InTx() == 1) != (want == virtual.Kept) {
			t.Errorf("%s: %v, %d transactions; want %v", name, fate, vs.InTx(), want)
		}
		if back := settle(nil, requestOf(&s.Found), out) == virtual.Released; back != c.back {
			t.Errorf("%s: without a virtual session it goes back: %v; want %v", name, back, c.back)
		}
	}
}

// A row that breaks a rule of its table ends the transaction; other failures with that status may come from before it was looked at.
func TestFailuresThatEndATransaction(t *testing.T) {
	issue := func(code uint32, inner ...*Ydb_Issue.IssueMessage) *Ydb_Issue.IssueMessage {
		return &Ydb_Issue.IssueMessage{Message: "Execution", IssueCode: code, Issues: inner}
	}
	failed := Ydb.StatusIds_PRECONDITION_FAILED
	for name, c := range map[string]struct {
		status Ydb.StatusIds_StatusCode
		issues []*Ydb_Issue.IssueMessage
		want   bool
	}{
		"a key that is there":      {failed, []*Ydb_Issue.IssueMessage{issue(1060, issue(2012, issue(2012)))}, true},
		"the same, behind another": {failed, []*Ydb_Issue.IssueMessage{issue(1), issue(1060, issue(2012))}, true},
		"no more than that":        {failed, []*Ydb_Issue.IssueMessage{issue(2012)}, true},
		"no issue":                 {failed, nil, false},
		"something else":           {failed, []*Ydb_Issue.IssueMessage{issue(1060, issue(2029))}, false},
		"another status":           {Ydb.StatusIds_GENERIC_ERROR, []*Ydb_Issue.IssueMessage{issue(2012)}, false},
	} {
		operation := operationOf(t, c.status, &Ydb_Table.ExecuteQueryResult{})
		operation.Issues, operation.Result = c.issues, nil
		for m, answer := range map[string]proto.Message{
			protocol.QueryService + "ExecuteQuery":     &Ydb_Query.ExecuteQueryResponsePart{Status: c.status, Issues: c.issues},
			protocol.TableService + "ExecuteDataQuery": &Ydb_Table.ExecuteDataQueryResponse{Operation: operation},
		} {
			head := framedMessage(bytesOf(t, answer))
			if got := endsTx(protocol.Named(m), c.status, head); got != c.want {
				t.Errorf("%s, %s: %v", m, name, got)
			}
			for n := range head { // less of it is never surer
				if endsTx(protocol.Named(m), c.status, head[:n]) && !c.want {
					t.Errorf("%s, %s, the first %d bytes: it ends", m, name, n)
				}
			}
		}
	}
}

// A request that is refused for its form needs no session: it neither waits for one nor spoils one.
func TestRefusedRequestsBorrowNothing(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 1 })
	g := h.guest("a")
	holder, s := g.session(), g.session()
	tx := holder.must(success, "select", beginTx) // nothing is left in the pool
	before := h.server.State().Virtual
	for name, id := range map[string]string{"a session": s.id, "none": ""} {
		b := bytesOf(t, &Ydb_Query.ExecuteQueryRequest{SessionId: id, TxControl: commitTx})
		b = append(b, bytesOf(t, &Ydb_Query.ExecuteQueryRequest{TxControl: beginTx})...) // the field comes twice
		stream, err := g.conn.NewStream(g.with(h.ctx), anyStream, protocol.QueryService+"ExecuteQuery", grpc.ForceCodecV2(passing))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(b)}}); err != nil {
			t.Fatal(err)
		}
		answer, part := new(message), new(Ydb_Query.ExecuteQueryResponsePart)
		if err := stream.RecvMsg(answer); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(answer.data.Materialize(), part); err != nil || part.GetStatus() != Ydb.StatusIds_BAD_REQUEST {
			t.Errorf("%s: %v, %v", name, part, err)
		}
		answer.free()
	}
	after := h.server.State().Virtual
	if after.Waited != before.Waited || after.CheckedOut != before.CheckedOut || after.InDoubt != before.InDoubt {
		t.Errorf("%d calls waited, %d sessions were borrowed, %d spoilt", after.Waited-before.Waited,
			after.CheckedOut-before.CheckedOut, after.InDoubt-before.InDoubt)
	}
	holder.must(success, "select", inTx(tx, true))
	s.must(success, "select", nil)
}

// The next statement of a session asks for a server session where the last one was.
func TestNextStatementGoesWhereTheLastWent(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	s := g.session()
	s.must(success, "SELECT 1", nil)
	h.resting()
	id, _ := virtual.Parse([]byte(s.id))
	who := virtual.NewCredentials("/local", "")
	if v, _ := h.server.sessions.See(id, &who, nil); v == nil || v.Near() == (pool.Home{}) {
		t.Error("it does not know where that was")
	}
}

// A request that is longer than YDB accepts goes to no node, which would be blamed for its refusal.
func TestRequestsLongerThanYDBAccepts(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	s := g.session()
	g.options = []grpc.CallOption{grpc.MaxCallSendMsgSize(mostBytes + 1000)}
	if !testing.Short() { // it costs seconds, and shows nothing of the refusal
		s.must(success, "select "+strings.Repeat("x", mostBytes-200), nil)
		h.resting()
	}
	h.encodings.take()
	s.must(Ydb.StatusIds_BAD_REQUEST, "select "+strings.Repeat("x", mostBytes), nil)
	if heads := h.encodings.take(); len(heads) > 0 {
		t.Errorf("it went to a node: %v", heads)
	}
	s.must(success, "select", nil)
}

// Where sessions of mode session keep all sessions of the pool, another call is told so while its
// client still listens, and gets one as soon as a client closes its session.
func TestCallsAreToldThatAllSessionsAreKept(t *testing.T) {
	for name, mode := range map[string]func(*Config){
		"all":     func(c *Config) { c.Mode = ModeSession },
		"one app": func(c *Config) { c.Apps = []string{"keeps=session"} },
	} {
		t.Run(name, func(t *testing.T) {
			allSessionsAreKept(t, mode)
		})
	}
}

func allSessionsAreKept(t *testing.T, mode func(*Config)) {
	t.Parallel()
	h := newHouse(t, func(c *Config, p *pool.Config) { mode(c); p.Max = 2 })
	keeps := h.guest("a")
	keeps.ctx = metadata.AppendToOutgoingContext(h.ctx, "x-ydb-application-name", "keeps")
	one, two := keeps.session(), keeps.session()
	one.must(success, "select", nil)
	two.must(success, "select", nil)
	late := h.guest("b").session()
	for call, session := range map[string]string{"of a session": late.id, "of none": ""} {
		left := time.Second
		h.eventually("it is told in time", func() string {
			ctx, cancel := context.WithTimeout(h.ctx, left)
			defer cancel()
			left *= 2
			out, err := late.query.ExecuteQuery(late.with(ctx), &Ydb_Query.ExecuteQueryRequest{SessionId: session})
			if err != nil {
				return err.Error()
			}
			part, err := out.Recv()
			if err != nil {
				return err.Error()
			}
			if text := part.GetIssues()[0].GetMessage(); part.GetStatus() != Ydb.StatusIds_OVERLOADED ||
				!strings.Contains(text, "raise pool.max") || !strings.Contains(text, "mode=session") {
				t.Errorf("a call %s is told %v; want OVERLOADED with what to do", call, part)
			}
			return ""
		})
	}
	if n := h.server.Starved(); n < 2 || h.server.State().Virtual.Starved != n {
		t.Errorf("%d calls counted; want at least 2", n)
	}
	h.eventually("nobody waits", func() string {
		if n := h.inLine(); n > 0 {
			return fmt.Sprint(n)
		}
		return ""
	})
	told := late.untilServed()
	h.eventually("the call waits", func() string {
		if h.inLine() == 0 {
			return "it does not"
		}
		return ""
	})
	one.drop()
	if err := <-told; err != nil {
		t.Errorf("after a client closed its session: %v", err)
	}
}

// untilServed runs a statement again and again, as an SDK does, while the answer is OVERLOADED. The last error comes to the channel.
func (s *session) untilServed() <-chan error {
	told := make(chan error, 1)
	go func() {
		st, _, err := s.run(s.house.ctx, s.id, "select", nil)
		for err == nil && st == Ydb.StatusIds_OVERLOADED {
			st, _, err = s.run(s.house.ctx, s.id, "select", nil)
		}
		if err == nil && st != success {
			err = errors.New(st.String())
		}
		told <- err
	}()
	return told
}

// While the pool may open more, or others have a session of it, a wait is not in vain.
func TestWaitsThatAreNotInVain(t *testing.T) {
	h := newHouse(t, func(c *Config, p *pool.Config) { c.Mode, p.Max = ModeSession, 2 })
	own := h.identity("")
	keeps := func(what string, want bool) {
		t.Helper()
		h.eventually(what, func() string { // a count serves for a moment
			if h.server.sessions.KeepAll(own) != want {
				return fmt.Sprintf("%+v", h.pool.Stats())
			}
			return ""
		})
	}
	keeps("nobody keeps any", false)
	h.guest("a").session().must(success, "select", nil)
	keeps("there is room for another", false)
	other, err := h.pool.Acquire(h.ctx, pool.Ask{})
	if err != nil {
		t.Fatal(err)
	}
	keeps("the other one comes back", false)
	h.pool.Release(other.Session)
	h.guest("b").session().must(success, "select", nil)
	keeps("all are kept", true)
	h.pool.Pause(true)
	keeps("an operator paused the pool", false)
	h.pool.Pause(false)
	keeps("all are kept again", true)
}

func TestPatience(t *testing.T) {
	for _, c := range []struct {
		left    time.Duration
		limited bool
		want    time.Duration
	}{{0, false, keptWait}, {3 * time.Second, true, time.Second}, {time.Minute, true, keptWait}, {0, true, 0}} {
		if got := patience(c.left, c.limited); got != c.want {
			t.Errorf("%v left, %v: %v; want %v", c.left, c.limited, got, c.want)
		}
	}
}
