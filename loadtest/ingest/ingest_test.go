package ingest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestKeysOfARun(t *testing.T) {
	for _, tc := range []struct {
		repeated bool
		times    int
	}{{false, 1}, {true, 2}} {
		const keys = 1000
		key, seen, order := keysOf(tc.repeated, keys), map[uint64][]int{}, []uint64{}
		for i := range keys * tc.times {
			id := key(i)
			seen[id], order = append(seen[id], i), append(order, id)
		}
		if len(seen) != keys || tc.repeated == slices.IsSorted(order) {
			t.Errorf("repeated %t: %d keys, in order %t; want all %d, in order unless repeated", tc.repeated, len(seen),
				slices.IsSorted(order), keys)
		}
		for id, at := range seen {
			if len(at) != tc.times || at[len(at)-1]-at[0] >= ingestSpread {
				t.Errorf("repeated %t: key %d is at %v; want %d times within %d rows", tc.repeated, id, at, tc.times, ingestSpread)
			}
		}
	}
}

// Every encoding holds the same rows.
func TestEncodedRows(t *testing.T) {
	o := rowsOf{table: "t", size: 100, keys: 400}
	rows := o.all(3)
	for _, r := range rows {
		if len(r.name) != 76 {
			t.Errorf("a name of %d bytes; want 76, for 100 in all", len(r.name))
		}
	}
	var bulk sidecarv1.BulkUpsertRequest
	var own Ydb_Table.BulkUpsertRequest
	var message sidecarv1.IngestRequest
	for _, one := range []struct {
		m    proto.Message
		data []byte
	}{{&bulk, asBulkRequest("t", rows)}, {&own, asOwnRequest("t", rows)}, {&message, asMessage("t", rows)}} {
		if err := proto.Unmarshal(one.data, one.m); err != nil {
			t.Fatal(err)
		}
	}
	var body struct {
		Table string
		Rows  []struct {
			ID   uint64
			Name string
			N    int64
			At   int64
		}
	}
	if err := json.Unmarshal(asJSON("t", rows), &body); err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(asLines("t", rows)), "\n") != 3 || own.Table != "/local/t" || body.Table != "t" || bulk.Table != "t" {
		t.Errorf("tables %q, %q, %q, lines\n%s", own.Table, body.Table, bulk.Table, asLines("t", rows))
	}
	for i, want := range rows {
		columns, values := bulk.Rows[i].Columns, message.GetRows().Rows[i].Values
		for _, got := range []ingestRow{
			{columns["id"].GetUint64Value(), columns["name"].GetTextValue(), columns["n"].GetInt64Value(), columns["at"].GetInt64Value()},
			{values[0].GetUint64Value(), values[1].GetTextValue(), values[2].GetInt64Value(), values[3].GetInt64Value()},
			{body.Rows[i].ID, body.Rows[i].Name, body.Rows[i].N, body.Rows[i].At},
			{own.Rows.Value.Items[i].Items[0].GetUint64Value(), own.Rows.Value.Items[i].Items[1].GetTextValue(),
				own.Rows.Value.Items[i].Items[2].GetInt64Value(),
				int64(own.Rows.Value.Items[i].Items[3].GetUint64Value())},
		} {
			if got != want {
				t.Errorf("row %d: got %+v; want %+v", i, got, want)
			}
		}
	}
}

func TestRingsHoldWholeBatches(t *testing.T) {
	for batch, want := range map[int]int{1: 400, 200: 4, 150: 4, 1000: 4} {
		ring := rowsOf{table: "t", size: 100, keys: 400}.ring(batch,
			func(_ string, rows []ingestRow) []byte { return make([]byte, len(rows)) })
		for _, one := range ring {
			if len(one) != batch {
				t.Errorf("a batch of %d rows; want %d", len(one), batch)
			}
		}
		if len(ring) != want {
			t.Errorf("%d batches of %d; want %d", len(ring), batch, want)
		}
	}
}

func TestSummaryOfIngest(t *testing.T) {
	c := lab.Case{Baseline: oneWriter, Ratios: []string{lab.RowsPerS}}
	var runs [][]lab.Run
	for i, name := range []string{oneWriter, manyWriters, byHand, byHandOwn, oneIngest, halfRepeated, oneIngestWeb} {
		c.Variants = append(c.Variants, lab.Variant{Name: name})
		runs = append(runs, []lab.Run{{Figures: lab.Figures{lab.RowsPerS: 1000 * float64(1+i), lab.RowCPU: 200e3 / float64(1+i)}}})
	}
	got := ingestSummary(lab.NewTable(c, runs))
	for _, want := range []string{"one after the other | 1.0 | 200 us |", "64 in flight | 2.0 | 100 us |",
		"`Ingest` over gRPC, one stream | 5.0 | 40.0 us |"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %s", got, want)
		}
	}
}
