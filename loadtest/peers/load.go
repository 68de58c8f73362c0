package peers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Measured is what one run saw.
type Measured struct {
	Calls     int64         `json:"calls"`
	Failed    int64         `json:"failed"`
	FirstFail string        `json:"first_failure,omitempty"`
	PerSecond float64       `json:"calls_per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	P999      time.Duration `json:"p999_ns"`
	CPU       time.Duration `json:"proxy_cpu_ns_per_call"` // of the proxy and its children, user and system
	User      time.Duration `json:"proxy_user_ns_per_call"`
	LoadCPU   time.Duration `json:"load_cpu_ns_per_call"`
	NodeCPU   time.Duration `json:"backend_cpu_ns_per_call"`
	RSS       int64         `json:"proxy_rss_bytes"`       // at the end of the load
	Anonymous int64         `json:"proxy_anonymous_bytes"` // likewise
	Others    float64       `json:"other_cores"`           // used by other programs meanwhile
	Again     bool          `json:"again,omitempty"`       // it is the calmer of two
}

// answer is the place for one message of an answer. While it is received it is
// compared with what each node must answer.
type answer struct {
	want   [nodes][]byte
	from   int // the node whose answer it is
	stream bool
	rows   *counted // not nil: there are many, which are counted instead
}

var errBody = errors.New("the body is not what any node answers")

// refused tells why there is another answer than was wanted, as far as it says so.
func (a *answer) refused(data mem.BufferSlice) error {
	status, issues := Ydb.StatusIds_STATUS_CODE_UNSPECIFIED, []*Ydb_Issue.IssueMessage(nil)
	if a.stream {
		var part Ydb_Query.ExecuteQueryResponsePart
		_ = proto.Unmarshal(data.Materialize(), &part) // if it is none there is no status
		status, issues = part.GetStatus(), part.GetIssues()
	} else {
		var whole Ydb_Table.ExecuteDataQueryResponse
		_ = proto.Unmarshal(data.Materialize(), &whole)
		status, issues = whole.GetOperation().GetStatus(), whole.GetOperation().GetIssues()
	}
	if status == Ydb.StatusIds_STATUS_CODE_UNSPECIFIED || status == Ydb.StatusIds_SUCCESS {
		return errBody
	}
	return fmt.Errorf("%w: %v %v", errBody, status, issues)
}

// checking is the codec of requests, which are octets, and answers.
type checking struct{}

func (checking) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (checking) Unmarshal(data mem.BufferSlice, v any) error {
	a := v.(*answer)
	if a.rows != nil {
		return a.count(data)
	}
	for i, want := range a.want {
		if equal(data, want) {
			a.from = i + 1
			return nil
		}
	}
	return a.refused(data)
}

func (checking) Name() string { return "proto" }

func equal(data mem.BufferSlice, want []byte) bool {
	if data.Len() != len(want) {
		return false
	}
	for _, b := range data {
		part := b.ReadOnlyData()
		if !bytes.Equal(part, want[:len(part)]) {
			return false
		}
		want = want[len(part):]
	}
	return true
}

// caller makes calls of one scenario on one session.
type caller struct {
	scenario Scenario
	conn     *grpc.ClientConn
	method   string
	request  []byte
	want     [][nodes][]byte // of each part
	owner    int             // who must answer; 0: whoever does
	random   *rand.Rand      // of trace ids

	plain func(context.Context) error // makes a call of the plain API instead; nil
}

const database = "/ru-central1/b1g0000000000000000/etn0000000000000000"

// headers are those of an SDK. Values are invented; lengths are not.
var headers = metadata.Pairs(
	"x-ydb-database", database,
	"x-ydb-auth-ticket", "bench-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
	"x-ydb-sdk-build-info", "ydb-go-sdk/3.156.1",
	"x-ydb-client-pid", strconv.Itoa(os.Getpid()),
	"x-ydb-client-capabilities", "session-balancer",
)

// call makes one call, whose trace id is new, and checks the answer.
func (c *caller) call(ctx context.Context) error {
	if c.plain != nil {
		return c.plain(ctx)
	}
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:], c.random.Uint64())
	binary.BigEndian.PutUint64(id[8:], c.random.Uint64())
	ctx = metadata.AppendToOutgoingContext(ctx, "x-ydb-trace-id", id.String())
	a := answer{want: c.want[0], stream: c.scenario.Stream}
	if !c.scenario.Stream {
		if err := c.conn.Invoke(ctx, c.method, c.request, &a); err != nil {
			return err
		}
		return c.check(a.from)
	}
	if c.scenario.Rows > 0 {
		a.rows = new(counted)
	}
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(c.request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for _, a.want = range c.want {
		if err := stream.RecvMsg(&a); err != nil {
			return err
		}
		if err := c.check(a.from); err != nil {
			return err
		}
	}
	if err := stream.RecvMsg(&a); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the stream goes on after its last part: %v", err)
	}
	if a.rows != nil {
		return a.rows.check(c.scenario)
	}
	return nil
}

// open makes a session and attaches to it. It lasts as long as ctx, or the connection.
func (c *caller) open(ctx context.Context) (string, error) {
	client := Ydb_Query_V1.NewQueryServiceClient(c.conn)
	codec := grpc.ForceCodecV2(encoding.GetCodecV2("proto"))
	made, err := client.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{}, codec)
	if err != nil || made.GetStatus() != Ydb.StatusIds_SUCCESS {
		return "", fmt.Errorf("create a session: %v: %w", made.GetIssues(), err)
	}
	stream, err := client.AttachSession(ctx, &Ydb_Query.AttachSessionRequest{SessionId: made.GetSessionId()}, codec)
	if err == nil {
		_, err = stream.Recv()
	}
	return made.GetSessionId(), err
}

func (c *caller) check(from int) error {
	if c.owner != 0 && from != c.owner {
		return fmt.Errorf("node %d answered a call on a session of node %d", from, c.owner)
	}
	return nil
}

// callers connects to a target and returns n callers, whose sessions are spread over the nodes.
func (f *field) callers(ctx context.Context, t *target, s Scenario, n int) (all []*caller, hangUp func(), err error) {
	end := t.at(s)
	if t.face == webFace {
		return webCallers(end.addresses[0], s, n)
	}
	var conns [nodes][]*grpc.ClientConn // to be used for sessions of each node
	hangUp = func() {
		for _, of := range conns {
			for _, conn := range of {
				_ = conn.Close() // nothing is in flight
			}
		}
	}
	transport := insecure.NewCredentials()
	if s.TLS == both || s.TLS == toNodes && end.process == nil { // straight to the nodes
		if transport, err = credentials.NewClientTLSFromFile(certFile(f.dir), serverName); err != nil {
			return nil, hangUp, err
		}
	}
	dial := func(address string) (of []*grpc.ClientConn, err error) {
		for range f.options.Conns {
			conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(transport),
				grpc.WithDisableRetry(), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(checking{})))
			if err != nil {
				return of, err
			}
			of = append(of, conn)
		}
		return of, nil
	}
	for i, address := range end.addresses {
		if conns[i], err = dial(address); err != nil {
			return nil, hangUp, err
		}
	}
	bodies, err := expected(s)
	if err != nil {
		return nil, hangUp, err
	}
	want := make([][nodes][]byte, s.Parts)
	for part := range want {
		for i := range nodes {
			want[part][i] = bodies[i][part]
		}
	}
	for i := range n {
		owner := i%nodes + 1
		of := conns[0]
		if len(end.addresses) > 1 {
			of = conns[owner-1]
		}
		c := &caller{scenario: s, conn: of[i/nodes%len(of)], want: want, random: rand.New(rand.NewPCG(uint64(i), rand.Uint64()))}
		if t.face == plainFace {
			if c.plain, err = plainCaller(s, c.conn); err != nil {
				return nil, hangUp, err
			}
			all = append(all, c)
			continue
		}
		session := sessionID(owner, i)
		switch {
		case s.Implicit:
			session = ""
		case t.virtual:
			if session, err = c.open(ctx); err != nil {
				return nil, hangUp, err
			}
		}
		if c.method, c.request, err = request(s, session); err != nil {
			return nil, hangUp, err
		}
		if t.routes && !s.Implicit {
			c.owner = owner
		}
		all = append(all, c)
	}
	return all, hangUp, nil
}

// The phases of a run.
const (
	warming int32 = iota
	measuring
	over
)

// tooMany failures of a worker in a run end its work.
const tooMany = 100

// grace bounds how long calls may go on after the end of a run.
const grace = 10 * time.Second

// tally is what one worker saw.
type tally struct {
	latencies []time.Duration // of calls that began (closed loop) or were due (open loop) while measuring
	done      int64           // calls that ended while measuring
	failed    int64
	first     string
}

// measure makes one run: warm-up, measurement.
func (f *field) measure(ctx context.Context, t *target, s Scenario) (Measured, error) {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, headers), f.options.WarmUp+f.options.Duration+grace)
	defer cancel()
	callers, hangUp, err := f.callers(ctx, t, s, s.InFlight)
	defer hangUp()
	if err != nil {
		return Measured{}, err
	}
	var phase atomic.Int32
	schedule := make(chan due, s.Rate) // a second's calls
	var pacer, workers sync.WaitGroup
	if s.Rate > 0 {
		pacer.Go(func() { pace(&phase, s.Rate, schedule) })
	}
	tallies := make([]tally, len(callers))
	for i, c := range callers {
		workers.Go(func() { c.work(ctx, &phase, schedule, &tallies[i]) })
	}
	// When all workers have given up, the pacer waits for room.
	defer pacer.Wait()
	defer func() {
		phase.Store(over)
		for range schedule {
		}
	}()
	if s.Rate == 0 {
		close(schedule)
	}
	if err := sleep(ctx, f.options.WarmUp); err != nil {
		phase.Store(over)
		workers.Wait()
		return Measured{}, err
	}
	before, err := f.snapshot(t, s)
	if err == nil {
		phase.Store(measuring)
		err = sleep(ctx, f.options.Duration)
	}
	var after snapshot
	var m Measured
	if err == nil {
		if after, err = f.snapshot(t, s); err == nil && after.proxy != nil {
			m.RSS, m.Anonymous, err = stand.Memory(after.proxy...)
		}
	}
	phase.Store(over)
	workers.Wait()
	if err != nil {
		return Measured{}, err
	}
	var latencies []time.Duration
	for _, one := range tallies {
		latencies = append(latencies, one.latencies...)
		m.Calls += one.done
		m.Failed += one.failed
		if m.FirstFail == "" {
			m.FirstFail = one.first
		}
	}
	if s.Rows > 0 {
		m.Calls = int64(len(latencies))
	}
	if m.Calls == 0 && m.Failed == 0 {
		m.Failed, m.FirstFail = 1, "no call ended"
	}
	slices.Sort(latencies)
	m.P50, m.P99, m.P999 = quantile(latencies, 0.50), quantile(latencies, 0.99), quantile(latencies, 0.999)
	calls := float64(m.Calls)
	if s.Rows > 0 && len(latencies) > 0 {
		calls = ended(s, latencies, after.at.Sub(before.at))
	}
	m.cost(before, after, calls)
	return m, nil
}

// ended returns how many calls, and parts of calls, a closed loop made in a time by its
// latencies: of calls that are long for the time a count of those that ended says little.
func ended(s Scenario, latencies []time.Duration, took time.Duration) float64 {
	var sum time.Duration
	for _, l := range latencies {
		sum += l
	}
	return float64(s.InFlight) * took.Seconds() / (sum.Seconds() / float64(len(latencies)))
}

// cost fills in what the calls between two snapshots cost.
func (m *Measured) cost(before, after snapshot, calls float64) {
	took := after.at.Sub(before.at)
	m.PerSecond = calls / took.Seconds()
	ours := after.ours.Minus(before.ours).CPU
	m.Others = max(0, (after.machine-before.machine-ours).Seconds()/took.Seconds())
	if m.Calls == 0 {
		return
	}
	each := func(used time.Duration) time.Duration { return time.Duration(float64(used) / calls) }
	proxy := after.used.Minus(before.used)
	m.CPU, m.User = each(proxy.CPU), each(proxy.User)
	m.LoadCPU = each(after.load.Minus(before.load).CPU)
	m.NodeCPU = each(after.nodes.Minus(before.nodes).CPU)
}

// quantile returns an exact quantile of sorted figures; 0 if there is none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// due is a call of the open loop.
type due struct {
	at     time.Time // when it should begin
	counts bool      // the run was measuring then
}

// work makes calls until the run is over, one after the other: without a pause in the
// closed loop, whenever one is due in the open one, those that are late included.
// Latency counts from the moment at which a call was due, so that a stall is charged
// to all calls that it delays.
func (c *caller) work(ctx context.Context, phase *atomic.Int32, schedule <-chan due, t *tally) {
	for t.failed < tooMany {
		next := due{at: time.Now(), counts: phase.Load() == measuring}
		if c.scenario.Rate > 0 {
			var ok bool
			if next, ok = <-schedule; !ok {
				return
			}
		} else if phase.Load() == over {
			return
		}
		if err := c.call(ctx); err != nil {
			t.failed++
			if t.first == "" {
				t.first = err.Error()
			}
			continue
		}
		if next.counts {
			t.latencies = append(t.latencies, time.Since(next.at))
		}
		if phase.Load() == measuring {
			t.done++
		}
	}
}

// pace tells when calls are due, until the run is over. It sleeps in the kernel: the
// timers of Go's runtime are a millisecond late.
func pace(phase *atomic.Int32, rate int, schedule chan<- due) {
	defer close(schedule)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // a thread that ended would take the processes along that it started
	const setTimerSlack = 29       // PR_SET_TIMERSLACK, in ns; 0 is what the thread began with
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 1, 0)
	defer func() { _, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 0, 0) }()
	gap := time.Second / time.Duration(rate)
	for next := time.Now(); phase.Load() != over; next = next.Add(gap) {
		if wait := time.Until(next); wait > 0 {
			ts := syscall.NsecToTimespec(int64(wait))
			_ = syscall.Nanosleep(&ts, nil) // a signal makes one call early
		}
		schedule <- due{next, phase.Load() == measuring}
	}
}

// snapshot is what the kernel has counted so far.
type snapshot struct {
	at      time.Time
	proxy   []int       // the processes of the proxy
	used    stand.Usage // by them
	load    stand.Usage // by this process
	nodes   stand.Usage // by the backends
	ours    stand.Usage // by this process and all that it started
	machine time.Duration
}

func (f *field) snapshot(t *target, s Scenario) (snapshot, error) {
	all, err := stand.ReadProcesses()
	if err != nil {
		return snapshot{}, err
	}
	now := snapshot{at: time.Now(), load: all[os.Getpid()].Usage, ours: all.Used(os.Getpid()), nodes: all.Used(f.backends.Pid())}
	if p := t.at(s).process; p != nil {
		now.proxy, now.used = all.Tree(p.Pid()), all.Used(p.Pid())
	}
	now.machine, err = stand.ReadMachine()
	return now, err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
