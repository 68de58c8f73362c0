package sdks

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// poollessNode is the directory of the client without a pool, below the module's directory.
const poollessNode = "proof/devcluster/officialtest/testdata/node"

// clusterCalls is a figure: calls that the nodes get for each query.
const clusterCalls = "cluster-calls/call"

// poollessCases let @ydbjs, which makes a session for every query, work directly and through a sidecar in turn,
// and a client in Go that makes the same calls: docs/dev/virtual-sessions-cost.md.
func poollessCases(ctx context.Context, l *lab.Lab, root string) error {
	name := func(prefix string, inFlight int) string { return fmt.Sprintf("%s-c%d", prefix, inFlight) }
	networks := []struct {
		name  string
		delay time.Duration
	}{{"ydbjs", 0}, {"ydbjs-1ms", time.Millisecond}}[:lab.At(l, 1, 2, 2)]
	counts := lab.At(l, []int{8}, []int{1, 8}, []int{1, 8})
	wanted := false
	for _, n := range counts {
		wanted = wanted || l.Wanted(name("poolless", n)) || l.Wanted(name("ydbjs", n)) || l.Wanted(name("ydbjs-1ms", n))
	}
	if !wanted {
		return nil
	}
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	side, err := l.Sidecar(ctx, cluster.Endpoint(), "pool.min=20", "wire.mode=transaction")
	if err != nil {
		return err
	}
	if err := traffic.Fill(ctx, side.Client); err != nil {
		return err
	}
	for _, n := range counts {
		if err := poollessInGo(ctx, l, cluster, side, name("poolless", n), n); err != nil {
			return err
		}
	}
	for _, network := range networks {
		if network.delay > 0 {
			for _, node := range cluster.Nodes {
				if err := cluster.Control.Do(ctx, node.ID, "delay", map[string]any{"delay": network.delay.String()}); err != nil {
					return err
				}
			}
		}
		for _, n := range counts {
			if !l.Wanted(name(network.name, n)) {
				continue
			}
			if err := poollessCase(ctx, l, root, name(network.name, n), n, network.delay, cluster, side); err != nil {
				return err
			}
		}
	}
	return nil
}

// poollessCase is one number of queries in flight over one network.
func poollessCase(
	ctx context.Context, l *lab.Lab, root, name string, n int, delay time.Duration, cluster *lab.Cluster, side *lab.Sidecar,
) error {
	c := lab.Case{Name: name,
		Title:    fmt.Sprintf("@ydbjs/query with a session for each query, %d in flight, network %v", n, delay),
		Baseline: "directly",
		Text: "`SELECT 1`, directly and through the sidecar in turn. The network is as much time before " +
			"each call that the cluster is sent. *query* is the time of all queries by their number, *p50* " +
			"the median of one query.",
		Figures:  []string{queryTime, lab.P50, sdksApp, sdksCluster, sdksSidecar, clusterCalls},
		Ratios:   []string{queryTime},
		Variants: []lab.Variant{{Name: "directly"}, {Name: "through the sidecar"}}}
	runs, err := poollessRuns(ctx, l, root, n, cluster, side)
	if err != nil {
		return err
	}
	l.Report.Add(lab.Section{Table: lab.NewTable(c, runs)})
	l.Progress("%s", c.Name)
	return nil
}

// queryTime is a figure: the time of all queries by their number.
const queryTime = "query-ns"

// poollessInGo makes the same calls for each query from Go, which takes less time for them than the server does.
func poollessInGo(ctx context.Context, l *lab.Lab, cluster *lab.Cluster, side *lab.Sidecar, name string, inFlight int) error {
	d, err := traffic.DialNodes(ctx, cluster.Nodes, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	c := lab.Case{Name: name,
		Title:    fmt.Sprintf("The four calls of a session for each query, made in Go, %d in flight", inFlight),
		Baseline: "directly",
		Ratios:   []string{lab.PerSecond}, Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.CPU}}
	for _, way := range []struct {
		name  string
		under []*lab.Process
		conn  grpc.ClientConnInterface
	}{{"directly", nil, d.Conns[0]}, {"through the sidecar", []*lab.Process{side.Process}, side.Conn}} {
		client := Ydb_Query_V1.NewQueryServiceClient(way.conn)
		c.Variants = append(c.Variants, lab.Variant{Name: way.name, Under: way.under,
			Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
				return lab.Closed(ctx, inFlight, d, func(ctx context.Context) error { return sessionForOne(ctx, client) }), nil
			}})
	}
	_, err = l.Compare(ctx, c)
	return err
}

// sessionForOne makes a session, attaches to it, runs a query and deletes the session.
func sessionForOne(ctx context.Context, client Ydb_Query_V1.QueryServiceClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &traffic.Direct{Sessions: make(chan traffic.DirectSession, 1)}
	if err := d.Open(ctx, client); err != nil {
		return err
	}
	session := <-d.Sessions
	d.Sessions <- session
	if err := d.Read(ctx); err != nil {
		return err
	}
	r, err := client.DeleteSession(traffic.WithDatabase(ctx), &Ydb_Query.DeleteSessionRequest{SessionId: session.ID})
	if err == nil && r.GetStatus() != Ydb.StatusIds_SUCCESS {
		err = fmt.Errorf("delete a session: %v", r.GetIssues())
	}
	return err
}

// poollessRuns runs the client in Node once; it takes turns itself.
func poollessRuns(
	ctx context.Context, l *lab.Lab, root string, inFlight int, cluster *lab.Cluster, side *lab.Sidecar,
) ([][]lab.Run, error) {
	queries := lab.At(l, 20, 300, 300)
	p, err := l.Spawn("app", stand.Spec{Path: "node", Args: []string{"poolless.mjs"}, Dir: filepath.Join(root, poollessNode), Env: []string{
		"YDB_URLS=" + cluster.Endpoint() + ",grpc://" + side.GRPC + "/local",
		fmt.Sprintf("YDB_PIDS=%d,%d", cluster.Pid(), side.Pid()), "YDB_CONTROL=" + cluster.Control.Address,
		fmt.Sprint("YDB_IN_FLIGHT=", inFlight), fmt.Sprint("YDB_ROUNDS=", lab.At(l, 1, l.Rounds, max(11, l.Rounds))),
		fmt.Sprint("YDB_QUERIES=", queries)}})
	if err != nil {
		return nil, err
	}
	defer l.End(p)
	if code, err := p.Wait(ctx); err != nil || code != 0 {
		return nil, fmt.Errorf("poolless.mjs: exit code %d, %w: %s", code, err, p.Log())
	}
	var said struct {
		Result [2][]struct {
			US, Median, Calls float64
			CPU               [3]float64 // of a query: of the client, the cluster and the sidecar
		}
	}
	out := strings.TrimSpace(p.Stdout())
	if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), &said); err != nil {
		return nil, fmt.Errorf("what poolless.mjs printed: %w", err)
	}
	all := make([][]lab.Run, len(said.Result))
	for i, runs := range said.Result {
		for _, r := range runs {
			all[i] = append(all[i], lab.Run{Closed: true, Calls: int64(queries),
				Figures: lab.Figures{queryTime: r.US * 1e3, lab.P50: r.Median * 1e3,
					sdksApp: r.CPU[0] * 1e3, sdksCluster: r.CPU[1] * 1e3, sdksSidecar: r.CPU[2] * 1e3,
					clusterCalls: r.Calls / float64(queries)}})
		}
	}
	return all, nil
}
