package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// soakOptions are the flags of soak alone.
type soakOptions struct {
	duration time.Duration
	rate     int // operations a second at most
	seed     uint64
}

// soak lets a sidecar work for long while nodes fail.
func soak() lab.Experiment {
	var o soakOptions
	return lab.Experiment{
		Name:  "soak",
		Title: "Long work with random faults",
		Question: `One sidecar and three nodes at half of the load that they can bear here (found by a closed loop at the start; at most -rate), while a node is killed, stopped, drained, cut off, slowed or made to answer with errors, or loses
sessions, one after the other by chance (-seed). Every answer is verified: rows that never change are read over gRPC, HTTP and YDB's own protocol, and streamed; rows that change are read over one face and written over
another, by statements, by the key-value face and by interactive transactions, and what was acknowledged must be there at the next visit. A call may fail in words that the rules have for a fault (safe to
repeat, outcome unknown, deadline), within 3 s of one; calls that are refused for want of time without a fault are counted by themselves; any other failure is a fault of the sidecar. What it is for: memory, goroutines, sessions and descriptors must be flat over the second half. Faults are injected by
the development cluster; the latencies are those of a broken cluster on shared cores and say nothing.`,
		Flags: func(flags *flag.FlagSet) {
			flags.Func("for", "`duration` of the load: by the size 4s, 1m, 20m; -limit follows", func(text string) (err error) {
				if o.duration, err = time.ParseDuration(text); err == nil && (o.duration < time.Second || o.duration > 30*24*time.Hour) {
					err = errors.New("want 1s to 720h")
				}
				if err != nil {
					return err
				}
				return flags.Set("limit", (o.duration + 10*time.Minute).String())
			})
			flags.IntVar(&o.rate, "rate", 250, "operations a second, at most")
			flags.Uint64Var(&o.seed, "seed", 1, "of the faults")
		},
		Run: func(ctx context.Context, l *lab.Lab) error { return runSoak(ctx, l, o) },
	}
}

func runSoak(ctx context.Context, l *lab.Lab, o soakOptions) error {
	if o.duration == 0 {
		o.duration = lab.At(l, 4*time.Second, time.Minute, 20*time.Minute)
	}
	if o.rate < 1 || o.rate > l.MaxRate {
		return fmt.Errorf("rate %d: want 1 to %d (-max-rate)", o.rate, l.MaxRate)
	}
	// A session whose creation was never answered has no owner: nodes end it soon.
	cluster, err := l.Cluster(ctx, 3, "-session-idle", "5s")
	if err != nil {
		return err
	}
	var addresses []string
	for _, node := range cluster.Nodes {
		addresses = append(addresses, node.Address)
	}
	s, err := l.Sidecar(ctx, "grpc://"+strings.Join(addresses, ",")+"/local", "admin.pprof=on", "pool.min=10", soakTables)
	if err != nil {
		return err
	}
	if err := fill(ctx, s.Client); err != nil {
		return err
	}
	if _, err := s.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: soakCreate, Timeout: "20s"}); err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	k, err := newSoaking(l, cluster, s)
	if err != nil {
		return err
	}
	return k.all(ctx, o)
}

// The table of rows that change.
const (
	soakCreate = `CREATE TABLE IF NOT EXISTS soak (id Uint64, payload Utf8, PRIMARY KEY (id))`
	soakTables = "kv.tables=soak=soak key=id:Uint64 value=payload:Utf8"
	soakRead   = `DECLARE $id AS Uint64; SELECT payload FROM soak WHERE id = $id`
	soakWrite  = `DECLARE $id AS Uint64; DECLARE $payload AS Utf8; UPSERT INTO soak (id, payload) VALUES ($id, $payload)`
	soakStream = `SELECT id, payload FROM bench`
	soakSlots  = 500             // rows that change at a time
	soakCall   = 5 * time.Second // a call may take
	soakSettle = 3 * time.Second // after a fault calls may still fail
)

