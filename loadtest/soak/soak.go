// Package soak is the experiment that finds whether memory, goroutines, sessions and descriptors are flat
// over a long time of verified work with random faults.
package soak

import (
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
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// soakOptions are the flags of soak alone.
type soakOptions struct {
	duration time.Duration
	rate     int // operations a second at most
	seed     uint64
}

// Experiment lets a sidecar work for long while nodes fail.
func Experiment() lab.Experiment {
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
	s, err := l.Sidecar(ctx, "grpc://"+strings.Join(addresses, ",")+"/local", "admin.pprof=on", "pool.min=10", Tables)
	if err != nil {
		return err
	}
	if err := traffic.Fill(ctx, s.Client); err != nil {
		return err
	}
	if _, err := s.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: Create, Timeout: "20s"}); err != nil {
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
	Create     = `CREATE TABLE IF NOT EXISTS soak (id Uint64, payload Utf8, PRIMARY KEY (id))`
	Tables     = "kv.tables=soak=soak key=id:Uint64 value=payload:Utf8"
	soakRead   = `DECLARE $id AS Uint64; SELECT payload FROM soak WHERE id = $id`
	soakWrite  = `DECLARE $id AS Uint64; DECLARE $payload AS Utf8; UPSERT INTO soak (id, payload) VALUES ($id, $payload)`
	Stream     = `SELECT id, payload FROM bench`
	soakSlots  = 500             // rows that change at a time
	soakCall   = 5 * time.Second // a call may take
	soakSettle = 3 * time.Second // after a fault calls may still fail
)

// Soaking is the experiment under way.
type Soaking struct {
	l       *lab.Lab
	cluster *lab.Cluster
	Sidecar *lab.Sidecar
	faces   []traffic.Face
	kv      sidecarv1.KeyValueClient
	slots   []Slot
	lastID  atomic.Uint64 // of the rows that change
	faults  faultClock
	told    tally
}

// Slot is a row that changes, with what must be in it.
type Slot struct {
	mu      sync.Mutex // held by who visits it; guards the fields below
	ID      uint64
	written bool
	value   uint64
}

