package acquire

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// childName is the name of the process in which the pools are: its CPU time is theirs.
const childName = "pools"

// kind is what the tasks do.
type kind string

const (
	reads   kind = "reads"   // acquire, read through the sidecar, release
	loop    kind = "loop"    // acquire and release
	yielded kind = "yields"  // acquire, let other tasks run, release
	threads kind = "threads" // the same, each task on an OS thread of its own, whose clock is read before and after acquiring
)

// order is what the child shall measure: a pool, and next to it the same tasks without one.
type order struct {
	Pool     string        `json:"pool"`
	Kind     kind          `json:"kind"`
	Tasks    int           `json:"tasks"`
	Sessions int           `json:"sessions"`
	Window   time.Duration `json:"window"` // of each of the two
	Flip     bool          `json:"flip"`   // the one without a pool comes last
}

func (o order) validate() error {
	if o.Tasks < 1 || o.Tasks > 10_000 || o.Sessions < 1 || o.Sessions > o.Tasks && o.Sessions > 1000 ||
		o.Window < time.Millisecond || o.Window > time.Minute {
		return fmt.Errorf("%+v: want 1 to 10000 tasks, 1 to as many sessions, a window of 1ms to 1m", o)
	}
	return nil
}

// measured is one window.
type measured struct {
	Operations int64         `json:"operations"` // an operation is an acquire and a release, with what is between them
	Failed     int64         `json:"failed"`
	First      string        `json:"first"` // failure
	Took       time.Duration `json:"took"`  // the window
	// ns an operation: of the process; of kind threads that of the task's thread, from asking to
	// having
	CPU       float64 `json:"cpu"`
	Allocated float64 `json:"allocated"` // objects an operation
	P50       float64 `json:"p50"`       // ns from asking to having
	P99       float64 `json:"p99"`       // ns
	Evenness  float64 `json:"evenness"`  // operations of the least served task, of those of the most served one
}

// answer is what an order gave.
type answer struct {
	Pool measured `json:"pool"`
	Stub measured `json:"stub"`
}

// serve is the child: it measures what it is told over HTTP, one order at a time, until ctx ends.
func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(childName, flag.ContinueOnError)
	address := flags.String("sidecar", "", "address of the sidecar's gRPC port, for reads")
	if err := flags.Parse(args); err != nil {
		return err
	}
	debug.SetMaxThreads(20_000)
	c := &child{}
	if *address != "" {
		conn, err := grpc.NewClient("passthrough:///"+*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		c.table = Ydb_Table_V1.NewTableServiceClient(conn)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	fmt.Printf("ready http=%s cores=%d\n", listener.Addr(), runtime.GOMAXPROCS(0))
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// child has the sessions that the reads are on.
type child struct {
	table    Ydb_Table_V1.TableServiceClient // nil: no reads
	mu       sync.Mutex                      // one order at a time; guards sessions
	sessions []*session                      // open on the nodes
}

func (c *child) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var o order
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&o)
	if err == nil {
		err = o.validate()
	}
	var a answer
	if err == nil {
		a, err = c.measure(r.Context(), o)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(a) // it fails only if the parent is gone
}

// measure measures a pool and the same without one, shortly one after the other.
func (c *child) measure(ctx context.Context, o order) (a answer, err error) {
	for _, without := range []bool{!o.Flip, o.Flip} {
		name, to := o.Pool, &a.Pool
		if without && o.Kind == threads {
			continue // what it takes to read the clock is all there is to take off
		}
		if without {
			name, to = stub, &a.Stub
		}
		if *to, err = c.window(ctx, o, name); err != nil {
			return a, fmt.Errorf("%s: %w", name, err)
		}
	}
	return a, nil
}

// idle makes sessions: of the cluster for reads, else names that stand for some.
func (c *child) idle(ctx context.Context, o order) ([]*session, error) {
	if o.Kind != reads {
		all := make([]*session, o.Sessions)
		for i := range all {
			all[i] = &session{id: fmt.Sprintf("ydb://session/3?node_id=%d&id=%06d", i%3+1, i)}
		}
		return all, nil
	}
	if c.table == nil {
		return nil, errors.New("reads need the address of a sidecar")
	}
	for len(c.sessions) < o.Sessions {
		made, err := c.table.CreateSession(withDatabase(ctx), &Ydb_Table.CreateSessionRequest{})
		if err != nil {
			return nil, fmt.Errorf("create session %d: %w", len(c.sessions)+1, err)
		}
		var result Ydb_Table.CreateSessionResult
		if op := made.GetOperation(); op.GetStatus() != Ydb.StatusIds_SUCCESS {
			return nil, fmt.Errorf("create session %d: %v %v", len(c.sessions)+1, op.GetStatus(), op.GetIssues())
		} else if err := op.GetResult().UnmarshalTo(&result); err != nil {
			return nil, fmt.Errorf("create a session: %w", err)
		}
		c.sessions = append(c.sessions, &session{id: result.SessionId})
	}
	return c.sessions[:o.Sessions], nil
}

func withDatabase(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-ydb-database", "/local")
}

// statement is the read: it names no table, so that the nodes have little to do.
const statement = "SELECT 1"

func (c *child) read(ctx context.Context, s *session) error {
	done, err := c.table.ExecuteDataQuery(ctx, &Ydb_Table.ExecuteDataQueryRequest{
		SessionId: s.id,
		TxControl: &Ydb_Table.TransactionControl{CommitTx: true, TxSelector: &Ydb_Table.TransactionControl_BeginTx{
			BeginTx: &Ydb_Table.TransactionSettings{TxMode: &Ydb_Table.TransactionSettings_SerializableReadWrite{}}}},
		Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: statement}},
	})
	if err == nil && done.GetOperation().GetStatus() != Ydb.StatusIds_SUCCESS {
		err = fmt.Errorf("%v: %v", done.GetOperation().GetStatus(), done.GetOperation().GetIssues())
	}
	return err
}