// soaking is the experiment under way.
type soaking struct {
	l       *lab.Lab
	cluster *lab.Cluster
	sidecar *lab.Sidecar
	faces   []face
	kv      sidecarv1.KeyValueClient
	slots   []slot
	lastID  atomic.Uint64 // of the rows that change
	faults  faultClock
	told    tally
}

// slot is a row that changes, with what must be in it.
type slot struct {
	mu      sync.Mutex // held by who visits it; guards the fields below
	id      uint64
	written bool
	value   uint64
}

func newSoaking(l *lab.Lab, cluster *lab.Cluster, s *lab.Sidecar) (*soaking, error) {
	k := &soaking{l: l, cluster: cluster, sidecar: s, kv: sidecarv1.NewKeyValueClient(s.Conn), slots: make([]slot, soakSlots)}
	for i := range k.slots {
		k.slots[i].id = k.lastID.Add(1)
	}
	for _, kind := range faceKinds {
		f, err := dialFace(kind, s, 16)
		if err != nil {
			return nil, err
		}
		k.faces = append(k.faces, f)
		l.Defer(f.close)
	}
	return k, nil
}

// tally counts what callers were told, by operation and code.
type tally struct {
	mu   sync.Mutex // guards all
	all  map[string]int
	ends map[string]*ending
}

// ending is a way in which operations of a kind failed.
type ending struct {
	fair, late, unfair int
	example            string
}

// late are the codes of calls that were refused, or not made, because there was no time
// for them. Without a fault they mean that the load is too much: other programs
// have the processors.
var late = map[string]bool{"POOL_TIMEOUT": true, "QUEUE_FULL": true, "SHED_DEADLINE": true, "SHED_DELAY": true, "TOO_MANY_OPEN": true, "DEADLINE_EXCEEDED": true,
	"YDB_OVERLOADED": true, "YDB_TIMEOUT": true, "GRPC_DEADLINEEXCEEDED": true, "GRPC_RESOURCEEXHAUSTED": true}

// note counts an operation. A failure that the rules do not allow is returned.
func (t *tally) note(kind string, err error, broken bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all, t.ends = map[string]int{}, map[string]*ending{}
	}
	t.all[kind]++
	if err == nil {
		return nil
	}
	r := asRefusal(err)
	e := t.ends[kind+" "+r.code]
	if e == nil {
		e = &ending{example: fmt.Sprintf("%.200s", r.text)}
		t.ends[kind+" "+r.code] = e
	}
	if r.fair && broken {
		e.fair++
		return nil
	}
	if r.fair && late[r.code] {
		e.late++
		return nil
	}
	if e.unfair++; e.unfair == 1 {
		e.example = fmt.Sprintf("%.200s", r.text)
	}
	return r
}

func (t *tally) markdown() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	b.WriteString("| operation | made |\n|---|--:|\n")
	for _, kind := range slices.Sorted(maps.Keys(t.all)) {
		fmt.Fprintf(&b, "| %s | %d |\n", kind, t.all[kind])
	}
	b.WriteString("\n| failed: operation and code | by the rules, during a fault | without one, for want of time | otherwise | such as |\n|---|--:|--:|--:|---|\n")
	for _, name := range slices.Sorted(maps.Keys(t.ends)) {
		e := t.ends[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s |\n", name, e.fair, e.late, e.unfair, strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(e.example))
	}
	return b.String()
}

func (t *tally) sums() (made, fair, late, unfair int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.all {
		made += n
	}
	for _, e := range t.ends {
		fair, late, unfair = fair+e.fair, late+e.late, unfair+e.unfair
	}
	return made, fair, late, unfair
}

// faultClock knows when something was broken.
type faultClock struct {
	mu     sync.Mutex // guards all
	active int
	ended  time.Time // the last fault
	count  map[string]int
}

func (c *faultClock) begin(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[string]int{}
	}
	c.active++
	c.count[what]++
}

func (c *faultClock) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	c.ended = time.Now()
}

// broken tells that a call that began then may have met a fault.
func (c *faultClock) broken(begun time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active > 0 || !c.ended.IsZero() && begun.Before(c.ended.Add(soakSettle))
}

