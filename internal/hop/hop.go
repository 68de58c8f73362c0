// Package hop is the way of a call to a node: here a node is chosen and entered,
// and when the call has ended it is judged, reported and left. Statements of
// internal/upstream and calls that internal/wire forwards go the same way.
//
// What always holds:
//
//   - A call that entered a node leaves it exactly once, whatever panics meanwhile:
//     an Entry is emptied before the router is told.
//   - An outcome is judged once, by internal/ydbstatus, and everybody hears the
//     same: the router, the judge of nodes, the meter of the sessions' limit.
//   - No call takes a lock here, and none allocates, except one around a lost owner (Detours).
//
// What a call leaves behind is a Done, which metrics, spans, the history and the access log read.
//
// It makes no connection: that is what the callers differ in.
package hop

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// Router says where calls go; internal/routing satisfies it.
type Router interface {
	// Pick names a node for a call that is bound to no session.
	Pick() (cluster.ViewNode, error)
	// Target names the node that a call on a session of owner goes to. An
	// error other than routing.ErrBusy means that no way to the owner is known now.
	Target(owner cluster.NodeID, openTx bool) (cluster.NodeID, error)
	// Enter counts a call as open; false means that the node has too many.
	Enter(cluster.NodeID) bool
	// Leave ends what Enter began, with what came of the call.
	Leave(cluster.Outcome)
}

// HealthReporter hears of every outcome; internal/pessimize satisfies it.
type HealthReporter interface {
	Report(cluster.Outcome)
}

// Errors of a call that goes to no node, beside those of the Router.
var (
	ErrFull        = errors.New("the node has routing.max_calls_per_node calls open")
	ErrUnknownNode = errors.New("the node is not in the current view")
)

// Busy reports whether err says that the nodes of a call have too many calls open. Whatever
// else keeps a call from the owner of its session, the session may be lost: the caller decides whether to look again.
func Busy(err error) bool { return errors.Is(err, ErrFull) || errors.Is(err, routing.ErrBusy) }

// Picks is how many nodes are tried for a call that is bound to none.
const Picks = 3

// Ways is how calls come to nodes. Router and HealthReporter must be given.
type Ways struct {
	Router  Router
	Health  HealthReporter
	Hold    *Hold  // keeps calls without a session of a pool away from the nodes; nil: none
	Refresh func() // has discovery ask soon: a node may be leaving; must not block; nil: nobody asks

	// A call of an open transaction that another node forwards to its owner ends when nothing of its answer comes for
	// ForwardSilence, unless that is 0, and when the owner leaves the cluster.
	ForwardSilence time.Duration
	Scattered      bool // routing.affinity is off: most calls are forwarded, and none is bounded so
}

// To says where a call goes.
type To struct {
	HomeNode cluster.NodeID // of its session; 0: any node
	OpenTx   bool           // the session has a transaction open
	// the call lasts for as long as its client likes, mostly idle: there may be more of them than
	// a node may have calls
	Uncounted bool
}

// Entry is what counts a call among those that a node has open. The zero one is none.
type Entry struct {
	Node    cluster.NodeID
	Around  bool // it is not the owner of the session: the node forwards the call
	counted bool
}

// Reach finds the node of a call, enters it, and has connect find a connection to it; at is the entry of the call from then
// on. Of the nodes that a call bound to none may go to, up to Picks are tried until one has room and is reached. An entry that
// connect cannot go on from is left, unless connect has left it. node is the one that was entered; with an error it is the one
// that the call could not enter or reach, or the owner, and nothing is to be left.
func Reach[C any](w *Ways, to To, at *Entry, connect func() (C, error)) (conn C, node cluster.NodeID, err error) {
	for try := 1; ; try++ {
		if node, err = w.choose(to); err != nil {
			return conn, to.HomeNode, err
		}
		if err = ErrFull; to.Uncounted || w.Router.Enter(node) {
			*at = Entry{node, to.HomeNode != 0 && to.HomeNode != node, !to.Uncounted}
			if conn, err = connect(); err != nil {
				w.Back(at)
			}
		}
		if err == nil || to.HomeNode != 0 || try == Picks {
			return conn, node, err
		}
	}
}

func (w *Ways) choose(to To) (cluster.NodeID, error) {
	if to.HomeNode != 0 {
		return w.Router.Target(to.HomeNode, to.OpenTx)
	}
	n, err := w.Router.Pick()
	return n.ID, err
}

// Back takes back an entry from which nothing was sent, for a reason that says nothing of the node.
func (w *Ways) Back(p *Entry) {
	if left := p.empty(); left.counted {
		w.Router.Leave(cluster.Outcome{Node: left.Node})
	}
}

func (p *Entry) empty() (was Entry) {
	was, *p = *p, Entry{}
	return was
}

// Leave judges a call that ended with such signs, tells everybody, and takes back its entry.
// It adds the node and the verdict to d, and to s whether the node forwarded the call. meter is that of the limit of sessions that the call
// counts for; nil: none.
func (w *Ways) Leave(p *Entry, d *Done, s *ydbstatus.Signs, meter HealthReporter) {
	left := p.empty()
	s.Forwarded = left.Around
	w.end(left.Node, left.counted, d, s, meter)
}

// Report is Leave for a call that entered no node, such as one that opens a session.
func (w *Ways) Report(node cluster.NodeID, d *Done, s *ydbstatus.Signs) {
	w.end(node, false, d, s, nil)
}

func (w *Ways) end(node cluster.NodeID, counted bool, d *Done, s *ydbstatus.Signs, meter HealthReporter) {
	d.Node, d.Verdict = node, ydbstatus.Judge(*s)
	o := cluster.Outcome{
		Node: node, Kind: s.Kind, Blame: d.Verdict.Blame, Latency: d.First, Waits: d.Method != nil && d.Method.Waits,
		Detail: ydbstatus.Name(s.Status, s.Code), Congestion: d.Verdict.Congestion, Subject: s.Subject, Lost: s.Lost,
	}
	if s.CallerGone && !s.NotSent && d.Sent && !d.Partial && d.First == 0 {
		o.Waited = d.Took - d.Waited // no fault of the node, but it took at least so long
	}
	if counted {
		w.Router.Leave(o)
	}
	w.Health.Report(o)
	if meter != nil {
		meter.Report(o)
	}
}

// Silent tells the judge that a connection with calls under way brings no byte.
func (w *Ways) Silent(node cluster.NodeID) {
	w.Health.Report(cluster.Outcome{Node: node, Kind: cluster.CallProbe, Blame: cluster.BlameTransport, Detail: "SILENT"})
}

// Reroutes counts how often a call of an open transaction that found no connection to go over was made again within the
// transaction: another node may be named by then, which forwards it, or the connection be made again. Nothing else can
// save the transaction.
type Reroutes uint8

// mostReroutes is the highest number of Reroutes.
const mostReroutes = 5

// Next returns the pause before the call is made again: time for the verdict on the node. False: it was made often enough.
func (r *Reroutes) Next() (pause time.Duration, ok bool) {
	const least = 5 * time.Millisecond
	if *r == mostReroutes {
		return 0, false
	}
	*r++
	return least + rand.N(least<<*r), true
}

// Look has discovery ask soon.
func (w *Ways) Look() {
	if w.Refresh != nil {
		w.Refresh()
	}
}
