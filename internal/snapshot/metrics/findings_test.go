package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
)

// Each code has a series without node and app, so that alerts can count sidecars, and each finding one with what
// it is about.
func TestSeriesOfFindings(t *testing.T) {
	seen := &snapshot.Snapshot{Database: "/local"}
	seen.Found = []findings.Finding{
		{Code: findings.NodeDead, Severity: findings.Problem, Node: 2, Address: "ydb-2:2136"},
		{Code: findings.NodeSlow, Severity: findings.Warning, Node: 3, Address: "ydb-3:2136"},
		{Code: findings.HeldLong, Severity: findings.Warning, Node: 3, App: "shop", Session: "a1"},
		{Code: findings.HeldLong, Severity: findings.Warning, Node: 3, App: "shop", Session: "b2"},
		{Code: findings.NoNode, Severity: findings.Problem},
	}
	got := map[string]int64{}
	readFindings(&moment{Snapshot: seen}, func(n int64, with ...attribute.KeyValue) {
		var text []string
		for _, kv := range with {
			if kv.Key != "db.namespace" {
				text = append(text, kv.Value.String())
			} else if kv.Value.String() != "/local" {
				t.Errorf("%v", with)
			}
		}
		got[strings.Join(text, " ")] = n
	})
	for series, want := range map[string]int64{
		"NODE_DEAD problem": 0, "NODE_DEAD problem 2 ydb-2:2136": 1,
		"NODE_SLOW problem": 0, "NODE_SLOW warning 3 ydb-3:2136": 1,
		"HELD_LONG warning": 0, "HELD_LONG warning shop": 2,
		"NO_NODE problem": 1, "OVERLOAD problem": 0, "NODE_BANNED note": 0,
	} {
		if n, ok := got[series]; !ok || n != want {
			t.Errorf("%s = %d, there: %v; want %d in %s", series, n, ok, want, fmt.Sprint(slices.Sorted(maps.Keys(got))))
		}
	}
	if want := len(findings.Kinds) + 3; len(got) != want {
		t.Errorf("%d series; want %d", len(got), want)
	}
}
