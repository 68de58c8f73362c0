package discovery

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// A look that panics has failed, and the next one comes when it is due.
func TestALookThatPanicsHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, h := start(t, Default(), func(n int) (cluster.Topology, error) {
			if n == 2 {
				panic("broken")
			}
			return nodes(cluster.NodeID(n)), nil
		})
		for end := time.Now().Add(time.Minute); len(h.sizes()) < 2 && time.Now().Before(end); {
			time.Sleep(time.Second)
		}
		if got := h.sizes(); len(got) != 2 {
			t.Errorf("%d topologies were heard of; want one before the panic, and one after it", len(got))
		}
	})
}

// fragile is a source that panics when it runs first.
type fragile struct {
	source
	runs atomic.Int32
}

func (f *fragile) run(ctx context.Context, _ func()) error {
	if f.runs.Add(1) == 1 {
		panic("broken")
	}
	<-ctx.Done()
	return nil
}

// A source that panics runs on.
func TestASourceThatPanicsRunsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fragile{source: source{began: time.Now(), answer: func(int) (cluster.Topology, error) { return nodes(1), nil }}}
		run(t, New(Default(), f, quiet))
		time.Sleep(time.Second)
		if n := f.runs.Load(); n != 2 {
			t.Errorf("the source ran %d times; want 2", n)
		}
	})
}

// A node whose question panics is asked again, as one that does not tell, and its place is free.
func TestAQuestionThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{ids: map[string]cluster.NodeID{"a:1": 7}}
		asked := 0
		i := newIdentities(func(ctx context.Context, address, name string) (cluster.NodeID, error) {
			if asked++; asked == 1 {
				panic("broken")
			}
			return h.identify(ctx, address, name)
		}, quiet)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); i.run(ctx, h.changed) }()
		defer func() { cancel(); <-done }()
		i.want(at("a:1"))
		synctest.Wait()
		i.mu.Lock()
		asking := i.asking
		i.mu.Unlock()
		if asking != 0 {
			t.Errorf("%d questions are under way", asking)
		}
		time.Sleep(identifyPauseMax)
		synctest.Wait()
		wantNodes(t, i, at("a:1"), map[string]cluster.NodeID{"a:1": 7})
	})
}

// What panics for one node while zones are measured counts for nothing.
func TestZonesAreMeasuredThoughSomethingPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &regions{took: map[string]time.Duration{"a": 5 * time.Millisecond, "b": time.Millisecond}, dialed: map[string]int{}}
		n := r.nearest()
		lookup, dial := n.lookup, n.dial
		n.lookup = func(ctx context.Context, host string) ([]string, error) {
			if strings.HasPrefix(host, "c-") {
				panic("broken")
			}
			return lookup(ctx, host)
		}
		n.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, "d-") {
				panic("broken")
			}
			return dial(ctx, network, address)
		}
		if zone := n.measure(t.Context(), spread("", 2, "a", "b", "c", "d")); zone != "b" {
			t.Errorf("%q is nearest; want b", zone)
		}
	})
}