// task is what one task has seen. Only it writes to it.
type task struct {
	operations atomic.Int64
	cpu        atomic.Int64 // ns, of kind threads
	waits      []time.Duration
	_          [64]byte // away from the next
}

// A window goes on until so many operations were done, but no longer than the second.
const (
	fewestOperations = 20
	patience         = 10 * time.Second
)

// window has tasks go on for a while and measures the middle of it.
func (c *child) window(ctx context.Context, o order, name string) (m measured, err error) {
	all, err := c.idle(ctx, o)
	if err != nil {
		return m, err
	}
	p, err := makePool(name, all)
	if err != nil {
		return m, err
	}
	defer p.close()
	calls := withDatabase(ctx) // they go on to their ends: the session of a cancelled one is busy for a while
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &window{child: c, order: o, pool: p, tasks: make([]task, o.Tasks)}
	var running sync.WaitGroup
	w.begun.Add(int64(o.Tasks))
	if name == stub {
		w.begun.Store(int64(min(o.Tasks, o.Sessions))) // no more come to work
	}
	for i := range w.tasks {
		// The buffer bounds the samples, so that none is allocated under way.
		w.tasks[i].waits = make([]time.Duration, 0, max(16, 1<<17/o.Tasks))
		running.Go(func() { w.run(ctx, calls, i) })
	}
	for w.begun.Load() > 0 && w.failed.Load() == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(o.Window / 8)
	runtime.GC()
	before := w.now()
	w.measuring.Store(true)
	time.Sleep(o.Window)
	after := w.now()
	for after.sum()-before.sum() < fewestOperations && time.Since(before.at) < patience && w.failed.Load() == 0 && ctx.Err() == nil {
		time.Sleep(o.Window) // the machine does other things
		after = w.now()
	}
	w.over.Store(true)
	if name == stub {
		cancel() // of those who wait for nothing
	}
	running.Wait()
	return w.result(before, after), nil
}

// window is what the tasks of a window share.
type window struct {
	child     *child
	order     order
	pool      line
	tasks     []task
	begun     atomic.Int64 // tasks that have yet to do one operation
	measuring atomic.Bool
	over      atomic.Bool
	failed    atomic.Int64
	first     atomic.Pointer[string] // failure
}

// priceOf is what it takes to read a clock.
func priceOf(clock func() int64) int64 {
	price := int64(math.MaxInt64)
	for range 100 {
		from := clock()
		price = min(price, clock()-from)
	}
	return price
}

