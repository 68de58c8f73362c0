package pessimize

import (
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Bounds of what is remembered.
const (
	maxEvents  = 1000 // of all nodes
	maxHistory = 32   // of one node
)

// EventKind says what changed.
type EventKind string

// The kinds of event.
const (
	EventState    EventKind = "state"   // of a node: an edge of the machine
	EventDraining EventKind = "leaving" // a node announced its shutdown or left discovery, or stays after all
	EventRamp     EventKind = "share"   // of load, while a node returns
	EventBan      EventKind = "ban"     // by an operator
	EventDrain    EventKind = "drain"   // by an operator
	EventNode     EventKind = "node"    // became known, was replaced, or is forgotten
	EventSpared   EventKind = "spared"  // too slow, but too many nodes are ejected already
	EventMissing  EventKind = "missing" // nodes vanished from discovery in numbers and are held, or no longer
	EventPanic    EventKind = "panic"   // more than half of the nodes are ejected, or no longer
)

// Event is one change. Seq counts from 1, over all nodes, without gaps.
type Event struct {
	Seq    uint64         `json:"seq"`
	Time   time.Time      `json:"time"`
	Node   cluster.NodeID `json:"node,omitempty"` // 0: of no single node
	Kind   EventKind      `json:"kind"`
	From   string         `json:"from,omitempty"`
	To     string         `json:"to,omitempty"`
	Reason string         `json:"reason"`
}

// journal keeps the newest events. Detector.mu guards it.
type journal struct {
	ejections [cluster.CauseSize]uint64 // counted here, because steps are noted here
	last      uint64
	events    []Event // oldest first
	untold    []Event // not logged yet
}

// add notes a change; n is nil for one of no single node.
func (j *journal) add(now time.Time, n *node, kind EventKind, from, to, reason string) {
	j.last++
	e := Event{Seq: j.last, Time: now, Kind: kind, From: from, To: to, Reason: reason}
	if n != nil {
		e.Node = n.ID
		n.history = appendBounded(n.history, e, maxHistory)
	}
	j.events = appendBounded(j.events, e, maxEvents)
	j.untold = append(j.untold, e)
}

func appendBounded(events []Event, e Event, limit int) []Event {
	if len(events) == limit {
		events = slices.Delete(events, 0, 1)
	}
	return append(events, e)
}

// after returns the events with a greater number, oldest first.
func (j *journal) after(seq uint64) []Event {
	if seq >= j.last {
		return nil
	}
	return slices.Clone(j.events[len(j.events)-min(len(j.events), int(j.last-seq)):])
}

// Events returns what happened after the event with the given number, 0 for
// all that is remembered: the newest 1,000, oldest first.
func (j *Detector) Events(after uint64) []Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.journal.after(after)
}
