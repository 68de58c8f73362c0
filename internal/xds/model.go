package xds

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// grade is what clients are told of a node: the better, the less.
type grade uint8

const (
	healthy   grade = iota // new calls
	degraded               // new calls if no healthy node is left: slow, refusing, or being tried
	draining               // calls of sessions that live there, and nothing new
	unhealthy              // nothing: it cannot be reached
)

func (g grade) String() string {
	return [...]string{"healthy", "degraded", "draining", "unhealthy"}[g]
}

// statusOf is a node's status by the view, whose panic rules are the only ones.
func statusOf(n *cluster.ViewNode) grade {
	switch {
	case n.Use == cluster.UseNew:
		return healthy
	case n.Use == cluster.UseNone:
		return unhealthy
	case n.Condition.Draining, n.Condition.Banned:
		return draining
	default:
		return degraded
	}
}

// endpoint is one node as it is published.
type endpoint struct {
	id     cluster.NodeID
	zone   string
	name   string // its certificate must have it
	port   uint32
	ips    []netip.Addr // the one to dial first; at most one of each family
	status grade
	weight uint32 // percent of a full share; 0, if healthy: a reserve for when the others are gone
}

func sameEndpoint(a, b endpoint) bool {
	return a.id == b.id && a.zone == b.zone && a.name == b.name && a.port == b.port && a.status == b.status &&
		a.weight == b.weight && slices.Equal(
		a.ips, b.ips,
	)
}

// How fast the published picture changes.
const (
	calm       = time.Second     // a node that got worse is not told better before so much time
	weightStep = 25              // percent of a full share by which a weight changes at a time, at most
	weightPace = time.Second     // time between such steps
	weightDead = 5               // a change of less is left out, unless it ends at a full share or at none
	linger     = 5 * time.Second // for how long a node that went away at once is still told, as draining
)

// entry is what is known of one node.
type entry struct {
	node    cluster.Node
	status  grade
	weight  uint32
	better  bool      // the view says that it is healthy; it is not told yet
	worse   time.Time // when it was last told worse than healthy
	stepped time.Time // when weight changed last
	gone    time.Time // when it went out of the view; zero: it is there
}

// model turns views into what is published, in the pace of the constants above.
// What always holds: once a healthy node was published, some published node is
// healthy. Of one goroutine.
type model struct {
	entries map[cluster.NodeID]*entry
	names   resolve
}

// resolve returns the IP addresses of a host; none: they are not known (yet).
type resolve func(host string) []netip.Addr

func newModel(names resolve) *model {
	return &model{entries: map[cluster.NodeID]*entry{}, names: names}
}

// advance takes the view of now and returns the nodes to publish in ascending order
// of ID; none: what was published stays. wake is when there is more to do without
// another view; zero: then there is nothing.
func (m *model) advance(now time.Time, v cluster.View) (out []endpoint, wake time.Time) {
	at := func(t time.Time) {
		if wake.IsZero() || t.Before(wake) {
			wake = t
		}
	}
	if len(v.Nodes) > 0 { // an empty one says nothing of nodes
		m.take(now, v, at)
	}
	ids := make([]cluster.NodeID, 0, len(m.entries))
	for id, e := range m.entries {
		switch {
		case e.gone.IsZero():
		case now.Sub(e.gone) >= linger:
			delete(m.entries, id)
			continue
		default:
			at(e.gone.Add(linger))
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return m.render(ids), wake
}

func (m *model) take(now time.Time, v cluster.View, at func(time.Time)) {
	seen := make(map[cluster.NodeID]bool, len(v.Nodes))
	alive := false
	for i := range v.Nodes {
		n := &v.Nodes[i]
		seen[n.ID] = true
		e := m.entries[n.ID]
		if e == nil {
			e = &entry{status: statusOf(n), weight: weightOf(n), stepped: now}
			if e.status != healthy {
				e.worse = now
			}
			m.entries[n.ID] = e
		}
		e.node, e.gone = n.Node, time.Time{}
		m.judge(now, e, n, at)
		alive = alive || e.status == healthy && len(m.names(hostOf(e.node))) > 0
	}
	for id, e := range m.entries {
		switch {
		case seen[id]:
			if !alive && e.better { // hysteresis is for when there is a choice
				e.status, e.better, e.stepped = healthy, false, now
			}
		case e.gone.IsZero():
			e.gone, e.status, e.worse = now, max(e.status, draining), now
		}
	}
}

// judge moves one entry towards what the view says.
func (m *model) judge(now time.Time, e *entry, n *cluster.ViewNode, at func(time.Time)) {
	target, weight := statusOf(n), weightOf(n)
	e.better = false
	switch {
	case target != healthy:
		if e.status == healthy {
			e.worse = now
		}
		e.status, e.weight = target, 0
	case e.status != healthy:
		e.weight = weight
		if ready := e.worse.Add(calm); now.Before(ready) {
			e.better = true
			at(ready)
			return
		}
		e.status, e.stepped = healthy, now
	default:
		m.weigh(now, e, weight, at)
	}
}

func (m *model) weigh(now time.Time, e *entry, target uint32, at func(time.Time)) {
	diff := int(target) - int(e.weight)
	if diff == 0 || max(diff, -diff) < weightDead && target != 0 && target != fullWeight {
		return
	}
	if next := e.stepped.Add(weightPace); now.Before(next) {
		at(next)
		return
	}
	step := min(max(diff, -weightStep), weightStep)
	e.weight, e.stepped = uint32(int(e.weight)+step), now
	if step != diff {
		at(now.Add(weightPace))
	}
}

// fullWeight is the weight of a full share.
const fullWeight = 100

// weightOf is the weight of a node in percent: 0 for a reserve only.
func weightOf(n *cluster.ViewNode) uint32 {
	if !(n.Weight > 0) {
		return 0
	}
	return uint32(min(max(n.Weight*fullWeight+0.5, 1), 100*fullWeight))
}

// render leaves out nodes without an address of their own: clients refuse all nodes
// when two have the same.
func (m *model) render(ids []cluster.NodeID) []endpoint {
	out := make([]endpoint, 0, len(ids))
	used := make(map[netip.AddrPort]bool, len(ids))
	alive := false
	for _, id := range ids {
		e := m.entries[id]
		host, portText, _ := net.SplitHostPort(e.node.Address)
		port, err := strconv.ParseUint(portText, 10, 16)
		if err != nil || port == 0 {
			continue
		}
		var ips []netip.Addr
		for _, ip := range m.names(host) {
			if at := netip.AddrPortFrom(ip, uint16(port)); !used[at] {
				used[at] = true
				ips = append(ips, ip)
			}
		}
		if len(ips) == 0 {
			continue
		}
		name := e.node.TLSName
		if name == "" {
			name = host
		}
		alive = alive || e.status == healthy
		out = append(out, endpoint{id: id, zone: e.node.Zone, name: name, port: uint32(port), ips: ips, status: e.status, weight: e.weight})
	}
	if !alive {
		return nil
	}
	return out
}

func hostOf(n cluster.Node) string {
	host, _, _ := net.SplitHostPort(n.Address)
	return host
}
