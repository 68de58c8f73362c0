package snapshot

import (
	"fmt"
	"strings"
)

// QuietState is GET /state/pause: what is still under way at nodes while calls are paused.
type QuietState struct {
	Paused   bool   `json:"paused"`
	Quiet    bool   `json:"quiet"`               // they are paused, and nothing is under way
	Sessions int    `json:"sessions"`            // of all pools, in use by a call or for an open transaction
	Calls    int    `json:"calls"`               // at nodes, with and without such a session
	WaitsFor string `json:"waits_for,omitempty"` // both of these in words
}

// QuietState returns GET /state/pause.
func (s *Source) QuietState() QuietState {
	out := QuietState{Paused: s.Hold.On(), Sessions: s.Pool.Stats().InUse}
	for _, p := range s.Pools() {
		if p != s.Pool {
			out.Sessions += p.Stats().InUse
		}
	}
	if s.Wire != nil { // what mode session keeps while nothing is open is in nobody's use
		out.Sessions -= s.Wire.IdleSessions()
	}
	out.Sessions = max(0, out.Sessions)
	for _, n := range s.Router.Stats().Nodes {
		out.Calls += int(n.Calls)
	}
	out.Calls = max(out.Calls, s.Hold.Passed())
	out.Quiet = out.Paused && out.Sessions == 0 && out.Calls == 0
	var parts []string
	for _, part := range []struct {
		n    int
		what string
	}{{out.Sessions, "sessions in use"}, {out.Calls, "calls at nodes"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	out.WaitsFor = strings.Join(parts, ", ")
	return out
}
