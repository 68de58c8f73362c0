package hop

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// board is a router, the judge and the meter. It notes what they hear, in order.
type board struct {
	picks  []cluster.NodeID // in turn; none left: routing.ErrBusy
	target cluster.NodeID   // 0: routing.ErrGone
	full   []cluster.NodeID
	heard  []string
	last   cluster.Outcome
	broken bool // Leave panics
}

func (b *board) Pick() (cluster.ViewNode, error) {
	if len(b.picks) == 0 {
		return cluster.ViewNode{}, routing.ErrBusy
	}
	id := b.picks[0]
	b.picks = b.picks[1:]
	return cluster.ViewNode{Node: cluster.Node{ID: id}}, nil
}

func (b *board) Target(owner cluster.NodeID, openTx bool) (cluster.NodeID, error) {
	b.heard = append(b.heard, fmt.Sprintf("target %d %t", owner, openTx))
	if b.target == 0 {
		return 0, routing.ErrGone
	}
	return b.target, nil
}

func (b *board) Enter(id cluster.NodeID) bool {
	b.heard = append(b.heard, fmt.Sprintf("enter %d", id))
	return !slices.Contains(b.full, id)
}

func (b *board) Leave(o cluster.Outcome) {
	b.heard = append(b.heard, fmt.Sprintf("leave %d %s", o.Node, o.Detail))
	if b.broken {
		panic("broken")
	}
}

func (b *board) Report(o cluster.Outcome) {
	b.heard, b.last = append(b.heard, "report"), o
}

// meter notes on the board.
type meter struct{ *board }

func (m meter) Report(o cluster.Outcome) {
	m.heard = append(m.heard, "meter")
	if o != m.last {
		m.heard = append(m.heard, "another outcome")
	}
}

func (b *board) ways() *Ways { return &Ways{Router: b, Health: b} }

// enter is Reach where there is a connection to every node.
func enter(w *Ways, to To) (at Entry, err error) {
	_, node, err := Reach(w, to, &at, func() (struct{}, error) { return struct{}{}, nil })
	if err != nil {
		at.Node = node
	}
	return at, err
}

