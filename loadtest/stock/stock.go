// Package stock is the experiment with the orders of `ydb workload stock`, directly and through the sidecar.
package stock

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Experiment is the load of `ydb workload stock`, directly and through the sidecar.
var Experiment = lab.Experiment{
	Name:  "stock",
	Title: "Orders of a shop: `ydb workload stock`",
	Question: `The tables and the five loads of YDB's own workload, on a development cluster of three nodes, by a client that has a session for every transaction and calls each on its node (*direct*), by the same client whose
sessions are the sidecar's (*wire*, mode transaction), and over the plain gRPC API. The headline is add-rand-order with as many transactions under way as keep p99 within 25 ms, found by search for each variant by itself: how many
transactions a second go through the sidecar of those that go directly, and what its CPU is for each, with GOMAXPROCS 1 and 2 for the sidecar alone. Everything shares the processors, and the cluster is SQLite behind YDB's protocol, which has
one writer at a time: it is the cluster that sets how many transactions there can be, and what the sidecar takes from it is CPU.`,
	Published: `No figures that others published stand beside these. Tables, statements, sizes of orders and distributions are those of YDB's command line, with a client of our own. What differs: the stock of each product begins with a million
(there: 1000), so that orders do not run out of it in the middle; put-same-order orders five products (there 100, and a flag), because with more of them nearly every transaction is aborted until it is alone. Partitions and replicas
are settings that the development cluster takes and does not have.`,
	Defaults: func(o *lab.Options) {
		if o.Duration == 0 {
			o.Duration = [...]time.Duration{200 * time.Millisecond, time.Second, 1500 * time.Millisecond}[o.Size]
		}
		if o.MaxRounds == 0 && o.Rounds == 0 {
			o.MaxRounds = [...]int{1, 3, 5}[o.Size]
		}
	},
	Run: measureStock,
}

// The workload, as its command line has it by default.
const (
	stockProducts  = 100
	stockQuantity  = 1_000_000
	stockOrders    = 100 // that are there at the begin
	stockCustomers = 10_000
	stockSame      = 5 // products of put-same-order
	stockHistory   = 10
	stockLimit     = 25 * time.Millisecond // of p99
	stockMost      = 128                   // transactions under way at most
)

const stockTables = `
CREATE TABLE stock (product Utf8, quantity Int64, PRIMARY KEY (product))
	WITH (AUTO_PARTITIONING_BY_LOAD = ENABLED, AUTO_PARTITIONING_MIN_PARTITIONS_COUNT = 40);
CREATE TABLE orders (id Uint64, customer Utf8, created Datetime, processed Datetime, PRIMARY KEY (id), INDEX ix_cust GLOBAL ON (customer, created) COVER (processed))
	WITH (READ_REPLICAS_SETTINGS = "per_az:1", AUTO_PARTITIONING_BY_LOAD = ENABLED, AUTO_PARTITIONING_MIN_PARTITIONS_COUNT = 40, AUTO_PARTITIONING_MAX_PARTITIONS_COUNT = 1000, UNIFORM_PARTITIONS = 40);
CREATE TABLE orderLines (id_order Uint64, product Utf8, quantity Int64, PRIMARY KEY (id_order, product))
	WITH (AUTO_PARTITIONING_BY_LOAD = ENABLED, AUTO_PARTITIONING_MIN_PARTITIONS_COUNT = 40, AUTO_PARTITIONING_MAX_PARTITIONS_COUNT = 1000, UNIFORM_PARTITIONS = 40)`

