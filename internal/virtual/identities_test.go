package virtual

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// still is a pool that does nothing.
type still struct {
	OwnedPool
	inUse  bool
	closed bool
}

func (p *still) SetView(cluster.View) {}
func (p *still) Quiet(bool)           {}
func (p *still) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
func (p *still) Stats() (st pool.Stats)      { return st }
func (p *still) Busy() bool                  { return p.inUse }
func (p *still) Close(context.Context) error { p.closed = true; return nil }
func (p *still) Pool(PoolConfig) OwnedPool   { return p }
func (p *still) WhoAmI(context.Context, string, string) (string, Ydb.StatusIds_StatusCode) {
	return "", Ydb.StatusIds_SUCCESS
}

// signal is a Waiter to wait for.
type signal chan struct{}

func (s signal) Wake() { close(s) }

// obtain is get, and waits while the pool is made. nil: there are too many.
func (ts *IdentityPools) obtain(name poolKey) *IdentityPool {
	for {
		w := make(signal)
		t, err := ts.get(name, true, w)
		if err != ErrAsked {
			return t
		}
		<-w
	}
}

func TestPoolsThatNobodyUsesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := new(still)
		ts := NewIdentityPools(ctx, PoolsConfig{Cluster: p, Database: "/local"})
		name := poolKey{database: "/local", user: anonymous}
		one := ts.obtain(name)
		if ts.obtain(name) != one {
			t.Error("not the same pool")
		}
		look := func() {
			t.Helper()
			time.Sleep(poolIdle - 5*time.Second)
			ts.Sweep(time.Now())
			if one.gone.Load() {
				t.Fatal("closed too early")
			}
			time.Sleep(4 * time.Second)
			ts.Sweep(time.Now())
			if one.gone.Load() {
				t.Fatal("closed in use")
			}
		}
		one.sessions.Store(1)
		look()
		one.sessions.Store(0)
		p.inUse = true
		look()
		look() // longer in all than a pool that nobody uses stays
		p.inUse = false
		one.wasUsed.Store(true)
		look()
		cancel() // pools end with the server
		time.Sleep(poolIdle)
		ts.Sweep(time.Now())
		synctest.Wait()
		if !p.closed || ts.obtain(name) == one {
			t.Error("its pool is open, or found again")
		}
		ts.Wait()
	})
}

func TestIdentitiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ts := NewIdentityPools(ctx, PoolsConfig{Cluster: new(brief), Database: "/local"})
		get := func(user string) *IdentityPool {
			t.Helper()
			identity := ts.obtain(poolKey{database: "/local", user: user})
			if identity == nil {
				t.Fatalf("%s got no pool", user)
			}
			if n := len(ts.byName); n > MaxPools {
				t.Fatalf("%d pools", n)
			}
			return identity
		}
		honest := get("honest")
		vs, who := New(Config{Sessions: 10}), &Credentials{}
		v := vs.Create(vs.Stripe(0), who, nil, false)
		call := func(identity *IdentityPool) {
			t.Helper()
			e, err := vs.Enter(v.id, who, identity, nil, false, nil)
			if err != nil || e.Identity != identity {
				t.Fatalf("%v: not on the caller's own pool", err)
			}
			vs.Settle(vs.Stripe(0), &Use{Identity: identity, Session: v}, new(Outcome))
		}
		call(honest)
		idle := get("idle")
		for i := range 2*MaxPools + 1 { // whoever comes gets in, and none of them comes again
			time.Sleep(time.Millisecond)
			get(fmt.Sprint(i))
			if i%100 == 0 {
				honest.wasUsed.Store(true)
			}
			synctest.Wait() // for what makes room to be closed
		}
		if honest.gone.Load() {
			t.Error("a pool that is used made room for ones that are not")
		}
		if !idle.gone.Load() || idle.Refusal(pool.ErrClosed) != ErrPools || honest.Refusal(pool.ErrClosed) != pool.ErrClosed {
			t.Error("the pool that nobody used is open, or its callers are told of a stop")
		}
		for i := range MaxPools + 10 {
			time.Sleep(time.Millisecond)
			get(fmt.Sprint("more", i))
			synctest.Wait()
		}
		if !honest.gone.Load() {
			t.Fatal("a pool that is used no more stays")
		}
		again := get("honest") // its sessions go on with a new one
		call(again)
		if honest.sessions.Load() != 0 || again.sessions.Load() != 1 {
			t.Errorf("%d sessions on the pool that is gone, %d on the one that is there", honest.sessions.Load(), again.sessions.Load())
		}
		cancel()
		ts.Wait()
	})
}

