package snapshot

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/adaptive"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
)

// Documents are made of a look and of nothing else.
func TestDocumentsOfALook(t *testing.T) {
	s := new(Snapshot)
	s.Pool.Max, s.Pool.InUse, s.Pool.Oldest = 7, 3, 1500*time.Microsecond
	s.Pool.OpenErr = errors.New("first\nsecond")
	s.Pool.Waiting[pool.Normal] = 2
	s.Pool.Nodes = []pool.NodeStats{{Node: 5, Counts: pool.Counts{Sessions: 4, InUse: 3}, Fair: 1.26}}
	s.Warm = true
	p := s.PoolState()
	if p.Max != 7 || p.Busy != 3 || p.OldestMS != 1.5 || p.OpenErr != "first" || p.Waiting[pool.Normal.String()] != 2 || !p.Warm {
		t.Errorf("pool: %+v", p)
	}
	if p.Adaptive != nil {
		t.Errorf("without pool.adaptive: %+v", p.Adaptive)
	}
	s.Limits = &LimitsState{Own: adaptive.State{Limit: 2.345, Base: time.Millisecond}}
	if a := s.PoolState().Adaptive; a == nil || a.Limit != 2.35 || a.BaseMS != 1 || len(a.Changes) != int(adaptive.Reasons) {
		t.Errorf("with pool.adaptive: %+v", a)
	}

	s.Routed.Nodes = []routing.NodeStats{{Calls: 6}}
	s.Routed.Nodes[0].Node.ID, s.Routed.Nodes[0].Node.Load = 5, new(cluster.Load)
	s.Discovery.Err = errors.New("away")
	s.Discovery.Source.Unidentified = make([]discovery.Unidentified, maxUnidentified+1)
	n := s.NodesState(map[cluster.NodeID]pessimize.Next{5: {Text: "nothing"}})
	if len(n.Nodes) != 1 {
		t.Fatalf("nodes: %+v", n.Nodes)
	}
	if n := n.Nodes[0]; n.Calls != 6 || n.Sessions != 4 || n.Busy != 3 || n.Fair != 1.3 || n.Next != "nothing" {
		t.Errorf("nodes: %+v", n)
	}
	if n.Discovery.Error != "away" || len(n.Discovery.Unidentified) != maxUnidentified {
		t.Errorf("discovery: %q, %d addresses", n.Discovery.Error, len(n.Discovery.Unidentified))
	}
}

// What the end waits for depends on its stage.
func TestWhatTheEndWaitsFor(t *testing.T) {
	for _, test := range []struct {
		at       Stage
		replaced bool
		now      Progress
		want     string
	}{
		{Serving, false, Progress{Calls: 1}, ""},
		{LameDuck, false, Progress{}, "SIGTERM, or mode=off"},
		{Leaving, false, Progress{Connections: 2}, "drain.delay"},
		{Leaving, true, Progress{Connections: 2}, "2 connections, to be handed over"},
		{Draining, false, Progress{Calls: 1}, "1 call"},
		{Draining, false, Progress{}, ""},
		{LettingGo, false, Progress{Connections: 1}, "1 connection"},
		{Deleting, false, Progress{Sessions: 3}, "3 sessions"},
	} {
		var s Source
		s.Replaced = func() bool { return test.replaced }
		if got := s.waitsFor(test.at, &test.now); got != test.want {
			t.Errorf("%v, replaced %t, %+v: %q; want %q", test.at, test.replaced, test.now, got, test.want)
		}
	}
}

// Findings name the limit that rejected most calls of an app, and count the calls that wait or got no session.
func TestLimitOfAnApp(t *testing.T) {
	refused := func(open, sessions uint64) apps.ClassState {
		return apps.ClassState{Waiting: 2, Refused: map[string]uint64{"open": open, "sessions": sessions, "no limit": 99}}
	}
	got := appPictures([]apps.State{
		{App: "a", Classes: []apps.ClassState{refused(1, 2), refused(0, 3)}},
		{App: "b"},
	})
	if want := "[{a 6 sessions 4 198} {b 0  0 0}]"; fmt.Sprint(got) != want {
		t.Errorf("%v; want %s", got, want)
	}
}
