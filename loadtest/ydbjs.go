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

	"github.com/ydb-sidecar/sidecar/internal/proc"
)

// poolless lets @ydbjs, which makes a session for every query, work directly and through a sidecar in turn.
func poolless(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("ydbjs", flag.ContinueOnError)
	bin := flags.String("bin", "bin", "directory of sidecar and devcluster")
	dir := flags.String("node", "internal/devcluster/officialtest/testdata/node", "directory with the client and poolless.mjs")
	rounds := flags.Int("rounds", 11, "runs each way; the medians count")
	queries := flags.Int("queries", 300, "in a run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *rounds < 1 || *queries < 1 {
		return fmt.Errorf("arguments %q, rounds %d, queries %d: want none, at least 1, 1", flags.Args(), *rounds, *queries)
	}
	s, err := startStack(ctx, *bin)
	if err != nil {
		return err
	}
	defer s.stop()
	side, err := s.sidecar(ctx, "pool.min=20", "wire.mode=transaction")
	if err != nil {
		return err
	}
	urls := "grpc://" + s.nodes[0].Address + "/local,grpc://" + side.conn.CanonicalTarget()[len("passthrough:///"):] + "/local"
	fmt.Printf("@ydbjs, SELECT 1 with a session for each; medians of %d runs of %d queries, in turn; range of the runs in brackets.\n\n", *rounds, *queries)
	fmt.Println("| in flight | direct, us a query | through the sidecar | ratio | median of one query, direct | through | cluster's calls a query, direct | through |\n|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, n := range []int{1, 4, 16} {
		p, err := proc.Start(proc.Spec{Path: "node", Args: []string{"poolless.mjs"}, Dir: *dir, Env: []string{"YDB_URLS=" + urls, "YDB_CONTROL=" + s.control.Address,
			fmt.Sprint("YDB_ROUNDS=", *rounds), fmt.Sprint("YDB_QUERIES=", *queries), fmt.Sprint("YDB_IN_FLIGHT=", n)}})
		if err != nil {
			return err
		}
		code, err := p.Wait(ctx)
		if err != nil || code != 0 {
			stopped, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_, _ = p.Stop(stopped) // it is gone after this
			return fmt.Errorf("%s: exit code %d, %v: %s", filepath.Join(*dir, "poolless.mjs"), code, err, p.Log())
		}
		var said struct {
			Result [2][]struct {
				US, Median float64
				Calls      float64
			}
		}
		out := strings.TrimSpace(p.Stdout())
		if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), &said); err != nil {
			return err
		}
		var us, one, calls [2]float64
		var spread [2]string
		for i, runs := range said.Result {
			var a, b, c []float64
			for _, r := range runs {
				a, b, c = append(a, r.US), append(b, r.Median), append(c, r.Calls/float64(*queries))
			}
			slices.Sort(a)
			slices.Sort(b)
			slices.Sort(c)
			us[i], one[i], calls[i] = a[len(a)/2], b[len(b)/2], c[len(c)/2]
			spread[i] = fmt.Sprintf("%.0f (%.0f-%.0f)", us[i], a[0], a[len(a)-1])
		}
		fmt.Printf("| %d | %s | %s | %.2f | %.0f | %.0f | %.2f | %.2f |\n", n, spread[0], spread[1], us[1]/us[0], one[0], one[1], calls[0], calls[1])
	}
	return nil
}