func TestEnter(t *testing.T) {
	for _, c := range []struct {
		name  string
		board board
		to    To
		want  Entry
		err   error
		heard []string
	}{
		{"to_the_owner", board{target: 2}, To{HomeNode: 2}, Entry{2, false, true}, nil, []string{"target 2 false", "enter 2"}},
		{"around_the_owner", board{target: 3}, To{HomeNode: 2, OpenTx: true}, Entry{3, true, true}, nil,
			[]string{"target 2 true", "enter 3"}},
		{"the_owner_is_gone", board{}, To{HomeNode: 2}, Entry{Node: 2}, routing.ErrGone, []string{"target 2 false"}},
		{"the_owner_is_full_and_no_other_will_do", board{target: 2, full: []cluster.NodeID{2}}, To{HomeNode: 2},
			Entry{Node: 2}, ErrFull, []string{"target 2 false", "enter 2"}},
		{"to_any_node", board{picks: []cluster.NodeID{4}}, To{}, Entry{4, false, true}, nil, []string{"enter 4"}},
		{"another_node_for_a_full_one", board{picks: []cluster.NodeID{4, 5}, full: []cluster.NodeID{4}}, To{},
			Entry{5, false, true}, nil, []string{"enter 4", "enter 5"}},
		{"all_are_full", board{picks: []cluster.NodeID{4, 5, 6, 7}, full: []cluster.NodeID{4, 5, 6}}, To{},
			Entry{Node: 6}, ErrFull, []string{"enter 4", "enter 5", "enter 6"}},
		{"no_node_to_pick", board{}, To{}, Entry{}, routing.ErrBusy, nil},
		{"what_is_no_load_enters_a_full_node", board{target: 2, full: []cluster.NodeID{2}},
			To{HomeNode: 2, Uncounted: true}, Entry{Node: 2}, nil, []string{"target 2 false"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &c.board
			got, err := enter(b.ways(), c.to)
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("%+v, %v; want %+v, %v", got, err, c.want, c.err)
			}
			if diff := cmp.Diff(c.heard, b.heard); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReach(t *testing.T) {
	lost := errors.New("no connection")
	for _, c := range []struct {
		name  string
		board board
		to    To
		fails int // nodes to which connections fail, in turn
		told  bool
		want  Entry
		node  cluster.NodeID
		err   error
		heard []string
	}{
		{"at_once", board{picks: []cluster.NodeID{4}}, To{}, 0, false, Entry{4, false, true}, 4, nil, []string{"enter 4"}},
		{"another_node_for_one_without_a_connection", board{picks: []cluster.NodeID{4, 5}}, To{}, 1, false,
			Entry{5, false, true}, 5, nil, []string{"enter 4", "leave 4 ", "enter 5"}},
		{"connect_has_told_of_the_node", board{picks: []cluster.NodeID{4, 5}}, To{}, 1, true, Entry{5, false, true}, 5,
			nil, []string{"enter 4", "leave 4 UNAVAILABLE", "report", "enter 5"}},
		{"full_nodes_and_lost_ones_count_alike", board{picks: []cluster.NodeID{4, 5, 6, 7}, full: []cluster.NodeID{4}},
			To{}, 2, false, Entry{}, 6, lost, []string{"enter 4", "enter 5", "leave 5 ", "enter 6", "leave 6 "}},
		{"only_the_owner_will_do", board{target: 2}, To{HomeNode: 2}, 1, false, Entry{}, 2, lost,
			[]string{"target 2 false", "enter 2", "leave 2 "}},
		{"the_owner_is_gone", board{}, To{HomeNode: 2}, 0, false, Entry{}, 2, routing.ErrGone, []string{"target 2 false"}},
		{"what_is_no_load_leaves_nothing", board{target: 2}, To{HomeNode: 2, Uncounted: true}, 1, false, Entry{}, 2,
			lost, []string{"target 2 false"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := c.board.ways()
			var at Entry
			conn, node, err := Reach(w, c.to, &at, func() (string, error) {
				if c.fails--; c.fails < 0 {
					return fmt.Sprint("to ", at.Node), nil
				}
				if c.told {
					w.Leave(&at, new(Done), &ydbstatus.Signs{Code: codes.Unavailable, NotSent: true}, nil)
				}
				return "", lost
			})
			if at != c.want || node != c.node || !errors.Is(err, c.err) || err == nil && conn != fmt.Sprint("to ", node) {
				t.Errorf("%q at %+v, node %d, %v; want %+v, %d, %v", conn, at, node, err, c.want, c.node, c.err)
			}
			if diff := cmp.Diff(c.heard, c.board.heard); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReroutes(t *testing.T) {
	var r Reroutes
	for n := range 5 {
		least, most := 5*time.Millisecond, 5*time.Millisecond+5*time.Millisecond<<(n+1)
		if pause, ok := r.Next(); !ok || pause < least || pause >= most {
			t.Errorf("pause %d: %v, %v; want one from %v to %v", n+1, pause, ok, least, most)
		}
	}
	for range 2 {
		if pause, ok := r.Next(); ok {
			t.Errorf("another one, of %v; want an end", pause)
		}
	}
}

func TestBusy(t *testing.T) {
	for err, want := range map[error]bool{
		ErrFull: true, routing.ErrBusy: true, fmt.Errorf("x: %w", ErrFull): true,
		routing.ErrGone: false, routing.ErrUnreachable: false, routing.ErrNoNode: false, ErrUnknownNode: false,
	} {
		if Busy(err) != want {
			t.Errorf("%v: %t", err, !want)
		}
	}
}

func TestAPlaceIsLeftOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		to    To
		leave func(*Ways, *Entry)
		heard []string
	}{
		{"left", To{}, func(w *Ways, p *Entry) { w.Leave(p, new(Done), new(ydbstatus.Signs), nil) },
			[]string{"enter 4", "leave 4 SUCCESS", "report"}},
		{"left_with_a_meter", To{},
			func(w *Ways, p *Entry) { w.Leave(p, new(Done), new(ydbstatus.Signs), meter{w.Health.(*board)}) },
			[]string{"enter 4", "leave 4 SUCCESS", "report", "meter"}},
		{"nothing_was_sent", To{}, (*Ways).Back, []string{"enter 4", "leave 4 "}},
		{"no_load_is_reported_all_the_same", To{Uncounted: true},
			func(w *Ways, p *Entry) { w.Leave(p, new(Done), new(ydbstatus.Signs), nil) }, []string{"report"}},
		{"no_load_goes_back", To{Uncounted: true}, (*Ways).Back, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &board{picks: []cluster.NodeID{4}}
			w := b.ways()
			p, err := enter(w, c.to)
			if err != nil {
				t.Fatal(err)
			}
			c.leave(w, &p)
			w.Back(&p) // it is empty
			if diff := cmp.Diff(c.heard, b.heard); diff != "" || p != (Entry{}) {
				t.Errorf("%+v is left\n%s", p, diff)
			}
		})
	}
}

func TestAPlaceIsLeftOnceWhenTheRouterPanics(t *testing.T) {
	b := &board{picks: []cluster.NodeID{4}, broken: true}
	w := b.ways()
	p, _ := enter(w, To{})
	func() {
		defer func() { _ = recover() }()
		w.Leave(&p, new(Done), new(ydbstatus.Signs), nil)
	}()
	b.heard = nil
	if w.Back(&p); b.heard != nil {
		t.Errorf("%q after a panic; want nothing", b.heard)
	}
}

func TestWhatEverybodyHears(t *testing.T) {
	const second = time.Second
	type signs = ydbstatus.Signs
	for _, c := range []struct {
		name  string
		done  Done
		signs signs
		want  cluster.Outcome
	}{
		{"success", Done{Sent: true, First: second, Took: 2 * second}, signs{Kind: cluster.CallExecute, Status: Ydb.StatusIds_SUCCESS},
			cluster.Outcome{Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: second, Detail: "SUCCESS"}},
		{"success_by_code", Done{First: second}, signs{Kind: cluster.CallOpen},
			cluster.Outcome{Kind: cluster.CallOpen, Blame: cluster.BlameSuccess, Latency: second, Detail: "SUCCESS"}},
		{"the_status_counts_before_the_code", Done{},
			signs{Kind: cluster.CallExecute, Status: Ydb.StatusIds_ABORTED, Code: codes.Unavailable},
			cluster.Outcome{Kind: cluster.CallExecute, Detail: "ABORTED"}},
		{"not_what_the_caller_was_told", Done{Key: Key{Code: codes.Unavailable}},
			signs{Status: Ydb.StatusIds_UNAUTHORIZED, Foreign: true},
			cluster.Outcome{Blame: cluster.BlameForeign, Detail: "UNAUTHORIZED"}},
		{"congested", Done{},
			signs{Kind: cluster.CallExecute, Status: Ydb.StatusIds_OVERLOADED, Congestion: cluster.CongestedTable, Subject: "/local/t"},
			cluster.Outcome{Kind: cluster.CallExecute, Detail: "OVERLOADED", Congestion: cluster.CongestedTable, Subject: "/local/t"}},
		{"no_answer_before_the_caller_left", Done{Sent: true, Took: 3 * second, Waited: second},
			signs{Code: codes.Canceled, CallerGone: true}, cluster.Outcome{Waited: 2 * second, Detail: "CANCELLED"}},
		{"part_of_an_answer_before_the_caller_left", Done{Sent: true, First: second, Took: 2 * second},
			signs{Code: codes.Canceled, CallerGone: true},
			cluster.Outcome{Latency: second, Detail: "CANCELLED"}},
		{"a_part_of_the_request_before_the_caller_left", Done{Sent: true, Partial: true, Took: second},
			signs{Code: codes.Canceled, CallerGone: true}, cluster.Outcome{Detail: "CANCELLED"}},
		{"not_sent_before_the_caller_left", Done{Took: second},
			signs{Code: codes.Canceled, CallerGone: true, NotSent: true}, cluster.Outcome{Detail: "CANCELLED"}},
		{"the_node_was_slow_and_the_caller_stays", Done{Sent: true, Took: second},
			signs{Kind: cluster.CallExecute, Code: codes.DeadlineExceeded},
			cluster.Outcome{Kind: cluster.CallExecute, Detail: "DEADLINE_EXCEEDED"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := new(board)
			done := c.done
			b.ways().Report(3, &done, &c.signs)
			c.want.Node = 3
			if diff := cmp.Diff(c.want, b.last); diff != "" {
				t.Error(diff)
			}
			want := c.done
			want.Node, want.Verdict = 3, ydbstatus.Judge(c.signs)
			if done != want {
				t.Errorf("%+v; want %+v", done, want)
			}
		})
	}
}

// A hot table makes a bulk upsert last for minutes on any node, and nothing else waits so.
func TestOnlyBulkUpsertsWaitInside(t *testing.T) {
	for _, m := range append(protocol.All(), nil) {
		b := new(board)
		b.ways().Report(1, &Done{Key: Key{Method: m}}, new(ydbstatus.Signs))
		if want := m != nil && m.Path == "/Ydb.Table.V1.TableService/BulkUpsert"; b.last.Waits != want {
			t.Errorf("%+v: the server waits inside: %t; want %t", m, b.last.Waits, want)
		}
	}
}

func TestASilentConnectionIsAFaultOfTheNode(t *testing.T) {
	b := new(board)
	b.ways().Silent(3)
	if want := (cluster.Outcome{Node: 3, Kind: cluster.CallProbe, Blame: cluster.BlameTransport, Detail: "SILENT"}); b.last != want {
		t.Errorf("%+v; want %+v", b.last, want)
	}
}

func TestDiscoveryIsAskedIfThereIsOne(t *testing.T) {
	asked := 0
	w := &Ways{}
	w.Look()
	w.Refresh = func() { asked++ }
	if w.Look(); asked != 1 {
		t.Errorf("asked %d times; want 1", asked)
	}
}

// The node that forwards a call may only repeat what the owner said.
func TestAForwardedRefusalBlamesNoNode(t *testing.T) {
	for target, want := range map[cluster.NodeID]cluster.Blame{2: cluster.BlameRefusal, 3: cluster.BlameNone} {
		b := &board{target: target}
		w := b.ways()
		p, err := enter(w, To{HomeNode: 2, OpenTx: true})
		if err != nil {
			t.Fatal(err)
		}
		s := ydbstatus.Signs{Kind: cluster.CallExecute, Status: Ydb.StatusIds_OVERLOADED, Congestion: cluster.CongestedNode}
		if w.Leave(&p, new(Done), &s, nil); b.last.Node != target || b.last.Blame != want {
			t.Errorf("a call to node 2 that went to %d: %+v; want %v", target, b.last, want)
		}
	}
}

// none is a judge that does not listen.
type none struct{}

func (none) Report(cluster.Outcome) {}

// steady returns what enters and leaves a node of the real router.
func steady(t testing.TB) func() {
	router := routing.New(routing.Default())
	router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "a:1"}, {ID: 2, Address: "b:2"}}, ""))
	w := &Ways{Router: router, Health: none{}}
	return func() {
		p, err := enter(w, To{HomeNode: 2})
		if err != nil {
			t.Fatal(err)
		}
		done, signs := Done{
			Sent: true, First: time.Millisecond, Took: time.Millisecond,
		}, ydbstatus.Signs{Kind: cluster.CallExecute, Status: Ydb.StatusIds_SUCCESS}
		w.Leave(&p, &done, &signs, none{})
	}
}

func TestEnteringAndLeavingAllocateNothing(t *testing.T) {
	if n := testing.AllocsPerRun(1000, steady(t)); n != 0 {
		t.Errorf("%v allocations; want none", n)
	}
}

func BenchmarkEnterAndLeave(b *testing.B) {
	once := steady(b)
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
}
