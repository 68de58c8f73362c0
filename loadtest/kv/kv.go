// Package kv is the experiments with single rows by key: the workload of the SDKs' reliability tests, and
// values behind the key-value API.
package kv

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Experiment is rows by their keys: the load of the reliability tests of YDB's SDKs, and the key-value face next to statements.
var Experiment = lab.Experiment{
	Name:  "kv",
	Title: "Rows by their keys",
	Question: `First the key-value workload with which YDB's SDKs test their reliability: ten reads of a row to one write, at a constant rate, directly (a client with a session for every call, each on its node), by the same client with
sessions of the sidecar (*wire*, mode transaction), and over the plain gRPC API. Then the key-value face next to the same work by statements, with 16 calls under way, over HTTP and gRPC, of a table with 1000 rows of 100 bytes.
The first says what the sidecar adds to a call when nothing is short; the second what a call costs when the processors are.`,
	Published: `The SDKs' tests publish no latencies to stand beside these. The rates are theirs, 1000 reads and 100 writes a second, and so are the table, 1000 rows at the begin, texts of 20 to 40 characters and 10 s for a call.
*Failed* and *retries* are without faults here (with faults: docs/dev/chaos.md). Partitions are settings that the development cluster takes and does not have.`,
	Defaults: func(o *lab.Options) {
		if o.Duration == 0 {
			o.Duration = [...]time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second}[o.Size]
		}
		if o.MaxRounds == 0 && o.Rounds == 0 {
			o.MaxRounds = [...]int{1, 3, 5}[o.Size]
		}
	},
	Run: measureKV,
}

func measureKV(ctx context.Context, l *lab.Lab) error {
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	sides, err := l.Each(ctx, cluster.Endpoint(), "pool.min=50", "pool.max=128", "pool.max_per_node=128", kvTables)
	if err != nil {
		return err
	}
	if err := slo(ctx, l, cluster, sides); err != nil {
		return err
	}
	return kvFaces(ctx, l, sides)
}

// The workload of the SDKs' tests.
const (
	sloRows   = 1000 // at the begin
	sloReads  = 1000 // a second
	sloWrites = 100  // a second
	sloTable  = `CREATE TABLE slo (hash Uint64, id Uint64, payload_str Utf8, payload_double Double, payload_timestamp Timestamp, payload_hash Uint64, PRIMARY KEY (hash, id))
	WITH (UNIFORM_PARTITIONS = 6, AUTO_PARTITIONING_BY_SIZE = ENABLED, AUTO_PARTITIONING_PARTITION_SIZE_MB = 1, AUTO_PARTITIONING_MIN_PARTITIONS_COUNT = 6, AUTO_PARTITIONING_MAX_PARTITIONS_COUNT = 1000)`
	sloFill = `DECLARE $rows AS List<Struct<id:Uint64,payload_double:Double,payload_str:Utf8,payload_timestamp:Timestamp>>;
UPSERT INTO slo SELECT Digest::NumericHash(id) AS hash, id, payload_str, payload_double, payload_timestamp FROM AS_TABLE($rows);`
	sloRead = `DECLARE $id AS Uint64;
SELECT id, payload_str, payload_double, payload_timestamp, payload_hash FROM slo WHERE id = $id AND hash = Digest::NumericHash($id);`
	sloWrite = `DECLARE $id AS Uint64; DECLARE $payload_str AS Utf8; DECLARE $payload_double AS Double; DECLARE $payload_timestamp AS Timestamp;
UPSERT INTO slo (hash, id, payload_str, payload_double, payload_timestamp) VALUES (Digest::NumericHash($id), $id, $payload_str, $payload_double, $payload_timestamp);`
)

func sloRow(id uint64) map[string]traffic.Value {
	return map[string]traffic.Value{"id": traffic.UnsignedValue(id),
		"payload_str":    traffic.TextValue(strings.Repeat("x", 20+rand.IntN(21))),
		"payload_double": traffic.DoubleValue(rand.Float64()), "payload_timestamp": traffic.TimestampValue(time.Now())}
}

// Figures of the two kinds of calls, which take different times.
const (
	figureReadP50, figureReadP99   = "read-p50-ns", "read-p99-ns"
	figureWriteP50, figureWriteP99 = "write-p50-ns", "write-p99-ns"
)

