package devcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// FaultKind says what is wrong.
type FaultKind string

// The kinds of Fault. Those of a table or of the database strike on all nodes alike.
const (
	HotShard     FaultKind = "hot_shard"     // a shard of the table has too much to do
	DiskFull     FaultKind = "disk_full"     // the database has used up its quota of disk space: nothing can be written
	Quota        FaultKind = "quota"         // the database has used up its request units
	PoolFull     FaultKind = "pool_full"     // the queue of a resource pool is full
	ShardBusy    FaultKind = "shard_busy"    // a shard splits, merges or moves
	Late         FaultKind = "late"          // bulk upserts fail, and their rows are written nevertheless, later
	ComputeNode  FaultKind = "compute_node"  // a node that was to run a part of the statement is going away
	CompileQueue FaultKind = "compile_queue" // the node's queue of texts to compile is full
	NotReady     FaultKind = "not_ready"     // the node has not joined its database yet
	WrongTenant  FaultKind = "wrong_tenant"  // another database's node has taken the address
)

// kindRules says what a fault of each kind may name.
var kindRules = map[FaultKind]struct{ table, pool, node, status bool }{
	HotShard: {table: true}, DiskFull: {table: true}, Quota: {table: true}, PoolFull: {table: true, pool: true},
	ShardBusy: {table: true}, ComputeNode: {table: true}, Late: {table: true, status: true},
	CompileQueue: {table: true, node: true}, NotReady: {node: true}, WrongTenant: {node: true},
}

// Fault is something that is wrong with a table, the database or a node.
type Fault struct {
	ID    string    `json:"id"`
	Kind  FaultKind `json:"kind"`
	Table string    `json:"table,omitempty"` // path, absolute or relative to the database; "": all, and calls without a table
	Pool  string    `json:"pool,omitempty"`  // resource pool of PoolFull; "" is the default one, of statements that name none
	Node  uint32    `json:"node,omitempty"`  // 0: all nodes
	Share float64   `json:"share"`           // of the calls, 0 to 1

	// Quota: the wait before the refusal. HotShard and ShardBusy: the wait of BulkUpsert
	// before it tries again. Late: the time until the rows are written.
	Delay  duration `json:"delay,omitzero"`
	Status string   `json:"status,omitempty"` // of Late: the answer, named as in Errors; "": UNAVAILABLE
}

// check reports what makes no sense.
func (f Fault) check() error {
	rules, ok := kindRules[f.Kind]
	switch {
	case !ok:
		return badRequest("kind = %q; no such kind of fault", f.Kind)
	case f.Table != "" && !rules.table:
		return badRequest("table = %q; a fault of kind %s is the node's", f.Table, f.Kind)
	case f.Pool != "" && !rules.pool:
		return badRequest("pool = %q; only faults of kind %s name one", f.Pool, PoolFull)
	case f.Status != "" && !rules.status:
		return badRequest("status = %q; only faults of kind %s have one", f.Status, Late)
	case f.Node == 0 && rules.node:
		return badRequest("node is missing: a fault of kind %s is one node's", f.Kind)
	case !(f.Share >= 0 && f.Share <= 1):
		return badRequest("share = %v; must be 0 to 1", f.Share)
	}
	if _, err := f.failure(); err != nil {
		return badRequest("%v", err)
	}
	return nil
}

// failure is what a call ends with whose rows come late.
func (f Fault) failure() (answer, err error) {
	return Errors{Status: cmp.Or(f.Status, Ydb.StatusIds_UNAVAILABLE.String())}.parse()
}

// outages are the faults of a cluster. The zero value has none.
type outages struct {
	change sync.Mutex // held while the list is replaced
	last   int        // number of the newest fault
	list   atomic.Pointer[[]Fault]
}

func (o *outages) all() []Fault {
	if list := o.list.Load(); list != nil {
		return *list
	}
	return []Fault{}
}

// add gives the fault its id.
func (o *outages) add(f Fault) (Fault, error) {
	if err := f.check(); err != nil {
		return Fault{}, err
	}
	o.change.Lock()
	defer o.change.Unlock()
	o.last++
	f.ID = strconv.Itoa(o.last)
	o.put(append(slices.Clone(o.all()), f))
	return f, nil
}