// operation makes one operation by chance and counts how it ended.
func (k *soaking) operation(ctx context.Context) error {
	begun := time.Now()
	kind, err := k.one(ctx)
	if ctx.Err() != nil { // the load is over
		return nil
	}
	return k.told.note(kind, err, k.faults.broken(begun))
}

func (k *soaking) one(ctx context.Context) (kind string, err error) {
	f := rand.IntN(len(k.faces))
	switch p := rand.IntN(100); {
	case p < 60:
		return "read, " + faceKinds[f], timely(ctx, func(ctx context.Context) error { return verifiedRead(ctx, k.faces[f]) })
	case p < 62:
		return "stream, " + faceKinds[f], timely(ctx, func(ctx context.Context) error { return k.whole(ctx, k.faces[f]) })
	default:
		if s := k.free(); s != nil {
			defer s.mu.Unlock()
			return k.visit(ctx, s)
		}
		// All that were looked at are visited: they wait for a node that does not answer.
		return "read, " + faceKinds[f], timely(ctx, func(ctx context.Context) error { return verifiedRead(ctx, k.faces[f]) })
	}
}

// free returns a row that nobody visits, locked, or nil.
func (k *soaking) free() *slot {
	for range 20 {
		if s := &k.slots[rand.IntN(len(k.slots))]; s.mu.TryLock() {
			return s
		}
	}
	return nil
}

// timely bounds one call.
func timely(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, soakCall)
	defer cancel()
	return call(ctx)
}

// whole streams all rows that never change.
func (k *soaking) whole(ctx context.Context, f face) error {
	seen := 0
	if err := f.stream(ctx, soakStream, func(n int) { seen += n }); err != nil {
		return err
	}
	if seen != rows {
		return &refusal{code: "WRONG", text: fmt.Sprintf("a stream has %d rows; want %d", seen, rows)}
	}
	return nil
}

// visit looks at a row that changes, over one face, and changes it over another.
func (k *soaking) visit(ctx context.Context, s *slot) (kind string, err error) {
	reader, writer := rand.IntN(4), rand.IntN(4)
	kind = "look, " + [...]string{faceGRPC, faceHTTP, faceWire, "key-value"}[reader]
	if err := timely(ctx, func(ctx context.Context) error { return k.look(ctx, s, reader) }); err != nil {
		return kind, err
	}
	kind = "change, " + [...]string{faceGRPC, faceHTTP, "key-value", "transaction"}[writer]
	value := s.value + 1
	err = timely(ctx, func(ctx context.Context) error { return k.change(ctx, s, value, writer) })
	k.settle(s, value, err)
	return kind, err
}

// settle notes what a change came to.
func (k *soaking) settle(s *slot, value uint64, err error) {
	switch {
	case err == nil:
		s.written, s.value = true, value
	case asRefusal(err).open:
		// It may have been kept, or may be yet: nothing is known of this row any more.
		s.id, s.written, s.value = k.lastID.Add(1), false, 0
	}
}

// look compares a row with what must be in it.
func (k *soaking) look(ctx context.Context, s *slot, reader int) error {
	var got []string
	if reader < len(k.faces) {
		found, err := k.faces[reader].query(ctx, soakRead, map[string]any{"id": s.id})
		if err != nil {
			return err
		}
		for _, row := range found {
			got = append(got, row...)
		}
	} else {
		answer, err := k.kv.Get(ctx, &sidecarv1.KvGetRequest{Table: "soak", Id: kvID(s.id), Timeout: within(ctx)})
		if err != nil && asRefusal(err).code != "KEY_NOT_FOUND" {
			return err
		}
		if err == nil {
			got = append(got, string(answer.Value))
		}
	}
	var want []string
	if s.written {
		want = []string{strconv.FormatUint(s.value, 10)}
	}
	if !slices.Equal(got, want) {
		return &refusal{code: "WRONG", text: fmt.Sprintf("row %d is %q; what was acknowledged is %q", s.id, got, want)}
	}
	return nil
}