// slo compares the ways to the cluster under the constant rates.
func slo(ctx context.Context, l *lab.Lab, cluster *lab.Cluster, sides []*lab.Sidecar) error {
	const sessions = 128
	reads, writes := min(l.MaxRate, lab.At(l, sloReads/10, sloReads, sloReads)), min(
		l.MaxRate, lab.At(l, sloWrites/10, sloWrites, sloWrites),
	)
	c := lab.Case{Name: "slo", Title: fmt.Sprintf("%d reads and %d writes a second", reads, writes), Baseline: "direct",
		Figures: []string{lab.Offered, lab.PerSecond, figureReadP50, figureReadP99, figureWriteP50, figureWriteP99,
			lab.CPU, traffic.FigureRetries, traffic.FigureAborted},
		Ratios: []string{figureReadP50, figureWriteP50},
		Added:  []string{figureReadP50, figureReadP99, figureWriteP50}}
	if !l.Wanted(c.Name) {
		return nil
	}
	d, err := traffic.DialNodes(ctx, cluster.Nodes, sessions)
	if err != nil {
		return err
	}
	l.Defer(d.Close)
	add := func(name string, send traffic.Sender, under ...*lab.Process) {
		c.Variants = append(c.Variants, lab.Variant{Name: name, Under: under,
			Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
				return sloRun(ctx, cluster, send, reads, writes, 2*d) // twice as long as others: a tenth of the calls are writes
			}})
	}
	add("direct", traffic.OverNodes(d))
	for i, s := range sides {
		if i == 0 {
			var rows []map[string]traffic.Value
			for id := range uint64(sloRows) {
				rows = append(rows, sloRow(id))
			}
			if _, err := s.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: sloTable, Timeout: "20s"}); err != nil {
				return fmt.Errorf("create the table: %w", err)
			}
			if _, _, err := traffic.OverPlain(s.Client)(
				ctx,
				traffic.Request{SQL: sloFill, Mode: "serializable_rw", Params: map[string]traffic.Value{"rows": traffic.ListValue(rows)}},
			); err != nil {
				return fmt.Errorf("fill the table: %w", err)
			}
		}
		// as many connections as directly
		through, err := traffic.DialNodes(ctx, []stand.Node{{Address: s.GRPC}, {Address: s.GRPC}, {Address: s.GRPC}}, sessions)
		if err != nil {
			return err
		}
		l.Defer(through.Close)
		add(l.Name("wire", i), traffic.OverNodes(through), s.Process)
		add(l.Name("plain gRPC", i), traffic.OverPlain(s.Client), s.Process)
	}
	_, err = l.Compare(ctx, c)
	return err
}

// sloRun sends both kinds at their rates.
func sloRun(ctx context.Context, cluster *lab.Cluster, send traffic.Sender, reads, writes int, d time.Duration) (lab.Result, error) {
	return traffic.Retried(ctx, cluster, func(count func(attempts, requests int)) lab.Result {
		call := func(make func() traffic.Request, want int) lab.Call {
			return func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				attempts, rows, err := send(ctx, make())
				count(attempts, 1)
				if err == nil && rows != want {
					err = fmt.Errorf("got %d rows; want %d", rows, want)
				}
				return err
			}
		}
		var read, written lab.Result
		var both sync.WaitGroup
		both.Go(func() {
			read = lab.Open(ctx, lab.Rate(reads), d, call(func() traffic.Request {
				return traffic.Request{SQL: sloRead, Mode: "snapshot_ro",
					Params: map[string]traffic.Value{"id": traffic.UnsignedValue(rand.Uint64N(sloRows))}}
			}, 1))
		})
		both.Go(func() {
			written = lab.Open(ctx, lab.Rate(writes), d, call(func() traffic.Request {
				return traffic.Request{SQL: sloWrite, Mode: "serializable_rw", Params: sloRow(rand.Uint64N(2 * sloRows))}
			}, 0))
		})
		both.Wait()
		all := lab.Merge(read, written)
		all.Figures = lab.Figures{figureReadP50: float64(read.Quantile(50)), figureReadP99: float64(read.Quantile(99)),
			figureWriteP50: float64(written.Quantile(50)), figureWriteP99: float64(written.Quantile(99))}
		return all
	})
}

// The tables of the key-value face: the rows of the point reads, and one with a
// version column beside it.
const (
	kvTables = "kv.tables=bench=bench key=id:Uint64 value=payload:Utf8,versions=versions key=id:Uint64 " +
		"value=payload:Utf8 version=rev:Uint64"
	kvCreate  = `CREATE TABLE IF NOT EXISTS versions (id Uint64, payload Utf8, rev Uint64, PRIMARY KEY (id))`
	kvWrite   = `DECLARE $id AS Uint64; DECLARE $payload AS Utf8; UPSERT INTO bench (id, payload) VALUES ($id, $payload)`
	kvBatch   = 100
	kvAsQuery = `DECLARE $ids AS List<Uint64>; SELECT id, payload FROM bench WHERE id IN $ids`
)

