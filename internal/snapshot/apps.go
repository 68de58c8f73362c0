package snapshot

import (
	"cmp"
	"slices"

	"github.com/ydb-sidecar/sidecar/internal/apps"
)

// appLine is an app on the page: the sums over its classes.
type appLine struct {
	App     string            `json:"app"`
	Open    int64             `json:"open"`    // calls
	InUse   int64             `json:"in_use"`  // sessions
	Waiting int64             `json:"waiting"` // calls in the queue for a session
	Served  uint64            `json:"served"`  // sessions so far
	Refused map[string]uint64 `json:"refused"` // calls so far, by reason
	WaitP99 float64           `json:"wait_p99_ms"`
	Weight  int               `json:"weight"`
}

// appLines sums up the apps that ever called. The app that waits and uses most comes first; more is how many the list leaves out.
func appLines(all []apps.State, most int) (lines []appLine, more int) {
	lines = []appLine{}
	for _, app := range all {
		one := appLine{App: app.App, Open: app.Open, Weight: app.Weight, Refused: map[string]uint64{}}
		for _, c := range app.Classes {
			one.InUse += c.InUse
			one.Waiting += c.Waiting
			one.Served += c.Served
			one.WaitP99 = max(one.WaitP99, c.WaitP99)
			for why, n := range c.Refused {
				one.Refused[why] += n
			}
		}
		for grant, n := range app.Denied {
			one.Refused[grant] += n
		}
		if one.Open+one.InUse+one.Waiting+int64(one.Served) > 0 || len(one.Refused) > 0 {
			lines = append(lines, one)
		}
	}
	slices.SortStableFunc(lines, func(a, b appLine) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.InUse, a.InUse), cmp.Compare(b.Open, a.Open),
			cmp.Compare(b.Served, a.Served))
	})
	listed := min(len(lines), most)
	return lines[:listed], len(lines) - listed
}
