package routing

import (
	"slices"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// overprovision is how much more than its usual load the healthy rest of the
// preferred zones is trusted to carry before load moves elsewhere. 1.4 is
// Envoy's: it takes 72 % of the capacity to carry everything.
const overprovision = 1.4

// preferred returns the zones that get new load first; none: all are alike.
// local is the zone of this host as far as discovery knows.
func (c Config) preferred(local, nearest string) []string {
	names := c.names()
	switch c.Zone {
	case ZoneAny:
		return nil
	case ZoneLocal:
		names[0] = local
		if c.LocalZone != "" {
			names[0] = c.LocalZone
		}
	case ZoneNearest:
		names[0] = nearest
	}
	if names[0] == "" { // not known, or not yet
		return nil
	}
	return names
}

// side is the nodes that come first, or the others.
type side struct {
	listed   float64 // nodes in discovery
	coming   float64 // part of listed that joined nodes do not carry yet: nodes that were there before do
	settled  bool    // there are such nodes
	capacity float64 // nodes with UseNew, by their share
}

// health is the part of all load that the side can carry, 0 to 1.
func (s side) health() float64 {
	listed := s.listed
	if s.settled {
		listed -= s.coming
	}
	if listed == 0 {
		return 0
	}
	return min(1, overprovision*s.capacity/listed)
}

// weigh gives each node its weight and returns the part of new load, 0 to 1,
// that stays in the preferred zones, or without any in the primary pile: as much as
// these can carry. The rest, as far as the others can carry it, goes there, to each node by its share; where
// both together cannot carry everything, they divide it by what they can. Missing
// nodes that are a reserve count as if they carried nothing, and have no weight.
func weigh(nodes []cluster.ViewNode, preferred []string, reserve bool) float64 {
	carries := func(n cluster.ViewNode) bool { return n.Use == cluster.UseNew && !(reserve && n.Missing) }
	var near, far side
	bridge := false
	for _, n := range nodes {
		bridge = bridge || !n.Gone && n.Pile.State == cluster.PilePrimary
	}
	sideOf := func(n cluster.ViewNode) *side {
		switch {
		case len(preferred) > 0 && slices.ContainsFunc(preferred, n.In):
		case len(preferred) == 0 && (!bridge || n.Pile.State == cluster.PilePrimary):
		default:
			return &far
		}
		return &near
	}
	for _, n := range nodes {
		if n.Gone {
			continue
		}
		s := sideOf(n)
		if n.Pile.State == cluster.PileDetached {
			continue
		}
		s.listed++
		if n.Condition.Joined {
			s.coming += 1 - rampOf(n.Condition)
		} else {
			s.settled = true
		}
		if carries(n) {
			s.capacity += rampOf(n.Condition)
		}
	}
	part := near.health()
	if spilt := min(far.health(), 1-part); spilt > 0 {
		part /= part + spilt
	} else if part > 0 {
		part = 1
	}
	var perNear, perFar float64 // what a node with a full share gets of all load
	if near.capacity > 0 {
		perNear = part / near.capacity
	}
	if far.capacity > 0 {
		perFar = (1 - part) / far.capacity
	}
	for i := range nodes {
		n := &nodes[i]
		if !carries(*n) {
			continue
		}
		per := perFar
		if sideOf(*n) == &near {
			per = perNear
		}
		n.Weight = float32(rampOf(n.Condition) * per / max(perNear, perFar))
	}
	return part
}

// rampOf is what the node gets of a full share of new load, above 0 and at most 1.
func rampOf(v cluster.Condition) float64 {
	if v.Ramp > 0 && v.Ramp < 1 {
		return float64(v.Ramp)
	}
	return 1
}
