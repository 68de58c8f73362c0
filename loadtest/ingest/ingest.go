// Package ingest is the experiment that counts rows written a second: single statements, BulkUpsert, and the
// Ingest stream.
package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Experiment compares every way to write rows.
var Experiment = lab.Experiment{
	Name:  "ingest",
	Title: "Ways to write rows",
	Question: `How many rows a second come into a table, and what one costs the sidecar: single UPSERTs, BulkUpserts of 1 to 10,000 rows, the Ingest stream, typed (gRPC) and JSON (HTTP), with rows of several sizes, repeated keys,
secondary indexes and nodes. BulkUpserts have four under way, which is what one stream has; all of them and the streams send what was encoded before the run, where not said otherwise. The development cluster keeps its tables in
SQLite, in one process and on the same cores as sidecar and load: it is the limit of most rows here, and nothing is said about how fast YDB writes. The ratios, and the sidecar's CPU, are what counts.`,
	Published: `| | published | here |
|---|--:|---|
| single puts | 2,555/s | "single UPSERTs", "ways" |
| streamed, the order of overwrites not kept | 228,493/s | no such mode: Ingest keeps the order of rows of a key |
| streamed with correct overwrites | 23,623/s | "Ingest over gRPC", "ways" |
| in bulk | between the two | "batch" |
| half of the rows repeat a key | about twice the rate | "ways" |
| rows encoded before | up to 1.5x | "encoding" |
| secondary indexes | 0 to more than 2x slower | "indexes" |

They were made on other machines, over another network, with another program in another language, and of what its rows were is not known enough to make the same. Here three programs share two cores and one SQLite takes all
rows however they come: what can be compared is how far streams, batches and single statements are apart, and no rate.`,
	Defaults: func(o *lab.Options) {
		if o.Duration == 0 {
			o.Duration = [...]time.Duration{50 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond}[o.Size]
		}
		if o.WarmUp == 0 {
			o.WarmUp = 50 * time.Millisecond
		}
		if o.MaxRounds == 0 && o.Rounds == 0 {
			o.MaxRounds = [...]int{1, 3, 8}[o.Size]
		}
	},
	Run: measureIngest,
}

const (
	ingestColumnTypes = "id Uint64 NOT NULL, name Utf8, n Int64, at Timestamp"
	ingestDeclare     = "DECLARE $id AS Uint64; DECLARE $name AS Utf8; DECLARE $n AS Int64; DECLARE $at AS Timestamp; "
	// ingestSpread is how many rows lie between a row and the one that repeats its key, at most.
	ingestSpread = 200
	ingestAtOnce = 4    // BulkUpserts under way
	ingestBatch  = 1000 // rows, where the size of a batch is not what is measured
)

var ingestColumns = []string{"id", "name", "n", "at"}

// writing is what the runs of a variant do.
type writing = func(ctx context.Context, d time.Duration) (lab.Result, error)

// ingestBench is what the cases of ingest share.
type ingestBench struct {
	*lab.Lab
	web *http.Client
}

// way is one way to write through a sidecar.
type way struct {
	name  string
	write func(s *lab.Sidecar) writing
}

// variants are the ways through each of the sidecars that take turns.
func (b *ingestBench) variants(sides []*lab.Sidecar, ways ...way) (all []lab.Variant) {
	for _, w := range ways {
		for i, s := range sides {
			all = append(all, lab.Variant{Name: b.Name(w.name, i), Under: []*lab.Process{s.Process}, Run: w.write(s)})
		}
	}
	return all
}

// tables creates tables of the given rows, with indexes.
func (b *ingestBench) tables(ctx context.Context, s *lab.Sidecar, indexes string, tables ...string) error {
	for _, table := range tables {
		_, err := s.Client.Execute(
			ctx,
			&sidecarv1.ExecuteRequest{Timeout: "20s",
				Sql: "CREATE TABLE IF NOT EXISTS " + table + " (" + ingestColumnTypes + ", PRIMARY KEY (id)" + indexes + ")"},
		)
		if err != nil {
			return fmt.Errorf("create the table %s: %w", table, err)
		}
	}
	return nil
}

