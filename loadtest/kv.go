package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The tables of the key-value face: the rows of the point reads, and one with a
// version column beside it.
const (
	kvTables  = "kv.tables=bench=bench key=id:Uint64 value=payload:Utf8,versions=versions key=id:Uint64 value=payload:Utf8 version=rev:Uint64"
	kvCreate  = `CREATE TABLE IF NOT EXISTS versions (id Uint64, payload Utf8, rev Uint64, PRIMARY KEY (id))`
	kvWrite   = `DECLARE $id AS Uint64; DECLARE $payload AS Utf8; UPSERT INTO bench (id, payload) VALUES ($id, $payload)`
	kvBatch   = 100
	kvAsQuery = `DECLARE $ids AS List<Uint64>; SELECT id, payload FROM bench WHERE id IN $ids`
)

// kvReport is the key-value face next to the same work by statements.
type kvReport struct {
	InFlight int         `json:"in_flight"`
	Repeats  int         `json:"repeats"`
	Duration string      `json:"duration"`
	Groups   []*kvSeries `json:"groups"`
}

// kvSeries are variants that do the same. Base is the statement of the same mode.
type kvSeries struct {
	Name string    `json:"name"`
	Base int       `json:"base"`
	All  []*series `json:"all"`
}

// ratio compares a variant with the base, turn by turn: what else the machine
// does hits the runs of one turn alike.
func (g *kvSeries) ratio(one *series) float64 {
	ratios := make([]float64, len(one.Runs))
	for i, run := range one.Runs {
		ratios[i] = run.PerSecond / g.All[g.Base].Runs[i].PerSecond
	}
	slices.Sort(ratios)
	return ratios[(len(ratios)-1)/2]
}

// keyValue measures the key-value face.
func keyValue(ctx context.Context, args []string) error {
	o := options{}
	flags := flag.NewFlagSet("kv", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin", "bin", "directory of sidecar and devcluster")
	flags.StringVar(&o.out, "out", "report", "directory of kv.json and kv.md")
	flags.IntVar(&o.repeats, "repeats", 5, "runs of each measurement; the median counts")
	flags.DurationVar(&o.duration, "duration", 2*time.Second, "of one run")
	inFlight := flags.Int("in-flight", 16, "calls in flight")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.repeats < 1 || o.duration < 100*time.Millisecond || *inFlight < 1 {
		return fmt.Errorf("repeats %d, duration %v, in-flight %d: want at least 1, 100ms, 1", o.repeats, o.duration, *inFlight)
	}
	r, err := benchKV(ctx, o, *inFlight)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"kv.json": append(data, '\n'), "kv.md": []byte(r.markdown())} {
		if err := os.WriteFile(filepath.Join(o.out, name), data, 0o644); err != nil {
			return err
		}
	}
	fmt.Print(r.markdown())
	for _, g := range r.Groups {
		for _, one := range g.All {
			if one.Median.Failed > 0 {
				return fmt.Errorf("%s: %d calls failed", one.Name, one.Median.Failed)
			}
		}
	}
	return nil
}

