package ingest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"

	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

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

var encodedBefore = grpc.ForceCodecV2(traffic.Encoded{CodecV2: encoding.GetCodecV2("proto")})

func asBulkRequest(table string, rows []ingestRow) []byte {
	request := &sidecarv1.BulkUpsertRequest{Table: table}
	for _, r := range rows {
		request.Rows = append(request.Rows, &sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{
			"id": traffic.Unsigned(r.id), "name": traffic.Text(r.name), "n": signed(r.n), "at": signed(r.at),
		}})
	}
	return traffic.Must(request)
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
	return traffic.Must(&Ydb_Table.BulkUpsertRequest{Table: "/local/" + table, Rows: &Ydb.TypedValue{Type: list, Value: values}})
}

func streamMessage(rows []ingestRow) *sidecarv1.IngestRequest {
	part := &sidecarv1.IngestRows{Columns: ingestColumns}
	for _, r := range rows {
		part.Rows = append(part.Rows,
			&sidecarv1.Row{Values: []*sidecarv1.Value{traffic.Unsigned(r.id), traffic.Text(r.name), signed(r.n), signed(r.at)}})
	}
	return &sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Rows{Rows: part}}
}

func asMessage(_ string, rows []ingestRow) []byte { return traffic.Must(streamMessage(rows)) }

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
