package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that octets falls back on
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/proc"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// ingest compares every way to write rows.
var ingest = lab.Experiment{
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

// ingestRow is one row.
type ingestRow struct {
	id   uint64
	name string
	n    int64
	at   int64
}

// rowsOf says what is written where.
type rowsOf struct {
	table    string
	size     int // bytes of a row's values, 24 of which are numbers
	keys     int // far more than are under way at a time, and few enough for the table to stay as it is
	repeated bool
}

// all returns the first n rows.
func (o rowsOf) all(n int) []ingestRow {
	keys := keysOf(o.repeated, o.keys)
	rows := make([]ingestRow, n)
	for i := range rows {
		id := keys(i)
		name := strconv.FormatUint(id, 10)
		rows[i] = ingestRow{id, name + strings.Repeat("x", max(0, o.size-24-len(name))), int64(i), 1_700_000_000_000_000 + int64(i)}
	}
	return rows
}

// ring encodes rows in batches, ahead of the runs: what it costs to make rows is no matter of how they are written.
// They hold each key at least once, and are at least as many as go at once.
func (o rowsOf) ring(batch int, encode func(table string, rows []ingestRow) []byte) [][]byte {
	rows := o.all(max(o.keys, ingestAtOnce*batch) / batch * batch)
	all := make([][]byte, 0, len(rows)/batch)
	for len(rows) > 0 {
		all = append(all, encode(o.table, rows[:batch]))
		rows = rows[batch:]
	}
	return all
}

// keysOf makes the keys of a run: each once in a lap, or each twice within ingestSpread rows.
func keysOf(repeated bool, keys int) func(i int) uint64 {
	if !repeated {
		return func(i int) uint64 { return uint64(i % keys) }
	}
	r := rand.New(rand.NewPCG(1, 2))
	block := make([]uint64, 0, ingestSpread)
	return func(i int) uint64 {
		if i%ingestSpread == 0 {
			block = block[:0]
			for k := range ingestSpread {
				block = append(block, uint64((i/2+k/2)%keys))
			}
			r.Shuffle(len(block), func(a, b int) { block[a], block[b] = block[b], block[a] })
		}
		return block[i%ingestSpread]
	}
}

// octets is the codec of messages that were encoded before; others it encodes.
type octets struct{ encoding.CodecV2 }

var encodedBefore = grpc.ForceCodecV2(octets{encoding.GetCodecV2("proto")})

func (o octets) Marshal(v any) (mem.BufferSlice, error) {
	if data, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(data)}, nil
	}
	return o.CodecV2.Marshal(v)
}

// must encodes a message of ours, which cannot fail: it is complete and its texts are UTF-8.
func must(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

func asBulkRequest(table string, rows []ingestRow) []byte {
	request := &sidecarv1.BulkUpsertRequest{Table: table}
	for _, r := range rows {
		request.Rows = append(request.Rows, &sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{
			"id": unsigned(r.id), "name": text(r.name), "n": signed(r.n), "at": signed(r.at),
		}})
	}
	return must(request)
}

func asOwnRequest(table string, rows []ingestRow) []byte {
	values := &Ydb.Value{}
	for _, r := range rows {
		values.Items = append(values.Items, &Ydb.Value{Items: []*Ydb.Value{
			{Value: &Ydb.Value_Uint64Value{Uint64Value: r.id}}, {Value: &Ydb.Value_TextValue{TextValue: r.name}},
			{Value: &Ydb.Value_Int64Value{Int64Value: r.n}}, {Value: &Ydb.Value_Uint64Value{Uint64Value: uint64(r.at)}},
		}})
	}
	member := func(name string, id Ydb.Type_PrimitiveTypeId) *Ydb.StructMember {
		return &Ydb.StructMember{Name: name, Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}}}
	}
	row := &Ydb.StructType{Members: []*Ydb.StructMember{
		member("id", Ydb.Type_UINT64), member("name", Ydb.Type_UTF8), member("n", Ydb.Type_INT64), member("at", Ydb.Type_TIMESTAMP),
	}}
	list := &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: &Ydb.Type{Type: &Ydb.Type_StructType{StructType: row}}}}}
	return must(&Ydb_Table.BulkUpsertRequest{Table: "/local/" + table, Rows: &Ydb.TypedValue{Type: list, Value: values}})
}