func (o *outages) remove(id string) error {
	o.change.Lock()
	defer o.change.Unlock()
	rest := slices.DeleteFunc(slices.Clone(o.all()), func(f Fault) bool { return f.ID == id })
	if len(rest) == len(o.all()) {
		return notFound("no fault %q", id)
	}
	o.put(rest)
	return nil
}

func (o *outages) put(list []Fault) { o.list.Store(&list) }

// AddFault makes something go wrong until RemoveFault, and returns the fault with its id.
func (c *Cluster) AddFault(_ context.Context, f Fault) (Fault, error) {
	if f.Node != 0 && c.Node(f.Node) == nil {
		return Fault{}, badRequest("no node %d", f.Node)
	}
	return c.outages.add(f)
}

// RemoveFault ends a fault.
func (c *Cluster) RemoveFault(_ context.Context, id string) error { return c.outages.remove(id) }

// Faults returns the faults that AddFault made, oldest first.
func (c *Cluster) Faults(context.Context) ([]Fault, error) { return c.outages.all(), nil }

// strikes draws whether a fault strikes a call of this node.
func (s *server) strikes(f *Fault) bool { return (f.Node == 0 || f.Node == s.id) && hit(f.Share) }

// touches says whether the fault concerns a call that names these tables. A fault
// without a table concerns every call.
func (s *server) touches(f *Fault, tables []string) bool {
	return f.Table == "" || slices.Contains(tables, s.path(f.Table))
}

// path is the absolute path of a table.
func (s *server) path(table string) string {
	if strings.HasPrefix(table, "/") {
		return table
	}
	return s.config.Database + "/" + table
}

// The issue codes of YDB's answers.
const (
	issueUnavailable         = 2005   // KIKIMR_TEMPORARILY_UNAVAILABLE
	issueOverloaded          = 2006   // KIKIMR_OVERLOADED
	issueTooManyTransactions = 2014   // KIKIMR_TOO_MANY_TRANSACTIONS
	issueDiskFull            = 2033   // KIKIMR_DISK_SPACE_EXHAUSTED; newer: KIKIMR_DATABASE_DISK_SPACE_QUOTA_EXCEEDED
	issueAccessDenied        = 200000 // ACCESS_DENIED
	issueUsageLimited        = 200803 // YDB_RESOURCE_USAGE_LIMITED
)

// coded is fail with an issue code.
func coded(code uint32, status Ydb.StatusIds_StatusCode, format string, args ...any) *statusError {
	e := fail(status, format, args...)
	e.issues[0].IssueCode = code
	return e
}

// shard is the id of the one shard of a table.
const shard = 72075186224037888

// quotaWait is how long the server waits for request units before it refuses a call.
const quotaWait = 200 * time.Millisecond

// answer is what the statement that a fault strikes ends with; table is the one that it names.
func (s *server) answer(f *Fault, table string) *statusError {
	switch f.Kind {
	case HotShard:
		return coded(issueOverloaded, Ydb.StatusIds_OVERLOADED,
			"Kikimr cluster or one of its subsystems is overloaded. Tablet %d is overloaded. Table `%s`.", shard, table)
	case DiskFull:
		return coded(issueDiskFull, Ydb.StatusIds_UNAVAILABLE, "Disk space exhausted. Table `%s`.", table)
	case ShardBusy:
		return coded(issueUnavailable, Ydb.StatusIds_UNAVAILABLE, "Wrong shard state. Table `%s`.", table)
	case ComputeNode:
		return coded(issueUnavailable, Ydb.StatusIds_UNAVAILABLE, "Compute node is unavailable")
	case Quota:
		return coded(issueUsageLimited, Ydb.StatusIds_OVERLOADED, "Throughput limit exceeded")
	case PoolFull:
		e := fail(Ydb.StatusIds_OVERLOADED,
			"Request was rejected, number of local pending requests is 20, number of global delayed/running requests is 0, "+
				"sum of them is larger than allowed limit 1 (including concurrent query limit 1) for pool %s", f.pool())
		e.issues = append(e.issues, &Ydb_Issue.IssueMessage{
			Message: "Query failed during adding/waiting in workload pool " + f.pool(), Severity: severityError,
		})
		return e
	case CompileQueue:
		return fail(Ydb.StatusIds_OVERLOADED, "Exceeded maximum number of requests in compile service queue.")
	case NotReady:
		return fail(Ydb.StatusIds_UNAVAILABLE, "Node isn't ready to serve database requests.")
	default: // WrongTenant
		return coded(issueAccessDenied, Ydb.StatusIds_UNAUTHORIZED,
			"Unexpected node to perform query on database: %s, domain: [OwnerId: 72057594046644480, LocalPathId: "+
				"2], resource domain: [OwnerId: 72057594046644480, LocalPathId: 2]",
			s.config.Database)
	}
}

