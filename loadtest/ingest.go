package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/proc"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

const (
	ingestTable  = "CREATE TABLE ingest (id Uint64 NOT NULL, name Utf8, n Int64, at Timestamp, PRIMARY KEY (id))"
	ingestUpsert = "DECLARE $id AS Uint64; DECLARE $name AS Utf8; DECLARE $n AS Int64; DECLARE $at AS Timestamp; UPSERT INTO ingest (id, name, n, at) VALUES ($id, $name, $n, $at)"
	// ingestKeys is how many keys there are: far more than are under way at a time,
	// and few enough for the table to stay as it is.
	ingestKeys = 200_000
	// ingestSpread is how many rows lie between a row and the one that repeats its key, at most.
	ingestSpread = 200
)

var ingestColumns = []string{"id", "name", "n", "at"}

// ingestRow is row i of a run: the name has 40 bytes.
func ingestRow(id uint64, i int) (name string, n int64, at int64) {
	b := append(make([]byte, 0, 40), "the name of the row with the key "...)
	b = strconv.AppendUint(b, 1_000_000+id, 10)
	return string(b), int64(i), 1_700_000_000_000_000 + int64(i)
}

// keysOf makes the keys of a run: each once, or each twice within ingestSpread rows.
func keysOf(repeated bool) func(i int) uint64 {
	if !repeated {
		return func(i int) uint64 { return uint64(i % ingestKeys) }
	}
	r := rand.New(rand.NewPCG(1, 2))
	block := make([]uint64, 0, ingestSpread)
	return func(i int) uint64 {
		if i%ingestSpread == 0 {
			block = block[:0]
			for k := range ingestSpread {
				block = append(block, uint64((i/2+k/2)%ingestKeys))
			}
			r.Shuffle(len(block), func(a, b int) { block[a], block[b] = block[b], block[a] })
		}
		return block[i%ingestSpread]
	}
}

// compareIngest measures rows a second of every way to write them.
func compareIngest(ctx context.Context, args []string) error {
	o := options{}
	flags := flag.NewFlagSet("ingest", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin", "bin", "directory of sidecar and devcluster")
	flags.IntVar(&o.repeats, "repeats", 5, "runs of each measurement; the median counts")
	flags.DurationVar(&o.duration, "duration", 2*time.Second, "of one run")
	var settings string
	flags.StringVar(&settings, "set", "", "settings of the sidecar, with commas between them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.repeats < 1 || o.duration < 100*time.Millisecond {
		return fmt.Errorf("arguments %q, repeats %d, duration %v: want none, at least 1, 100ms", flags.Args(), o.repeats, o.duration)
	}
	s, err := startStack(ctx, o.bin)
	if err != nil {
		return err
	}
	defer s.stop()
	side, err := s.sidecar(ctx, slices.DeleteFunc(strings.Split(settings, ","), func(s string) bool { return s == "" })...)
	if err != nil {
		return err
	}
	if _, err := side.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: ingestTable, Timeout: "20s"}); err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	direct, err := dialDirect(ctx, s, 0)
	if err != nil {
		return err
	}
	defer direct.close()

	pid := side.process.Pid()
	variants := []variant{
		{"single UPSERTs, one after the other", pid, func(ctx context.Context, d time.Duration) result { return singleUpserts(ctx, side, 1, d) }},
		{"single UPSERTs, 64 in flight", pid, func(ctx context.Context, d time.Duration) result { return singleUpserts(ctx, side, 64, d) }},
	}
	for _, size := range []int{100, 500, 1000, 2000, 5000} {
		variants = append(variants,
			variant{fmt.Sprintf("BulkUpsert of %d rows, plain API", size), pid, func(ctx context.Context, d time.Duration) result {
				return bulkUpserts(ctx, side, size, d)
			}},
			variant{fmt.Sprintf("BulkUpsert of %d rows, YDB's own, directly", size), 0, func(ctx context.Context, d time.Duration) result {
				return directUpserts(ctx, direct.conns, size, d)
			}})
	}
	stream := len(variants)
	unique, repeated := ingestMessages(false), ingestMessages(true)
	variants = append(variants,
		variant{"Ingest over gRPC", pid, func(ctx context.Context, d time.Duration) result { return streamRows(ctx, side, unique, d) }},
		variant{"Ingest over gRPC, half of the rows repeat a key", pid, func(ctx context.Context, d time.Duration) result { return streamRows(ctx, side, repeated, d) }},
		variant{"Ingest over HTTP", pid, func(ctx context.Context, d time.Duration) result { return streamLines(ctx, side, d) }},
	)
	all, err := measure(ctx, s, o, variants)
	if err != nil {
		return err
	}
	rate := func(i int) float64 { return all[i].Median.PerSecond }
	best := func(first int) (at int) {
		at = first
		for i := first; i < stream; i += 2 {
			if rate(i) > rate(at) {
				at = i
			}
		}
		return at
	}
	fmt.Printf("Rows a second, medians of %d runs of %v, interleaved; range of the runs in brackets. 4 BulkUpserts in flight, 4 columns, about 100 bytes a row.\n\n", o.repeats, o.duration)
	fmt.Println("| way | rows/s | CPU of the sidecar, us a row | failed |\n|---|--:|--:|--:|")
	failed := int64(0)
	for i, one := range all {
		cpu := fmt.Sprintf("%.2f", float64(one.Median.CPU.Nanoseconds())/1000)
		if variants[i].pid == 0 {
			cpu = ""
		}
		least, most := one.Runs[0].PerSecond, one.Runs[0].PerSecond
		for _, run := range one.Runs {
			least, most = min(least, run.PerSecond), max(most, run.PerSecond)
			failed += run.Failed
			if run.FirstFail != "" {
				fmt.Printf("<!-- %s: %s -->\n", one.Name, run.FirstFail)
			}
		}
		fmt.Printf("| %s | %.0f (%.0f to %.0f) | %s | %d |\n", one.Name, rate(i), least, most, cpu, one.Median.Failed)
	}
	hand, own := best(2), best(3)
	fmt.Printf("\n| goal | wanted | measured |\n|---|--:|--:|\n")
	fmt.Printf("| Ingest to single UPSERTs of one writer as well | 20 | %.1f |\n", rate(stream)/rate(0))
	fmt.Printf("| Ingest to single UPSERTs of 64 writers | | %.1f |\n", rate(stream)/rate(1))
	fmt.Printf("| Ingest to the best BulkUpserts by hand (%s) | 0.8 | %.2f |\n", all[hand].Name, rate(stream)/rate(hand))
	fmt.Printf("| the same, directly (%s) | | %.2f |\n", all[own].Name, rate(stream)/rate(own))
	fmt.Printf("| half of the rows repeat a key, to Ingest | 1.7 | %.2f |\n", rate(stream+1)/rate(stream))
	fmt.Printf("| over HTTP, to Ingest over gRPC | | %.2f |\n", rate(stream+2)/rate(stream))
	if err := ingestMemory(ctx, s, side, unique); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d rows failed", failed)
	}
	return nil
}