func streamMessage(rows []ingestRow) *sidecarv1.IngestRequest {
	part := &sidecarv1.IngestRows{Columns: ingestColumns}
	for _, r := range rows {
		part.Rows = append(part.Rows, &sidecarv1.Row{Values: []*sidecarv1.Value{unsigned(r.id), text(r.name), signed(r.n), signed(r.at)}})
	}
	return &sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Rows{Rows: part}}
}

func asMessage(_ string, rows []ingestRow) []byte { return must(streamMessage(rows)) }

func asLines(_ string, rows []ingestRow) []byte {
	var b []byte
	for _, r := range rows {
		b = fmt.Appendf(b, `{"id":%d,"name":%q,"n":%d,"at":%d}`+"\n", r.id, r.name, r.n, r.at)
	}
	return b
}

func asJSON(table string, rows []ingestRow) []byte {
	lines := bytes.TrimSuffix(asLines(table, rows), []byte("\n"))
	return fmt.Appendf(nil, `{"table":%q,"rows":[%s]}`, table, bytes.ReplaceAll(lines, []byte("\n"), []byte(",")))
}

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
		_, err := s.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Timeout: "20s", Sql: "CREATE TABLE IF NOT EXISTS " + table + " (" + ingestColumnTypes + ", PRIMARY KEY (id)" + indexes + ")"})
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
					"id": unsigned(r.id), "name": text(r.name), "n": signed(r.n), "at": signed(r.at),
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
	sql := "DECLARE $rows AS List<Struct<id: Uint64, name: Utf8, n: Int64, at: Timestamp>>; UPSERT INTO " + o.table + " SELECT id, name, n, at FROM AS_TABLE($rows)"
	ring := o.ring(size, func(_ string, rows []ingestRow) []byte {
		list := &sidecarv1.ListValue{}
		for _, r := range rows {
			list.Items = append(list.Items, &sidecarv1.Value{Kind: &sidecarv1.Value_StructValue{StructValue: &sidecarv1.StructValue{Fields: []*sidecarv1.Field{
				{Name: "id", Value: unsigned(r.id)}, {Name: "name", Value: text(r.name)}, {Name: "n", Value: signed(r.n)}, {Name: "at", Value: signed(r.at)}}}}})
		}
		return must(&sidecarv1.ExecuteRequest{Sql: sql, Idempotent: true, Params: map[string]*sidecarv1.Value{"rows": {Kind: &sidecarv1.Value_ListValue{ListValue: list}}}})
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
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HTTP+"/v1/bulk", bytes.NewReader(body))
			if err != nil {
				return err
			}
			request.Header.Set("Content-Type", "application/json")
			answer, err := b.web.Do(request)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			said, err := io.ReadAll(answer.Body)
			if err == nil && answer.StatusCode != http.StatusOK {
				err = fmt.Errorf("HTTP %d: %.200s", answer.StatusCode, said)
			}
			return err
		})
	}
}