func benchKV(ctx context.Context, o options, inFlight int) (*kvReport, error) {
	s, err := startStack(ctx, o.bin)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	side, err := s.sidecar(ctx, "pool.min=50", kvTables)
	if err != nil {
		return nil, err
	}
	if err := fill(ctx, side.client); err != nil {
		return nil, err
	}
	if _, err := side.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: kvCreate, Timeout: "20s"}); err != nil {
		return nil, fmt.Errorf("create the table: %w", err)
	}
	k := &kvLoad{base: "http://" + side.http, sql: side.client, kv: sidecarv1.NewKeyValueClient(side.conn), payload: strings.Repeat("x", 100),
		web: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: inFlight}}}
	defer k.web.CloseIdleConnections()
	r := &kvReport{InFlight: inFlight, Repeats: o.repeats, Duration: o.duration.String()}
	type named struct {
		name string
		call call
	}
	for _, g := range []struct {
		name  string
		base  int
		calls []named
	}{
		{"A point read of 100 bytes, HTTP", 1, []named{{"POST /v1/query", k.queryHTTP("")}, {"POST /v1/query, snapshot_ro", k.queryHTTP("snapshot_ro")}, {"GET /v1/kv", k.getHTTP}, {"GET /v1/kv, a missing key", k.missingHTTP}}},
		{"A point read of 100 bytes, gRPC", 1, []named{{"Execute", k.query("")}, {"Execute, snapshot_ro", k.query("snapshot_ro")}, {"KeyValue/Get", k.get}}},
		{"A write of 100 bytes, HTTP", 1, []named{{"POST /v1/query", k.upsertHTTP("")}, {"POST /v1/query, serializable_rw", k.upsertHTTP("serializable_rw")}, {"PUT /v1/kv", k.putHTTP("bench")}, {"PUT /v1/kv with a version", k.putHTTP("versions")}}},
		{"A write of 100 bytes, gRPC", 1, []named{{"Execute", k.upsert("")}, {"Execute, serializable_rw", k.upsert("serializable_rw")}, {"KeyValue/Put", k.put("bench")}, {"KeyValue/Put with a version", k.put("versions")}}},
		{fmt.Sprintf("%d rows by their keys, gRPC", kvBatch), 0, []named{{"Execute with IN", k.queryMany}, {"KeyValue/BatchGet", k.batchGet}}},
	} {
		var variants []variant
		for _, c := range g.calls {
			variants = append(variants, variant{c.name, side.process.Pid(), func(ctx context.Context, d time.Duration) result { return closedLoop(ctx, inFlight, d, c.call) }})
		}
		all, err := measure(ctx, s, o, variants)
		if err != nil {
			return nil, err
		}
		r.Groups = append(r.Groups, &kvSeries{g.name, g.base, all})
	}
	return r, nil
}

// kvLoad makes calls of every kind.
type kvLoad struct {
	base    string
	web     *http.Client
	sql     sidecarv1.SidecarClient
	kv      sidecarv1.KeyValueClient
	payload string
}

func (k *kvLoad) send(ctx context.Context, method, path, body, media string, want int) error {
	req, err := http.NewRequestWithContext(ctx, method, k.base+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	res, err := k.web.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != want && !(want == http.StatusNoContent && res.StatusCode == http.StatusCreated) {
		err = fmt.Errorf("%s %s: %d %.200s", method, path, res.StatusCode, answer)
	}
	if err == nil && method == http.MethodPost && !bytes.Contains(answer, []byte(`"rows":[`)) {
		err = fmt.Errorf("%s: %.200s", path, answer)
	}
	return err
}

// queryHTTP reads a row by a statement; "" is the mode of a statement that says nothing.
func (k *kvLoad) queryHTTP(mode string) call {
	return func(ctx context.Context) error {
		return k.send(ctx, http.MethodPost, "/v1/query", fmt.Sprintf(`{"sql":%q,"params":{"id":%d},"mode":%q}`, read, randomID(), mode), "application/json", http.StatusOK)
	}
}

func (k *kvLoad) query(mode string) call {
	return func(ctx context.Context) error {
		r, err := k.sql.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: read, Mode: mode, Params: map[string]*sidecarv1.Value{"id": unsigned(randomID())}})
		if err == nil && len(r.Rows) != 1 {
			err = fmt.Errorf("got %d rows", len(r.Rows))
		}
		return err
	}
}

func (k *kvLoad) getHTTP(ctx context.Context) error {
	return k.send(ctx, http.MethodGet, fmt.Sprintf("/v1/kv/bench?id=%d", randomID()), "", "", http.StatusOK)
}

func (k *kvLoad) missingHTTP(ctx context.Context) error {
	return k.send(ctx, http.MethodGet, fmt.Sprintf("/v1/kv/bench?id=%d", rows+randomID()), "", "", http.StatusNotFound)
}

