package budget

import "slices"

// Audit is the state of a budget and of some of its pools at one moment, for tests that compare it with the pools' own counts.
type Audit struct {
	Free, Max int
	Groups    []GroupAudit
	Members   []MemberAudit
	NextWaits bool // a pool is to get the next permit that comes free
	Compared  int  // pools that looks have compared
}

// GroupAudit is the state of a group.
type GroupAudit struct {
	Name             string
	Max, Used, Pools int
}

// MemberAudit is the state of one pool in a budget.
type MemberAudit struct {
	Held, Leaving, Coming int
	Queued, Reserved      bool
	InQueue               bool   // it is found in the queue
	Group                 string // "": none
}

// Audit returns the state of the budget and of these members.
func (b *Budget) Audit(members ...*Member) Audit {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := Audit{Free: b.free, Max: b.max, NextWaits: b.nextLocked() != nil, Compared: b.seen}
	for _, g := range b.group {
		a.Groups = append(a.Groups, GroupAudit{Name: g.name, Max: g.max, Used: g.used, Pools: g.pools})
	}
	for _, m := range members {
		s := MemberAudit{Held: m.held, Leaving: m.leaving, Coming: m.coming, Queued: m.queued, Reserved: m.reserved}
		s.InQueue = slices.Contains(b.queue, m)
		if m.group != nil {
			s.Group = m.group.name
		}
		a.Members = append(a.Members, s)
	}
	return a
}
