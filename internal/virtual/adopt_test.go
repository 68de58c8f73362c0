package virtual

import (
	"context"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// A session whose pool is closed, and whose server session its node wants closed, is adopted only by a call of the app that
// the session is for.
func TestAnotherAppAdoptsNoSession(t *testing.T) {
	who, old, next := new(Credentials), new(IdentityPool), new(IdentityPool)
	one, other := new(apps.App), new(apps.App)
	vs := New(Config{Sessions: 1})
	v := vs.Create(vs.stripes[0], who, one, true)
	if _, err := vs.Enter(v.id, who, old, one, false, nil); err != nil {
		t.Fatal(err)
	}
	vs.Settle(vs.stripes[0], &Use{Identity: old, Session: v}, new(Outcome))
	v.server = new(pool.Session)
	new(pool.Pool).Kill(v.server, "its node wants it closed")
	v.state = bound
	old.gone.Store(true)
	if e, err := vs.Enter(v.id, who, next, other, false, nil); err != ErrOtherApp || e.Session != v {
		t.Errorf("%v, identity %p; want %v", err, v.identity, ErrOtherApp)
	}
	if e, err := vs.Enter(v.id, who, next, one, false, nil); err != nil || e.Identity != next || e.Stale.Server == nil {
		t.Errorf("%v, identity %p; want %p", err, e.Identity, next)
	}
}

// A pool that somebody begins to use while it is looked at is not closed.
func TestPoolsOfNewcomersAreNotClosed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &looking{look: func() {}}
	ts := NewIdentityPools(ctx, PoolsConfig{Cluster: p, Database: "/local"})
	identity := ts.obtain(poolKey{database: "/local", user: anonymous})
	p.look = func() { identity.wasUsed.Store(true) }
	ts.Sweep(time.Now().Add(2 * poolIdle))
	if identity.gone.Load() {
		t.Error("it was closed")
	}
	cancel()
	ts.Wait()
}