// singles writes rows one at a time.
func (o rowsOf) singles(inFlight int) func(*lab.Sidecar) writing {
	rows := o.all(o.keys)
	sql := ingestDeclare + "UPSERT INTO " + o.table + " (id, name, n, at) VALUES ($id, $name, $n, $at)"
	return func(s *lab.Sidecar) writing {
		var next atomic.Int64
		return func(ctx context.Context, d time.Duration) (lab.Result, error) {
			result := lab.Closed(ctx, inFlight, d, func(ctx context.Context) error {
				r := rows[int(next.Add(1))%len(rows)]
				_, err := s.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: sql, Idempotent: true, Params: map[string]*sidecarv1.Value{
					"id": traffic.Unsigned(r.id), "name": traffic.Text(r.name), "n": signed(r.n), "at": signed(r.at),
				}})
				return err
			})
			result.Rows = result.Calls - result.Failed
			return result, nil
		}
	}
}

// batches sends the batches of a ring, ingestAtOnce under way.
func batches(ring [][]byte, size int, send func(ctx context.Context, body []byte) error) writing {
	var next atomic.Int64
	return func(ctx context.Context, d time.Duration) (lab.Result, error) {
		result := lab.Closed(ctx, ingestAtOnce, d, func(ctx context.Context) error { return send(ctx, ring[int(next.Add(1))%len(ring)]) })
		result.Rows = (result.Calls - result.Failed) * int64(size)
		return result, nil
	}
}

// bulk is BulkUpsert of the plain API.
func (o rowsOf) bulk(size int) func(*lab.Sidecar) writing {
	ring := o.ring(size, asBulkRequest)
	return func(s *lab.Sidecar) writing {
		return batches(ring, size, func(ctx context.Context, body []byte) error {
			return s.Conn.Invoke(ctx, sidecarv1.Sidecar_BulkUpsert_FullMethodName, body, new(sidecarv1.BulkUpsertResponse), encodedBefore)
		})
	}
}

// statements is UPSERTs of many rows each.
func (o rowsOf) statements(size int) func(*lab.Sidecar) writing {
	sql := "DECLARE $rows AS List<Struct<id: Uint64, name: Utf8, n: Int64, at: Timestamp>>; UPSERT INTO " + o.table +
		" SELECT id, name, n, at FROM AS_TABLE($rows)"
	ring := o.ring(size, func(_ string, rows []ingestRow) []byte {
		list := &sidecarv1.ListValue{}
		for _, r := range rows {
			list.Items = append(list.Items,
				&sidecarv1.Value{Kind: &sidecarv1.Value_StructValue{StructValue: &sidecarv1.StructValue{Fields: []*sidecarv1.Field{
					{Name: "id", Value: traffic.Unsigned(r.id)}, {Name: "name", Value: traffic.Text(r.name)},
					{Name: "n", Value: signed(r.n)}, {Name: "at", Value: signed(r.at)}}}}})
		}
		return traffic.Must(
			&sidecarv1.ExecuteRequest{Sql: sql, Idempotent: true,
				Params: map[string]*sidecarv1.Value{"rows": {Kind: &sidecarv1.Value_ListValue{ListValue: list}}}},
		)
	})
	return func(s *lab.Sidecar) writing {
		return batches(ring, size, func(ctx context.Context, body []byte) error {
			return s.Conn.Invoke(ctx, sidecarv1.Sidecar_Execute_FullMethodName, body, new(sidecarv1.ExecuteResponse), encodedBefore)
		})
	}
}

// json is BulkUpsert over HTTP.
func (b *ingestBench) json(o rowsOf, size int) func(*lab.Sidecar) writing {
	ring := o.ring(size, asJSON)
	return func(s *lab.Sidecar) writing {
		return batches(ring, size, func(ctx context.Context, body []byte) error {
			_, err := traffic.Post(ctx, b.web, "http://"+s.HTTP+"/v1/bulk", body)
			return err
		})
	}
}

