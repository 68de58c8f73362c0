package snapshot

import (
	"maps"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/apps"
)

// Whoever floods the queue stands first, with all its classes.
func TestAppsOfThePage(t *testing.T) {
	all := []apps.State{
		{App: "idle"},
		{App: "once", Classes: []apps.ClassState{{Served: 1}}},
		{App: "shop", Open: 4, Weight: 1, Classes: []apps.ClassState{{InUse: 4, Served: 100, WaitP99: 3}}},
		{App: "flooder", Open: 300, Weight: 2, Denied: map[string]uint64{"write": 2}, Classes: []apps.ClassState{
			{Waiting: 200, InUse: 5, Served: 10, WaitP99: 9, Refused: map[string]uint64{"queue_full": 7}},
			{Waiting: 26, InUse: 1, Served: 1, WaitP99: 20, Refused: map[string]uint64{"queue_full": 1, "deadline": 3}},
		}},
	}
	lines, more := appLines(all, 2)
	if len(lines) != 2 || more != 1 || lines[0].App != "flooder" || lines[1].App != "shop" {
		t.Fatalf("%+v and %d more; want flooder, shop and 1 more", lines, more)
	}
	f := lines[0]
	want := map[string]uint64{"queue_full": 8, "deadline": 3, "write": 2}
	if f.Waiting != 226 || f.InUse != 6 || f.Served != 11 || f.WaitP99 != 20 || f.Weight != 2 || !maps.Equal(f.Refused, want) {
		t.Errorf("%+v; want the sums of both classes, refused %v", f, want)
	}
	if lines, more := appLines(nil, 2); lines == nil || len(lines) != 0 || more != 0 {
		t.Errorf("of no apps: %v, %d", lines, more)
	}
}
