package devcluster

import (
	"slices"
	"sync/atomic"
)

// member is one node as the others know it.
type member struct {
	ID       uint32  `json:"id"`
	Address  string  `json:"address"` // for clients
	Peer     string  `json:"peer"`    // for the other nodes
	Location string  `json:"location"`
	Load     float32 `json:"load"`   // load factor in discovery
	Listed   bool    `json:"listed"` // discovery names it
	Alive    bool    `json:"alive"`  // calls are forwarded to it
}

// topology is the nodes of the cluster in ascending order of ID. It is
// immutable once stored; all nodes of a process read the same one.
type topology struct{ value atomic.Pointer[[]member] }

func (t *topology) set(members []member) {
	sorted := slices.Clone(members)
	slices.SortFunc(sorted, func(a, b member) int { return int(a.ID) - int(b.ID) })
	t.value.Store(&sorted)
}

func (t *topology) members() []member { return *t.value.Load() }

func (t *topology) find(id uint32) (member, bool) {
	members := t.members()
	i, ok := slices.BinarySearchFunc(members, id, func(m member, id uint32) int { return int(m.ID) - int(id) })
	if !ok {
		return member{}, false
	}
	return members[i], true
}