// kvNamed is one way to make a call.
type kvNamed struct {
	name string
	call func(*kvLoad) lab.Call
}

// kvGroups are the ways that are compared with each other.
var kvGroups = []struct {
	name, title, base string // base: the statement of the same mode
	calls             []kvNamed
}{
	{"read-http", "A point read of 100 bytes, HTTP", "POST /v1/query, snapshot_ro", []kvNamed{
		{"POST /v1/query", func(k *kvLoad) lab.Call { return k.queryHTTP("") }},
		{"POST /v1/query, snapshot_ro", func(k *kvLoad) lab.Call { return k.queryHTTP("snapshot_ro") }},
		{"GET /v1/kv", func(k *kvLoad) lab.Call { return k.getHTTP }},
		{"GET /v1/kv, a missing key", func(k *kvLoad) lab.Call { return k.missingHTTP }}}},
	{"read-grpc", "A point read of 100 bytes, gRPC", "Execute, snapshot_ro", []kvNamed{
		{"Execute", func(k *kvLoad) lab.Call { return k.query("") }},
		{"Execute, snapshot_ro", func(k *kvLoad) lab.Call { return k.query("snapshot_ro") }},
		{"KeyValue/Get", func(k *kvLoad) lab.Call { return k.get }}}},
	{"write-http", "A write of 100 bytes, HTTP", "POST /v1/query, serializable_rw", []kvNamed{
		{"POST /v1/query", func(k *kvLoad) lab.Call { return k.upsertHTTP("") }},
		{"POST /v1/query, serializable_rw", func(k *kvLoad) lab.Call { return k.upsertHTTP("serializable_rw") }},
		{"PUT /v1/kv", func(k *kvLoad) lab.Call { return k.putHTTP("bench") }},
		{"PUT /v1/kv with a version", func(k *kvLoad) lab.Call { return k.putHTTP("versions") }}}},
	{"write-grpc", "A write of 100 bytes, gRPC", "Execute, serializable_rw", []kvNamed{
		{"Execute", func(k *kvLoad) lab.Call { return k.upsert("") }},
		{"Execute, serializable_rw", func(k *kvLoad) lab.Call { return k.upsert("serializable_rw") }},
		{"KeyValue/Put", func(k *kvLoad) lab.Call { return k.put("bench") }},
		{"KeyValue/Put with a version", func(k *kvLoad) lab.Call { return k.put("versions") }}}},
	{"batch", fmt.Sprintf("%d rows by their keys, gRPC", kvBatch), "Execute with IN", []kvNamed{
		{"Execute with IN", func(k *kvLoad) lab.Call { return k.queryMany }},
		{"KeyValue/BatchGet", func(k *kvLoad) lab.Call { return k.batchGet }}}},
}

// kvFaces compares the key-value face with statements.
func kvFaces(ctx context.Context, l *lab.Lab, sides []*lab.Sidecar) error {
	const underWay = 16
	if err := traffic.Fill(ctx, sides[0].Client); err != nil {
		return err
	}
	if _, err := sides[0].Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: kvCreate, Timeout: "20s"}); err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	loads := make([]*kvLoad, len(sides))
	for i, s := range sides {
		web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: underWay}}
		l.Defer(web.CloseIdleConnections)
		loads[i] = &kvLoad{base: "http://" + s.HTTP, sql: s.Client, kv: sidecarv1.NewKeyValueClient(s.Conn),
			payload: strings.Repeat("x", 100), web: web}
	}
	for _, g := range kvGroups {
		c := lab.Case{Name: g.name, Title: g.title, Baseline: l.Name(g.base, 0),
			Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.CPU}, Ratios: []string{lab.PerSecond, lab.CPU}}
		for i, s := range sides {
			for _, one := range g.calls {
				call := one.call(loads[i])
				c.Variants = append(c.Variants, lab.Variant{Name: l.Name(one.name, i), Under: []*lab.Process{s.Process},
					Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
						return lab.Closed(ctx, underWay, d, call), nil
					}})
			}
		}
		if _, err := l.Compare(ctx, c); err != nil {
			return err
		}
	}
	return nil
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
	status, answer, err := traffic.Send(ctx, k.web, method, k.base+path, media, []byte(body))
	if err == nil && status != want && !(want == http.StatusNoContent && status == http.StatusCreated) {
		err = fmt.Errorf("%s %s: %d %.200s", method, path, status, answer)
	}
	if err == nil && method == http.MethodPost && !bytes.Contains(answer, []byte(`"rows":[`)) {
		err = fmt.Errorf("%s: %.200s", path, answer)
	}
	return err
}

