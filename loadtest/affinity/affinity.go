// Package affinity is the experiment that finds what it saves to send a call to the node that owns its session.
package affinity

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

// Experiment finds what it saves to send a call to the node that owns its session.
var Experiment = lab.Experiment{
	Name:  "affinity",
	Title: "A random node, or the one that owns the session",
	Question: `A session lives on one node; a call that reaches another is sent on, which costs a hop. Two sidecars read rows of app_record over plain gRPC, every row verified: one sends each call to the owner of its session, the other
(` + "`routing.affinity=off`, which exists for this" +
		`) to a random node, as a client does that knows nothing of sessions. *Forwarded* is counted by the nodes. *Direct* is a client without a sidecar that calls owners and, by way of every other node in
turn, sessions of others: what the second takes more is the *hop* as it was in that round. The gain, the part of the mean that affinity saves, should then be forwarded share x hop / mean of the random variant.

Nodes are in three zones. **Distances are injected** by the development cluster: each call of a client waits at the node, once, and each call that is sent on waits, half as long if both nodes are in one zone. Timers are late, so a hop of 1 ms
takes more; what it took is measured. Rows of 100, 500 and 2000 bytes are read in turn, by an open loop at a low rate. *Mean* counts from the instant at which the call was sent, for the load's own timer would be in all of
them; p50 and p99 from the one at which it was due.`,
	Published: `Means of the published measurements stand beside ours above, in the order random node → owner. The laws they showed: the gain grows with the nodes (the share (n-1)/n) and shrinks with the client's distance.
The laptop's gain was stated as 11.43 %; its bars give 8.7 %. Theirs were clusters of YDB on machines of their own, with the network's real distances; which these were is not known, so ours are set such that the means are alike, and the
gain then follows from the law alone. Their means differ by the size of the rows, ours hardly: nothing here is far enough for a row of 2000 bytes to take longer.`,
	Defaults: func(o *lab.Options) {
		pick := func(d *time.Duration, short, full time.Duration) {
			if *d == 0 && o.Size != lab.Smoke {
				*d = map[lab.Size]time.Duration{lab.Short: short, lab.Full: full}[o.Size]
			}
		}
		pick(&o.Duration, 300*time.Millisecond, 500*time.Millisecond)
		pick(&o.WarmUp, 50*time.Millisecond, 100*time.Millisecond)
	},
	Run: measureAffinity,
}

var affinitySizes = []int{100, 500, 2000} // bytes of the payload of a row

const affinityRecords = 300 // of each size

// cell is one place in the grid.
type cell struct {
	name   string
	nodes  int
	client time.Duration // injected between clients and nodes
	hop    time.Duration // injected between nodes of two zones; half of it within one
}

func newCell(nodes int, client, hop time.Duration) cell {
	return cell{fmt.Sprintf("%d nodes, client %v, hop %v", nodes, client, hop), nodes, client, hop}
}

// The figures of a call and of a cell.
const (
	callMean  = "mean-sent-ns"
	hopTime   = "hop-ns"
	forwarded = "forwarded-%"

	randomMean  = "random-node-ns"
	ownerMean   = "owner-ns"
	gain        = "gain-%"      // the part of the random variant's mean that affinity saves
	predicted   = "predicted-%" // forwarded share x hop / mean
	ofPredicted = "gain-of-predicted"
	more        = "difference-%"
)

func sizeMean(size int) string { return fmt.Sprintf("mean-%dB-ns", size) }
func sizeGain(size int) string { return fmt.Sprintf("gain-%dB-%%", size) }