// Its statements.
const (
	stockFill = `DECLARE $stocks AS List<Struct<product:Utf8,quantity:Int64>>;
INSERT INTO stock (product, quantity) SELECT product, quantity FROM AS_TABLE($stocks);`

	stockAdd = `DECLARE $order AS Uint64;
DECLARE $customer AS Utf8;
DECLARE $created AS Datetime;
DECLARE $lines AS List<Struct<product:Utf8,quantity:Int64>>;
INSERT INTO orders (id, customer, created) VALUES ($order, $customer, $created);
UPSERT INTO orderLines (id_order, product, quantity) SELECT $order, product, quantity FROM AS_TABLE($lines);`

	stockPut = `DECLARE $order AS Uint64;
DECLARE $processed AS Datetime;
$wanted = SELECT product, quantity FROM orderLines WHERE id_order = $order;
$lines = SELECT COUNT(*) FROM $wanted;
$left = SELECT w.product AS product, COALESCE(s.quantity, 0) - w.quantity AS quantity FROM $wanted AS w LEFT JOIN stock AS s ON s.product = w.product;
$enough = SELECT COUNT(*) FROM $left AS l WHERE l.quantity >= 0;
UPSERT INTO stock SELECT product, quantity FROM $left WHERE $enough = $lines;
$done = SELECT id, $processed AS processed FROM orders WHERE id = $order AND $enough = $lines;
UPSERT INTO orders SELECT id, processed FROM $done;
SELECT product, quantity FROM $left AS l WHERE l.quantity < 0;`

	stockRead = `DECLARE $customer AS Utf8;
DECLARE $limit AS Uint32;
SELECT id, customer, created FROM orders VIEW ix_cust WHERE customer = $customer ORDER BY customer DESC, created DESC LIMIT $limit;`
)

func product(i int) string { return fmt.Sprintf("p%06d", i) }

func customer(i int) string { return fmt.Sprintf("Name%d", i) }

// orderLines is how many products a random order has: e of an exponential distribution with rate 1.6,
// doubled and rounded, until it is one at least.
func orderLines() int {
	for {
		if n := int(math.Round(2 * rand.ExpFloat64() / 1.6)); n > 0 {
			return min(n, stockProducts)
		}
	}
}

// lines are order lines of a quantity each.
func lines(quantity int64, products ...int) traffic.Value {
	items := map[int]map[string]traffic.Value{}
	for _, i := range products {
		items[i] = map[string]traffic.Value{"product": traffic.TextValue(product(i)), "quantity": traffic.SignedValue(quantity)}
	}
	var all []map[string]traffic.Value
	for _, item := range items {
		all = append(all, item)
	}
	return traffic.ListValue(all)
}

func randomLines() traffic.Value {
	products := make([]int, orderLines())
	for i := range products {
		products[i] = rand.IntN(stockProducts)
	}
	return lines(1, products...)
}

func sameLines() traffic.Value {
	products := make([]int, stockSame)
	for i := range products {
		products[i] = i
	}
	return lines(1, products...)
}

func addOrder(id uint64, lines traffic.Value) traffic.Request {
	return traffic.Request{SQL: stockAdd, Mode: "serializable_rw",
		Params: map[string]traffic.Value{"order": traffic.UnsignedValue(id),
			"customer": traffic.TextValue(customer(1 + rand.IntN(stockCustomers))),
			"created":  traffic.DatetimeValue(time.Now()), "lines": lines}}
}

func putOrder(id uint64) traffic.Request {
	return traffic.Request{SQL: stockPut, Mode: "serializable_rw",
		Params: map[string]traffic.Value{"order": traffic.UnsignedValue(id), "processed": traffic.DatetimeValue(time.Now())}}
}

func history(of string) traffic.Request {
	return traffic.Request{SQL: stockRead, Mode: "serializable_rw",
		Params: map[string]traffic.Value{"customer": traffic.TextValue(of), "limit": traffic.SmallValue(stockHistory)}}
}

// stockLoad is one of the five: the requests of one transaction of it, made one after the other.
type stockLoad struct {
	name, title string
	underWay    int
	requests    func() []traffic.Request
}

var stockLoads = []stockLoad{
	{"add-rand-order", "an order with random products", 8,
		func() []traffic.Request { return []traffic.Request{addOrder(rand.Uint64(), randomLines())} }},
	{"put-rand-order", "an order with random products, and its processing", 8, func() []traffic.Request {
		id := rand.Uint64()
		return []traffic.Request{addOrder(id, randomLines()), putOrder(id)}
	}},
	{"put-same-order",
		fmt.Sprintf("an order with always the same %d products, and its processing, which conflicts with that of all others", stockSame),
		4, func() []traffic.Request {
			id := rand.Uint64()
			return []traffic.Request{addOrder(id, sameLines()), putOrder(id)}
		}},
	{"rand-user-hist", "the last ten orders of a random customer", 8,
		func() []traffic.Request { return []traffic.Request{history(customer(1 + rand.IntN(stockCustomers)))} }},
	{"user-hist", "the last ten orders of one customer", 8,
		func() []traffic.Request { return []traffic.Request{history(customer(stockCustomers))} }},
}

