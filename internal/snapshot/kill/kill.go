// Package kill ends, on an operator's word, what a caller has under way.
//
// It owns what happens then beside the end itself: the line in the log, the event, and what the operator is
// answered. Sessions are ended by the driver and their pool, calls by the API that they came over.
package kill

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

const (
	limit  = 5 * time.Second // for the node to delete a session
	reason = "killed by an operator"
)

// Killer ends what the views show.
type Killer struct {
	Views *snapshot.Source
	Log   *slog.Logger
}

// Session ends the session of that hash.
func (k Killer) Session(hash string) (any, error) {
	lines := k.Views.SessionLines(0)
	s, r, of := k.session(hash)
	if r == nil {
		return nil, fmt.Errorf("%w: %.40q; sidecar sessions lists them, with -idle the unused ones too", admin.ErrSession, hash)
	}
	line := snapshot.SessionLine{Session: hash, Node: uint32(s.Node), State: "idle"}
	if i := slices.IndexFunc(lines, func(l snapshot.SessionLine) bool { return l.Session == hash }); i >= 0 {
		line = lines[i]
	}
	of.Kill(s.Session, reason)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := r.Kill(ctx); err != nil {
		k.Log.Warn("a killed session was not deleted on its node", "session", hash, "node", s.Node, "err", err)
	}
	k.Views.API.EndIdleTransaction(hash) // its place in the pool is free now, not at the app's next call
	text := fmt.Sprintf("session %s on node %d was killed by an operator", hash, s.Node)
	if line.App != "" {
		text += ", held by app " + line.App
	}
	k.Log.Warn(text, "trace_id", line.Trace)
	k.Views.Events.Add(admin.Event{Node: s.Node, App: line.App, Kind: "session", To: "killed", Reason: text})
	line.State, line.Why = "ending", reason
	return line, nil
}

// Calls ends the calls of that id, or of the trace of that id.
func (k Killer) Calls(id string) (any, error) {
	ended := k.Views.API.EndCalls(id)
	if k.Views.Wire != nil {
		ended = append(ended, k.Views.Wire.EndCalls(id)...)
	}
	if len(ended) == 0 {
		return nil, fmt.Errorf("%w: %.40q is neither a trace id nor the name of an open call; sidecar calls lists them", admin.ErrCall, id)
	}
	for _, c := range ended {
		text := fmt.Sprintf("call %s of %s was ended by an operator", c.Name, cmp.Or(c.App, "an app without a name"))
		k.Log.Warn(text, "call", c.ID, "trace_id", c.Trace, "phase", c.Phase, "age_ms", c.Age, "node", c.Node)
		k.Views.Events.Add(admin.Event{Node: c.Node, App: c.App, Kind: "call", To: "ended", Reason: text})
	}
	return snapshot.CallsState{Calls: ended}, nil
}

// session finds the session of that hash and its pool; nil, if there is none.
func (k Killer) session(hash string) (pool.SessionStats, *upstream.Session, *pool.Pool) {
	for _, p := range k.Views.OwnPools() {
		for _, s := range p.Sessions() {
			if r, ok := s.Resource.(*upstream.Session); ok && r.Hash() == hash {
				return s, r, p
			}
		}
	}
	return pool.SessionStats{}, nil, nil
}