func measureAffinity(ctx context.Context, l *lab.Lab) error {
	nodes := lab.At(l, []int{3}, []int{3, 9}, []int{3, 9})
	clients := lab.At(l, []time.Duration{0, 4 * time.Millisecond},
		[]time.Duration{0, 4 * time.Millisecond, 40 * time.Millisecond},
		[]time.Duration{0, 4 * time.Millisecond, 40 * time.Millisecond})
	hops := lab.At(l, []time.Duration{0, 5 * time.Millisecond}, []time.Duration{0, 5 * time.Millisecond},
		[]time.Duration{0, time.Millisecond, 5 * time.Millisecond})
	a := &affinityBench{l: l, clusters: map[int]*affinityCluster{}}
	for _, n := range nodes {
		cluster, err := a.start(ctx, n)
		if err != nil {
			return err
		}
		a.clusters[n] = cluster
	}
	var near, grid []cell
	for _, n := range nodes {
		near = append(near, newCell(n, 0, 0))
		for _, hop := range hops {
			for _, client := range clients {
				if client+hop > 0 {
					grid = append(grid, newCell(n, client, hop))
				}
			}
		}
	}
	pure, err := a.measure(
		ctx, "cpu", "Without any delay: what the hop costs in CPU",
		"Everything is on one machine, and the hop is the work of two more ends of a connection.", near,
	)
	if err != nil {
		return err
	}
	if pure != nil {
		a.judgeShares(pure, near)
	}
	found, err := a.measure(
		ctx, "grid", "With injected distances",
		"The client's distance and the hop's between zones are in the first column.", grid,
	)
	if err != nil {
		return err
	}
	if found != nil {
		a.judgeShares(found, grid)
		a.judgeGrid(found, grid)
	}
	if l.Size == lab.Smoke {
		return nil
	}
	return a.measurePublished(ctx)
}

type affinityBench struct {
	l        *lab.Lab
	clusters map[int]*affinityCluster // by the number of nodes
}

// affinityCluster is a cluster with what reads from it.
type affinityCluster struct {
	*lab.Cluster
	random, owner []*lab.Sidecar // one for each program under test
	own, foreign  *traffic.RecordSessions
	now           cell // the distances that are set
}

const affinitySessions = 72 // of each sidecar at first, and of the direct client: a multiple of all pairs of three and of nine nodes

func (a *affinityBench) start(ctx context.Context, n int) (*affinityCluster, error) {
	cluster, err := a.l.Cluster(ctx, n, "-locations", "a,b,c")
	if err != nil {
		return nil, err
	}
	c := &affinityCluster{Cluster: cluster}
	for _, v := range []struct {
		affinity string
		into     *[]*lab.Sidecar
	}{{"off", &c.random}, {"on", &c.owner}} {
		*v.into, err = a.l.Each(
			ctx, cluster.Endpoint(), "routing.affinity="+v.affinity, "pool.min="+strconv.Itoa(affinitySessions),
			"pool.max=200", "pool.max_per_node=200", "startup.wait=1m",
		)
		if err != nil {
			return nil, err
		}
		for _, s := range *v.into {
			if err := s.Warm(ctx); err != nil {
				return nil, err
			}
		}
	}
	if err := traffic.FillRecords(ctx, c.owner[0].Client, affinityRecords, affinitySizes...); err != nil {
		return nil, err
	}
	var conns []*grpc.ClientConn
	for _, node := range cluster.Nodes {
		conn, err := a.l.Dial(node.Address)
		if err != nil {
			return nil, err
		}
		conns = append(conns, conn)
	}
	c.own, c.foreign = &traffic.RecordSessions{
		Idle: make(chan traffic.RecordSession, affinitySessions),
	}, &traffic.RecordSessions{Idle: make(chan traffic.RecordSession, affinitySessions)}
	for _, pair := range pairsOf(n, affinitySessions) {
		for _, pool := range []*traffic.RecordSessions{c.own, c.foreign} {
			s, err := traffic.OpenRecordSession(ctx, conns[pair[0]])
			if err != nil {
				return nil, err
			}
			if pool == c.foreign {
				s = s.By(conns[pair[1]])
			}
			// the nodes' connections to each other, and their plans
			if err := s.Read(ctx, traffic.MakeRecord(0, affinitySizes[0])); err != nil {
				return nil, err
			}
			pool.Release(s)
		}
	}
	return c, nil
}

// pairsOf returns count pairs of an owner and another node, all of them in turn.
func pairsOf(nodes, count int) (all [][2]int) {
	for i := 0; len(all) < count; i++ {
		owner, step := i%nodes, 1+i/nodes%(nodes-1)
		all = append(all, [2]int{owner, (owner + step) % nodes})
	}
	return all
}