// change writes a row.
func (k *soaking) change(ctx context.Context, s *slot, value uint64, writer int) error {
	text := strconv.FormatUint(value, 10)
	params := map[string]any{"id": s.id, "payload": text}
	switch writer {
	case 2:
		_, err := k.kv.Put(ctx, &sidecarv1.KvPutRequest{Table: "soak", Id: kvID(s.id), Value: []byte(text), Timeout: within(ctx)})
		return err
	case 3:
		return k.transaction(ctx, s, params)
	}
	_, err := k.faces[writer].query(ctx, soakWrite, params)
	return err
}

// transaction writes a row in an interactive transaction that has read it before.
func (k *soaking) transaction(ctx context.Context, s *slot, params map[string]any) error {
	first, err := k.sidecar.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: soakRead, Params: plainParams(map[string]any{"id": s.id}), Timeout: within(ctx),
		Tx: &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{}, Seq: 1}})
	if err != nil {
		r := *asRefusal(err)
		r.open = false // it had nothing to keep
		return &r
	}
	_, err = k.sidecar.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: soakWrite, Params: plainParams(params), Timeout: within(ctx),
		Tx: &sidecarv1.TxSelector{Id: first.GetTx().GetId(), Seq: 2, Commit: true}})
	if err != nil {
		// As a caller should: what is open keeps a session. If this fails too, the transaction ends by its age.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), soakCall)
		defer cancel()
		_, _ = k.sidecar.Client.Rollback(undo, &sidecarv1.RollbackRequest{Id: first.GetTx().GetId(), Timeout: within(undo)})
	}
	return err
}

// soakFault is one thing that happens to a node.
type soakFault struct {
	what string
	body map[string]any
	undo string // "" if it ends by itself
}

var soakFaults = []soakFault{
	{"kill", nil, "start"},
	{"stop", nil, "start"},
	{"drain", map[string]any{"mode": "streams", "soft": "1s", "hard": "2s"}, "start"},
	{"drain", map[string]any{"mode": "silent", "soft": "1s", "hard": "2s"}, "start"},
	{"drain", map[string]any{"mode": "hints", "soft": "1s", "hard": "2s"}, "start"},
	{"refuse", nil, "clear"},
	{"blackhole", nil, "clear"},
	{"delay", map[string]any{"delay": "100ms"}, "clear"},
	{"delay", map[string]any{"delay": "300ms", "share": 0.2}, "clear"},
	{"throttle", map[string]any{"bytes_per_second": 200000}, "clear"},
	{"errors", map[string]any{"status": "OVERLOADED"}, "clear"},
	{"errors", map[string]any{"status": "UNAVAILABLE", "share": 0.2}, "clear"},
	{"errors", map[string]any{"status": "UNDETERMINED", "share": 0.1, "after": true, "methods": []string{"ExecuteQuery", "CommitTransaction"}}, "clear"},
	{"errors", map[string]any{"status": "BAD_SESSION", "share": 0.2, "methods": []string{"ExecuteQuery"}}, "clear"},
	{"cut", map[string]any{"share": 0.05}, "clear"},
	{"limit", map[string]any{"sessions": 3}, "clear"},
	{"hint", nil, ""}, // for every session of the node
}

func (f soakFault) String() string {
	name := f.what
	for _, key := range []string{"status", "delay", "mode", "share"} {
		if v, ok := f.body[key]; ok {
			name += fmt.Sprintf(" %s=%v", key, v)
		}
	}
	return name
}

// breakThings breaks one node at a time until the time is over.
func (k *soaking) breakThings(ctx context.Context, duration time.Duration, seed uint64) error {
	random, end := rand.New(rand.NewPCG(seed, 0)), time.Now().Add(duration)
	unit := lab.At(k.l, 100*time.Millisecond, time.Second, time.Second)
	for {
		gap, hold := 3*unit+time.Duration(random.Int64N(int64(7*unit))), unit+time.Duration(random.Int64N(int64(3*unit)))
		f, node := soakFaults[random.IntN(len(soakFaults))], k.cluster.Nodes[random.IntN(len(k.cluster.Nodes))].ID
		if time.Now().Add(gap + hold).After(end) {
			return nil
		}
		if err := pause(ctx, gap); err != nil {
			return err
		}
		if err := k.breakOne(ctx, f, node, hold); err != nil {
			return fmt.Errorf("%s, node %d: %w", f, node, err)
		}
	}
}

