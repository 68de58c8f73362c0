package app

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

const (
	killLimit  = 5 * time.Second // for the node to delete a session
	killReason = "killed by an operator"
)

// kill ends the session of that hash.
func (a *App) kill(hash string) (any, error) {
	lines := a.views.SessionLines(0)
	s, r, of := a.core.session(hash)
	if r == nil {
		return nil, fmt.Errorf("%w: %.40q; GET /state/sessions lists them", admin.ErrSession, hash)
	}
	line := snapshot.SessionLine{Session: hash, Node: uint32(s.Node), State: "idle"}
	if i := slices.IndexFunc(lines, func(l snapshot.SessionLine) bool { return l.Session == hash }); i >= 0 {
		line = lines[i]
	}
	of.Kill(s.Session, killReason)
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	if err := r.Kill(ctx); err != nil {
		a.log.Warn("a killed session was not deleted on its node", "session", hash, "node", s.Node, "err", err)
	}
	text := fmt.Sprintf("session %s on node %d was killed by an operator", hash, s.Node)
	if line.App != "" {
		text += ", held by app " + line.App
	}
	a.log.Warn(text, "trace_id", line.Trace)
	a.events.Add(admin.Event{Node: s.Node, App: line.App, Kind: "session", To: "killed", Reason: text})
	line.State, line.Why = "ending", killReason
	return line, nil
}

// session finds the session of that hash and its pool; nil, if there is none.
func (k *core) session(hash string) (pool.SessionStats, *upstream.Session, *pool.Pool) {
	for _, p := range k.ownPools() {
		for _, s := range p.Sessions() {
			if r, ok := s.Resource.(*upstream.Session); ok && r.Hash() == hash {
				return s, r, p
			}
		}
	}
	return pool.SessionStats{}, nil, nil
}