// distances sets those of a cell.
func (c *affinityCluster) distances(ctx context.Context, want cell) error {
	if c.now.client == want.client && c.now.hop == want.hop {
		return nil
	}
	if err := c.Everywhere(ctx, "delay", map[string]any{"delay": want.client.String(), "from": "clients"}); err != nil {
		return err
	}
	if err := c.Everywhere(ctx, "hop", map[string]any{"delay": want.hop.String(), "near": (want.hop / 2).String()}); err != nil {
		return err
	}
	c.now = want
	return nil
}

// shares counts the session calls of clients, and of these those that were sent on.
func (c *affinityCluster) shares(ctx context.Context) (all, on int64, err error) {
	nodes, err := c.Control.Nodes(ctx)
	for _, node := range nodes {
		all += node.Counters["owned"] + node.Counters["forwarded"]
		on += node.Counters["forwarded"]
	}
	return all, on, err
}

// times sums times of calls, by kinds.
type times []struct{ sum, calls atomic.Int64 }

func (t times) note(kind int, took time.Duration) {
	t[kind].sum.Add(int64(took))
	t[kind].calls.Add(1)
}

func (t times) mean(kinds ...int) float64 {
	var sum, calls int64
	for _, kind := range kinds {
		sum, calls = sum+t[kind].sum.Load(), calls+t[kind].calls.Load()
	}
	if calls == 0 {
		return 0
	}
	return float64(sum) / float64(calls)
}

// variants are the ways to read in a cell: random node and owner for each program, and direct.
func (a *affinityBench) variants(at cell) (all []lab.Variant) {
	c, rate := a.clusters[at.nodes], lab.Rate(min(a.l.MaxRate, 600))
	for _, way := range []struct {
		name  string
		sides []*lab.Sidecar
	}{{"random node", c.random}, {"owner", c.owner}} {
		for i, s := range way.sides {
			all = append(all, lab.Variant{Name: a.l.Name(at.name+", "+way.name, i), Under: []*lab.Process{s.Process},
				Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
					if err := c.distances(ctx, at); err != nil {
						return lab.Result{}, err
					}
					calls, on, err := c.shares(ctx)
					if err != nil {
						return lab.Result{}, err
					}
					t, turn := make(times, len(affinitySizes)), atomic.Int64{}
					result := lab.Open(ctx, rate, d, func(ctx context.Context) error {
						kind := int(turn.Add(1)) % len(affinitySizes)
						r := traffic.RandomRecord(affinityRecords, affinitySizes[kind])
						begun := time.Now()
						_, err := traffic.RecordsOverGRPC(ctx, s.Client, r)
						t.note(kind, time.Since(begun))
						return err
					})
					result.Figures = lab.Figures{callMean: t.mean(0, 1, 2)}
					for kind, size := range affinitySizes {
						result.Figures[sizeMean(size)] = t.mean(kind)
					}
					callsNow, onNow, err := c.shares(ctx)
					if callsNow > calls {
						result.Figures[forwarded] = 100 * float64(onNow-on) / float64(callsNow-calls)
					}
					return result, err
				}})
		}
	}
	return append(all, a.straight(at, rate))
}

// straight is calls to the owner of a session and to another node by turns, without a sidecar.
func (a *affinityBench) straight(at cell, rate vegeta.Pacer) lab.Variant {
	c := a.clusters[at.nodes]
	return lab.Variant{Name: at.name + ", direct", Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
		if err := c.distances(ctx, at); err != nil {
			return lab.Result{}, err
		}
		t, turn := make(times, 2), atomic.Int64{}
		result := lab.Open(ctx, rate, d, func(ctx context.Context) error {
			n := int(turn.Add(1))
			kind, pool := n%2, c.own
			if kind == 1 {
				pool = c.foreign
			}
			r := traffic.RandomRecord(affinityRecords, affinitySizes[n/2%len(affinitySizes)])
			s, err := pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer pool.Release(s)
			begun := time.Now()
			err = s.Read(ctx, r)
			t.note(kind, time.Since(begun))
			return err
		})
		result.Figures = lab.Figures{callMean: t.mean(0, 1), hopTime: t.mean(1) - t.mean(0)}
		return result, nil
	}}
}