// While pools take their time to close, their number is bounded, too.
func TestClosingPoolsAreBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ts := NewIdentityPools(ctx, PoolsConfig{Cluster: new(lasting), Database: "/local"})
	made := 0
	for range 3 * MaxPools {
		if ts.obtain(poolKey{database: "/local", user: fmt.Sprint(made)}) == nil {
			break
		}
		made++
	}
	if made != 2*MaxPools {
		t.Errorf("%d pools", made)
	}
	cancel()
	ts.Wait()
}

// As many pools as there may be goes by the nodes. When these become more, new pools make room for themselves and for the memory.
func TestPoolsGoByTheNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ts := NewIdentityPools(ctx,
			PoolsConfig{Cluster: new(brief), Database: "/local", Pools: func(nodes int) int { return 20 / (1 + nodes) }})
		for i, step := range []struct{ nodes, comes, want int }{{0, 30, 20}, {1, 5, 15}, {1, 30, 10}, {3, 3, 7}, {0, 30, 20}} {
			ts.SetView(cluster.View{Nodes: make([]cluster.ViewNode, step.nodes)})
			for k := range step.comes {
				if ts.obtain(poolKey{database: "/local", user: fmt.Sprint(i, k)}) == nil {
					t.Fatalf("step %d: identity %d got no pool", i, k)
				}
				synctest.Wait() // for what makes room to be closed
			}
			if n := len(ts.byName); n != step.want {
				t.Errorf("step %d: %d pools; want %d", i, n, step.want)
			}
		}
		cancel()
		ts.Wait()
	})
}

// brief is a pool that ends when it is closed.
type brief struct {
	still
	over chan struct{}
}

func (p *brief) Pool(PoolConfig) OwnedPool { return &brief{over: make(chan struct{})} }
func (p *brief) Run(ctx context.Context) error {
	select {
	case <-p.over:
	case <-ctx.Done():
	}
	return nil
}
func (p *brief) Close(context.Context) error { close(p.over); return nil }

// lasting is a pool that is closed only with its server.
type lasting struct{ still }

func (p *lasting) Pool(PoolConfig) OwnedPool { return p }
func (p *lasting) Close(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// oracle answers one ticket's question after the other.
type oracle struct {
	still
	mu      sync.Mutex
	asked   []string
	answers chan struct{}
}

func (o *oracle) WhoAmI(_ context.Context, _, ticket string) (string, Ydb.StatusIds_StatusCode) {
	o.mu.Lock()
	o.asked = append(o.asked, ticket)
	o.mu.Unlock()
	<-o.answers
	return ticket, Ydb.StatusIds_SUCCESS
}

// latest returns who was asked about since it was called last.
func (o *oracle) latest() string {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	all := strings.Join(o.asked, " ")
	o.asked = nil
	return all
}

// named says who a ticket belongs to.
type named struct {
	still
	users map[string]string
}

func (n *named) WhoAmI(_ context.Context, _, ticket string) (string, Ydb.StatusIds_StatusCode) {
	user, ok := n.users[ticket]
	if !ok {
		return "", Ydb.StatusIds_UNAUTHORIZED
	}
	return user, Ydb.StatusIds_SUCCESS
}

// What is known of one ticket is not said of another, although their hashes differ in one byte alone.
func TestAllOctetsOfATicketsHashCount(t *testing.T) {
	for name, users := range map[string]map[string]string{
		"named":     {"one": "Alice", "other": "Bob"},
		"not_named": {"one": "", "other": ""},
		"refused":   {"other": "Bob"},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range sha256.Size {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					ts := NewIdentityPools(ctx, PoolsConfig{Cluster: &named{users: users}, Database: "/local"})
					one, other := NewCredentials("/local", "one"), NewCredentials("/local", "other")
					other.Hash = one.Hash
					other.Hash[i] ^= 1
					var said []string
					for _, who := range []*Credentials{&one, &other} {
						_, err := ts.Of(who, false, nil, nil, woken{new(atomic.Int64)})
						if err != ErrAsked {
							t.Errorf("byte %d: %v of a ticket that is new", i, err)
						}
						var identity *IdentityPool
						for range 2 { // it is asked whose the ticket is, and its pool is made
							synctest.Wait()
							if identity, err = ts.Of(who, false, nil, nil, woken{new(atomic.Int64)}); err != ErrAsked {
								break
							}
						}
						switch {
						case err == nil:
							said = append(said, identity.name.user)
						case err == ErrUnauthorized && users[who.Ticket] == "":
							said = append(said, err.Error())
						default:
							t.Fatalf("byte %d: %v", i, err)
						}
					}
					if said[0] == said[1] {
						t.Errorf("byte %d: both are %s", i, said[0])
					}
					cancel()
					ts.Wait()
				})
			}
		})
	}
}