// run keeps transactions of the load under way.
func (s stockLoad) run(ctx context.Context, cluster *lab.Cluster, w traffic.Sender, underWay int, d time.Duration) (lab.Result, error) {
	return traffic.Retried(ctx, cluster, func(count func(attempts, requests int)) lab.Result {
		return lab.Closed(ctx, underWay, d, func(ctx context.Context) error {
			for _, r := range s.requests() {
				attempts, _, err := w(ctx, r)
				count(attempts, 1)
				if err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
			}
			return nil
		})
	})
}

// fillStock makes the tables and their first rows.
func fillStock(ctx context.Context, client sidecarv1.SidecarClient) error {
	for _, sql := range strings.Split(stockTables, ";") {
		if _, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: sql, Timeout: "20s"}); err != nil {
			return fmt.Errorf("create the tables: %w", err)
		}
	}
	products := make([]int, stockProducts)
	for i := range products {
		products[i] = i
	}
	do := traffic.OverPlain(client)
	if _, _, err := do(
		ctx,
		traffic.Request{SQL: stockFill, Mode: "serializable_rw",
			Params: map[string]traffic.Value{"stocks": lines(stockQuantity, products...)}},
	); err != nil {
		return fmt.Errorf("fill the stock: %w", err)
	}
	for range stockOrders {
		if _, _, err := do(ctx, addOrder(rand.Uint64(), randomLines())); err != nil {
			return fmt.Errorf("add the first orders: %w", err)
		}
	}
	return nil
}

// stockWay is a way to the cluster with the process in the middle of it.
type stockWay struct {
	name  string
	under []*lab.Process
	do    traffic.Sender
}

func measureStock(ctx context.Context, l *lab.Lab) error {
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	d, err := traffic.DialNodes(ctx, cluster.Nodes, stockMost)
	if err != nil {
		return err
	}
	l.Defer(d.Close)
	ways := []stockWay{{"direct", nil, traffic.OverNodes(d)}}
	plain := map[bool][]stockWay{} // by whether the sidecar has one processor
	for _, procs := range []int{1, 2} {
		for i, program := range l.Sidecars {
			limit := fmt.Sprint(stockMost)
			s, err := l.SidecarOf(
				ctx, program, cluster.Endpoint(), []string{fmt.Sprintf("GOMAXPROCS=%d", procs)}, "pool.max="+limit,
				"pool.max_per_node="+limit, "pool.min=50",
			)
			if err != nil {
				return err
			}
			if len(ways) == 1 {
				if err := fillStock(ctx, s.Client); err != nil {
					return err
				}
			}
			// as many connections as directly
			through, err := traffic.DialNodes(ctx, []stand.Node{{Address: s.GRPC}, {Address: s.GRPC}, {Address: s.GRPC}}, stockMost)
			if err != nil {
				return err
			}
			l.Defer(through.Close)
			under := []*lab.Process{s.Process}
			both := []stockWay{{l.Name(fmt.Sprintf("wire, GOMAXPROCS=%d", procs), i), under, traffic.OverNodes(through)},
				{l.Name(fmt.Sprintf("plain gRPC, GOMAXPROCS=%d", procs), i), under, traffic.OverPlain(s.Client)}}
			ways = append(ways, both...)
			plain[procs == 1] = append(plain[procs == 1], both...)
		}
	}
	if err := headline(ctx, l, cluster, ways); err != nil {
		return err
	}
	return otherLoads(ctx, l, cluster, append(ways[:1:1], plain[false]...))
}