// measure runs the cells and adds what came out of them, and below it every figure. It returns the former; nil if -only leaves it out.
func (a *affinityBench) measure(ctx context.Context, name, title, text string, cells []cell) (*lab.Table, error) {
	c := lab.Case{Name: name, Title: title + ": every figure",
		Figures: []string{callMean, hopTime, forwarded, lab.P50, lab.P99, lab.CPU, lab.PerSecond}, Quiet: 0.5}
	for _, at := range cells {
		c.Variants = append(c.Variants, a.variants(at)...)
	}
	place := len(a.l.Report.Sections)
	raw, err := a.l.Compare(ctx, c)
	if err != nil || raw == nil {
		return nil, err
	}
	found := lab.Case{Name: name + "-gain", Title: title, Text: text,
		Figures: []string{randomMean, ownerMean, forwarded, hopTime, gain, predicted, ofPredicted}}
	for _, size := range affinitySizes {
		found.Figures = append(found.Figures, sizeGain(size))
	}
	var runs [][]lab.Run
	for _, at := range cells {
		for i := range a.l.Sidecars {
			found.Variants = append(found.Variants, lab.Variant{Name: a.l.Name(at.name, i)})
			runs = append(runs,
				gains(raw.Row(a.l.Name(at.name+", random node", i)).Runs, raw.Row(a.l.Name(at.name+", owner", i)).Runs,
					raw.Row(at.name+", direct").Runs))
		}
	}
	t := lab.NewTable(found, runs)
	a.l.Report.Sections = slices.Insert(a.l.Report.Sections, place, lab.Section{Table: t})
	return t, nil
}

// gains makes the figures of a cell of the runs of one round each.
func gains(random, owner, direct []lab.Run) (all []lab.Run) {
	for i := range min(len(random), len(owner), len(direct)) {
		f, g, hop := random[i].Figures, owner[i].Figures, direct[i].Figures[hopTime]
		if f[callMean] == 0 || g[callMean] == 0 {
			continue // all calls failed, which the table of every figure tells
		}
		of := func(name string) float64 { return 100 * (1 - g[name]/f[name]) }
		law := f[forwarded] * hop / f[callMean]
		made := lab.Figures{randomMean: f[callMean], ownerMean: g[callMean], forwarded: f[forwarded], hopTime: hop,
			gain: of(callMean), predicted: law}
		if law > 0 {
			made[ofPredicted] = made[gain] / law
		}
		for _, size := range affinitySizes {
			if f[sizeMean(size)] > 0 {
				made[sizeGain(size)] = of(sizeMean(size))
			}
		}
		all = append(all, lab.Run{Calls: random[i].Calls + owner[i].Calls, Figures: made})
	}
	return all
}

// judgeShares judges what the nodes counted, with the worst cell of each number of nodes.
func (a *affinityBench) judgeShares(t *lab.Table, cells []cell) {
	for n := range a.clusters {
		want := 100 * float64(n-1) / float64(n)
		worst := lab.Estimate{Median: want}
		for _, at := range cells {
			if at.nodes != n {
				continue
			}
			if e := t.Row(a.l.Name(at.name, 0)).Figures[forwarded]; far(e.Median, want) >= far(worst.Median, want) {
				worst = e
			}
		}
		t.Judge(fmt.Sprintf("calls that %d nodes sent on, random node, in %%: (n-1)/n; the cell that is furthest off", n),
			fmt.Sprintf("%.1f ± 5", want), worst.N > 0 && far(worst.Median, want) <= 5, worst)
	}
	raw := a.rawOf(t)
	var worst lab.Estimate
	for _, row := range raw.Rows {
		if e, ok := row.Figures[forwarded]; ok && strings.Contains(row.Variant, ", owner") && (worst.N == 0 || e.High > worst.High) {
			worst = e
		}
	}
	t.Judge("calls that nodes sent on, owner, in %: none; the cell with the most", "0", worst.N > 0 && worst.High == 0, worst)
}

