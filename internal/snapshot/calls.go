package snapshot

import (
	"cmp"
	"slices"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/hop"
)

// CallsState is /state/calls.
type CallsState struct {
	Calls []hop.OpenCall `json:"calls"` // the oldest first
	More  int            `json:"more"`  // others that fit the query
}

// CallsState returns /state/calls: the calls of every API that are under way or wait.
func (s *Source) CallsState(q admin.Query) CallsState {
	all, more := s.API.Calls(q.App, q.Least, q.Limit)
	if s.Wire != nil {
		sdks, others := s.Wire.Calls(q.App, q.Least, q.Limit)
		all, more = append(all, sdks...), more+others
	}
	slices.SortStableFunc(all, func(a, b hop.OpenCall) int { return cmp.Compare(b.Age, a.Age) })
	out := CallsState{Calls: admin.First(q, all), More: more + max(0, len(all)-q.Limit)}
	if out.Calls == nil {
		out.Calls = []hop.OpenCall{}
	}
	return out
}
