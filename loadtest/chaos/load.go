package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// The tables. In written, counted and transfers each row is one write, and n is
// how often it was applied; kv is only read, big only streamed.
const (
	accountCount   = 1000
	initialBalance = 1000
	kvRows         = 1000
	bigRows        = 4000
	callTimeout    = 5 * time.Second
	quickTimeout   = 10 * time.Second // a busy machine adds to the time in which a silent node is found
	hangAfter      = 5 * time.Second  // after the deadline: the caller gives up, which is a fault
	mostOpen       = 5000             // operations in flight at a time; beyond that the run is of no use
)

var createTables = []string{
	"CREATE TABLE kv (id Uint64, v Utf8, PRIMARY KEY (id))",
	"CREATE TABLE big (id Uint64, v Utf8, PRIMARY KEY (id))",
	"CREATE TABLE written (id Uint64, n Int64, v Utf8, PRIMARY KEY (id))",
	"CREATE TABLE counted (id Uint64, n Int64, PRIMARY KEY (id))",
	"CREATE TABLE transfers (id Uint64, n Int64, PRIMARY KEY (id))",
	"CREATE TABLE accounts (id Uint64, balance Int64, PRIMARY KEY (id))",
}

const (
	readSQL  = "DECLARE $id AS Uint64; SELECT v FROM kv WHERE id = $id"
	writeSQL = "DECLARE $id AS Uint64; DECLARE $v AS Utf8; UPSERT INTO written (id, n, v) VALUES ($id, 1, $v)"
	countSQL = "DECLARE $id AS Uint64; UPSERT INTO %s (id, n) SELECT $id AS id, COALESCE(MAX(n), 0) + 1 AS n FROM %s WHERE id = $id"
	addSQL   = "DECLARE $id AS Uint64; DECLARE $by AS Int64; UPDATE accounts SET balance = balance + $by WHERE id = $id"
	findSQL  = "DECLARE $a AS Uint64; DECLARE $b AS Uint64; SELECT id, balance FROM accounts WHERE id IN ($a, $b)"
	setSQL   = "DECLARE $a AS Uint64; DECLARE $b AS Uint64; DECLARE $x AS Int64; DECLARE $y AS Int64; UPSERT INTO " +
		"accounts (id, balance) VALUES ($a, $x), ($b, $y)"
	bigSQL = "SELECT id, v FROM big"
)

var (
	countOnce    = fmt.Sprintf(countSQL, "counted", "counted")
	transferOnce = fmt.Sprintf(countSQL, "transfers", "transfers")
)

// The kinds of operations.
const (
	read     = "read"     // a row by its key; idempotent
	write    = "write"    // an upsert; idempotent
	count    = "count"    // adds one to a row of its own; not idempotent
	transfer = "transfer" // a list of statements as one transaction
	pay      = "pay"      // an interactive transaction
	stream   = "stream"   // not part of the latency windows
)

// shares is the mix of the open-loop generator, in percent.
var shares = []struct {
	kind    string
	percent int
}{{read, 50}, {write, 15}, {count, 15}, {transfer, 10}, {pay, 10}}

// load is all callers of one run that speak Go.
type load struct {
	ledger   *ledger
	recorder *recorder
	timeout  time.Duration         // of a call
	apis     atomic.Pointer[[]api] // another one when the sidecar is replaced by another

	open   atomic.Int64
	missed atomic.Int64 // operations not begun because too many were open

	mu   sync.Mutex // guards busy
	busy map[uint64]bool
}