// rowRate is the result of a run that wrote rows.
func rowRate(rows int64, took time.Duration, err error) result {
	r := result{Calls: rows, PerSecond: float64(rows) / took.Seconds()}
	if err != nil {
		r.Failed, r.FirstFail = 1, err.Error()
	}
	return r
}

func singleUpserts(ctx context.Context, side *sidecar, inFlight int, d time.Duration) result {
	var next atomic.Int64
	return closedLoop(ctx, inFlight, d, func(ctx context.Context) error {
		i := int(next.Add(1))
		id := uint64(i % ingestKeys)
		name, n, at := ingestRow(id, i)
		_, err := side.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: ingestUpsert, Idempotent: true, Params: map[string]*sidecarv1.Value{
			"id": unsigned(id), "name": text(name), "n": signed(n), "at": signed(at),
		}})
		return err
	})
}

// batches runs write for one batch after the other, four at a time.
func batches(ctx context.Context, size int, d time.Duration, write func(ctx context.Context, first int) error) result {
	var next atomic.Int64
	r := closedLoop(ctx, 4, d, func(ctx context.Context) error {
		return write(ctx, int(next.Add(int64(size)))-size)
	})
	r.Calls *= int64(size)
	r.PerSecond *= float64(size)
	return r
}

func bulkUpserts(ctx context.Context, side *sidecar, size int, d time.Duration) result {
	return batches(ctx, size, d, func(ctx context.Context, first int) error {
		request := &sidecarv1.BulkUpsertRequest{Table: "ingest"}
		for i := first; i < first+size; i++ {
			id := uint64(i % ingestKeys)
			name, n, at := ingestRow(id, i)
			request.Rows = append(request.Rows, &sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{
				"id": unsigned(id), "name": text(name), "n": signed(n), "at": signed(at),
			}})
		}
		_, err := side.client.BulkUpsert(ctx, request)
		return err
	})
}

func directUpserts(ctx context.Context, conns []*grpc.ClientConn, size int, d time.Duration) result {
	member := func(name string, id Ydb.Type_PrimitiveTypeId) *Ydb.StructMember {
		return &Ydb.StructMember{Name: name, Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}}}
	}
	row := &Ydb.StructType{Members: []*Ydb.StructMember{
		member("id", Ydb.Type_UINT64), member("name", Ydb.Type_UTF8), member("n", Ydb.Type_INT64), member("at", Ydb.Type_TIMESTAMP),
	}}
	list := &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: &Ydb.Type{Type: &Ydb.Type_StructType{StructType: row}}}}}
	var turn atomic.Int64
	return batches(ctx, size, d, func(ctx context.Context, first int) error {
		rows := &Ydb.Value{}
		for i := first; i < first+size; i++ {
			id := uint64(i % ingestKeys)
			name, n, at := ingestRow(id, i)
			rows.Items = append(rows.Items, &Ydb.Value{Items: []*Ydb.Value{
				{Value: &Ydb.Value_Uint64Value{Uint64Value: id}}, {Value: &Ydb.Value_TextValue{TextValue: name}},
				{Value: &Ydb.Value_Int64Value{Int64Value: n}}, {Value: &Ydb.Value_Uint64Value{Uint64Value: uint64(at)}},
			}})
		}
		client := Ydb_Table_V1.NewTableServiceClient(conns[int(turn.Add(1))%len(conns)])
		r, err := client.BulkUpsert(withDatabase(ctx), &Ydb_Table.BulkUpsertRequest{Table: "/local/ingest", Rows: &Ydb.TypedValue{Type: list, Value: rows}})
		if err == nil && r.GetOperation().GetStatus() != Ydb.StatusIds_SUCCESS {
			err = fmt.Errorf("BulkUpsert: %v", r.GetOperation())
		}
		return err
	})
}