type woken struct{ n *atomic.Int64 }

func (w woken) Wake() { w.n.Add(1) }

// Tickets that one connection makes up do not keep those of another one waiting, nor do those of many for long.
// Long: one crowd grows from step to step.
func TestNewTicketsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		o := &oracle{answers: make(chan struct{})}
		ts := NewIdentityPools(ctx, PoolsConfig{Cluster: o, Database: "/local"})
		var wakes atomic.Int64
		ask := func(client any, ticket string) error {
			who := NewCredentials("/local", ticket)
			_, err := ts.Of(&who, false, nil, client, woken{&wakes})
			return err
		}
		must := func(client any, ticket string, want error) {
			t.Helper()
			if err := ask(client, ticket); err != want {
				t.Fatalf("%v comes with %s: %v; want %v", client, ticket, err, want)
			}
		}
		for i := range maxOfClient {
			must("mallory", fmt.Sprint("m", i), ErrAsked)
		}
		must("mallory", "m", ErrAsks)
		if got := o.latest(); got != "m0" {
			t.Errorf("asked about %q at a time", got)
		}
		must("alice", "a1", ErrAsked)
		if got := o.latest(); got != "a1" {
			t.Errorf("with mallory's questions there, asked about %q", got)
		}
		for i := range 2*maxAsks - 2 { // as many more connections as questions may be under way, and as many again
			must(i, fmt.Sprint("c", i), ErrAsked)
			must(i, fmt.Sprint("d", i), ErrAsked)
		}
		if got := strings.Fields(o.latest()); len(got) != maxAsks-2 {
			t.Errorf("asked about %q", got)
		}
		must("bob", "b1", ErrAsked)
		for range 2 * maxAsks { // one answer to each that came before bob
			o.answers <- struct{}{}
		}
		if got := " " + o.latest() + " "; !strings.Contains(got, " b1 ") {
			t.Errorf("bob waits behind second questions: %q", got)
		}
		for i := 0; ; i++ { // so many connections that there is no room for further questions
			if err := ask(fmt.Sprint("many", i/maxOfClient), fmt.Sprint("x", i)); err == ErrAsks {
				break
			} else if i > 2*maxFurther {
				t.Fatal("no bound")
			}
		}
		must("carol", "carol1", ErrAsked)
		close(o.answers)
		synctest.Wait()
		if len(ts.asking) != 0 || len(ts.askers) != 0 || len(ts.waiting) != 0 || ts.asks != 0 || ts.further != 0 {
			t.Errorf("left: %d, %d, %d, %d, %d", len(ts.asking), len(ts.askers), len(ts.waiting), ts.asks, ts.further)
		}
		if wakes.Load() == 0 {
			t.Error("nobody was told")
		}
		must("carol", "carol1", ErrAsked) // her pool is being made
		synctest.Wait()
		must("carol", "carol1", nil)
		cancel()
		ts.Wait()
	})
}