// own is YDB's BulkUpsert, to the nodes in turn.
func (o rowsOf) own(conns []*grpc.ClientConn, size int) writing {
	var turn atomic.Int64
	return batches(o.ring(size, asOwnRequest), size, func(ctx context.Context, body []byte) error {
		answer := new(Ydb_Table.BulkUpsertResponse)
		err := conns[int(turn.Add(1))%len(conns)].Invoke(withDatabase(ctx), Ydb_Table_V1.TableService_BulkUpsert_FullMethodName, body, answer, encodedBefore)
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
	if err := stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: table}}}); err != nil {
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
			{Text: "a stream to one writer of single statements", Variant: first(oneIngest), Figure: lab.RowsPerS, Kind: lab.Ratio, Of: first(oneWriter), Least: 20},
			{Text: "a stream to BulkUpserts by hand", Variant: first(oneIngest), Figure: lab.RowsPerS, Kind: lab.Ratio, Of: first(byHand), Least: 0.8},
			{Text: "half of the rows repeating a key, to none", Variant: first(halfRepeated), Figure: lab.RowsPerS, Kind: lab.Ratio, Of: first(oneIngest), Least: 1.7},
		}}
	c.Variants = b.variants(sides, way{oneWriter, rows.singles(1)}, way{manyWriters, rows.singles(64)}, way{byHand, rows.bulk(ingestBatch)})
	c.Variants = append(c.Variants, lab.Variant{Name: byHandOwn, Run: rows.own(conns, ingestBatch)})
	c.Variants = append(c.Variants, b.variants(sides, way{oneIngest, stream(rows, rows.ring(ingestSpread, asMessage))},
		way{halfRepeated, stream(repeated, repeated.ring(ingestSpread, asMessage))}, way{oneIngestWeb, b.lines(rows, rows.ring(ingestSpread, asLines))})...)
	t, err := b.compare(ctx, c)
	if err == nil && t != nil && len(b.Sidecars) == 1 {
		b.Report.File("readme.md", []byte(ingestSummary(t)))
	}
	return err
}

// ingestSummary is the table of README.
func ingestSummary(t *lab.Table) string {
	var s strings.Builder
	s.WriteString("| | rows a second | the sidecar's CPU a row |\n|---|--:|--:|\n")
	for _, r := range []struct{ variant, shown string }{
		{oneWriter, "`UPSERT` with `Execute`, one after the other"}, {manyWriters, "the same, 64 in flight"},
		{byHand, "`BulkUpsert` of 1000 rows, 4 in flight"}, {oneIngest, "`Ingest` over gRPC, one stream"},
		{halfRepeated, "the same, half of the rows repeat a key"}, {oneIngestWeb, "`POST /v1/ingest`, one stream"},
	} {
		ratio := 1.0
		if r.variant != oneWriter {
			ratio = t.Row(r.variant).Ratios[lab.RowsPerS].Median
		}
		cpu, _ := t.Median(r.variant, lab.RowCPU)
		digits := 1
		if cpu >= 100e3 {
			digits = 0
		}
		fmt.Fprintf(&s, "| %s | %.1f | %.*f us |\n", r.shown, ratio, digits, cpu/1e3)
	}
	return s.String()
}

func (b *ingestBench) encoding(ctx context.Context, sides []*lab.Sidecar, rows rowsOf) error {
	const typed = "BulkUpsert of 1000 typed rows, gRPC"
	all := rows.all(rows.keys)
	var messages []*sidecarv1.IngestRequest
	for ; len(all) > 0; all = all[ingestSpread:] {
		messages = append(messages, streamMessage(all[:ingestSpread]))
	}
	c := lab.Case{Name: "encoding", Title: "Typed rows, JSON rows, rows encoded before", Baseline: b.Name(typed, 0)}
	c.Variants = b.variants(sides, way{typed, rows.bulk(ingestBatch)}, way{"BulkUpsert of 1000 rows of JSON, HTTP", b.json(rows, ingestBatch)},
		way{"Ingest of typed rows, gRPC, encoded before", stream(rows, rows.ring(ingestSpread, asMessage))},
		way{"Ingest of typed rows, gRPC, encoded as they go", stream(rows, messages)},
		way{"Ingest of rows of JSON, HTTP", b.lines(rows, rows.ring(ingestSpread, asLines))})
	_, err := b.compare(ctx, c)
	return err
}