// own is YDB's BulkUpsert, to the nodes in turn.
func (o rowsOf) own(conns []*grpc.ClientConn, size int) writing {
	var turn atomic.Int64
	return batches(o.ring(size, asOwnRequest), size, func(ctx context.Context, body []byte) error {
		answer := new(Ydb_Table.BulkUpsertResponse)
		err := conns[int(turn.Add(1))%len(conns)].Invoke(traffic.WithDatabase(ctx),
			Ydb_Table_V1.TableService_BulkUpsert_FullMethodName, body, answer, encodedBefore)
		if err == nil && answer.GetOperation().GetStatus() != Ydb.StatusIds_SUCCESS {
			err = fmt.Errorf("BulkUpsert: %v", answer.GetOperation())
		}
		return err
	})
}

// oneStream is the result of a stream: one call, which lasted all the time.
func oneStream(rows int64, took time.Duration, err error) lab.Result {
	r := lab.NewRecorder()
	r.Add(took, err)
	result := r.Result(took)
	result.Closed, result.Rows = true, rows
	return result
}

// stream is one Ingest stream over gRPC that sends the messages of a ring: encoded ones, or *sidecarv1.IngestRequest.
func stream[M any](o rowsOf, ring []M) func(*lab.Sidecar) writing {
	return func(s *lab.Sidecar) writing {
		return func(ctx context.Context, d time.Duration) (lab.Result, error) {
			begun := time.Now()
			next, err := streamRows(ctx, s.Conn, o.table, ring, d)
			return oneStream(next, time.Since(begun), err), nil
		}
	}
}

// streamRows returns how many rows are written.
func streamRows[M any](ctx context.Context, conn *grpc.ClientConn, table string, ring []M, d time.Duration) (next int64, err error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, d+20*time.Second)
	defer cancel()
	stream, err := sidecarv1.NewIngestClient(conn).Ingest(ctx, encodedBefore)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(
		&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: table}}},
	); err != nil {
		return 0, err
	}
	sent := make(chan error, 1)
	go func() {
		for i := 0; time.Since(begun) < d; i++ {
			if stream.SendMsg(ring[i%len(ring)]) != nil {
				break // Recv says why
			}
		}
		sent <- stream.CloseSend()
	}()
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return next, <-sent
		case err != nil:
			cancel() // ends the sender
			<-sent
			return next, err
		case m.GetRefused() != nil:
			return next, fmt.Errorf("row %d: %s", m.GetRefused().Offset, m.GetRefused().Error.GetMessage())
		case m.GetEnd() != nil:
			next = int64(m.GetEnd().Next)
		}
	}
}

// lines is one Ingest stream over HTTP.
func (b *ingestBench) lines(o rowsOf, ring [][]byte) func(*lab.Sidecar) writing {
	return func(s *lab.Sidecar) writing {
		return func(ctx context.Context, d time.Duration) (lab.Result, error) {
			begun := time.Now()
			next, err := b.postLines(ctx, "http://"+s.HTTP+"/v1/ingest/"+o.table, ring, d)
			return oneStream(next, time.Since(begun), err), nil
		}
	}
}

func (b *ingestBench) postLines(ctx context.Context, url string, ring [][]byte, d time.Duration) (int64, error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, d+20*time.Second)
	defer cancel()
	read, write := io.Pipe()
	go func() {
		for i := 0; time.Since(begun) < d; i++ {
			if _, err := write.Write(ring[i%len(ring)]); err != nil {
				return // the answer says why
			}
		}
		_ = write.Close()
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, read)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/x-ndjson")
	answer, err := b.web.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var last []byte
	for lines := json.NewDecoder(answer.Body); ; {
		var line json.RawMessage
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, err
		}
		last = line
	}
	var end struct{ End struct{ Next int64 } }
	if err := json.Unmarshal(last, &end); err != nil || end.End.Next == 0 {
		return 0, fmt.Errorf("the last line is %.200s", last)
	}
	return end.End.Next, nil
}

