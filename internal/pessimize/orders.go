package pessimize

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// maxOverrides bounds the nodes for which operators have set overrides.
const maxOverrides = 1000

// ErrUnknown is wrapped by the errors of overrides for a node that is not known.
var ErrUnknown = errors.New("no such node")

// overrides are what an operator wants of a node. They belong to its ID: neither
// discovery nor the state machine, a new address or a long absence changes them.
type overrides struct {
	banned  bool
	until   time.Time // end of the ban; zero: until Unban
	reason  string
	drained bool
}

// Ban has the node get nothing new, as long as any other node is left, for d, or
// until Unban if d is 0. A second ban takes the place of the first. The reason
// is shown to other operators; it is cut to one line of 200 bytes. The error, if
// any, says what is wrong with the arguments; it wraps ErrUnknown where nobody
// knows the node.
func (j *Detector) Ban(id cluster.NodeID, d time.Duration, reason string) error {
	if d < 0 {
		return fmt.Errorf("ban node %d for %v: must be >= 0; 0 is until it is taken back", id, d)
	}
	return j.override(id, func(o *overrides) {
		*o = overrides{banned: true, reason: line(reason), drained: o.drained}
		if d > 0 {
			o.until = time.Now().Add(d)
		}
	})
}

// Unban takes back Ban, if there is one.
func (j *Detector) Unban(id cluster.NodeID) error {
	return j.override(id, func(o *overrides) { *o = overrides{drained: o.drained} })
}

// Drain has the node count as leaving until Undrain: what is open there may
// finish, nothing new comes, and its sessions go.
func (j *Detector) Drain(id cluster.NodeID) error {
	return j.override(id, func(o *overrides) { o.drained = true })
}

// Undrain takes back Drain. It does not take back what the node itself announced.
func (j *Detector) Undrain(id cluster.NodeID) error {
	return j.override(id, func(o *overrides) { o.drained = false })
}

// Override is what operators want of a node.
type Override struct {
	Node    cluster.NodeID `json:"node"`
	Banned  bool           `json:"banned,omitempty"`
	Until   time.Time      `json:"until,omitzero"` // end of the ban; zero: until Unban
	Reason  string         `json:"reason,omitempty"`
	Drained bool           `json:"drained,omitempty"`
}

// Overrides returns all orders, by node.
func (j *Detector) Overrides() []Override {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := make([]Override, 0, len(j.overrides))
	for id, o := range j.overrides {
		all = append(all, Override{id, o.banned, o.until, o.reason, o.drained})
	}
	slices.SortFunc(all, func(a, b Override) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// Adopt takes over the orders of another judge, of nodes that need not be known yet.
func (j *Detector) Adopt(all []Override) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, o := range all {
		taken := overrides{banned: o.Banned, drained: o.Drained}
		if o.Banned {
			taken.until, taken.reason = o.Until, line(o.Reason)
		}
		if taken != (overrides{}) && len(j.overrides) < maxOverrides {
			j.overrides[o.Node] = taken
		}
	}
	j.nudge()
}

// override changes what is wanted; Run does it.
func (j *Detector) override(id cluster.NodeID, change func(*overrides)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	o, ordered := j.overrides[id]
	if !ordered && j.nodes[id] == nil {
		return fmt.Errorf("%w: %d is neither in discovery nor remembered", ErrUnknown, id)
	}
	change(&o)
	switch {
	case o == overrides{}:
		delete(j.overrides, id)
	case !ordered && len(j.overrides) >= maxOverrides:
		return fmt.Errorf("%d nodes are banned or drained already; take some of that back first", maxOverrides)
	default:
		j.overrides[id] = o
	}
	j.nudge()
	return nil
}

// obey ends bans whose time is over and brings the nodes in line with the orders.
func (j *Detector) obey(now time.Time) {
	for id, o := range j.overrides {
		if o.banned && !o.until.IsZero() && !now.Before(o.until) {
			if o = (overrides{drained: o.drained}); o.drained {
				j.overrides[id] = o
			} else {
				delete(j.overrides, id)
			}
		}
	}
	for id, n := range j.nodes {
		was, is := n.overrides, j.overrides[id]
		if was == is {
			continue
		}
		n.overrides = is
		if was.banned != is.banned || was.until != is.until || was.reason != is.reason {
			reason := cmp.Or(is.reason, "by an operator")
			if !is.banned && !was.until.IsZero() && !now.Before(was.until) {
				reason = "its time is over"
			}
			j.journal.add(now, n, EventBan, was.banText(), is.banText(), reason)
		}
		if was.drained != is.drained {
			j.journal.add(now, n, EventDrain, was.drainText(), is.drainText(), "by an operator")
		}
	}
}

func (o overrides) banText() string {
	switch {
	case !o.banned:
		return ""
	case o.until.IsZero():
		return "banned"
	default:
		return "banned until " + o.until.UTC().Format(time.RFC3339)
	}
}

func (o overrides) drainText() string {
	if o.drained {
		return "drained"
	}
	return ""
}
