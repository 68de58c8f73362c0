package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// poolless lets @ydbjs, which makes a session for every query, work directly and through a sidecar in turn.
func poolless(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("ydbjs", flag.ContinueOnError)
	bin := flags.String("bin", "bin", "directory of sidecar and devcluster")
	dir := flags.String("node", "proof/devcluster/officialtest/testdata/node", "directory with the client and poolless.mjs")
	rounds := flags.Int("rounds", 11, "runs each way; the medians count")
	queries := flags.Int("queries", 300, "in a run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *rounds < 1 || *queries < 1 {
		return fmt.Errorf("arguments %q, rounds %d, queries %d: want none, at least 1, 1", flags.Args(), *rounds, *queries)
	}
	l := lab.New(*bin, 5, 1500*time.Millisecond)
	defer l.Stop()
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	side, err := l.Sidecar(ctx, cluster.Endpoint(), "pool.min=20", "wire.mode=transaction")
	if err != nil {
		return err
	}
	if err := fill(ctx, side.Client); err != nil {
		return err
	}
	if err := poollessInGo(ctx, l, cluster, side); err != nil {
		return err
	}
	urls := cluster.Endpoint() + ",grpc://" + side.GRPC + "/local"
	pids := fmt.Sprintf("%d,%d", cluster.Pid(), side.Pid())
	fmt.Printf("\n@ydbjs, SELECT 1 with a session for each; medians of %d runs of %d queries, in turn; range of the runs in brackets. The network is as much time before each call that the cluster is sent.\n\n", *rounds, *queries)
	fmt.Println("| network | in flight | direct, us a query | through the sidecar | ratio | median of one query, direct | through | CPU of the client, direct | through | of the cluster, direct | through | of the sidecar | cluster's calls, direct | through |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, delay := range []time.Duration{0, time.Millisecond} {
		if delay > 0 {
			for _, node := range cluster.Nodes {
				if err := cluster.Control.Do(ctx, node.ID, "delay", map[string]any{"delay": delay.String()}); err != nil {
					return err
				}
			}
		}
		for _, n := range []int{1, 8} {
			row, err := poollessRuns(ctx, *dir, *rounds, *queries, "YDB_URLS="+urls, "YDB_PIDS="+pids, "YDB_CONTROL="+cluster.Control.Address, fmt.Sprint("YDB_IN_FLIGHT=", n))
			if err != nil {
				return err
			}
			d, t := row[0], row[1]
			fmt.Printf("| %v | %d | %s | %s | %.2f | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f | %.2f | %.2f |\n", delay, n, d.spread, t.spread, t.us/d.us, d.one, t.one,
				d.cpu[0], t.cpu[0], d.cpu[1], t.cpu[1], t.cpu[2], d.calls, t.calls)
		}
	}
	return nil
}

// poollessInGo makes the same calls for each query from Go, which takes less time for them than the server does.
func poollessInGo(ctx context.Context, l *lab.Lab, cluster *lab.Cluster, side *lab.Sidecar) error {
	d, err := dialNodes(ctx, cluster.Nodes, 0)
	if err != nil {
		return err
	}
	defer d.close()
	fmt.Println("The four calls of a session for each query, made in Go; medians of 5 runs:")
	for _, n := range []int{1, 8} {
		c := lab.Case{Name: fmt.Sprint("c", n), Title: fmt.Sprint(n, " in flight"), Baseline: "directly", Ratios: []string{lab.PerSecond}, Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.CPU}}
		for _, way := range []struct {
			name  string
			under []*lab.Process
			conn  grpc.ClientConnInterface
		}{{"directly", nil, d.conns[0]}, {"through the sidecar", []*lab.Process{side.Process}, side.Conn}} {
			client := Ydb_Query_V1.NewQueryServiceClient(way.conn)
			c.Variants = append(c.Variants, lab.Variant{Name: way.name, Under: way.under, Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
				return lab.Closed(ctx, n, d, func(ctx context.Context) error { return sessionForOne(ctx, client) }), nil
			}})
		}
		t, err := l.Compare(ctx, c)
		if err != nil {
			return err
		}
		fmt.Printf("\n%s", t.Markdown())
	}
	return nil
}

// sessionForOne makes a session, attaches to it, runs a query and deletes the session.
func sessionForOne(ctx context.Context, client Ydb_Query_V1.QueryServiceClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &direct{sessions: make(chan directSession, 1)}
	if err := d.open(ctx, client); err != nil {
		return err
	}
	session := <-d.sessions
	d.sessions <- session
	if err := d.read(ctx); err != nil {
		return err
	}
	r, err := client.DeleteSession(withDatabase(ctx), &Ydb_Query.DeleteSessionRequest{SessionId: session.id})
	if err == nil && r.GetStatus() != Ydb.StatusIds_SUCCESS {
		err = fmt.Errorf("delete a session: %v", r.GetIssues())
	}
	return err
}

// poollessRun are medians of the runs of one way, for a query.
type poollessRun struct {
	us, one, calls float64
	cpu            [3]float64 // client, cluster, sidecar
	spread         string
}

// poollessRuns runs the client once, directly and through the sidecar by turns.
func poollessRuns(ctx context.Context, dir string, rounds, queries int, env ...string) (row [2]poollessRun, err error) {
	p, err := stand.Start(stand.Spec{Path: "node", Args: []string{"poolless.mjs"}, Dir: dir, Env: append(env, fmt.Sprint("YDB_ROUNDS=", rounds), fmt.Sprint("YDB_QUERIES=", queries))})
	if err != nil {
		return row, err
	}
	code, err := p.Wait(ctx)
	if err != nil || code != 0 {
		stopped, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = p.Stop(stopped) // it is gone after this
		return row, fmt.Errorf("%s: exit code %d, %v: %s", filepath.Join(dir, "poolless.mjs"), code, err, p.Log())
	}
	var said struct {
		Result [2][]struct {
			US, Median, Calls float64
			CPU               [3]float64
		}
	}
	out := strings.TrimSpace(p.Stdout())
	if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), &said); err != nil {
		return row, err
	}
	for i, runs := range said.Result {
		middle := func(figure func(j int) float64) (median, least, most float64) {
			all := make([]float64, len(runs))
			for j := range runs {
				all[j] = figure(j)
			}
			slices.Sort(all)
			return all[len(all)/2], all[0], all[len(all)-1]
		}
		var least, most float64
		row[i].us, least, most = middle(func(j int) float64 { return runs[j].US })
		row[i].spread = fmt.Sprintf("%.0f (%.0f-%.0f)", row[i].us, least, most)
		row[i].one, _, _ = middle(func(j int) float64 { return runs[j].Median })
		row[i].calls, _, _ = middle(func(j int) float64 { return runs[j].Calls / float64(queries) })
		for k := range row[i].cpu {
			row[i].cpu[k], _, _ = middle(func(j int) float64 { return runs[j].CPU[k] })
		}
	}
	return row, nil
}