// run is a task: ctx ends its waiting for a session, calls what it does with one.
//
// Long: an operation takes some tens of nanoseconds, and a call in the loop would be part of what is measured.
func (w *window) run(ctx, calls context.Context, i int) {
	t := &w.tasks[i]
	clock := func() int64 { return 0 }
	if w.order.Kind == threads {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		clock = threadCPU
	}
	// As in any process whose calls have deadlines: the scheduler reads the clock at each turn if its P has a timer.
	deadline := time.AfterFunc(time.Hour, func() {})
	defer deadline.Stop()
	step := 1
	if w.order.Tasks <= w.order.Sessions && w.order.Kind == loop {
		step = 4 // so that what is fast is measured with little of the check of the time to stop
	}
	price := int64(0)
	if w.order.Kind == threads {
		price = priceOf(clock)
	}
	for n := int64(0); !w.over.Load(); {
		sample := (n&15 == 8 || w.order.Kind == reads) && len(t.waits) < cap(t.waits) && w.measuring.Load()
		var from time.Time
		if sample {
			from = time.Now()
		}
		asked := clock()
		s, err := w.pool.get(ctx, i)
		if w.order.Kind == threads {
			t.cpu.Store(t.cpu.Load() + max(0, clock()-asked-price))
		}
		if sample {
			t.waits = append(t.waits, time.Since(from))
		}
		if err != nil {
			if ctx.Err() == nil {
				w.fail(err)
			}
			return
		}
		if step == 1 && w.over.Load() {
			w.pool.put(s)
			return
		}
		switch w.order.Kind {
		case reads:
			if err := w.child.read(calls, s); err != nil && calls.Err() == nil {
				w.fail(err)
			}
		case yielded, threads:
			runtime.Gosched()
		}
		w.pool.put(s)
		for range step - 1 {
			s, err := w.pool.get(ctx, i)
			if err != nil {
				return
			}
			w.pool.put(s)
		}
		if n == 0 {
			w.begun.Add(-1)
		}
		n += int64(step)
		t.operations.Store(n)
		if step > 1 && n&63 == 0 {
			// A task that never waits keeps the processor for 10 ms, and the one that measures would come after 2000 such turns.
			runtime.Gosched()
		}
	}
}

func (w *window) fail(err error) {
	text := err.Error()
	w.first.CompareAndSwap(nil, &text)
	w.failed.Add(1)
}

// state is what had happened at an instant.
type state struct {
	at         time.Time
	cpu        time.Duration // of the process
	objects    uint64        // allocated
	operations []int64       // of each task
	inThreads  int64         // ns
}

func (s state) sum() (n int64) {
	for _, one := range s.operations {
		n += one
	}
	return n
}

func (w *window) now() (s state) {
	s.operations = make([]int64, len(w.tasks))
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	s.objects = memory.Mallocs
	for i := range w.tasks {
		s.operations[i] = w.tasks[i].operations.Load()
		s.inThreads += w.tasks[i].cpu.Load()
	}
	s.at, s.cpu = time.Now(), stand.Own()
	return s
}

// result is what happened between two instants.
func (w *window) result(before, after state) (m measured) {
	m.Took, m.Failed = after.at.Sub(before.at), w.failed.Load()
	if first := w.first.Load(); first != nil {
		m.First = *first
	}
	least, most := int64(math.MaxInt64), int64(0)
	for i, n := range after.operations {
		n -= before.operations[i]
		m.Operations += n
		least, most = min(least, n), max(most, n)
	}
	m.Evenness = float64(least) / float64(max(1, most))
	var waits []time.Duration
	for i := range w.tasks {
		waits = append(waits, w.tasks[i].waits...)
	}
	if slices.Sort(waits); len(waits) > 0 {
		m.P50, m.P99 = float64(waits[len(waits)/2]), float64(waits[len(waits)*99/100])
	}
	per := float64(max(1, m.Operations))
	m.CPU, m.Allocated = float64(after.cpu-before.cpu)/per, float64(after.objects-before.objects)/per
	if w.order.Kind == threads {
		m.CPU = float64(after.inThreads-before.inThreads) / per
	}
	return m
}

// threadCPU is the time of the calling thread, ns.
func threadCPU() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // Linux has it
	return t.Nano()
}

// ask has a child measure something.
func ask(ctx context.Context, client *http.Client, address string, o order) (a answer, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return a, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	response, err := client.Do(request)
	if err != nil {
		return a, fmt.Errorf("%s: %w", childName, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text := make([]byte, 1000)
		n, _ := response.Body.Read(text)
		return a, fmt.Errorf("%s: %s", childName, cmp.Or(string(text[:n]), response.Status))
	}
	err = json.NewDecoder(response.Body).Decode(&a)
	return a, err
}
