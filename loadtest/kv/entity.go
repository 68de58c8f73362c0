package kv

import (
	"bytes"
	"context"
	_ "embed" // the targets
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The targets, and the value that they put.
var (
	//go:embed entity.http
	entityTargets []byte
	//go:embed entity.value
	entityValue []byte
)

// Entity is a store of values behind HTTP.
func Entity() lab.Experiment {
	var rows int
	return lab.Experiment{
		Name:  "entity",
		Title: "Entities of 2.5 KB over HTTP",
		Question: `The key-value face under six GETs to three PUTs to one DELETE of values of 2500 bytes, sent by vegeta as loadtest/kv/entity.http says (vegeta attack -targets takes the same file), but with an id of its own for each request, random over
the table. Three of four ids have a row at the begin, which is where this mix leads to, so a quarter of the GETs is answered with 404, rightly. The table is once so small that all of it is in the cache of the database, and once as large as -rows says.
What caches: the development cluster is SQLite on a file, with 2 MB of pages for each of its connections. The large table is beyond that, and not beyond memory: the kernel keeps the file, no disk is read, and nothing here says how YDB's storage fares.`,
		Published: `The published measurement of such a store (GET 20,000 to 22,000 a second, PUT 12,000, of 8.1 GB) is of a storage engine by itself on eight cores; no figure here compares with it. It is looked for where it belongs: *knee*.`,
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&rows, "rows", 0, "ids of the large table; 0: by the size (400, 8000, 40000)")
		},
		Run: func(ctx context.Context, l *lab.Lab) error {
			if rows == 0 {
				rows = lab.At(l, 400, 8000, 40_000)
			}
			if rows < 100 || rows > 10_000_000 {
				return fmt.Errorf("-rows %d: want 100 to 10000000", rows)
			}
			return measureEntities(ctx, l, rows)
		},
	}
}

const entitySmall = 300 // ids of the table that is in the cache

// entityMix is the requests of the file in their order.
func entityMix() (all []vegeta.Target, err error) {
	// Where the value is on disk does not matter here.
	text := bytes.ReplaceAll(entityTargets, []byte("@loadtest/kv/entity.value\n"), nil)
	all, err = vegeta.ReadAllTargets(vegeta.NewHTTPTargeter(bytes.NewReader(text), nil, http.Header{}))
	for i := range all {
		if all[i].Method == http.MethodPut {
			all[i].Body = entityValue
		}
	}
	return all, err
}

// entityOn is a load on a sidecar.
func entityOn(name string, s *lab.Sidecar, e *entityLoad, pacer vegeta.Pacer, options ...func(*vegeta.Attacker)) lab.Variant {
	return lab.Variant{Name: name, Under: []*lab.Process{s.Process},
		Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
			return e.run(ctx, pacer, d, options...), nil
		}}
}

// entityLoad sends the mix to a table.
type entityLoad struct {
	mix     []vegeta.Target
	address string
	table   string
	ids     int
	turn    atomic.Uint64
}

// next is a vegeta.Targeter.
func (e *entityLoad) next(t *vegeta.Target) error {
	*t = e.mix[(e.turn.Add(1)-1)%uint64(len(e.mix))]
	u, err := url.Parse(t.URL)
	if err != nil {
		return err
	}
	u.Host, u.Path, u.RawQuery = e.address, "/v1/kv/"+e.table, "id="+strconv.Itoa(rand.IntN(e.ids))
	t.URL = u.String()
	return nil
}

// checkEntity says what is wrong with an answer.
func checkEntity(hit *vegeta.Result) error {
	switch {
	case hit.Method == http.MethodGet && hit.Code == http.StatusNotFound:
		return nil
	case hit.Method == http.MethodGet && hit.Code == http.StatusOK:
		if !bytes.Equal(hit.Body, entityValue) {
			return fmt.Errorf("%s: a value of %d bytes that was never put", hit.URL, len(hit.Body))
		}
		return nil
	case hit.Method != http.MethodGet && (hit.Code == http.StatusNoContent || hit.Code == http.StatusCreated):
		return nil
	}
	return fmt.Errorf("%s %s: HTTP %d: %s %.200s", hit.Method, hit.URL, hit.Code, hit.Error, hit.Body)
}

// run attacks and adds what each kind of request took.
func (e *entityLoad) run(ctx context.Context, pacer vegeta.Pacer, d time.Duration, options ...func(*vegeta.Attacker)) lab.Result {
	all, kinds := lab.NewRecorder(), map[string]*lab.Recorder{
		http.MethodGet: lab.NewRecorder(), http.MethodPut: lab.NewRecorder(), http.MethodDelete: lab.NewRecorder(),
	}
	missing, gets, begun := 0, 0, time.Now()
	for hit := range lab.Hits(ctx, e.next, pacer, d, "entity", options...) {
		err := checkEntity(hit)
		all.Add(hit.Latency, err)
		if kind := kinds[hit.Method]; kind != nil {
			kind.Add(hit.Latency, err)
		}
		if hit.Method == http.MethodGet {
			gets++
			if hit.Code == http.StatusNotFound {
				missing++
			}
		}
	}
	took := time.Since(begun)
	result := all.Open(took, d)
	if result.Closed = lab.Unpaced(pacer); result.Closed {
		result.Offered = float64(result.Calls) / took.Seconds()
	}
	result.Figures = lab.Figures{}
	for name, kind := range map[string]string{"get": http.MethodGet, "put": http.MethodPut, "delete": http.MethodDelete} {
		r := kinds[kind].Result(took)
		result.Figures[name+"-p50-ns"], result.Figures[name+"-p99-ns"] = float64(r.Quantile(50)), float64(r.Quantile(99))
	}
	if gets > 0 {
		result.Figures["missing"] = float64(missing) / float64(gets)
	}
	return result
}