// A pool that takes its time over a view or its figures keeps no shard waiting, nor does one that is new.
func TestPoolsAreCalledWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := &looking{}
		ts := NewIdentityPools(ctx, PoolsConfig{Cluster: p, Database: "/local"})
		looks := 0
		p.look = func() {
			looks++
			if !ts.mu.TryLock() {
				t.Error("a pool is called under the lock")
				return
			}
			ts.mu.Unlock()
		}
		ts.obtain(poolKey{database: "/local", user: anonymous})
		ts.SetView(cluster.View{})
		synctest.Wait()
		ts.Quiet(true)
		ts.Sweep(time.Now())
		ts.State()
		if looks != 6 {
			t.Errorf("the pool was called %d times", looks)
		}
		cancel()
		ts.Wait()
	})
}

// A pool hears of nodes that are new, and that all are to be quiet, although that is said while it is being made.
func TestANewPoolMissesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a := &hearing{proceed: make(chan struct{})}
		a.slow.Store(true)
		ts := NewIdentityPools(ctx, PoolsConfig{Cluster: a, Database: "/local"})
		view := func(id cluster.NodeID) {
			ts.SetView(cluster.View{Nodes: []cluster.ViewNode{{Node: cluster.Node{ID: id}}}})
			synctest.Wait()
		}
		view(1)
		if _, err := ts.get(poolKey{database: "/local", user: "new"}, true, woken{new(atomic.Int64)}); err != ErrAsked {
			t.Fatal(err)
		}
		synctest.Wait() // the pool is busy with the first view
		view(2)
		ts.Quiet(true)
		close(a.proceed)
		synctest.Wait()
		if p := a.all[0]; !slices.Equal(p.heard, []cluster.NodeID{1, 2}) || !p.quiet {
			t.Errorf("it heard of %v, quiet: %v", p.heard, p.quiet)
		}
		cancel()
		ts.Wait()
	})
}

// The call that says which nodes there are waits for no pool. A pool that is busy for long hears of
// the newest nodes alone, after those that it heard of before; one that panics keeps nothing from the
// others.
func TestNobodyWaitsForPoolsThatHearOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a := &hearing{proceed: make(chan struct{})}
		ts := NewIdentityPools(ctx, PoolsConfig{Cluster: a, Database: "/local"})
		for i := range 10 {
			ts.obtain(poolKey{database: "/local", user: fmt.Sprint(i)})
		}
		a.slow.Store(true)
		for i := range cluster.NodeID(5) {
			ts.SetView(cluster.View{Nodes: []cluster.ViewNode{{Node: cluster.Node{ID: i + 1}}}})
			synctest.Wait() // the first of them is at the first pool
		}
		ts.obtain(poolKey{database: "/local", user: "late"})
		close(a.proceed)
		synctest.Wait()
		whole := 0
		for i, p := range a.all {
			if !slices.IsSorted(p.heard) || p.heard[len(p.heard)-1] != 5 {
				t.Errorf("pool %d heard of %v; want the newest, 5, at last", i, p.heard)
			}
			if whole += len(p.heard); len(p.heard) > 4 {
				t.Errorf("pool %d heard of %v; want it to miss some", i, p.heard)
			}
		}
		if most := 10*3 + 2; whole > most {
			t.Errorf("%d views were told; want at most %d", whole, most)
		}
		cancel()
		ts.Wait()
	})
}

