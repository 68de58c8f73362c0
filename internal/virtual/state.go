package virtual

import (
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// State is the part of /state/connections about sessions of SDKs.
type State struct {
	Sessions int    `json:"sessions"`
	Attached int    `json:"attached"`
	Bound    int    `json:"bound"` // have a server session between their calls
	Created  uint64 `json:"created"`
	Refused  uint64 `json:"refused"` // beyond wire.max_virtual_sessions
	Expired  uint64 `json:"expired"` // without a stream, and not used; and those that made room for new ones
	// transactions rolled back because their client or node went away, or did not use them during
	// a stop
	Lost       uint64 `json:"lost"`
	CheckedOut uint64 `json:"borrowed"` // server sessions, by calls
	Waited     uint64 `json:"waited"`   // calls that waited in the queue
	Starved    uint64 `json:"starved"`  // calls told OVERLOADED because sessions of mode session keep all sessions of their pool
	InDoubt    uint64 `json:"in_doubt"` // server sessions that nobody knew the state of after a call: deleted, or recovered (see pools)
	Unnamed    uint64 `json:"unnamed"`  // callers whose app got no sessions of its own because there were too many: see apps.sessions
	Evicted    uint64 `json:"evicted"`  // pools of identities closed because another one needed the room

	Pools []PoolState `json:"pools"` // of callers' identities; not the sidecar's own
}

// State returns what there is now.
func (vs *Sessions) State(ts *IdentityPools) *State {
	st := &State{Pools: ts.State(), Unnamed: ts.unnamed.Load(), Evicted: ts.evicted.Load()}
	var c counts
	for _, s := range vs.stripes {
		s.mu.Lock()
		c.add(&s.count)
		st.Sessions += s.byID.n
		st.Attached += int(s.attached)
		for v := range s.bound {
			if v.state == bound {
				st.Bound++
			}
		}
		s.mu.Unlock()
	}
	st.Created, st.Refused, st.Lost, st.Expired = c.Created, c.Refused, c.Lost, c.Expired
	st.CheckedOut, st.Waited, st.InDoubt, st.Starved = c.CheckedOut, c.Waited, c.InDoubt, vs.Starved.Load()
	return st
}

// keeps counts the server sessions that stay with sessions until these end. Many ask at a time.
type keeps struct {
	mu  sync.Mutex // guards all below; before that of a stripe
	at  time.Time
	by  map[*IdentityPool]int
	ids map[poolKey]int // by identity
	all int
}

// keptFor is how long a count serves.
const keptFor = 100 * time.Millisecond

// of returns how many server sessions are kept by sessions of the pool t, of its identity, and in all.
func (k *keeps) of(vs *Sessions, t *IdentityPool) (mine, identity, all int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.at) < keptFor {
		return k.by[t], k.ids[t.name.identity()], k.all
	}
	k.at, k.by, k.ids, k.all = time.Now(), map[*IdentityPool]int{}, map[poolKey]int{}, 0
	for _, s := range vs.stripes {
		s.mu.Lock()
		for v := range s.bound {
			if v.always || v.temporary {
				k.by[v.identity]++
				k.ids[v.identity.name.identity()]++
				k.all++
			}
		}
		s.mu.Unlock()
	}
	return k.by[t], k.ids[t.name.identity()], k.all
}

// KeepAll reports whether sessions keep, to their ends, every server session that an identity's pool may have. The
// pools of an identity's apps have st.Max together.
func (vs *Sessions) KeepAll(t *IdentityPool) bool {
	mine, identity, all := vs.keeps.of(vs, t)
	if identity == 0 {
		return false
	}
	st, room := t.Pool.Stats(), 0
	for _, n := range st.Nodes {
		room += n.Cap
	}
	return !st.Pause && room > 0 && (mine >= min(st.Limit, st.Max, room) || identity >= st.Max || all >= vs.servers)
}

// SessionUse is a session that keeps a server session between its calls.
type SessionUse struct {
	Session      *pool.Session
	App          string
	Since        time.Time
	Busy         bool // a call is under way
	Transactions int  // open
}

// SessionUses lists those of the sidecar's own pool and of callers' pools.
func (vs *Sessions) SessionUses() []SessionUse {
	var all []SessionUse
	for _, s := range vs.stripes {
		s.mu.Lock()
		for v := range s.bound {
			h := SessionUse{Session: v.server, Since: vs.began.Add(v.since.since()), Busy: v.state.busy(), Transactions: int(v.n)}
			if app, ok := v.server.User.(*apps.Stripe); ok {
				h.App = app.Name()
			}
			all = append(all, h)
		}
		s.mu.Unlock()
	}
	return all
}