// entityTable is a table, and how many ids it has.
type entityTable struct {
	name string
	ids  int
}

// entityPace is a way to send requests, and what is reported of it.
type entityPace struct {
	name, title string
	pacer       vegeta.Pacer
	figures     []string
	options     []func(*vegeta.Attacker)
}

// entityCase compares the sides and the tables at a pace.
func entityCase(l *lab.Lab, p entityPace, tables []entityTable, sides []*lab.Sidecar, mix []vegeta.Target) lab.Case {
	c := lab.Case{Name: p.name, Title: p.title, Baseline: l.Name(entityVariant(tables[0].name, tables[0].ids), 0), Figures: p.figures,
		Ratios: []string{lab.CPU, "get-p50-ns", "put-p50-ns"}}
	for _, t := range tables {
		for i, s := range sides {
			c.Variants = append(c.Variants, entityOn(l.Name(entityVariant(t.name, t.ids), i), s,
				&entityLoad{mix: mix, address: s.HTTP, table: t.name, ids: t.ids}, p.pacer, p.options...))
		}
	}
	return c
}

func measureEntities(ctx context.Context, l *lab.Lab, rows int) (err error) {
	dir, err := os.MkdirTemp("", "loadtest-entity-")
	if err != nil {
		return err
	}
	defer func() {
		l.Stop() // the file is in use until then
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	cluster, err := l.Cluster(ctx, 3, "-data", filepath.Join(dir, "db"))
	if err != nil {
		return err
	}
	mix, err := entityMix()
	if err != nil {
		return err
	}
	sides, err := l.Each(
		ctx, cluster.Endpoint(), "pool.min=50",
		"kv.tables=small=small key=id:Uint64 value=payload:String,large=large key=id:Uint64 value=payload:String",
	)
	if err != nil {
		return err
	}
	tables := []entityTable{{"small", entitySmall}, {"large", rows}}
	for _, t := range tables {
		if err := fillEntities(ctx, l, sides[0].Client, t.name, t.ids); err != nil {
			return err
		}
	}
	rate := min(l.MaxRate, lab.At(l, 100, 500, 500))
	const underWay = 16
	figures := []string{"get-p50-ns", "get-p99-ns", "put-p50-ns", "put-p99-ns", "delete-p50-ns", "delete-p99-ns", lab.CPU, "missing"}
	for _, pace := range []entityPace{
		{"rate", fmt.Sprintf("%d requests a second", rate), lab.Rate(rate), append([]string{lab.Offered, lab.PerSecond}, figures...), nil},
		{"busy", fmt.Sprintf("%d requests under way", underWay), lab.Rate(0),
			append([]string{lab.PerSecond}, figures...),
			[]func(*vegeta.Attacker){vegeta.Workers(underWay), vegeta.MaxWorkers(underWay)}},
	} {
		if _, err := l.Compare(ctx, entityCase(l, pace, tables, sides, mix)); err != nil {
			return err
		}
	}
	return nil
}

// entityVariant says how much a table has at the begin.
func entityVariant(table string, ids int) string {
	return fmt.Sprintf("%s, %.1f MB", table, float64(ids-ids/4)*float64(len(entityValue))/1e6)
}

// fillEntities makes a table with three rows to four ids.
func fillEntities(ctx context.Context, l *lab.Lab, client sidecarv1.SidecarClient, table string, ids int) error {
	create := fmt.Sprintf("CREATE TABLE %s (id Uint64, payload String, PRIMARY KEY (id)) WITH (KEY_BLOOM_FILTER = ENABLED)", table)
	if _, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: create, Timeout: "20s"}); err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	const batch = 400 // a megabyte
	request := &sidecarv1.BulkUpsertRequest{Table: table, Timeout: "20s"}
	for id := range ids {
		if id%4 != 3 {
			request.Rows = append(request.Rows, &sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{
				"id": traffic.Unsigned(uint64(id)), "payload": {Kind: &sidecarv1.Value_BytesValue{BytesValue: entityValue}}}})
		}
		if len(request.Rows) == batch || id == ids-1 && len(request.Rows) > 0 {
			if _, err := client.BulkUpsert(ctx, request); err != nil {
				return fmt.Errorf("fill the table: %w", err)
			}
			request.Rows = nil
		}
	}
	l.Progress("%s: %d ids", table, ids)
	return nil
}