// A pool that takes its time to be made keeps the calls waiting that want it, and nothing else. One that panics is made again.
func TestAPoolThatIsMadeHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a := &slowBirths{proceed: make(chan struct{})}
		ts := NewIdentityPools(ctx, PoolsConfig{Cluster: a, Database: "/local"})
		slow, other := poolKey{database: "/local", user: "slow"}, poolKey{database: "/local", user: "other"}
		var wakes atomic.Int64
		must := func(name poolKey, want error) *IdentityPool {
			t.Helper()
			identity, err := ts.get(name, true, woken{&wakes})
			synctest.Wait()
			if err != want || (identity == nil) != (want != nil) {
				t.Fatalf("%v, %v; want %v", identity, err, want)
			}
			return identity
		}
		for range 3 {
			must(slow, ErrAsked)
		}
		if a.begun != 1 {
			t.Errorf("%d pools are being made for one name", a.begun)
		}
		if ts.obtain(other) == nil || len(ts.State()) != 1 {
			t.Error("another pool waits")
		}
		for range 2 { // it panics, and is made again
			if n := wakes.Load(); n != 0 {
				t.Errorf("%d calls are told of a pool that is not there", n)
			}
			a.proceed <- struct{}{}
		}
		synctest.Wait()
		if t1, t2 := must(slow, nil), must(slow, nil); t1 != t2 {
			t.Error("two pools have one name")
		}
		if wakes.Load() != 3 || a.begun != 2 || len(ts.State()) != 2 || len(ts.making) != 0 {
			t.Errorf("%d calls are told; %d pools were begun, %d are there, %d are being made", wakes.Load(), a.begun,
				len(ts.State()), len(ts.making))
		}
		// One that is made while all are closed is closed as well.
		late := poolKey{database: "/local", user: "slow", table: true}
		must(late, ErrAsked)
		if err := ts.Close(ctx); err != nil {
			t.Error(err)
		}
		a.proceed <- struct{}{}
		synctest.Wait()
		must(late, ErrPools)
		cancel()
		ts.Wait()
		if !a.last.closed || wakes.Load() != 4 || len(ts.making) != 0 {
			t.Errorf("closed: %v; %d calls are told, %d pools are being made", a.last.closed, wakes.Load(), len(ts.making))
		}
	})
}

// slowBirths makes pools of the user "slow" slowly. The first of them panics.
type slowBirths struct {
	still
	proceed chan struct{}
	begun   int
	last    *closes
}

func (a *slowBirths) Pool(c PoolConfig) OwnedPool {
	p := &closes{end: make(chan struct{})}
	if strings.Contains(c.Identity, "slow") {
		a.begun++
		first := a.begun == 1
		if <-a.proceed; first {
			panic("a pool that is made")
		}
	}
	a.last = p
	return p
}

// closes is a pool that runs until it is closed.
type closes struct {
	still
	end chan struct{}
}

func (p *closes) Run(context.Context) error   { <-p.end; return nil }
func (p *closes) Close(context.Context) error { close(p.end); p.closed = true; return nil }

// hearing makes pools that hear of nodes slowly. The second of them panics.
type hearing struct {
	still
	proceed chan struct{}
	slow    atomic.Bool
	all     []*listens
}

type listens struct {
	still
	of     *hearing
	number int
	heard  []cluster.NodeID // one of each view; 0: there was none
	quiet  bool
}

func (h *hearing) Pool(PoolConfig) OwnedPool {
	p := &listens{of: h, number: len(h.all)}
	h.all = append(h.all, p)
	return p
}

func (p *listens) Quiet(on bool) { p.quiet = on }
func (p *listens) SetView(v cluster.View) {
	if p.number < 10 && p.of.slow.Load() {
		<-p.of.proceed
	}
	id := cluster.NodeID(0)
	if len(v.Nodes) > 0 {
		id = v.Nodes[0].ID
	}
	if p.heard = append(p.heard, id); p.number == 1 && id > 0 {
		panic("a pool that hears of nodes")
	}
}

// looking is a pool that looks around when it is called.
type looking struct {
	still
	look func()
}

func (p *looking) Pool(PoolConfig) OwnedPool { return p }
func (p *looking) SetView(cluster.View)      { p.look() }
func (p *looking) Quiet(bool)                { p.look() }
func (p *looking) Stats() pool.Stats         { p.look(); return p.still.Stats() }
func (p *looking) Busy() bool                { p.look(); return p.still.Busy() }