// prepare makes the tables and fills them.
func prepare(ctx context.Context, f api) error {
	for _, sql := range createTables {
		if _, err := f.execute(ctx, contract.Statement{SQL: sql, Timeout: "20s"}); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	insert := func(table string, rows int, value func(id int) string) error {
		for from := 0; from < rows; from += 500 {
			var text strings.Builder
			for id := from; id < min(rows, from+500); id++ {
				if id > from {
					text.WriteString(", ")
				}
				fmt.Fprintf(&text, "(%d, %s)", id, value(id))
			}
			if _, err := f.execute(
				ctx, contract.Statement{SQL: "UPSERT INTO " + table + " VALUES " + text.String(), Timeout: "20s"},
			); err != nil {
				return fmt.Errorf("fill %s: %w", table, err)
			}
		}
		return nil
	}
	payload := strings.Repeat("x", 100)
	if err := insert("kv (id, v)", kvRows, func(id int) string { return "'v" + strconv.Itoa(id) + "'u" }); err != nil {
		return err
	}
	if err := insert("accounts (id, balance)", accountCount, func(int) string { return strconv.Itoa(initialBalance) }); err != nil {
		return err
	}
	return insert("big (id, v)", bigRows, func(int) string { return "'" + payload + "'u" })
}

// generate begins operations at a constant rate until ctx ends, whatever becomes of them, and waits until they have
// ended; latency counts from the instant at which each was due.
func (l *load) generate(ctx context.Context, rate int, seed uint64) {
	const forever = 1000 * time.Hour
	random := rand.New(rand.NewPCG(seed, 1))
	var picking sync.Mutex // guards random
	lab.Send(ctx, lab.Rate(rate), forever, func(_ context.Context, due time.Time) {
		defer l.open.Add(-1)
		if l.open.Add(1) > mostOpen {
			l.missed.Add(1)
			return
		}
		picking.Lock()
		o := l.pick(random)
		picking.Unlock()
		l.do(o, due.Sub(l.recorder.begun))
	})
}

// closed keeps a number of operations in flight for a while and returns how many ended a second.
func (l *load) closed(ctx context.Context, inFlight int, span time.Duration, seed uint64) float64 {
	workers := make([]lab.Call, inFlight)
	for i := range workers {
		random := rand.New(rand.NewPCG(seed, uint64(i)+100))
		workers[i] = func(context.Context) error {
			l.do(l.pick(random), l.recorder.now())
			return nil
		}
	}
	return lab.ClosedEach(ctx, span, workers...).Offered
}

// streams reads the big table again and again, slowly.
func (l *load) streams(ctx context.Context, face int, pause time.Duration) {
	for ctx.Err() == nil {
		sent := l.recorder.now()
		call, cancel := context.WithTimeout(context.Background(), 2*l.timeout+hangAfter)
		rows, err := (*l.apis.Load())[face].stream(call, bigSQL, 2*l.timeout, pause)
		cancel()
		s := sample{kind: stream, due: sent, sent: sent, ended: l.recorder.now()}
		s.over = s.ended - s.sent - 2*l.timeout
		if err == nil && rows != bigRows {
			err = &failure{code: "WRONG", text: fmt.Sprintf("a stream ended well after %d rows; want %d", rows, bigRows)}
		}
		if err != nil {
			s.failed = err.(*failure)
			select { // a sidecar that is away is not asked in a tight loop
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		l.recorder.add(s)
	}
}

// operation is one thing to do, with all that chance decides.
type operation struct {
	kind     string
	api      int
	key      uint64
	from, to uint64
	amount   int64
}

func (l *load) pick(random *rand.Rand) operation {
	o := operation{api: random.IntN(2), key: random.Uint64N(kvRows), amount: 1 + random.Int64N(50)}
	n := random.IntN(100)
	for _, s := range shares {
		if o.kind = s.kind; n < s.percent {
			break
		}
		n -= s.percent
	}
	if o.kind == transfer || o.kind == pay {
		o.from, o.to = l.reserve(random), l.reserve(random)
	}
	return o
}

// reserve returns an account that no transfer in flight uses: conflicts between
// callers are no fault of anybody, and would hide one.
func (l *load) reserve(random *rand.Rand) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy == nil {
		l.busy = make(map[uint64]bool)
	}
	for {
		id := random.Uint64N(accountCount)
		if !l.busy[id] || len(l.busy) >= accountCount/2 {
			l.busy[id] = true
			return id
		}
	}
}

func (l *load) free(ids ...uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		delete(l.busy, id)
	}
}

// do makes one operation and writes down what came of it.
func (l *load) do(o operation, due time.Duration) {
	d := &doing{load: l, operation: o, api: (*l.apis.Load())[o.api],
		sample: sample{kind: o.kind, idempotent: o.kind == read || o.kind == write, due: due, sent: l.recorder.now()}}
	switch o.kind {
	case read:
		d.read()
	case write:
		id := l.ledger.open(entry{table: "written"})
		d.one(writeSQL, map[string]any{"id": id, "v": strings.Repeat("w", 50)})
		l.ledger.note(id, d.err)
	case count:
		id := l.ledger.open(entry{table: "counted"})
		d.one(countOnce, map[string]any{"id": id})
		l.ledger.note(id, d.err)
	case transfer, pay:
		id := l.ledger.open(entry{table: "transfers", from: o.from, to: o.to, amount: o.amount})
		if o.kind == transfer {
			d.transfer(id)
		} else {
			d.pay(id)
		}
		l.ledger.note(id, d.err)
		l.free(o.from, o.to)
	}
	d.ended = l.recorder.now()
	d.over = d.ended - d.begun - l.timeout
	if d.err != nil {
		d.failed = d.err.(*failure)
	}
	l.recorder.add(d.sample)
}

// doing is one operation under way.
type doing struct {
	load *load
	operation
	sample
	api   api
	begun time.Duration // of the last call
	err   error         // of the last call
}

// call makes one call, for which its caller waits until hangAfter after the deadline.
func (d *doing) call(work func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), d.load.timeout+hangAfter)
	defer cancel()
	d.begun = d.load.recorder.now()
	d.err = work(ctx)
}

// execute makes a call that is one statement.
func (d *doing) execute(s contract.Statement) (a *contract.Reply) {
	s.Timeout = d.load.timeout.String()
	d.call(func(ctx context.Context) (err error) {
		a, err = d.api.execute(ctx, s)
		return err
	})
	return a
}

