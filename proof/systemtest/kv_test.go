package systemtest

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/metadata"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"

	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// The committed targets, as `vegeta attack -targets loadtest/kv/targets.http`
// reads them, against the built programs: every answer is a success.
func TestVegetaAttacksTheKeyValueFace(t *testing.T) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "kv.tables=bench=bench key=id:Uint64 value=payload:Utf8")
	for _, sql := range []string{
		"CREATE TABLE bench (id Uint64, payload Utf8, PRIMARY KEY (id)) WITH (KEY_BLOOM_FILTER = ENABLED)",
		"UPSERT INTO bench (id, payload) VALUES (1, 'x'u), (2, 'y'u)",
	} {
		if _, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: sql, Idempotent: true}); err != nil {
			t.Fatal(err)
		}
	}
	if filter := bloomFilter(t, c, "/local/bench"); filter != Ydb.FeatureFlag_ENABLED {
		t.Errorf("the table was made with the filter %v; want ENABLED, as the statement says", filter)
	}
	text, err := os.ReadFile(filepath.Join(standtest.Root(t), "loadtest", "kv", "targets.http"))
	if err != nil {
		t.Fatal(err)
	}
	// The programs of a test listen where there is room, and it runs elsewhere.
	text = bytes.ReplaceAll(text, []byte("127.0.0.1:7401"), []byte(s.HTTP))
	text = bytes.ReplaceAll(text, []byte("@loadtest"), []byte("@"+filepath.Join(standtest.Root(t), "loadtest")))
	targets, err := vegeta.ReadAllTargets(vegeta.NewHTTPTargeter(bytes.NewReader(text), nil, http.Header{}))
	if err != nil || len(targets) < 6 {
		t.Fatalf("%d targets, %v", len(targets), err)
	}
	attacker := vegeta.NewAttacker(vegeta.Timeout(20*time.Second), vegeta.MaxWorkers(16))
	var metrics vegeta.Metrics
	bodies, newest := map[string]string{}, map[string]uint64{} // answers come in any order
	for r := range attacker.Attack(vegeta.NewStaticTargeter(targets...), vegeta.Rate{Freq: 200, Per: time.Second}, 2*time.Second, "kv") {
		metrics.Add(r)
		if what := r.Method + " " + r.URL[strings.LastIndexByte(r.URL, '/'):]; r.Seq >= newest[what] {
			bodies[what], newest[what] = string(r.Body), r.Seq
		}
	}
	metrics.Close()
	if metrics.Success != 1 || len(bodies) < len(targets) {
		t.Errorf("%d requests, %.3f of them succeeded: %v %v", metrics.Requests, metrics.Success, metrics.StatusCodes, metrics.Errors)
	}
	if got := bodies["GET /bench?id=2"]; got != "a value of a few bytes" {
		t.Errorf("a value came back as %q", got)
	}
	if got := bodies["POST /bench:batchGet"]; !strings.Contains(got, `"missing":["3"]`) {
		t.Errorf("a batch came back as %q", got)
	}
}

// bloomFilter asks a node itself how a table was made.
func bloomFilter(t *testing.T, c *ydb, path string) Ydb.FeatureFlag_Status {
	t.Helper()
	conn, _ := dial(t, c.Nodes[0].Address)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-ydb-database", "/local")
	r, err := Ydb_Table_V1.NewTableServiceClient(conn).DescribeTable(ctx, &Ydb_Table.DescribeTableRequest{Path: path})
	var d Ydb_Table.DescribeTableResult
	if err == nil {
		err = r.GetOperation().GetResult().UnmarshalTo(&d)
	}
	if err != nil {
		t.Fatalf("describe %s: %v", path, err)
	}
	return d.GetKeyBloomFilter()
}