func (k *soaking) breakOne(ctx context.Context, f soakFault, node uint32, hold time.Duration) error {
	k.faults.begin(f.String())
	defer k.faults.end()
	control := k.cluster.Control
	if f.what == "hint" {
		sessions, err := control.Sessions(ctx)
		if err != nil {
			return err
		}
		for _, s := range sessions {
			if s.NodeID == node {
				// One that is gone by now needs none.
				_ = control.Do(ctx, node, "hint", map[string]string{"session": s.ID})
			}
		}
		return pause(ctx, hold)
	}
	if err := control.Do(ctx, node, f.what, f.body); err != nil {
		return err
	}
	if err := pause(ctx, hold); err != nil {
		return err
	}
	if err := control.Do(ctx, node, f.undo, nil); err != nil {
		return err
	}
	return nil
}

// samples are what was held over time.
type samples struct {
	minutes []float64
	lines   map[string][]float64 // by the name of the gauge
}

// nodeSessions is the number of sessions that the nodes list.
const nodeSessions = "sessions-on-nodes"

// sampled are the gauges that must be flat, with what they may grow by over the
// second half: the greater of a tenth of their median and this.
var sampled = []struct {
	name, title string
	scale       float64
	floor       float64
}{
	{lab.Anonymous, "anonymous memory, MB", 1e-6, 4},
	{lab.Heap, "heap, MB", 1e-6, 4},
	{lab.Goroutines, "goroutines", 1, 45}, // two or three for each session
	{lab.Descriptors, "descriptors", 1, 10},
	{lab.Sessions, "sessions of the sidecar", 1, 15}, // pools breathe: two, each with up to pool.max
	{nodeSessions, "sessions on the nodes", 1, 15},
	{lab.Virtual, "sessions of SDKs", 1, 5},
}

// sample looks until ctx ends.
func (k *soaking) sample(ctx context.Context, every time.Duration) (*samples, error) {
	s, begun := &samples{lines: map[string][]float64{}}, time.Now()
	for {
		g, err := k.sidecar.Gauges(ctx, false)
		if err == nil {
			var listed int
			listed, err = k.listed(ctx)
			if err == nil {
				s.add(time.Since(begun), g, listed)
			}
		}
		if err != nil && ctx.Err() == nil {
			return s, err
		}
		if pause(ctx, every) != nil {
			return s, nil
		}
	}
}

// listed is the number of sessions on the nodes, by their own list.
func (k *soaking) listed(ctx context.Context) (int, error) {
	sessions, err := k.cluster.Control.Sessions(ctx)
	return len(sessions), err
}

func (s *samples) add(at time.Duration, g lab.Gauges, listed int) {
	s.minutes = append(s.minutes, at.Minutes())
	f := g.Figures()
	f[nodeSessions] = float64(listed)
	for _, one := range sampled {
		s.lines[one.name] = append(s.lines[one.name], f[one.name]*one.scale)
	}
}

func (s *samples) csv() []byte {
	var b bytes.Buffer
	b.WriteString("minute")
	for _, one := range sampled {
		fmt.Fprintf(&b, ",%q", one.title)
	}
	for i, at := range s.minutes {
		fmt.Fprintf(&b, "\n%.3f", at)
		for _, one := range sampled {
			fmt.Fprintf(&b, ",%.6g", s.lines[one.name][i])
		}
	}
	b.WriteString("\n")
	return b.Bytes()
}

// flat tells how much a gauge grew over the second half, and how much it may.
func flat(minutes, values []float64, floor float64) (growth, most float64) {
	growth, median := lab.Growth(minutes, values)
	return growth, max(floor, median/10)
}