func (b *ingestBench) batch(ctx context.Context, cluster *lab.Cluster, sides []*lab.Sidecar, conns []*grpc.ClientConn, rows rowsOf) error {
	sizes := lab.At(b.Lab, []int{1, 1000}, []int{1, 100, 10_000}, []int{1, 10, 100, 1000, 10_000})
	c := lab.Case{Name: "batch", Title: "Rows in a batch, 1 to 10,000", Text: "Ingest makes its batches itself, of `ingest.batch_rows` at most; that is what is set here."}
	lines := []lab.Line{{Name: "BulkUpsert"}, {Name: "YDB's own, directly"}, {Name: "Ingest"}}
	for _, size := range sizes {
		of := func(name string) string { return fmt.Sprintf("%d: %s", size, name) }
		c.Variants = append(c.Variants, b.variants(sides, way{of(lines[0].Name), rows.bulk(size)})...)
		c.Variants = append(c.Variants, lab.Variant{Name: of(lines[1].Name), Run: rows.own(conns, size)})
		set, err := b.Each(ctx, cluster.Endpoint(), "ingest.batch_rows="+strconv.Itoa(size), "ingest.batch_bytes=16MiB")
		if err != nil {
			return err
		}
		c.Variants = append(c.Variants, b.variants(set, way{of(lines[2].Name), stream(rows, rows.ring(ingestSpread, asMessage))})...)
		if size == 1 {
			c.Baseline = c.Variants[0].Name
		}
	}
	t, err := b.compare(ctx, c)
	if err != nil || t == nil {
		return err
	}
	for _, size := range sizes {
		for i := range lines {
			name := fmt.Sprintf("%d: %s", size, lines[i].Name)
			if i != 1 {
				name = b.Name(name, 0)
			}
			if rate, ok := t.Median(name, lab.RowsPerS); ok {
				lines[i].X, lines[i].Y = append(lines[i].X, float64(size)), append(lines[i].Y, rate)
			}
		}
	}
	b.Report.Add(lab.Section{Picture: &lab.Picture{Title: "Rows a second by rows in a batch", X: "rows in a batch", Y: "rows/s", LogX: true, Lines: lines}})
	return nil
}

func (b *ingestBench) size(ctx context.Context, sides []*lab.Sidecar) error {
	c := lab.Case{Name: "size", Title: "Bytes in a row", Text: "Three numbers and a text. Batches of 1000 rows of 2000 bytes are cut by `ingest.batch_bytes`, 1 MiB."}
	for _, rows := range lab.At(b.Lab, []rowsOf{{table: "ingest", size: 100, keys: 4000}},
		[]rowsOf{{table: "ingest", size: 100, keys: 40_000}, {table: "ingest2000", size: 2000, keys: 10_000}},
		[]rowsOf{{table: "ingest", size: 100, keys: 40_000}, {table: "ingest500", size: 500, keys: 20_000}, {table: "ingest2000", size: 2000, keys: 10_000}}) {
		c.Variants = append(c.Variants, b.variants(sides,
			way{fmt.Sprintf("%d: single UPSERTs, 64 in flight", rows.size), rows.singles(64)},
			way{fmt.Sprintf("%d: BulkUpsert of 1000 rows", rows.size), rows.bulk(ingestBatch)},
			way{fmt.Sprintf("%d: Ingest", rows.size), stream(rows, rows.ring(ingestSpread, asMessage))})...)
	}
	c.Baseline = c.Variants[0].Name
	_, err := b.compare(ctx, c)
	return err
}