func newSoaking(l *lab.Lab, cluster *lab.Cluster, s *lab.Sidecar) (*Soaking, error) {
	k := &Soaking{l: l, cluster: cluster, Sidecar: s, kv: sidecarv1.NewKeyValueClient(s.Conn), slots: make([]Slot, soakSlots)}
	for i := range k.slots {
		k.slots[i].ID = k.lastID.Add(1)
	}
	for _, kind := range traffic.FaceKinds {
		f, err := traffic.DialFace(kind, s, 16)
		if err != nil {
			return nil, err
		}
		k.faces = append(k.faces, f)
		l.Defer(f.Close)
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
var late = map[string]bool{"POOL_TIMEOUT": true, "QUEUE_FULL": true, "SHED_DEADLINE": true, "SHED_DELAY": true,
	"TOO_MANY_OPEN": true, "DEADLINE_EXCEEDED": true,
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
	r := traffic.AsRefusal(err)
	e := t.ends[kind+" "+r.Code]
	if e == nil {
		e = &ending{example: fmt.Sprintf("%.200s", r.Text)}
		t.ends[kind+" "+r.Code] = e
	}
	if r.Fair && broken {
		e.fair++
		return nil
	}
	if r.Fair && late[r.Code] {
		e.late++
		return nil
	}
	if e.unfair++; e.unfair == 1 {
		e.example = fmt.Sprintf("%.200s", r.Text)
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
	b.WriteString("\n| failed: operation and code | by the rules, during a fault | without one, for want of time | " +
		"otherwise | such as |\n|---|--:|--:|--:|---|\n")
	for _, name := range slices.Sorted(maps.Keys(t.ends)) {
		e := t.ends[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s |\n", name, e.fair, e.late, e.unfair,
			strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(e.example))
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

// operation makes one operation by chance and counts how it ended.
func (k *Soaking) operation(ctx context.Context) error {
	begun := time.Now()
	kind, err := k.one(ctx)
	if ctx.Err() != nil { // the load is over
		return nil
	}
	return k.told.note(kind, err, k.faults.broken(begun))
}

func (k *Soaking) one(ctx context.Context) (kind string, err error) {
	f := rand.IntN(len(k.faces))
	switch p := rand.IntN(100); {
	case p < 60:
		return "read, " + traffic.FaceKinds[f], Timely(
			ctx, func(ctx context.Context) error { return traffic.VerifiedRead(ctx, k.faces[f]) },
		)
	case p < 62:
		return "stream, " + traffic.FaceKinds[f], Timely(ctx, func(ctx context.Context) error { return k.whole(ctx, k.faces[f]) })
	default:
		if s := k.free(); s != nil {
			defer s.mu.Unlock()
			return k.visit(ctx, s)
		}
		// All that were looked at are visited: they wait for a node that does not answer.
		return "read, " + traffic.FaceKinds[f], Timely(
			ctx, func(ctx context.Context) error { return traffic.VerifiedRead(ctx, k.faces[f]) },
		)
	}
}

// free returns a row that no caller is at, locked, or nil.
func (k *Soaking) free() *Slot {
	for range 20 {
		if s := &k.slots[rand.IntN(len(k.slots))]; s.mu.TryLock() {
			return s
		}
	}
	return nil
}

// Timely bounds one call.
func Timely(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, soakCall)
	defer cancel()
	return call(ctx)
}

// whole streams all rows that never change.
func (k *Soaking) whole(ctx context.Context, f traffic.Face) error {
	seen := 0
	if err := f.Stream(ctx, Stream, func(n int) { seen += n }); err != nil {
		return err
	}
	if seen != traffic.Rows {
		return &traffic.Refusal{Code: "WRONG", Text: fmt.Sprintf("a stream has %d rows; want %d", seen, traffic.Rows)}
	}
	return nil
}

// visit looks at a row that changes, over one face, and changes it over another.
func (k *Soaking) visit(ctx context.Context, s *Slot) (kind string, err error) {
	reader, writer := rand.IntN(4), rand.IntN(4)
	kind = "look, " + [...]string{traffic.FaceGRPC, traffic.FaceHTTP, traffic.FaceWire, "key-value"}[reader]
	if err := Timely(ctx, func(ctx context.Context) error { return k.look(ctx, s, reader) }); err != nil {
		return kind, err
	}
	kind = "change, " + [...]string{traffic.FaceGRPC, traffic.FaceHTTP, "key-value", "transaction"}[writer]
	value := s.value + 1
	err = Timely(ctx, func(ctx context.Context) error { return k.change(ctx, s, value, writer) })
	k.settle(s, value, err)
	return kind, err
}

// settle notes what a change came to.
func (k *Soaking) settle(s *Slot, value uint64, err error) {
	switch {
	case err == nil:
		s.written, s.value = true, value
	case traffic.AsRefusal(err).Open:
		// It may have been kept, or may be yet: nothing is known of this row any more.
		s.ID, s.written, s.value = k.lastID.Add(1), false, 0
	}
}

// look compares a row with what must be in it.
func (k *Soaking) look(ctx context.Context, s *Slot, reader int) error {
	var got []string
	if reader < len(k.faces) {
		found, err := k.faces[reader].Query(ctx, soakRead, map[string]any{"id": s.ID})
		if err != nil {
			return err
		}
		for _, row := range found {
			got = append(got, row...)
		}
	} else {
		answer, err := k.kv.Get(ctx, &sidecarv1.KvGetRequest{Table: "soak", Id: traffic.KVID(s.ID), Timeout: traffic.Within(ctx)})
		if err != nil && traffic.AsRefusal(err).Code != "KEY_NOT_FOUND" {
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
		return &traffic.Refusal{Code: "WRONG", Text: fmt.Sprintf("row %d is %q; what was acknowledged is %q", s.ID, got, want)}
	}
	return nil
}

// change writes a row.
func (k *Soaking) change(ctx context.Context, s *Slot, value uint64, writer int) error {
	text := strconv.FormatUint(value, 10)
	params := map[string]any{"id": s.ID, "payload": text}
	switch writer {
	case 2:
		_, err := k.kv.Put(
			ctx,
			&sidecarv1.KvPutRequest{Table: "soak", Id: traffic.KVID(s.ID), Value: []byte(text), Timeout: traffic.Within(ctx)},
		)
		return err
	case 3:
		return k.Transaction(ctx, s, params)
	}
	_, err := k.faces[writer].Query(ctx, soakWrite, params)
	return err
}

// Transaction writes a row in an interactive transaction that has read it before.
func (k *Soaking) Transaction(ctx context.Context, s *Slot, params map[string]any) error {
	plain := contract.OverGRPC(k.Sidecar.Conn)
	first, err := plain.Execute(ctx, contract.Statement{SQL: soakRead, Params: map[string]any{"id": s.ID}, Timeout: traffic.Within(ctx),
		Tx: &contract.TxSelector{Begin: true, Seq: 1}})
	if err != nil {
		r := *traffic.AsRefusal(err)
		r.Open = false // it had nothing to keep
		return &r
	}
	if first.Tx == nil {
		return &traffic.Refusal{Code: "WRONG", Text: "no transaction is open after the statement that begins one"}
	}
	_, err = plain.Execute(ctx, contract.Statement{SQL: soakWrite, Params: params, Timeout: traffic.Within(ctx),
		Tx: &contract.TxSelector{ID: first.Tx.ID, Seq: 2, Commit: true}})
	if err != nil {
		// As a caller should: what is open keeps a session. If this fails too, the transaction ends by its age.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), soakCall)
		defer cancel()
		_ = plain.Rollback(undo, first.Tx.ID)
	}
	return err
}

// all is the experiment from the warm-up to the report.
func (k *Soaking) all(ctx context.Context, o soakOptions) error {
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
	run, err := k.l.Once(
		ctx,
		lab.Variant{Name: "load", Under: []*lab.Process{k.Sidecar.Process},
			Run: func(ctx context.Context, _ time.Duration) (lab.Result, error) {
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
			}},
		0,
	)
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
func (k *Soaking) progress(ctx context.Context, duration time.Duration) {
	for begun := time.Now(); traffic.Pause(ctx, max(5*time.Second, duration/20)) == nil; {
		made, fair, late, unfair := k.told.sums()
		k.l.Progress("%v: %d operations, %d failed by the rules, %d for want of time, %d otherwise",
			time.Since(begun).Round(time.Second), made, fair, late, unfair)
	}
}

// settled waits until the callers' traces are gone and reads what is held.
func (k *Soaking) settled(ctx context.Context, rest time.Duration) (lab.Gauges, error) {
	// Callers keep as many idle connections over HTTP as there were calls at a time, which is not what calls leave.
	k.faces[slices.Index(traffic.FaceKinds, traffic.FaceHTTP)].Close()
	if err := traffic.Pause(ctx, rest); err != nil {
		return lab.Gauges{}, err
	}
	return traffic.AtRest(ctx, k.Sidecar, 45*time.Second) // a transaction whose rollback failed ends by tx.idle
}

// heal takes back every fault.
func (k *Soaking) heal(ctx context.Context) error {
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
