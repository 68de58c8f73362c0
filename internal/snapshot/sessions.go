package snapshot

import (
	"cmp"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// SessionsState is /state/sessions. Pools of callers' own identities are under
// /state/connections.
type SessionsState struct {
	Total    int           `json:"total"`    // open in the pool
	Used     int           `json:"used"`     // sessions that are not idle
	Sessions []SessionLine `json:"sessions"` // held longest first
}

// SessionLine is one session.
type SessionLine struct {
	Session     string    `json:"session"` // short hash of its id
	Node        uint32    `json:"node_id"`
	State       string    `json:"state"`              // idle, used, or ending: it is used and must not be used again
	App         string    `json:"app,omitempty"`      // app that holds the session
	Kind        string    `json:"kind,omitempty"`     // call or transaction
	Busy        bool      `json:"busy,omitempty"`     // a call runs on it
	Since       time.Time `json:"since,omitzero"`     // it is held
	HeldMS      int64     `json:"held_ms,omitempty"`  // since then
	Trace       string    `json:"trace_id,omitempty"` // of the call that took it
	Why         string    `json:"why,omitempty"`      // it must not be used again
	Expires     time.Time `json:"expires,omitzero"`   // by pool.age
	transaction bool
}

// SessionLines lists the sessions of the pool and their holders, held longest first.
// With least, it lists only sessions that are held for at least that long.
func (s *Source) SessionLines(least time.Duration) []SessionLine {
	now := time.Now()
	held := map[*pool.Session]pool.Hold{}
	busy := map[*pool.Session]bool{}
	if s.Wire != nil {
		for _, h := range s.Wire.SessionUses() {
			held[h.Session] = pool.Hold{App: h.App, Since: h.Since, Transaction: h.Transactions > 0}
			busy[h.Session] = h.Busy
		}
	}
	running := map[string]bool{}
	for _, t := range s.API.Transactions() {
		running[t.Session] = t.Busy
	}
	all := []SessionLine{}
	var sessions []pool.SessionStats
	for _, p := range s.OwnPools() {
		sessions = append(sessions, p.Sessions()...)
	}
	for _, its := range sessions {
		hold := its.Hold
		if h, ok := held[its.Session]; ok {
			hold = &h
		}
		if least > 0 && (hold == nil || now.Sub(hold.Since) < least) {
			continue
		}
		one := SessionLine{Node: uint32(its.Node), State: "idle", Expires: its.Expires, Why: its.Retired}
		if r, ok := its.Resource.(*upstream.Session); ok {
			one.Session = r.Hash()
		}
		if hold != nil {
			one.App, one.Since, one.HeldMS, one.Trace = hold.App, hold.Since, max(
				1, now.Sub(hold.Since).Milliseconds(),
			), traceText(hold.Trace)
			one.Kind, one.Busy, one.transaction = "call", true, hold.Transaction
			if hold.Transaction {
				one.Kind, one.Busy = "transaction", busy[its.Session] || running[one.Session]
			}
		}
		if its.InUse || hold != nil {
			one.State = "used"
			if its.Retired != "" {
				one.State = "ending"
			}
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b SessionLine) int {
		return cmp.Or(cmp.Compare(b.HeldMS, a.HeldMS), -cmp.Compare(a.State, b.State), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Session, b.Session))
	})
	return all
}

// SessionsState returns /state/sessions.
func (s *Source) SessionsState(q admin.Query) SessionsState {
	all := s.SessionLines(0)
	out := SessionsState{Total: len(all)}
	for _, line := range all {
		if line.State != "idle" {
			out.Used++
		}
	}
	out.Sessions = admin.First(q, all)
	return out
}
