package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// A client without a pool makes a session for every query, attaches to it and deletes it: four
// calls of the cluster directly, and one through the sidecar.
func TestPoollessClientCostsOneCallAQuery(t *testing.T) {
	const queries, rounds, inFlight = 100, 2, 4
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, inMode("transaction")...)
	dir := filepath.Join(standtest.Root(t), officialTests, "node")
	p := standtest.Start(t, stand.Spec{Path: "node", Args: []string{"poolless.mjs"}, Dir: dir, Env: []string{
		"YDB_URLS=grpc://" + c.Nodes[0].Address + "/local," + s.sdk(), "YDB_CONTROL=" + c.Address,
		fmt.Sprint("YDB_QUERIES=", queries), fmt.Sprint("YDB_ROUNDS=", rounds), fmt.Sprint("YDB_IN_FLIGHT=", inFlight),
	}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v\n%s", code, err, stand.LastLines(p.Log(), 20))
	}
	var said struct {
		Result [2][]struct{ Calls, Statements, Sessions int }
	}
	if err := json.Unmarshal([]byte(stand.LastLines(strings.TrimSpace(p.Stdout()), 1)), &said); err != nil {
		t.Fatal(err, p.Stdout())
	}
	for i, n := range said.Result[0] {
		if n.Calls < 4*queries || n.Statements != queries || n.Sessions != queries {
			t.Errorf("directly, round %d: %+v for %d queries; the client is not what this test is about", i, n, queries)
		}
	}
	for i, n := range said.Result[1] {
		// Beside the queries are discovery and probes, which go by the time: no more than this in the
		// minute that the client has. And the pool may grow, by CreateSession and AttachSession, as
		// calls that hold a session wait for a processor.
		const beside, growth = queries / 5, 4 * inFlight
		if n.Calls > queries+2*n.Sessions+beside || n.Statements != queries || n.Sessions > growth {
			t.Errorf("through the sidecar, round %d: %+v for %d queries; want a call for each, and two for a new session", i, n, queries)
		}
	}
	t.Logf("%d queries: %+v", queries, said.Result)
}