// ingestMessages makes rows of all keys, ahead of the runs: what it costs to make
// rows is no matter of how they are written.
func ingestMessages(repeated bool) []*sidecarv1.IngestRequest {
	keys := keysOf(repeated)
	var all []*sidecarv1.IngestRequest
	for i := 0; i < ingestKeys; {
		rows := &sidecarv1.IngestRows{Columns: ingestColumns}
		for range 200 {
			id := keys(i)
			name, n, at := ingestRow(id, i)
			rows.Rows = append(rows.Rows, &sidecarv1.Row{Values: []*sidecarv1.Value{unsigned(id), text(name), signed(n), signed(at)}})
			i++
		}
		all = append(all, &sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Rows{Rows: rows}})
	}
	return all
}

func streamRows(ctx context.Context, side *sidecar, messages []*sidecarv1.IngestRequest, d time.Duration) result {
	begun, next := time.Now(), uint64(0)
	err := func() error {
		ctx, cancel := context.WithTimeout(ctx, d+20*time.Second)
		defer cancel()
		stream, err := sidecarv1.NewIngestClient(side.conn).Ingest(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: "ingest"}}}); err != nil {
			return err
		}
		sent := make(chan error, 1)
		go func() {
			for i := 0; time.Since(begun) < d; i++ {
				if stream.Send(messages[i%len(messages)]) != nil {
					break // Recv says why
				}
			}
			sent <- stream.CloseSend()
		}()
		for {
			m, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return <-sent
			case err != nil:
				return err
			case m.GetRefused() != nil:
				return fmt.Errorf("row %d: %s", m.GetRefused().Offset, m.GetRefused().Error.GetMessage())
			case m.GetEnd() != nil:
				next = m.GetEnd().Next
			}
		}
	}()
	return rowRate(int64(next), time.Since(begun), err)
}

func streamLines(ctx context.Context, side *sidecar, d time.Duration) result {
	begun, next := time.Now(), int64(0)
	err := func() error {
		ctx, cancel := context.WithTimeout(ctx, d+20*time.Second)
		defer cancel()
		read, write := io.Pipe()
		go func() {
			keys := keysOf(false)
			var b []byte
			for i := 0; time.Since(begun) < d; {
				b = b[:0]
				for range 200 {
					id := keys(i)
					name, n, at := ingestRow(id, i)
					b = strconv.AppendUint(append(b, `{"id":`...), id, 10)
					b = append(append(append(b, `,"name":"`...), name...), `","n":`...)
					b = strconv.AppendInt(append(strconv.AppendInt(b, n, 10), `,"at":`...), at, 10)
					b = append(b, "}\n"...)
					i++
				}
				if _, err := write.Write(b); err != nil {
					return // the answer says why
				}
			}
			_ = write.Close()
		}()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+side.http+"/v1/ingest/ingest", read)
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/x-ndjson")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		all, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		last := all[bytes.LastIndexByte(bytes.TrimSpace(all), '\n')+1:]
		if _, err := fmt.Sscanf(string(last), `{"end":{"next":%d,`, &next); err != nil {
			return fmt.Errorf("the last line is %s", last)
		}
		return nil
	}()
	return rowRate(next, time.Since(begun), err)
}

// ingestMemory has many streams hold as much as they may, because the nodes are slow.
func ingestMemory(ctx context.Context, s *stack, side *sidecar, messages []*sidecarv1.IngestRequest) error {
	const streams = 32
	before, err := proc.ReadUsage(side.process.Pid())
	if err != nil {
		return err
	}
	for _, node := range s.nodes {
		if err := s.control.Do(ctx, node.ID, "delay", map[string]any{"delay": "2s"}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	done := make(chan struct{}, streams)
	for range streams {
		go func() {
			defer func() { done <- struct{}{} }()
			streamRows(ctx, side, messages, time.Minute)
		}()
	}
	peak := int64(0)
	for ctx.Err() == nil {
		now, err := proc.ReadUsage(side.process.Pid())
		if err != nil {
			return err
		}
		peak = max(peak, now.RSS)
		time.Sleep(50 * time.Millisecond)
	}
	for range streams {
		<-done
	}
	fmt.Printf("\nMemory: %d streams that hold all they may, because the nodes take 2 s: %.1f MiB resident for each (%d MiB before, %d MiB at most).\n",
		streams, float64(peak-before.RSS)/streams/(1<<20), before.RSS>>20, peak>>20)
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