// all is the experiment from the warm-up to the report.
func (k *soaking) all(ctx context.Context, o soakOptions) error {
	capacity := lab.Closed(ctx, 16, lab.At(k.l, 500*time.Millisecond, 2*time.Second, 4*time.Second), k.operation)
	if capacity.Failed > 0 || capacity.Calls == 0 {
		return fmt.Errorf("%d of %d operations failed before anything was broken: %s", capacity.Failed, capacity.Calls, capacity.FirstFail)
	}
	rate := max(1, min(o.rate, int(capacity.Offered/2)))
	rest := lab.At(k.l, 300*time.Millisecond, 5*time.Second, 15*time.Second)
	start, err := k.settled(ctx, rest)
	if err != nil {
		return err
	}
	k.l.Progress("capacity %.0f operations a second; %d a second for %v", capacity.Offered, rate, o.duration)
	every := max(lab.At(k.l, 200*time.Millisecond, time.Second, 5*time.Second), o.duration/720)
	quiet := min(o.duration/10, time.Minute) // at the end nothing is broken
	var seen *samples
	run, err := k.l.Once(ctx, lab.Variant{Name: "load", Under: []*lab.Process{k.sidecar.Process}, Run: func(ctx context.Context, _ time.Duration) (lab.Result, error) {
		beside, stop := context.WithCancel(ctx)
		defer stop()
		var work sync.WaitGroup
		var breaking, sampling error
		work.Go(func() {
			if breaking = k.breakThings(beside, o.duration-quiet, o.seed); beside.Err() != nil {
				breaking = nil // the load was over
			}
		})
		work.Go(func() { seen, sampling = k.sample(beside, every) })
		work.Go(func() { k.progress(beside, o.duration) })
		result := lab.Open(ctx, lab.Rate(rate), o.duration, k.operation)
		stop()
		work.Wait()
		return result, errors.Join(breaking, sampling)
	}}, 0)
	if err != nil {
		return err
	}
	if err := k.heal(ctx); err != nil {
		return err
	}
	end, err := k.settled(ctx, rest)
	if err != nil {
		return err
	}
	if err := k.audit(ctx); err != nil {
		return err
	}
	listed, err := k.listed(ctx)
	if err != nil {
		return err
	}
	k.report(run, capacity, rate, seen, start, end, listed)
	return nil
}

// progress says now and then how it goes.
func (k *soaking) progress(ctx context.Context, duration time.Duration) {
	for begun := time.Now(); pause(ctx, max(5*time.Second, duration/20)) == nil; {
		made, fair, late, unfair := k.told.sums()
		k.l.Progress("%v: %d operations, %d failed by the rules, %d for want of time, %d otherwise", time.Since(begun).Round(time.Second), made, fair, late, unfair)
	}
}

// settled waits until the callers' traces are gone and reads what is held.
func (k *soaking) settled(ctx context.Context, rest time.Duration) (lab.Gauges, error) {
	for _, f := range k.faces {
		if h, ok := f.(*httpFace); ok {
			h.close() // its idle connections: callers keep as many as there were calls at a time, which is not what calls leave
		}
	}
	if err := pause(ctx, rest); err != nil {
		return lab.Gauges{}, err
	}
	return atRest(ctx, k.sidecar, 45*time.Second) // a transaction whose rollback failed ends by tx.idle
}

// heal takes back every fault.
func (k *soaking) heal(ctx context.Context) error {
	nodes, err := k.cluster.Control.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if node.State != "up" {
			if err := k.cluster.Control.Do(ctx, node.ID, "start", nil); err != nil {
				return err
			}
		}
		if err := k.cluster.Control.Do(ctx, node.ID, "clear", nil); err != nil {
			return err
		}
	}
	return nil
}

// audit looks at every row that changed, when nothing is broken and nobody writes.
func (k *soaking) audit(ctx context.Context) error {
	for i := range k.slots {
		s := &k.slots[i]
		s.mu.Lock()
		err := timely(ctx, func(ctx context.Context) error { return k.look(ctx, s, 0) })
		s.mu.Unlock()
		if err := k.told.note("look at the end", err, false); err != nil {
			k.l.Report.Fault("at the end: %v", err)
			if asRefusal(err).code != "WRONG" {
				return err
			}
		}
	}
	return nil
}