// otherLoads measures the loads beside the headline's. They say how the five loads compare, not what is exact: fewer rounds,
// and not the same with one processor.
func otherLoads(ctx context.Context, l *lab.Lab, cluster *lab.Cluster, ways []stockWay) error {
	rounds := l.Rounds
	l.Rounds = min(l.Rounds, 3)
	defer func() { l.Rounds = rounds }()
	for _, load := range stockLoads[1:] {
		c := lab.Case{Name: load.name, Title: fmt.Sprintf("%s: %s; %d under way", load.name, load.title, load.underWay),
			Baseline: "direct", Ratios: []string{lab.PerSecond, lab.P50, lab.P99},
			Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.CPU, traffic.FigureRetries, traffic.FigureAborted}}
		for _, w := range ways {
			c.Variants = append(c.Variants, lab.Variant{Name: w.name, Under: w.under,
				Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
					return load.run(ctx, cluster, w.do, load.underWay, d)
				}})
		}
		if _, err := l.Compare(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// figureUnderWay is what the search found.
const figureUnderWay = "under-way"

// headline finds for each way how many transactions may be under way, and compares them so.
func headline(ctx context.Context, l *lab.Lab, cluster *lab.Cluster, ways []stockWay) error {
	load := stockLoads[0]
	c := lab.Case{Name: load.name,
		Title:    fmt.Sprintf("%s: %s; as many under way as keep p99 within %v", load.name, load.title, stockLimit),
		Baseline: "direct",
		Text: fmt.Sprintf(
			"*under way* is what the search found for the variant, 1 to %d, before; p99 of the runs after it may "+
				"lie on either side of the limit, because it varies from run to run.",
			stockMost,
		),
		Figures: []string{figureUnderWay, lab.PerSecond, lab.P50, lab.P99, lab.CPU, traffic.FigureRetries, traffic.FigureAborted},
		Ratios:  []string{lab.PerSecond}, Chart: lab.PerSecond}
	if !l.Wanted(c.Name) {
		return nil
	}
	probe := lab.At(l, 50*time.Millisecond, 300*time.Millisecond, 500*time.Millisecond)
	for _, w := range ways {
		var underWay atomic.Int64
		v := lab.Variant{Name: w.name, Under: w.under, Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
			r, err := load.run(ctx, cluster, w.do, int(underWay.Load()), d)
			if err == nil {
				r.Figures[figureUnderWay] = float64(underWay.Load())
			}
			return r, err
		}}
		try := func(n int) (bool, error) {
			underWay.Store(int64(n))
			run, err := l.Once(ctx, v, probe)
			if err == nil && run.Failed > 0 {
				err = fmt.Errorf("%d of %d calls failed: %s", run.Failed, run.Calls, run.FirstFail)
			}
			return time.Duration(run.Figures[lab.P99]) <= stockLimit, err
		}
		if _, err := try(4); err != nil { // warms it up
			return fmt.Errorf("%s: %w", w.name, err)
		}
		found, err := fit(lab.At(l, 4, stockMost, stockMost), try)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		underWay.Store(int64(found))
		l.Progress("%s: %d under way", w.name, found)
		v.WarmUp = func(context.Context) error { return nil } // the search was
		c.Variants = append(c.Variants, v)
	}
	_, err := l.Compare(ctx, c)
	return err
}

// fit finds how many may be under way, 1 to most: doubles it while it fits, and then halves the interval until that is an
// eighth of it. What does not fit, and every step of the halving, is judged by two of three tries. If nothing fits it is 1.
func fit(most int, try func(n int) (bool, error)) (int, error) {
	judge := func(n int) (bool, error) {
		fits := 0
		for i := 1; i <= 3; i++ {
			ok, err := try(n)
			if err != nil {
				return false, err
			}
			if ok {
				fits++
			}
			if fits == 2 || i-fits == 2 {
				break
			}
		}
		return fits >= 2, nil
	}
	good, bad := 1, most+1
	for n := 2; n <= most && bad > most; {
		ok, err := try(n)
		if err == nil && !ok {
			ok, err = judge(n)
		}
		switch {
		case err != nil:
			return 0, err
		case !ok:
			bad = n
		case n == most:
			return most, nil
		default:
			good, n = n, min(2*n, most)
		}
	}
	for bad-good > max(1, good/8) {
		middle := (good + bad) / 2
		ok, err := judge(middle)
		if err != nil {
			return 0, err
		}
		if ok {
			good = middle
		} else {
			bad = middle
		}
	}
	return good, nil
}