func (b *ingestBench) indexes(ctx context.Context, sides []*lab.Sidecar) error {
	c := lab.Case{Name: "indexes", Title: "Secondary indexes", Text: "They are ASYNC: YDB's BulkUpsert refuses tables with others. The development cluster keeps one like the other, at once."}
	columns := []string{"", ", INDEX by_n GLOBAL ASYNC ON (n)", ", INDEX by_n GLOBAL ASYNC ON (n), INDEX by_at GLOBAL ASYNC ON (at)"}
	for _, n := range lab.At(b.Lab, []int{2}, []int{0, 2}, []int{0, 1, 2}) {
		rows := rowsOf{table: fmt.Sprintf("ingest_indexes%d", n), size: 100, keys: lab.At(b.Lab, 2000, 10_000, 10_000)}
		if err := b.tables(ctx, sides[0], columns[n], rows.table); err != nil {
			return err
		}
		c.Variants = append(c.Variants, b.variants(sides,
			way{fmt.Sprintf("%d: single UPSERTs, 64 in flight", n), rows.singles(64)},
			way{fmt.Sprintf("%d: UPSERTs of 100 rows, 4 in flight", n), rows.statements(100)},
			way{fmt.Sprintf("%d: Ingest", n), stream(rows, rows.ring(ingestSpread, asMessage))})...)
	}
	c.Baseline = c.Variants[0].Name
	_, err := b.compare(ctx, c)
	return err
}

func (b *ingestBench) clusters(ctx context.Context, rows rowsOf) error {
	c := lab.Case{Name: "nodes", Title: "Nodes", Text: "All nodes of a cluster are in one process over one SQLite, so that more of them cannot write more: the case shows that the sidecar does not mind them."}
	for _, n := range lab.At(b.Lab, []int{1}, []int{1, 9}, []int{1, 3, 9}) {
		cluster, err := b.Cluster(ctx, n)
		if err != nil {
			return err
		}
		sides, err := b.Each(ctx, cluster.Endpoint())
		if err != nil {
			return err
		}
		if err := b.tables(ctx, sides[0], "", rows.table); err != nil {
			return err
		}
		c.Variants = append(c.Variants, b.variants(sides,
			way{fmt.Sprintf("%d: single UPSERTs, 64 in flight", n), rows.singles(64)},
			way{fmt.Sprintf("%d: BulkUpsert of 1000 rows", n), rows.bulk(ingestBatch)},
			way{fmt.Sprintf("%d: Ingest", n), stream(rows, rows.ring(ingestSpread, asMessage))})...)
	}
	c.Baseline = c.Variants[0].Name
	_, err := b.compare(ctx, c)
	return err
}

// memory has many streams hold as much as they may, because the nodes are slow.
func (b *ingestBench) memory(ctx context.Context, cluster *lab.Cluster, rows rowsOf) error {
	if !b.Wanted("memory") {
		return nil
	}
	const streams = 32
	s, err := b.Sidecar(ctx, cluster.Endpoint())
	if err != nil {
		return err
	}
	ring := rows.ring(ingestSpread, asMessage)
	if _, err := streamRows(ctx, s.Conn, rows.table, ring, b.WarmUp); err != nil {
		return err
	}
	before, err := proc.ReadUsage(s.Pid())
	if err != nil {
		return err
	}
	for _, node := range cluster.Nodes {
		if err := cluster.Control.Do(ctx, node.ID, "delay", map[string]any{"delay": "2s"}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lab.At(b.Lab, time.Second, 3*time.Second, 4*time.Second))
	defer cancel()
	var open sync.WaitGroup
	for range streams {
		open.Go(func() { _, _ = streamRows(ctx, s.Conn, rows.table, ring, time.Minute) }) // it ends with ctx
	}
	peak := before.RSS
	for ctx.Err() == nil {
		now, err := proc.ReadUsage(s.Pid())
		if err != nil {
			return err
		}
		peak = max(peak, now.RSS)
		time.Sleep(50 * time.Millisecond) // between two looks
	}
	open.Wait()
	b.Report.Add(lab.Section{Title: "Memory", Text: fmt.Sprintf("%d streams that hold all they may, because each call of the nodes takes 2 s more (an injected delay): %.1f MiB resident for each (%d MiB before, %d MiB at most).",
		streams, float64(peak-before.RSS)/streams/(1<<20), before.RSS>>20, peak>>20)})
	return nil
}

func unsigned(v uint64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: v}}
}

func signed(v int64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: v}}
}

func text(v string) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: v}}
}