func (d *doing) read() {
	a := d.execute(contract.Statement{SQL: readSQL, Params: map[string]any{"id": d.key}, Idempotent: true})
	if want := "v" + strconv.FormatUint(d.key, 10); d.err == nil && (len(a.Rows) != 1 || a.Rows[0][0] != want) {
		d.err = &failure{code: "WRONG", text: fmt.Sprintf("read %v; want %s", a.Rows, want)}
	}
}

// one is a statement that writes.
func (d *doing) one(sql string, params map[string]any) {
	d.execute(contract.Statement{SQL: sql, Params: params, Idempotent: d.idempotent})
	d.commit = true
}

// transfer is a list of statements as one transaction.
func (d *doing) transfer(id uint64) {
	d.call(func(ctx context.Context) error {
		return d.api.transact(ctx, contract.Transaction{Timeout: d.load.timeout.String(), Statements: []contract.Statement{
			{SQL: addSQL, Params: map[string]any{"id": d.from, "by": -d.amount}},
			{SQL: addSQL, Params: map[string]any{"id": d.to, "by": d.amount}},
			{SQL: transferOnce, Params: map[string]any{"id": id}},
		}})
	})
	d.commit = true
}

// pay is an interactive transaction: it reads two balances, thinks, and writes them back.
func (d *doing) pay(id uint64) {
	tx := ""
	say := func(seq uint64, sql string, params map[string]any, commit bool) *contract.Reply {
		a := d.execute(contract.Statement{SQL: sql, Params: params, Tx: step(tx, seq, commit)})
		if a.Tx != nil {
			tx = a.Tx.ID
		}
		return a
	}
	a := say(1, findSQL, map[string]any{"a": d.from, "b": d.to}, false)
	if d.err != nil {
		return
	}
	balance := map[string]int64{}
	for _, row := range a.Rows {
		balance[fmt.Sprint(row[0])], _ = strconv.ParseInt(fmt.Sprint(row[1]), 10, 64) // a wrong one shows in the books
	}
	last := uint64(2)
	if d.from != d.to {
		x, y := balance[strconv.FormatUint(d.from, 10)]-d.amount, balance[strconv.FormatUint(d.to, 10)]+d.amount
		if say(2, setSQL, map[string]any{"a": d.from, "b": d.to, "x": x, "y": y}, false); d.err != nil {
			return
		}
		last = 3
	}
	say(last, transferOnce, map[string]any{"id": id}, true)
	d.commit = true
}

// step is a statement of an interactive transaction; one without an id begins it.
func step(tx string, seq uint64, commit bool) *contract.TxSelector {
	return &contract.TxSelector{Begin: tx == "", ID: tx, Seq: seq, Commit: commit}
}

// begin opens interactive transactions, each with one statement that writes.
func (l *load) begin(n int) (open []opened, err error) {
	for i := range n {
		id := l.ledger.open(entry{table: "counted"})
		o := opened{api: (*l.apis.Load())[i%2], timeout: l.timeout, id: id}
		ctx, cancel := context.WithTimeout(context.Background(), l.timeout+hangAfter)
		a, err := o.api.execute(
			ctx,
			contract.Statement{SQL: countOnce, Params: map[string]any{"id": id}, Timeout: l.timeout.String(), Tx: step("", 1, false)},
		)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("open a transaction while nothing is broken: %w", err)
		}
		o.tx, o.node, o.seq = a.Tx.ID, a.Info.Node, 1
		open = append(open, o)
	}
	return open, nil
}

// opened is an interactive transaction that waits for its commit.
type opened struct {
	api     api
	timeout time.Duration // of a call
	id      uint64        // of the write
	tx      string
	node    uint32
	seq     uint64   // of its last statement
	failed  *failure // of the commit; nil: it is done
}

// goOn commits transactions, with one more statement.
func (l *load) goOn(open []opened) {
	for i := range open {
		o := &open[i]
		err := o.read(true)
		l.ledger.note(o.id, err)
		if err != nil {
			o.failed = err.(*failure)
		}
	}
}

// read runs one more statement, which may be the last.
func (o *opened) read(commit bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout+hangAfter)
	defer cancel()
	o.seq++
	_, err := o.api.execute(ctx, contract.Statement{SQL: readSQL, Params: map[string]any{"id": uint64(1)}, Timeout: o.timeout.String(),
		Tx: step(o.tx, o.seq, commit)})
	return err
}

// sortOut counts what became of transactions: those that were open on the given node, done
// and lost, those of them that were lost in other words than "nothing was kept, begin
// again", and what was lost on other nodes.
func sortOut(open []opened, node uint32) (done, lost, untrue, elsewhere int, first string) {
	for _, o := range open {
		switch {
		case o.failed == nil && o.node == node:
			done++
		case o.failed == nil:
		case o.node != node:
			elsewhere++
		case !o.failed.safe || o.failed.unknown:
			untrue++
		default:
			lost++
		}
		if o.failed != nil && first == "" {
			first = fmt.Sprintf("the first on node %d: %v", o.node, o.failed)
		}
	}
	return done, lost, untrue, elsewhere, first
}
