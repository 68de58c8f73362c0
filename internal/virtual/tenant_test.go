package virtual

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// still is a pool that does nothing.
type still struct {
	TenantPool
	leased bool
	closed bool
}

func (p *still) SetView(cluster.View) {}
func (p *still) Quiet(bool)           {}
func (p *still) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
func (p *still) Stats() (st pool.Stats) {
	if p.leased {
		st.Leased = 1
	}
	return st
}
func (p *still) Close(context.Context) error  { p.closed = true; return nil }
func (p *still) Pool(TenantConfig) TenantPool { return p }
func (p *still) WhoAmI(context.Context, string, string) (string, Ydb.StatusIds_StatusCode) {
	return "", Ydb.StatusIds_SUCCESS
}

func TestPoolsThatNobodyUsesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := new(still)
		ts := NewTenants(ctx, TenantsConfig{Accounts: p, Database: "/local"})
		name := tenantName{database: "/local", user: anonymous}
		one := ts.get(name, true)
		if ts.get(name, true) != one {
			t.Error("not the same pool")
		}
		look := func() {
			t.Helper()
			time.Sleep(tenantIdle - 5*time.Second)
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
		p.leased = true
		look()
		p.leased = false
		one.lent.Store(true)
		look()
		cancel() // pools end with the server
		time.Sleep(tenantIdle)
		ts.Sweep(time.Now())
		synctest.Wait()
		if !p.closed || ts.get(name, true) == one {
			t.Error("its pool is open, or found again")
		}
		ts.Wait()
	})
}

func TestIdentitiesAreBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ts := NewTenants(ctx, TenantsConfig{Accounts: new(still), Database: "/local"})
	for i := range maxTenants {
		if ts.get(tenantName{database: "/local", user: fmt.Sprint(i)}, true) == nil {
			t.Fatal(i)
		}
	}
	if ts.get(tenantName{database: "/local", user: "one more"}, true) != nil {
		t.Error("no bound")
	}
	cancel()
	ts.Wait()
}
