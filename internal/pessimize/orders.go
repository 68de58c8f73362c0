package pessimize

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// maxOrders bounds the nodes that operators gave orders about.
const maxOrders = 1000

// ErrUnknown is wrapped by the errors of orders about a node that is not known.
var ErrUnknown = errors.New("no such node")

// orders are what an operator wants of a node. They belong to its ID: neither
// discovery nor the state machine, a new address or a long absence changes them.
type orders struct {
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
func (j *Judge) Ban(id cluster.NodeID, d time.Duration, reason string) error {
	if d < 0 {
		return fmt.Errorf("ban node %d for %v: must be >= 0; 0 is until it is taken back", id, d)
	}
	return j.order(id, func(o *orders) {
		*o = orders{banned: true, reason: line(reason), drained: o.drained}
		if d > 0 {
			o.until = time.Now().Add(d)
		}
	})
}

// Unban takes back Ban, if there is one.
func (j *Judge) Unban(id cluster.NodeID) error {
	return j.order(id, func(o *orders) { *o = orders{drained: o.drained} })
}

// Drain has the node count as leaving until Undrain: what is open there may
// finish, nothing new comes, and its sessions go.
func (j *Judge) Drain(id cluster.NodeID) error {
	return j.order(id, func(o *orders) { o.drained = true })
}

// Undrain takes back Drain. It does not take back what the node itself announced.
func (j *Judge) Undrain(id cluster.NodeID) error {
	return j.order(id, func(o *orders) { o.drained = false })
}

// Order is what operators want of a node.
type Order struct {
	Node    cluster.NodeID `json:"node"`
	Banned  bool           `json:"banned,omitempty"`
	Until   time.Time      `json:"until,omitzero"` // end of the ban; zero: until Unban
	Reason  string         `json:"reason,omitempty"`
	Drained bool           `json:"drained,omitempty"`
}

// Orders returns all orders, by node.
func (j *Judge) Orders() []Order {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := make([]Order, 0, len(j.orders))
	for id, o := range j.orders {
		all = append(all, Order{id, o.banned, o.until, o.reason, o.drained})
	}
	slices.SortFunc(all, func(a, b Order) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// Adopt takes over the orders of another judge, of nodes that need not be known yet.
func (j *Judge) Adopt(all []Order) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, o := range all {
		taken := orders{banned: o.Banned, drained: o.Drained}
		if o.Banned {
			taken.until, taken.reason = o.Until, line(o.Reason)
		}
		if taken != (orders{}) && len(j.orders) < maxOrders {
			j.orders[o.Node] = taken
		}
	}
	j.nudge()
}

// order changes what is wanted; Run does it.
func (j *Judge) order(id cluster.NodeID, change func(*orders)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	o, ordered := j.orders[id]
	if !ordered && j.nodes[id] == nil {
		return fmt.Errorf("%w: %d is neither in discovery nor remembered", ErrUnknown, id)
	}
	change(&o)
	switch {
	case o == orders{}:
		delete(j.orders, id)
	case !ordered && len(j.orders) >= maxOrders:
		return fmt.Errorf("%d nodes are banned or drained already; take some of that back first", maxOrders)
	default:
		j.orders[id] = o
	}
	j.nudge()
	return nil
}

// obey ends bans whose time is over and brings the nodes in line with the orders.
func (j *Judge) obey(now time.Time) {
	for id, o := range j.orders {
		if o.banned && !o.until.IsZero() && !now.Before(o.until) {
			if o = (orders{drained: o.drained}); o.drained {
				j.orders[id] = o
			} else {
				delete(j.orders, id)
			}
		}
	}
	for id, n := range j.nodes {
		was, is := n.orders, j.orders[id]
		if was == is {
			continue
		}
		n.orders = is
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

func (o orders) banText() string {
	switch {
	case !o.banned:
		return ""
	case o.until.IsZero():
		return "banned"
	default:
		return "banned until " + o.until.UTC().Format(time.RFC3339)
	}
}

func (o orders) drainText() string {
	if o.drained {
		return "drained"
	}
	return ""
}
