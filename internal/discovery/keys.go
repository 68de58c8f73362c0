package discovery

import (
	"slices"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// maxFormer bounds the ids that are remembered of an address.
const maxFormer = 64

// keys recognises addresses that several nodes share: servers that publish the address of a
// load balancer are one entry in YDB's discovery, and its id is that of any of them. Such an
// address keeps the id that it had first, so that for everybody else it is one node.
//
// An address is shared if it is the only one of two answers in a row and its id changed, or
// if an id came back to it after another one. One change among several addresses proves
// nothing: a node that left has given its address to another one. Nor does one that the
// source made by itself. Discovery.Run owns it.
type keys struct {
	known  map[string]*key           // by address: those of the newest answer
	chosen func(address string) bool // the source says itself which id an address has, and asks no node; nil: for none
}

// chooser is a Source that may say itself which ids addresses have.
type chooser interface{ chosen(address string) bool }

func newKeys(source Source) (k keys) {
	if c, ok := source.(chooser); ok {
		k.chosen = c.chosen
	}
	return k
}

// key is one address.
type key struct {
	id     cluster.NodeID   // by which it goes
	listed cluster.NodeID   // in the newest answer
	former []cluster.NodeID // listed before that
	zone   string
	shared bool
}

// take returns an answer with the ids to go by.
func (k *keys) take(t cluster.Topology) cluster.Topology {
	alone := len(k.known) == 1 && len(t.Nodes) == 1 && (k.chosen == nil || !k.chosen(t.Nodes[0].Address))
	next := make(map[string]*key, len(t.Nodes))
	any, own := false, make(map[cluster.NodeID]bool, len(t.Nodes)) // ids of addresses that are not shared
	for _, n := range t.Nodes {
		a := k.known[n.Address]
		if a == nil {
			a = &key{id: n.ID, listed: n.ID, zone: n.Zone, shared: n.Shared}
		}
		a.list(n, alone)
		next[n.Address] = a
		if any = any || a.shared; !a.shared {
			own[n.ID] = true
		}
	}
	k.known = next
	if !any {
		return t
	}
	nodes := make([]cluster.Node, 0, len(t.Nodes))
	for _, n := range t.Nodes {
		if a := next[n.Address]; a.shared {
			if own[a.id] { // the node with that id has an address of its own now
				a.id = a.listed
			}
			n.ID, n.Zone, n.Shared = a.id, a.zone, true
		}
		nodes = append(nodes, n)
	}
	// Where an id is there twice, the address of its own comes first.
	slices.SortStableFunc(nodes, func(a, b cluster.Node) int {
		switch {
		case a.Shared == b.Shared:
			return 0
		case b.Shared:
			return -1
		}
		return 1
	})
	t.Nodes = cluster.NewTopology(nodes, t.Zone).Nodes
	return t
}

// list takes note of what an answer says of the address.
func (a *key) list(n cluster.Node, alone bool) {
	if n.ID != a.listed {
		a.shared = a.shared || alone || slices.Contains(a.former, n.ID)
		if !slices.Contains(a.former, a.listed) {
			a.former = append(a.former[max(0, len(a.former)+1-maxFormer):], a.listed)
		}
		a.listed = n.ID
	}
	if !a.shared {
		a.id = n.ID
	}
	if !sameZones(a.zone, n.Zone) { // else only in another order
		a.zone = n.Zone
	}
}

// sameZones reports whether two locations of an address join the same zones.
func sameZones(a, b string) bool {
	if a == b {
		return true
	}
	if len(a) != len(b) {
		return false
	}
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}
