package affinity

import (
	"context"
	"fmt"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// published is a place that was measured, as means in ms of rows of 100, 500 and 2000 bytes, and a cell whose means are alike.
type published struct {
	place         string
	random, owner []float64
	at            cell
}

func publishedPlaces() []published {
	like := func(place string, nodes int, client, hop time.Duration) cell {
		c := newCell(nodes, client, hop)
		c.name = "like the " + place + ": " + c.name
		return c
	}
	return []published{
		{"laptop", []float64{90.7, 93.9, 102}, []float64{82.5, 88.9, 90}, like("laptop", 3, 86*time.Millisecond, 12500*time.Microsecond)},
		{"small VM", []float64{13.1, 14.5, 15.7}, []float64{9, 9.1, 10.2}, like("small VM", 3, 8*time.Millisecond, 7200*time.Microsecond)},
		{"large VM", []float64{14, 14.2, 15.6}, []float64{7.8, 8.2, 10.6},
			like("large VM", 9, 7500*time.Microsecond, 7300*time.Microsecond)},
	}
}

// measurePublished sets distances that make means like the published ones.
func (a *affinityBench) measurePublished(ctx context.Context) error {
	places := publishedPlaces()
	var cells []cell
	for _, p := range places {
		cells = append(cells, p.at)
	}
	t, err := a.measure(ctx, "published", "With means like the published ones",
		"Distances are injected and chosen so that the random variant's mean is near the published one; how far "+
			"apart the nodes and the client were there is not known.",
		cells)
	if err != nil || t == nil {
		return err
	}
	var least lab.Estimate
	alike := true
	for _, p := range places[1:] {
		row := t.Row(a.l.Name(p.at.name, 0))
		mean := row.Figures[randomMean].Median / 1e6
		alike = alike && mean >= 13 && mean <= 16
		if e := row.Figures[gain]; least.N == 0 || e.Median < least.Median {
			least = e
		}
	}
	t.Judge("gain where the random variant's mean is 13 to 16 ms, in %; the less of the two cells", ">= 31",
		alike && least.Median >= 31, least)
	raw := a.rawOf(t)
	text := "Means in ms, random node → owner, and the gain. Ours are of injected distances.\n\n| | row | published " +
		"| gain | ours | gain |\n|---|--:|--:|--:|--:|--:|\n"
	for _, p := range places {
		for i, size := range affinitySizes {
			ours := func(way string) float64 {
				ns, _ := raw.Median(a.l.Name(p.at.name+", "+way, 0), sizeMean(size))
				return ns / 1e6
			}
			x, y := ours("random node"), ours("owner")
			text += fmt.Sprintf("| %s | %d bytes | %.3g → %.3g | %.1f %% | %.1f → %.1f | %.1f %% |\n", p.place, size,
				p.random[i], p.owner[i], 100*(1-p.owner[i]/p.random[i]), x, y, 100*(1-y/x))
		}
	}
	a.l.Report.Add(lab.Section{Title: "Next to the published means", Text: text})
	return nil
}
