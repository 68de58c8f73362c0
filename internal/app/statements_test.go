package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"golang.org/x/sync/errgroup"

	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// digests reads /state/statements: its rows by digest.
func (s *sidecar) digests(query string) (statements.State, map[string]statements.Row) {
	s.Helper()
	status, text := s.get("/state/statements" + query)
	var all statements.State
	if err := json.Unmarshal([]byte(text), &all); err != nil || status != http.StatusOK {
		s.Fatalf("%d %s: %v", status, text, err)
	}
	rows := map[string]statements.Row{}
	for _, row := range all.Rows {
		rows[row.Digest] = row
	}
	return all, rows
}

// Statements over both APIs and of SDKs count by digest, and no text of theirs is shown.
func TestStatementsOfAllWays(t *testing.T) {
	s := start(t, newCluster(t).Endpoint())
	s.eventually("started", func() bool { status, _ := s.get("/startupz?deep=1"); return status == http.StatusOK })
	const secret = "SELECT 'a secret' AS column_name"
	http1 := func(path, body string) {
		t.Helper()
		if status, text := s.fetch(http.MethodPost, "http://"+s.at.HTTP+path, body); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	http1("/v1/query", `{"sql":"`+secret+`"}`)
	http1("/v1/tx", `{"statements":[{"sql":"`+secret+`"},{"sql":"SELECT 1"}]}`)
	http1("/v1/batch", `{"statements":[{"sql":"`+secret+`"},{"sql":"SELECT 2"}]}`)
	begun, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: secret,
		Tx: &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: secret,
		Tx: &sidecarv1.TxSelector{Id: begun.GetTx().GetId(), Commit: true}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELEKT 'a secret'"}); err == nil {
		t.Fatal("no error")
	}
	stream, err := Ydb_Query_V1.NewQueryServiceClient(s.conn).ExecuteQuery(t.Context(), &Ydb_Query.ExecuteQueryRequest{
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: secret}}})
	for err == nil {
		_, err = stream.Recv()
	}

	var all statements.State
	var rows map[string]statements.Row
	s.eventually("all calls are counted", func() bool { all, rows = s.digests(""); return all.All.Calls >= 9 })
	for text, calls := range map[string]uint64{secret: 6, "SELECT 1": 2, "SELEKT 'a secret'": 1} {
		row := rows[statements.Digest(text).String()]
		if row.Start.Calls != calls || row.Start.TookMS <= 0 || row.Start.HopMS <= 0 || row.Text != "" {
			t.Errorf("%s: %+v; want %d calls", text, row, calls)
		}
		if failed := strings.HasPrefix(text, "SELEKT"); failed != (row.Start.Statuses["YDB_GENERIC_ERROR"] == 1) {
			t.Errorf("%s: %v", text, row.Start.Statuses)
		}
	}
	if row := rows[statements.Digest(secret).String()]; row.Kind != "SELECT" || row.Start.Rows != 5 || row.Start.Bytes == 0 {
		t.Errorf("%+v", row)
	}
	if all, _ := s.digests("?by=errors&limit=1"); len(all.Rows) != 1 || all.Rows[0].Start.Failed != 1 {
		t.Errorf("the first by errors: %+v", all.Rows)
	}
	if status, text := s.get("/state/statements?by=age"); status != http.StatusBadRequest || !strings.Contains(text, "by = ") {
		t.Errorf("%d %s", status, text)
	}
	for _, path := range []string{"/state/statements", "/metrics", "/state/page", "/events"} {
		if _, text := s.get(path); strings.Contains(text, "a secret") || strings.Contains(text, "column_name") {
			t.Errorf("%s shows a text", path)
		}
	}
}

// With statements.texts the text is there without its literals.
func TestTextsOfStatements(t *testing.T) {
	s := start(t, newCluster(t).Endpoint(), "statements.texts=true")
	s.eventually("started", func() bool { status, _ := s.get("/startupz?deep=1"); return status == http.StatusOK })
	if _, err := s.query("SELECT 'a secret' AS column_name -- and more"); err != nil {
		t.Fatal(err)
	}
	s.eventually("the text is there", func() bool {
		all, _ := s.digests("?by=calls&window=start")
		return len(all.Rows) == 1 && all.Rows[0].Text == "SELECT ? AS column_name"
	})
	if a := s.views.Picture().Answers; a.Calls != 1 || a.Bytes == 0 {
		t.Errorf("findings see %+v; want the answer of one statement", a)
	}
}

// Texts with literals in them are found.
func TestTextsThatAreNotParameterised(t *testing.T) {
	t.Parallel()
	s := start(t, newCluster(t).Endpoint())
	s.eventually("started", func() bool { status, _ := s.get("/startupz?deep=1"); return status == http.StatusOK })
	for i := range 200 {
		if _, err := s.query(fmt.Sprintf("SELECT %d AS id", i)); err != nil {
			t.Fatal(err)
		}
	}
	s.eventually("it is found", func() bool {
		_, text := s.get("/state/findings")
		return strings.Contains(text, "STATEMENT_TEXTS") && strings.Contains(text, statements.Digest("SELECT 1 AS id").String())
	})
}

// A statement that becomes slow on the nodes is found, and no longer once it is as usual again. Minutes end when the test
// says so; the calls and what they take are real.
func TestStatementsThatBecameSlow(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint())
	s.eventually("started", func() bool { status, _ := s.get("/startupz?deep=1"); return status == http.StatusOK })
	const text = "SELECT 1 AS id"
	now := time.Now()
	minute := func(calls int) {
		t.Helper()
		var all errgroup.Group
		for range calls {
			all.Go(func() error { _, err := s.query(text); return err })
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Minute + time.Second)
		s.statements.Gather(now)
	}
	found := func() bool {
		_, findings := s.get("/state/findings")
		return strings.Contains(findings, "STATEMENT_SLOW") && strings.Contains(findings, statements.Digest(text).String())
	}
	for range 12 {
		minute(6)
	}
	if minute(24); found() {
		t.Error("a statement that takes what it always took is found")
	}
	delayAll(t, c, devcluster.Delay{Delay: time.Second / 2, Share: 1, Methods: []string{"ExecuteQuery"}})
	minute(24)
	s.eventually("it is found", found)
	delayAll(t, c, devcluster.Delay{})
	s.eventually("it is no longer found", func() bool {
		minute(24) // another one where the machine was busy in the last
		return !found()
	})
}
