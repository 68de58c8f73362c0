package virtual

import (
	"fmt"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// poolKey tells identity pools apart.
type poolKey struct {
	database string
	user     string // see identity
	table    bool   // sessions of the table service, where they are not those of the query service
	app      string // the app whose name the sessions bear; "": none
}

// identity is the key of the identity's pool without an app.
func (n poolKey) identity() poolKey {
	n.app = ""
	return n
}

// String is the same for all apps of an identity, and for no other identity.
func (n poolKey) String() string { return fmt.Sprintf("%q %q %v", n.database, n.user, n.table) }

// names changes when an app may get a pool of its own that got none: one is gone, or more are allowed. It is not 0.
func (ts *IdentityPools) names() uint64 {
	if ts.config.Names == nil {
		return 1
	}
	return 1 + ts.freed.Load()<<namesBits + uint64(ts.config.Names())
}

const namesBits = 16 // pool.max is less

// makePool makes a new identity pool, and lets the calls go on that wait for it. No shard waits: pools that get another
// configuration keep a new one waiting until all have it.
func (ts *IdentityPools) makePool(t *IdentityPool) {
	name, born := t.name, false
	var waiting []Waiter
	madeLocked := func() { // it counts once
		waiting = ts.making[name]
		delete(ts.making, name)
	}
	defer func() { // also after a panic
		if !born {
			ts.mu.Lock()
			madeLocked()
			ts.unnameLocked(name)
			ts.mu.Unlock()
		}
		for _, w := range waiting {
			w.Wake()
		}
	}()
	config := PoolConfig{
		Database: name.database, Table: name.table, Refused: func(ticket string) { ts.config.Refused(t, ticket) },
		Identity: name.String(), Own: ts.config.Own != nil && name.identity() == ts.own(), Application: name.app,
		Weight: func() int { return ts.config.Weight(name.app) },
	}
	if ts.config.Own == nil {
		config.Ticket = func() string { return *t.ticket.Load() }
	}
	panics.Keep(ts.ctx, "the making of a pool", func() { t.mine = ts.config.Cluster.Pool(config) })
	if t.mine == nil { // the server ends
		return
	}
	t.Pool = t.mine
	t.Meter, _ = t.mine.(Meter)
	view, viewed := ts.newest()
	_ = panics.Call("the nodes of a caller's pool", func() error { t.mine.SetView(view); return nil })
	ts.quieting.Lock()
	defer ts.quieting.Unlock()
	_ = panics.Call("the quiet of a caller's pool", func() error { t.mine.Quiet(ts.quiet); return nil })
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.runs.Go(func() {
		defer close(t.ended)
		panics.Keep(ts.ctx, "the pool of a caller", func() { _ = t.mine.Run(ts.ctx) }) // it returns nil
	})
	if ts.closed {
		ts.runs.Go(func() { _ = t.close(ts.ctx) })
		return
	}
	t.used = time.Now()
	ts.byName[name], born = t, true
	madeLocked()
	if ts.viewed != viewed {
		ts.tell()
	}
}

// own is the key of PoolsConfig.Own.
func (ts *IdentityPools) own() poolKey {
	return poolKey{database: ts.config.Database, user: ownUser}
}

// ForApp returns the pool of the same identity for an app, which may be nil. The errors are those of Of.
func (ts *IdentityPools) ForApp(t *IdentityPool, app *apps.App, w Waiter) (*IdentityPool, error) {
	name := t.name
	name.app = appName(app)
	return ts.get(name, true, w)
}

// mostLocked is how many pools there may be. Half as many leave no room for further ones with an app.
func (ts *IdentityPools) mostLocked() int {
	if ts.config.Pools == nil {
		return MaxPools
	}
	return ts.config.Pools(len(ts.view.Nodes))
}

// roomLocked makes room for one more pool. Once the nodes are more than before there may be too many pools: each new one has two
// closed, until there are not. False: there is no room.
func (ts *IdentityPools) roomLocked() bool {
	most := ts.mostLocked()
	for range 2 {
		if len(ts.byName)+len(ts.making) >= most && !ts.makeRoomLocked(most) {
			return false
		}
	}
	return true
}

// makeRoomLocked closes the pool whose sessions were unused for longest: where the cluster names no users, every ticket that a client
// makes up is an identity, and those of others are to find room. Calls that have sessions of the pool keep them to
// their end. False: as many such pools are being closed as there may be open.
func (ts *IdentityPools) makeRoomLocked(most int) bool {
	if ts.closing >= most {
		return false
	}
	var oldest *IdentityPool
	now := time.Now()
	for _, t := range ts.byName {
		switch {
		case t.mine == nil:
			continue
		case t.wasUsed.Swap(false):
			t.used = now
		}
		if oldest == nil || t.used.Before(oldest.used) {
			oldest = t
		}
	}
	if oldest == nil {
		return false
	}
	ts.closing++
	ts.evicted.Add(1)
	oldest.left.Store(true)
	ts.removeLocked(oldest)
	ts.runs.Go(func() {
		_ = oldest.close(ts.ctx) // what is left is deleted when the server ends
		ts.mu.Lock()
		ts.closing--
		ts.mu.Unlock()
	})
	return true
}

// made returns the pools that were made here, after a change under the lock. Pools are called without it: shards
// take it at the first call of a connection, and what pools do takes time in proportion to their nodes.
func (ts *IdentityPools) made(change func()) []*IdentityPool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	change()
	all := make([]*IdentityPool, 0, len(ts.byName))
	for _, t := range ts.byName {
		if t.mine != nil {
			all = append(all, t)
		}
	}
	return all
}