// rawOf is the table of every figure that belongs to one of gains.
func (a *affinityBench) rawOf(t *lab.Table) *lab.Table {
	for _, s := range a.l.Report.Sections {
		if s.Table != nil && s.Table.Name+"-gain" == t.Name {
			return s.Table
		}
	}
	return nil
}

func far(a, b float64) float64 { return max(a-b, b-a) }

// judgeGrid judges the law, and the two that follow from it.
func (a *affinityBench) judgeGrid(t *lab.Table, cells []cell) {
	var worst lab.Estimate
	for _, at := range cells {
		if e, ok := t.Row(a.l.Name(at.name, 0)).Figures[ofPredicted]; ok && at.hop > 0 &&
			(worst.N == 0 || far(e.Median, 1) > far(worst.Median, 1)) {
			worst = e
		}
	}
	t.Judge("gain, of forwarded share x hop / mean, where a hop was injected; the cell that is furthest off",
		"0.80 to 1.20", worst.N > 0 && far(worst.Median, 1) <= 0.2, worst)
	laws := lab.Case{Name: "laws", Title: "The two laws", Figures: []string{more},
		Text: "Differences of two gains of one round, in points of a per cent. First 9 nodes less 3, then the " +
			"nearer client less the farther."}
	var runs [][]lab.Run
	compare := func(law string, x, y cell) {
		laws.Variants = append(laws.Variants, lab.Variant{Name: law + ": " + x.name + ", less " + y.name})
		runs = append(runs, differences(t.Row(a.l.Name(x.name, 0)).Runs, t.Row(a.l.Name(y.name, 0)).Runs))
	}
	const byNodes, byDistance = "nodes", "distance"
	for _, x := range cells {
		for _, y := range cells {
			if x.hop > 0 && x.hop == y.hop && x.client == y.client && x.nodes > y.nodes {
				compare(byNodes, x, y)
			}
		}
	}
	for i, x := range cells {
		if i+1 < len(cells) && x.hop > 0 && x.hop == cells[i+1].hop && x.nodes == cells[i+1].nodes {
			compare(byDistance, x, cells[i+1])
		}
	}
	if len(runs) == 0 {
		return
	}
	// All pairs of cells of a round together: in a cell whose client is far a few points of noise are more than the whole gain.
	together := lab.NewTable(lab.Case{Name: "laws", Figures: []string{more}, Variants: []lab.Variant{{Name: byNodes}, {Name: byDistance}}},
		[][]lab.Run{
			means(runs, laws.Variants, byNodes), means(runs, laws.Variants, byDistance)})
	table := lab.NewTable(laws, runs)
	for _, law := range []struct{ name, text string }{
		{byNodes, "the gain grows with the nodes: mean of all pairs, in points"},
		{byDistance, "the gain shrinks with the client's distance: mean of all pairs, in points"},
	} {
		if e := together.Row(law.name).Figures[more]; e.N > 0 {
			table.Judge(law.text, "> 0, all of the interval", e.Low > 0, e)
		}
	}
	a.l.Report.Add(lab.Section{Table: table})
}

// differences are those of the gains of two cells, round by round.
func differences(x, y []lab.Run) (all []lab.Run) {
	for i := range min(len(x), len(y)) {
		all = append(all, lab.Run{Calls: x[i].Calls + y[i].Calls, Figures: lab.Figures{more: x[i].Figures[gain] - y[i].Figures[gain]}})
	}
	return all
}

// means are those of all pairs of a law, round by round.
func means(runs [][]lab.Run, variants []lab.Variant, law string) (all []lab.Run) {
	for round := 0; ; round++ {
		var sum float64
		n := 0
		for i, v := range variants {
			if strings.HasPrefix(v.Name, law) && round < len(runs[i]) {
				sum += runs[i][round].Figures[more]
				n++
			}
		}
		if n == 0 {
			return all
		}
		all = append(all, lab.Run{Figures: lab.Figures{more: sum / float64(n)}})
	}
}
