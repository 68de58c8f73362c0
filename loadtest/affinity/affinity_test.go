package affinity

import (
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// The direct client calls every node by way of every other one equally often: its hop is the mean of all.
func TestPairsOfNodes(t *testing.T) {
	for _, n := range []int{3, 9} {
		seen := map[[2]int]int{}
		for _, pair := range pairsOf(n, affinitySessions) {
			if pair[0] == pair[1] || pair[0] >= n || pair[1] >= n {
				t.Errorf("%d nodes: pair %v", n, pair)
			}
			seen[pair]++
		}
		for pair, times := range seen {
			if len(seen) != n*(n-1) || times != affinitySessions/len(seen) {
				t.Errorf("%d nodes: %d pairs, %v %d times", n, len(seen), pair, times)
			}
		}
	}
}

func affinityRun(mean, share, hop float64) lab.Run {
	return lab.Run{Calls: 1, Figures: lab.Figures{callMean: mean, forwarded: share, hopTime: hop, sizeMean(100): mean / 2}}
}

// A hop of 5 ms that two of three calls make and that none makes with affinity is the whole difference.
func TestGains(t *testing.T) {
	random, owner, direct := affinityRun(10e6, 60, 0), affinityRun(7e6, 0, 0), affinityRun(8e6, 0, 5e6)
	failed := lab.Run{Calls: 1, Failed: 1, Figures: lab.Figures{callMean: 0}}
	got := gains([]lab.Run{random, failed, random}, []lab.Run{owner, owner, owner}, []lab.Run{direct, direct})
	if len(got) != 1 || got[0].Calls != 2 {
		t.Fatalf("got %+v; want one round: in another all calls failed, and one has no hop", got)
	}
	for name, want := range (lab.Figures{randomMean: 10e6, ownerMean: 7e6, forwarded: 60, hopTime: 5e6, gain: 30,
		predicted: 30, ofPredicted: 1, sizeGain(100): 30}) {
		if have := got[0].Figures[name]; far(have, want) > 1e-9 {
			t.Errorf("%s is %v; want %v", name, have, want)
		}
	}
	if _, ok := got[0].Figures[sizeGain(2000)]; ok {
		t.Error("a gain of rows that nobody read")
	}
}

// affinityGrid is a bench whose cells have gains by their numbers of nodes and distances.
func affinityGrid(t *testing.T, mean func(at cell) (random, owner float64)) *lab.Report {
	t.Helper()
	a := &affinityBench{l: &lab.Lab{Options: lab.Options{Sidecars: []string{"sidecar"}}, Report: &lab.Report{}},
		clusters: map[int]*affinityCluster{3: nil, 9: nil}}
	var cells []cell
	var gainRuns, all [][]lab.Run
	made, raw := lab.Case{Name: "grid-gain"}, lab.Case{Name: "grid"}
	for _, n := range []int{3, 9} {
		for _, client := range []time.Duration{0, 4 * time.Millisecond, 40 * time.Millisecond} {
			at := newCell(n, client, 5*time.Millisecond)
			cells = append(cells, at)
			r, o := mean(at)
			random, owner, direct := affinityRun(r, 100*float64(n-1)/float64(n), 0), affinityRun(o, 0, 0), affinityRun(o, 0, 5e6)
			made.Variants, raw.Variants = append(made.Variants, lab.Variant{Name: at.name}), append(
				raw.Variants, lab.Variant{Name: at.name + ", owner"},
			)
			gainRuns, all = append(gainRuns, gains([]lab.Run{random}, []lab.Run{owner}, []lab.Run{direct})), append(all, []lab.Run{owner})
		}
	}
	table := lab.NewTable(made, gainRuns)
	a.l.Report.Add(lab.Section{Table: table})
	a.l.Report.Add(lab.Section{Table: lab.NewTable(raw, all)})
	a.judgeShares(table, cells)
	a.judgeGrid(table, cells)
	return a.l.Report
}

func TestLawsAreJudged(t *testing.T) {
	law := func(at cell) (float64, float64) {
		owner := 1e6 + float64(at.client)
		return owner + 5e6*float64(at.nodes-1)/float64(at.nodes), owner
	}
	for _, c := range []struct {
		name   string
		mean   func(at cell) (random, owner float64)
		missed int
	}{
		{"as_the_law_says", law, 0},
		{"the_gain_is_half", func(at cell) (float64, float64) { r, o := law(at); return r, r - (r-o)/2 }, 1},
		// and not as their share says
		{"more_nodes_gain_less", func(at cell) (float64, float64) { at.nodes = 12 - at.nodes; return law(at) }, 2},
		{"far_clients_gain_more", func(at cell) (float64, float64) { at.client = 40*time.Millisecond - at.client; return law(at) }, 1},
	} {
		missed, judged := 0, 0
		for _, s := range affinityGrid(t, c.mean).Sections {
			for _, v := range s.Table.Claims {
				judged++
				if v.Verdict != "met" {
					missed++
				}
			}
		}
		if judged != 6 || missed != c.missed {
			t.Errorf("%s: %d of %d claims missed; want %d of 6", c.name, missed, judged, c.missed)
		}
	}
}

// The distances that are set make the published means, by the law and half a millisecond for the rest.
func TestPublishedPlacesAreLikeThePublished(t *testing.T) {
	for _, p := range publishedPlaces() {
		n := p.at.nodes
		var hops float64 // of all others of a node: zones are in turn
		for i := 1; i < n; i++ {
			hop := float64(p.at.hop) / 1e6
			if i%3 == 0 {
				hop /= 2
			}
			hops += hop / float64(n)
		}
		owner := float64(p.at.client)/1e6 + 1
		random := owner + hops
		for name, pair := range map[string][2]float64{"random": {random, mean3(p.random)}, "owner": {owner, mean3(p.owner)}} {
			if d := pair[0]/pair[1] - 1; far(d, 0) > 0.06 {
				t.Errorf("%s, %s: %.1f ms are expected; published are %.1f", p.place, name, pair[0], pair[1])
			}
		}
	}
}

func mean3(v []float64) float64 { return (v[0] + v[1] + v[2]) / 3 }