// defaultPool is the resource pool of statements that name none.
const defaultPool = "default"

func (f *Fault) pool() string { return cmp.Or(f.Pool, defaultPool) }

// wrongTenant plays the fault that strikes first, before the ticket is looked at.
func (c *call) wrongTenant() error {
	if c.from {
		return nil
	}
	for _, f := range c.outages.all() {
		if f.Kind == WrongTenant && c.strikes(&f) {
			return c.answer(&f, "")
		}
	}
	return nil
}

// atTheDoor plays the faults that strike before a call reaches its session, on the node
// that a client asked: nothing is changed by them, not even an open transaction.
func (c *call) atTheDoor(request proto.Message) error {
	if c.from {
		return nil
	}
	for _, f := range c.outages.all() {
		if f.Kind == Quota && f.Table == "" && usesUnits(request) && c.strikes(&f) {
			return c.refuseUnits(&f)
		}
	}
	return nil
}

// usesUnits says whether a call is charged request units here.
func usesUnits(request proto.Message) bool {
	switch request.(type) {
	case *Ydb_Query.ExecuteQueryRequest, *Ydb_Query.ExecuteScriptRequest, *Ydb_Table.ExecuteDataQueryRequest,
		*Ydb_Table.ExecuteScanQueryRequest, *Ydb_Table.BulkUpsertRequest, *Ydb_Table.ReadRowsRequest, *Ydb_Table.ReadTableRequest:
		return true
	}
	return false
}

func (c *call) refuseUnits(f *Fault) error {
	wait := time.Duration(f.Delay)
	if wait == 0 {
		wait = quotaWait
	}
	if err := c.pause(wait); err != nil {
		return err
	}
	return c.answer(f, "")
}

// noSession is the refusal to make a session, also the one of a statement without one; nil: it may be made.
func (c *call) noSession() error {
	for _, f := range c.outages.all() {
		if f.Kind == NotReady && c.strikes(&f) {
			return c.answer(&f, "")
		}
	}
	return nil
}

// inSession plays the faults that end a statement before it is compiled.
func (c *call) inSession(request proto.Message) error {
	for _, f := range c.outages.all() {
		if f.Table == "" && c.concerns(&f, request) && c.strikes(&f) {
			return c.answer(&f, "")
		}
	}
	return nil
}

// concerns says whether a fault in front of the tables stands in the way of a statement.
func (c *call) concerns(f *Fault, request proto.Message) bool {
	switch f.Kind {
	case CompileQueue:
		return true
	case PoolFull: // the table service knows no pools
		r, ok := request.(interface{ GetPoolId() string })
		return ok && cmp.Or(r.GetPoolId(), defaultPool) == f.pool()
	}
	return false
}

// onTables plays the faults of the tables that a statement names.
func (c *call) onTables(request proto.Message, named, filled []string) error {
	for _, f := range c.outages.all() {
		tables := named
		switch f.Kind {
		case HotShard, ShardBusy, ComputeNode:
		case DiskFull:
			tables = filled
		case Quota:
			if f.Table == "" {
				continue // it had its turn at the door
			}
		default:
			if f.Table == "" || !c.concerns(&f, request) {
				continue
			}
		}
		if len(tables) == 0 || !c.touches(&f, tables) || !c.strikes(&f) {
			continue
		}
		if f.Kind == Quota {
			return c.refuseUnits(&f)
		}
		table := tables[0]
		if f.Table != "" {
			table = c.path(f.Table)
		}
		return c.answer(&f, table)
	}
	return nil
}

// How BulkUpsert waits for a shard.
const (
	bulkTimeout = 5 * time.Minute // its default, and its longest
	bulkWait    = time.Second     // before it tries again
	bulkTries   = 5               // with a shard that splits, merges or moves; it waits for an overloaded one until its time is over
)

