package app

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/clustertest"
)

// selectsAll reads a table as an SDK does, and reports whether all went well.
func (s *sidecar) selectsAll(ctx context.Context) bool {
	stream, err := Ydb_Query_V1.NewQueryServiceClient(s.conn).ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
		ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query:    &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT * FROM t"}},
	})
	if err != nil {
		return false
	}
	for {
		part, err := stream.Recv()
		if err != nil {
			return err == io.EOF
		}
		if part.GetStatus() != Ydb.StatusIds_SUCCESS {
			return false
		}
	}
}

// What a cluster reports of the cost of calls is added up by app, over both APIs.
func TestConsumedUnitsOfBothAPIs(t *testing.T) {
	c := clustertest.Start(t, func(config *devcluster.Config) {
		config.ConsumedUnits = true
	})
	s := start(t, c.Endpoint(), "wire.mode=transaction")
	if r, err := s.query("CREATE TABLE t (id Uint64 NOT NULL, PRIMARY KEY (id))"); err != nil {
		t.Fatal(r, err)
	}
	if r, err := s.query(
		"UPSERT INTO t (id) VALUES (1ul), (2ul), (3ul)",
	); err != nil || r.GetInfo().ConsumedUnits == nil || r.GetInfo().GetConsumedUnits() != 6 {
		t.Fatalf("three rows written: %v, %v; want 6 units", r, err)
	}
	request, err := http.NewRequest(http.MethodPost, "http://"+s.at.HTTP+"/v1/query", strings.NewReader(`{"sql":"SELECT * FROM t"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Sidecar-App", "web")
	response, err := s.http.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if response.Body.Close(); err != nil || !strings.Contains(string(text), `"consumed_units":3`) {
		t.Errorf("over HTTP: %v, %s; want 3 units", err, text)
	}
	ctx, cancel := context.WithTimeout(
		metadata.AppendToOutgoingContext(t.Context(), "x-ydb-application-name", "web", "x-ydb-database", "/local"),
		time.Minute,
	)
	defer cancel()
	s.eventually("the data path serves", func() bool { // it hears of the nodes a moment later than the rest
		return s.selectsAll(ctx)
	})
	var all []apps.State
	s.state("/state/apps", &all)
	units := map[string]uint64{}
	for _, a := range all {
		units[a.App] = a.Units
	}
	// The scheme statement of the unnamed app costs 1.
	if units["web"] != 6 || units[apps.Unnamed] != 7 {
		t.Errorf("units by app: %v; want 6 of web and 7 of the unnamed one", units)
	}
	_, metrics := s.get("/metrics")
	found := false
	for line := range strings.Lines(metrics) {
		found = found ||
			strings.HasPrefix(line, "ydb_sidecar_app_consumed_units_total{") &&
				strings.Contains(line, `ydb_sidecar_app="web"`) && strings.HasSuffix(
				line, " 6\n",
			)
	}
	if !found {
		t.Errorf("/metrics lacks the units of web:\n%s", metrics)
	}
}