// queryHTTP reads a row by a statement; "" is the mode of a statement that says nothing.
func (k *kvLoad) queryHTTP(mode string) lab.Call {
	return func(ctx context.Context) error {
		return k.send(ctx, http.MethodPost, "/v1/query",
			fmt.Sprintf(`{"sql":%q,"params":{"id":%d},"mode":%q}`, traffic.Read, traffic.RandomID(), mode),
			"application/json", http.StatusOK)
	}
}

func (k *kvLoad) query(mode string) lab.Call {
	return func(ctx context.Context) error {
		r, err := k.sql.Execute(
			ctx,
			&sidecarv1.ExecuteRequest{Sql: traffic.Read, Mode: mode,
				Params: map[string]*sidecarv1.Value{"id": traffic.Unsigned(traffic.RandomID())}},
		)
		if err == nil && len(r.Rows) != 1 {
			err = fmt.Errorf("got %d rows", len(r.Rows))
		}
		return err
	}
}

func (k *kvLoad) getHTTP(ctx context.Context) error {
	return k.send(ctx, http.MethodGet, fmt.Sprintf("/v1/kv/bench?id=%d", traffic.RandomID()), "", "", http.StatusOK)
}

func (k *kvLoad) missingHTTP(ctx context.Context) error {
	return k.send(ctx, http.MethodGet, fmt.Sprintf("/v1/kv/bench?id=%d", traffic.Rows+traffic.RandomID()), "", "", http.StatusNotFound)
}

func (k *kvLoad) upsertHTTP(mode string) lab.Call {
	return func(ctx context.Context) error {
		return k.send(ctx, http.MethodPost, "/v1/query",
			fmt.Sprintf(`{"sql":%q,"params":{"id":%d,"payload":%q},"mode":%q,"idempotent":true}`,
				kvWrite, traffic.RandomID(), k.payload, mode), "application/json", http.StatusOK)
	}
}

func (k *kvLoad) putHTTP(table string) lab.Call {
	return func(ctx context.Context) error {
		return k.send(ctx, http.MethodPut, fmt.Sprintf("/v1/kv/%s?id=%d", table, traffic.RandomID()), k.payload, "", http.StatusNoContent)
	}
}

func (k *kvLoad) get(ctx context.Context) error {
	r, err := k.kv.Get(ctx, &sidecarv1.KvGetRequest{Table: "bench", Id: traffic.KVID(traffic.RandomID())})
	if err == nil && len(r.Value) != len(k.payload) {
		err = fmt.Errorf("got %d bytes", len(r.Value))
	}
	return err
}

func (k *kvLoad) upsert(mode string) lab.Call {
	return func(ctx context.Context) error {
		_, err := k.sql.Execute(
			ctx,
			&sidecarv1.ExecuteRequest{Sql: kvWrite, Mode: mode, Idempotent: true, Params: map[string]*sidecarv1.Value{
				"id": traffic.Unsigned(traffic.RandomID()), "payload": {Kind: &sidecarv1.Value_TextValue{TextValue: k.payload}}}},
		)
		return err
	}
}

func (k *kvLoad) put(table string) lab.Call {
	value := []byte(k.payload)
	return func(ctx context.Context) error {
		_, err := k.kv.Put(ctx, &sidecarv1.KvPutRequest{Table: table, Id: traffic.KVID(traffic.RandomID()), Value: value})
		return err
	}
}

// from is where a run of kvBatch ids begins.
func from() uint64 { return traffic.RandomID() % (traffic.Rows - kvBatch) }

func (k *kvLoad) queryMany(ctx context.Context) error {
	list, first := &sidecarv1.ListValue{}, from()
	for i := range uint64(kvBatch) {
		list.Items = append(list.Items, traffic.Unsigned(first+i))
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
		req.Ids = append(req.Ids, traffic.KVID(first+i))
	}
	r, err := k.kv.BatchGet(ctx, req)
	if err == nil && len(r.Items) != kvBatch {
		err = fmt.Errorf("got %d rows", len(r.Items))
	}
	return err
}