// onBulk returns what a bulk upsert does after the rows of the other shards are written: it
// waits for the shard inside the server, and the client hears nothing meanwhile. The error
// is the call's end; what write does may come later then.
func (c *call) onBulk(table string, write func(context.Context) error) (engine.Between, error) {
	for _, f := range c.outages.all() {
		if !c.touches(&f, []string{table}) || !c.strikes(&f) {
			continue
		}
		switch f.Kind {
		case HotShard, ShardBusy:
			return func() error { return c.waitForShard(f, table) }, nil
		case Late:
			return nil, c.writeLate(f, write)
		case DiskFull:
			return nil, fail(Ydb.StatusIds_UNAVAILABLE,
				"Bulk upsert to table '%s' Cannot perform writes: database is out of disk space", table)
		case Quota:
			if f.Table != "" {
				return nil, c.refuseUnits(&f)
			}
		}
	}
	return nil, nil
}

// writeLate has the rows of a bulk upsert written after a while, as by a shard that the client did not hear of, and
// returns what the client hears. The shard refuses rows whose time, which the call brought with it, is over.
func (c *call) writeLate(f Fault, write func(context.Context) error) error {
	answer, err := f.failure()
	if err != nil {
		return err
	}
	until, ok := c.ctx.Deadline()
	if !ok {
		until = time.Now().Add(bulkTimeout)
	}
	c.counters.late.Add(1)
	c.serving.Go(func() {
		defer c.counters.late.Add(-1)
		select {
		case <-time.After(time.Duration(f.Delay)):
		case <-c.ending:
			return
		}
		if time.Now().Before(until) {
			_ = write(context.WithoutCancel(c.ctx)) // the call has ended: its outcome is not reported
		}
	})
	return answer
}

// waitForShard waits until the fault is over or spares a try.
func (c *call) waitForShard(f Fault, table string) error {
	wait := time.Duration(f.Delay)
	if wait == 0 {
		wait = bulkWait
	}
	began := time.Now()
	for try := 1; ; try++ {
		if err := c.pause(wait); err != nil {
			return err
		}
		over := !slices.ContainsFunc(c.outages.all(), func(other Fault) bool { return other.ID == f.ID })
		switch {
		case over || !c.strikes(&f):
			return nil
		case f.Kind == ShardBusy && try == bulkTries:
			return fail(Ydb.StatusIds_OVERLOADED, "Bulk upsert to table '%s' wrong shard state", table)
		case time.Since(began) >= bulkTimeout:
			return fail(Ydb.StatusIds_TIMEOUT,
				"Bulk upsert to table '%s' longTx ydb://long-tx/read-only timed out, duration: %d sec", table,
				int(bulkTimeout.Seconds()))
		}
	}
}

// AddFault makes something go wrong on the nodes that it concerns.
func (s *Supervisor) AddFault(ctx context.Context, f Fault) (Fault, error) {
	if f.Node != 0 && !slices.ContainsFunc(s.all(), func(c *child) bool { return c.id == f.Node }) {
		return Fault{}, badRequest("no node %d", f.Node)
	}
	f, err := s.outages.add(f)
	if err == nil {
		err = s.tellFaults(ctx)
	}
	return f, err
}

// RemoveFault ends a fault.
func (s *Supervisor) RemoveFault(ctx context.Context, id string) error {
	if err := s.outages.remove(id); err != nil {
		return err
	}
	return s.tellFaults(ctx)
}

// Faults returns the faults, oldest first.
func (s *Supervisor) Faults(context.Context) ([]Fault, error) { return s.outages.all(), nil }

// tellFaults tells every running node what is wrong; paused ones hear it when they go on.
func (s *Supervisor) tellFaults(ctx context.Context) error {
	s.tell.Lock()
	defer s.tell.Unlock()
	var errs []error
	for _, c := range s.all() {
		if c.running() == nil || c.isPaused() {
			continue
		}
		if err := c.putFaults(ctx); err != nil && c.running() != nil && !c.isPaused() {
			errs = append(errs, fmt.Errorf("tell node %d what is wrong: %w", c.id, err))
		}
	}
	return errors.Join(errs...)
}

func (c *child) putFaults(ctx context.Context) error {
	return c.put(ctx, "/faults", c.supervisor.outages.all())
}
