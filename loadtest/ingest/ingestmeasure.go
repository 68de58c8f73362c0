package ingest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

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
	c.Variants = b.variants(sides, way{typed, rows.bulk(ingestBatch)},
		way{"BulkUpsert of 1000 rows of JSON, HTTP", b.json(rows, ingestBatch)},
		way{"Ingest of typed rows, gRPC, encoded before", stream(rows, rows.ring(ingestSpread, asMessage))},
		way{"Ingest of typed rows, gRPC, encoded as they go", stream(rows, messages)},
		way{"Ingest of rows of JSON, HTTP", b.lines(rows, rows.ring(ingestSpread, asLines))})
	_, err := b.compare(ctx, c)
	return err
}

func (b *ingestBench) batch(ctx context.Context, cluster *lab.Cluster, sides []*lab.Sidecar, conns []*grpc.ClientConn, rows rowsOf) error {
	sizes := lab.At(b.Lab, []int{1, 1000}, []int{1, 100, 10_000}, []int{1, 10, 100, 1000, 10_000})
	c := lab.Case{Name: "batch", Title: "Rows in a batch, 1 to 10,000",
		Text: "Ingest makes its batches itself, of `ingest.batch_rows` at most; that is what is set here."}
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
	b.Report.Add(
		lab.Section{
			Picture: &lab.Picture{Title: "Rows a second by rows in a batch", X: "rows in a batch", Y: "rows/s", LogX: true, Lines: lines},
		},
	)
	return nil
}

func (b *ingestBench) size(ctx context.Context, sides []*lab.Sidecar) error {
	c := lab.Case{Name: "size", Title: "Bytes in a row",
		Text: "Three numbers and a text. Batches of 1000 rows of 2000 bytes are cut by `ingest.batch_bytes`, 1 MiB."}
	for _, rows := range lab.At(b.Lab, []rowsOf{{table: "ingest", size: 100, keys: 4000}},
		[]rowsOf{{table: "ingest", size: 100, keys: 40_000}, {table: "ingest2000", size: 2000, keys: 10_000}},
		[]rowsOf{{table: "ingest", size: 100, keys: 40_000}, {table: "ingest500", size: 500, keys: 20_000},
			{table: "ingest2000", size: 2000, keys: 10_000}}) {
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
	c := lab.Case{Name: "indexes", Title: "Secondary indexes",
		Text: "They are ASYNC: YDB's BulkUpsert refuses tables with others. The development cluster keeps one like the other, at once."}
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
	c := lab.Case{Name: "nodes", Title: "Nodes",
		Text: "All nodes of a cluster are in one process over one SQLite, so that more of them cannot write more: " +
			"the case shows that the sidecar does not mind them."}
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
	before, err := stand.ReadUsage(s.Pid())
	if err != nil {
		return err
	}
	if err := cluster.Everywhere(ctx, "delay", map[string]any{"delay": "2s"}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lab.At(b.Lab, time.Second, 3*time.Second, 4*time.Second))
	defer cancel()
	var open sync.WaitGroup
	for range streams {
		open.Go(func() { _, _ = streamRows(ctx, s.Conn, rows.table, ring, time.Minute) }) // it ends with ctx
	}
	peak := before.RSS
	for ctx.Err() == nil {
		now, err := stand.ReadUsage(s.Pid())
		if err != nil {
			return err
		}
		peak = max(peak, now.RSS)
		time.Sleep(50 * time.Millisecond) // between two looks
	}
	open.Wait()
	b.Report.Add(lab.Section{Title: "Memory",
		Text: fmt.Sprintf(
			"%d streams that hold all they may, because each call of the nodes takes 2 s more (an injected delay): "+
				"%.1f MiB resident for each (%d MiB before, %d MiB at most).",
			streams, float64(peak-before.RSS)/streams/(1<<20), before.RSS>>20, peak>>20,
		)})
	return nil
}