func (k *soaking) report(run lab.Run, capacity lab.Result, rate int, seen *samples, start, end lab.Gauges, listed int) {
	made, fair, late, _ := k.told.sums()
	t := lab.NewTable(lab.Case{Name: "soak", Title: "The load", Figures: []string{lab.PerSecond, lab.Offered, lab.P50, lab.P99, lab.Max, lab.CPU, lab.RSS}, Variants: []lab.Variant{{Name: "half load"}},
		Text: fmt.Sprintf("16 callers in a closed loop made %.0f operations a second before anything was broken; %d a second were due, %d were made in all, of which %d failed in words that the rules have for a fault, while there was one, and %d without one for want of time, as happens when other programs take the processors. Failed are the others.",
			capacity.Offered, rate, made, fair, late)}, [][]lab.Run{{run}})
	judge := func(text string, value, most float64, hard bool) {
		t.Judge(text, fmt.Sprintf("<= %.3g", most), value <= most, lab.Estimate{Median: value, Low: value, High: value, N: 1})
		if !(value <= most) && (hard || k.l.Size > lab.Smoke) {
			k.l.Report.Fault("%s: %.3g; want at most %.3g", text, value, most)
		}
	}
	for _, one := range sampled {
		if k.l.Size > lab.Smoke { // some seconds show no slope
			floor := one.floor
			if seen.minutes[len(seen.minutes)-1] < 5 {
				floor *= 4 // pools still grow to what the worst fault asked for
			}
			growth, most := flat(seen.minutes, seen.lines[one.name], floor)
			judge("growth over the second half: "+one.title, growth, most, false)
		}
	}
	// On a machine that does nothing else, half of what it bears is served in time.
	share := 100 * float64(late) / float64(max(1, made))
	t.Judge("percent of the operations that failed without a fault, for want of time", "<= 0.1", share <= 0.1, lab.Estimate{Median: share, Low: share, High: share, N: 1})
	if share > 0.1 && k.l.Size > lab.Smoke && run.Figures[lab.Others] < 0.2 {
		k.l.Report.Fault("%.2f %% of the operations failed without a fault, for want of time, and no other program was busy", share)
	}
	judge("sessions in use when nobody calls", float64(end.Busy), 0, true)
	judge("sessions on the nodes that the sidecar does not know", float64(listed-end.Sessions), 0, false)
	judge("descriptors, more than at the start", float64(end.Descriptors-start.Descriptors), 10, false)
	judge("goroutines, more than at the start and two for each new session", float64(end.Goroutines-start.Goroutines-2*max(0, end.Sessions-start.Sessions)), 20+keptGoroutines, false)
	k.l.Report.Add(lab.Section{Table: t})
	k.l.Report.Add(lab.Section{Title: "What callers were told", Text: k.told.markdown()})
	var b strings.Builder
	b.WriteString("| fault | times |\n|---|--:|\n")
	for _, what := range slices.Sorted(maps.Keys(k.faults.count)) {
		fmt.Fprintf(&b, "| %s | %d |\n", what, k.faults.count[what])
	}
	fmt.Fprintf(&b, "\n| | goroutines | descriptors | anonymous memory | heap | sessions | in use | of SDKs |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, row := range []struct {
		name string
		g    lab.Gauges
	}{{"at the start, at rest", start}, {"at the end, at rest", end}} {
		g := row.g
		fmt.Fprintf(&b, "| %s | %d | %d | %.1f MB | %.1f MB | %d | %d | %d |\n", row.name, g.Goroutines, g.Descriptors, float64(g.Anonymous)/1e6, float64(g.Heap)/1e6, g.Sessions, g.Busy, g.Virtual)
	}
	k.l.Report.Add(lab.Section{Title: "Faults, and what was held at rest", Text: b.String()})
	for _, one := range sampled {
		k.l.Report.Add(lab.Section{Picture: &lab.Picture{Title: one.title, X: "minutes", Y: one.title, Lines: []lab.Line{{Name: one.title, X: seen.minutes, Y: seen.lines[one.name]}}}})
	}
	k.l.Report.File("samples.csv", seen.csv())
}