func (k *kvLoad) upsertHTTP(mode string) call {
	return func(ctx context.Context) error {
		return k.send(ctx, http.MethodPost, "/v1/query", fmt.Sprintf(`{"sql":%q,"params":{"id":%d,"payload":%q},"mode":%q,"idempotent":true}`,
			kvWrite, randomID(), k.payload, mode), "application/json", http.StatusOK)
	}
}

func (k *kvLoad) putHTTP(table string) call {
	return func(ctx context.Context) error {
		return k.send(ctx, http.MethodPut, fmt.Sprintf("/v1/kv/%s?id=%d", table, randomID()), k.payload, "", http.StatusNoContent)
	}
}

func kvID(n uint64) *sidecarv1.KvId { return &sidecarv1.KvId{Columns: []*sidecarv1.Value{unsigned(n)}} }

func (k *kvLoad) get(ctx context.Context) error {
	r, err := k.kv.Get(ctx, &sidecarv1.KvGetRequest{Table: "bench", Id: kvID(randomID())})
	if err == nil && len(r.Value) != len(k.payload) {
		err = fmt.Errorf("got %d bytes", len(r.Value))
	}
	return err
}

func (k *kvLoad) upsert(mode string) call {
	return func(ctx context.Context) error {
		_, err := k.sql.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: kvWrite, Mode: mode, Idempotent: true, Params: map[string]*sidecarv1.Value{
			"id": unsigned(randomID()), "payload": {Kind: &sidecarv1.Value_TextValue{TextValue: k.payload}}}})
		return err
	}
}

func (k *kvLoad) put(table string) call {
	value := []byte(k.payload)
	return func(ctx context.Context) error {
		_, err := k.kv.Put(ctx, &sidecarv1.KvPutRequest{Table: table, Id: kvID(randomID()), Value: value})
		return err
	}
}

// from is where a run of kvBatch ids begins.
func from() uint64 { return randomID() % (rows - kvBatch) }

func (k *kvLoad) queryMany(ctx context.Context) error {
	list, first := &sidecarv1.ListValue{}, from()
	for i := range uint64(kvBatch) {
		list.Items = append(list.Items, unsigned(first+i))
	}
	r, err := k.sql.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: kvAsQuery, Params: map[string]*sidecarv1.Value{
		"ids": {Kind: &sidecarv1.Value_ListValue{ListValue: list}}}})
	if err == nil && len(r.Rows) != kvBatch {
		err = fmt.Errorf("got %d rows", len(r.Rows))
	}
	return err
}

func (k *kvLoad) batchGet(ctx context.Context) error {
	req, first := &sidecarv1.KvBatchGetRequest{Table: "bench"}, from()
	for i := range uint64(kvBatch) {
		req.Ids = append(req.Ids, kvID(first+i))
	}
	r, err := k.kv.BatchGet(ctx, req)
	if err == nil && len(r.Items) != kvBatch {
		err = fmt.Errorf("got %d rows", len(r.Items))
	}
	return err
}

func (r *kvReport) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Closed loop, %d calls in flight; load, sidecar and three nodes share %d cores (%s); medians of %d interleaved runs of %s. Ratios of the calls a second are to the statement of the same mode, medians of the turns.\n",
		r.InFlight, runtime.NumCPU(), runtime.Version(), r.Repeats, r.Duration)
	for _, g := range r.Groups {
		fmt.Fprintf(&b, "\n| %s | calls/s | ratio | p50 | p99 | sidecar CPU a call | failed |\n|---|--:|--:|--:|--:|--:|--:|\n", g.Name)
		for _, one := range g.All {
			m := one.Median
			fmt.Fprintf(&b, "| %s | %.0f | %.2f | %s | %s | %s | %d %s |\n", one.Name, m.PerSecond, g.ratio(one), us(m.P50), us(m.P99), us(m.CPU), m.Failed, m.FirstFail)
		}
	}
	return b.String()
}