func measureIngest(ctx context.Context, l *lab.Lab) error {
	transport := &http.Transport{MaxIdleConnsPerHost: 8}
	l.Defer(transport.CloseIdleConnections)
	b := &ingestBench{Lab: l, web: &http.Client{Transport: transport}}
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	sides, err := l.Each(ctx, cluster.Endpoint())
	if err != nil {
		return err
	}
	if err := b.tables(ctx, sides[0], "", "ingest", "ingest500", "ingest2000"); err != nil {
		return err
	}
	conns, err := b.nodes(cluster)
	if err != nil {
		return err
	}
	rows := rowsOf{table: "ingest", size: 100, keys: lab.At(l, 4000, 40_000, 40_000)}
	for _, measure := range []func() error{
		func() error { return b.ways(ctx, sides, conns, rows) },
		func() error { return b.encoding(ctx, sides, rows) },
		func() error { return b.batch(ctx, cluster, sides, conns, rows) },
		func() error { return b.size(ctx, sides) },
		func() error { return b.indexes(ctx, sides) },
		func() error { return b.clusters(ctx, rows) },
		func() error { return b.memory(ctx, cluster, rows) },
	} {
		if err := measure(); err != nil {
			return err
		}
	}
	return nil
}

// nodes connects to every node.
func (b *ingestBench) nodes(c *lab.Cluster) (all []*grpc.ClientConn, err error) {
	for _, node := range c.Nodes {
		conn, err := b.Dial(node.Address)
		if err != nil {
			return nil, err
		}
		all = append(all, conn)
	}
	return all, nil
}

// compare is a case whose figure is rows.
func (b *ingestBench) compare(ctx context.Context, c lab.Case) (*lab.Table, error) {
	c.Figures, c.Ratios = []string{lab.RowsPerS, lab.RowCPU}, []string{lab.RowsPerS}
	return b.Compare(ctx, c)
}

// The names of what is compared in more than one place.
const (
	oneWriter    = "single UPSERTs, one after the other"
	manyWriters  = "single UPSERTs, 64 in flight"
	byHand       = "BulkUpsert of 1000 rows, 4 in flight"
	byHandOwn    = "the same, YDB's own, directly"
	oneIngest    = "Ingest over gRPC, one stream"
	halfRepeated = "the same, half of the rows repeat a key"
	oneIngestWeb = "Ingest over HTTP, one stream"
)

func (b *ingestBench) ways(ctx context.Context, sides []*lab.Sidecar, conns []*grpc.ClientConn, rows rowsOf) error {
	repeated := rows
	repeated.repeated = true
	first := func(name string) string { return b.Name(name, 0) }
	c := lab.Case{Name: "ways", Title: "Ways to write, 100 bytes a row, three nodes", Baseline: first(oneWriter),
		Text: "The streams keep the order of rows of the same key; BulkUpserts by hand, with four under way, do not.",
		Claims: []lab.Claim{
			{Text: "a stream to one writer of single statements", Variant: first(oneIngest), Figure: lab.RowsPerS,
				Kind: lab.Ratio, Of: first(oneWriter), Least: 20},
			{Text: "a stream to BulkUpserts by hand", Variant: first(oneIngest), Figure: lab.RowsPerS, Kind: lab.Ratio,
				Of: first(byHand), Least: 0.8},
			{Text: "half of the rows repeating a key, to none", Variant: first(halfRepeated), Figure: lab.RowsPerS,
				Kind: lab.Ratio, Of: first(oneIngest), Least: 1.7},
		}}
	c.Variants = b.variants(sides, way{oneWriter, rows.singles(1)}, way{manyWriters, rows.singles(64)}, way{byHand, rows.bulk(ingestBatch)})
	c.Variants = append(c.Variants, lab.Variant{Name: byHandOwn, Run: rows.own(conns, ingestBatch)})
	c.Variants = append(c.Variants, b.variants(sides, way{oneIngest, stream(rows, rows.ring(ingestSpread, asMessage))},
		way{halfRepeated, stream(repeated, repeated.ring(ingestSpread, asMessage))},
		way{oneIngestWeb, b.lines(rows, rows.ring(ingestSpread, asLines))})...)
	t, err := b.compare(ctx, c)
	if err == nil && t != nil && len(b.Sidecars) == 1 {
		b.Report.File("readme.md", []byte(ingestSummary(t)))
	}
	return err
}

func signed(v int64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: v}}
}
