package app

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/lifecycle"
)

// stage is how far the process is in its life.
type stage int32

const (
	starting stage = iota
	serving
	leaving  // not ready, but serves everything: drain.delay
	draining // refuses what is new
)

func (s stage) String() string { return [...]string{"starting", "serving", "leaving", "draining"}[s] }

// phase is the stage of a process, for every goroutine to read.
type phase struct{ now atomic.Int32 }

func (p *phase) set(s stage) { p.now.Store(int32(s)) }
func (p *phase) get() stage  { return stage(p.now.Load()) }

// letGo has clients that speak HTTP/1.1 close their connections after the
// answer, once the process drains: HTTP/2 has GOAWAY for that.
func (p *phase) letGo(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && p.get() == draining {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// addPhases is the shutdown order of ARCHITECTURE.md.
func (a *App) addPhases(group *lifecycle.Group, s *servers) {
	group.Phase("not ready", 0, func(ctx context.Context) error {
		a.phase.set(leaving)
		a.health.Shutdown()
		select {
		case <-time.After(a.config.Drain.Delay):
		case <-ctx.Done():
		}
		return nil
	})
	group.Phase("finish calls and transactions", 0, func(ctx context.Context) error {
		a.phase.set(draining)
		ctx, cancel := context.WithTimeoutCause(ctx, a.config.Drain.Grace, errGrace)
		defer cancel()
		return a.api.Drain(ctx)
	})
	group.Phase("let clients go", closeServers, s.letGo)
	group.Phase("delete sessions", a.config.Pool.DeleteTimeout+time.Second, a.core.pool.Close)
}

var errGrace = errors.New("drain.grace is over")
