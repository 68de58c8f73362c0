package datapathtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// told is a context with a deadline of which only the server hears: the client itself
// waits much longer, so that the sidecar must end the call.
type told struct {
	context.Context
	deadline time.Time
}

func (c told) Deadline() (time.Time, bool) { return c.deadline, true }

func tell(ctx context.Context, d time.Duration) (told, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, d+time.Minute)
	return told{ctx, time.Now().Add(d)}, cancel
}

// query runs one on a node's session and waits for its end.
func query(ctx context.Context, conn *grpc.ClientConn, id int, text string, parts chan<- struct{}) error {
	stream, err := Ydb_Query_V1.NewQueryServiceClient(conn).ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{SessionId: sessionOn(id),
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: text}}})
	got := 0
	for err == nil {
		var part *Ydb_Query.ExecuteQueryResponsePart
		if part, err = stream.Recv(); err != nil {
			break
		}
		if part.Status != Ydb.StatusIds_SUCCESS {
			return fmt.Errorf("%v: %v", part.Status, part.Issues)
		}
		if at := part.Issues[0].GetMessage(); at != strconv.Itoa(id) {
			return fmt.Errorf("node %s answers a call on a session of node %d", at, id)
		}
		if got++; parts != nil {
			parts <- struct{}{}
		}
	}
	if errors.Is(err, io.EOF) && got == 1 {
		return nil
	}
	return err
}

// echo sends bytes to whatever node the sidecar picks and checks that they come back.
func echo(ctx context.Context, conn *grpc.ClientConn, method string, options ...grpc.CallOption) error {
	sent := raw(strconv.FormatUint(rand.Uint64(), 36))
	var got raw
	if err := conn.Invoke(ctx, method, &sent, &got, append(options, grpc.ForceCodecV2(codec))...); err != nil {
		return err
	}
	if string(sent) != string(got) {
		return fmt.Errorf("sent %q, got %q", sent, got)
	}
	return nil
}

const future = "/Ydb.Future.V1.FutureService/Do"

// load makes one call after the other until stopped.
type load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards what follows
	good   int
	failed map[string]int
	late   time.Duration // the most that a call took above its deadline
}

// callDeadline is what each call of a load is given.
const callDeadline = 2 * time.Second

func startLoad(t testing.TB, workers int, call func(context.Context) error) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel, failed: map[string]int{}}
	for range workers {
		l.wg.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				at, end := tell(context.WithoutCancel(ctx), callDeadline)
				err := call(at)
				late := time.Since(at.deadline)
				end()
				l.mu.Lock()
				if l.late = max(l.late, late); err == nil {
					l.good++
				} else {
					l.failed[err.Error()]++
				}
				l.mu.Unlock()
				<-pace.C
			}
		})
	}
	t.Cleanup(func() { cancel(); l.wg.Wait() })
	return l
}

// so tells what came so far.
func (l *load) so() (good int, failed map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.good, maps.Clone(l.failed)
}

func sum(m map[string]int) (n int) {
	for _, k := range m {
		n += k
	}
	return n
}

func (l *load) stop() (good int, failed map[string]int, late time.Duration) {
	l.cancel()
	l.wg.Wait()
	return l.good, l.failed, l.late
}

// slowness measures how late this machine wakes a goroutine up, and how late the sidecar answers
// whether it lives: its process is another one, and may have to wait for a processor alone.
func slowness(t testing.TB, s *sidecar) (worst func() (machine, answer time.Duration)) {
	stop, most, answered := make(chan struct{}), time.Duration(0), time.Duration(0)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			at := time.Now()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Admin+"/livez", nil)
			if err != nil {
				return
			}
			request.Close = true // its connection must not count as one of the sidecar's
			if response, err := http.DefaultClient.Do(request); err == nil {
				_ = response.Body.Close()
			}
			answered = max(answered, time.Since(at))
			select {
			case <-time.After(50 * time.Millisecond):
			case <-stop:
				return
			}
		}
	})
	wg.Go(func() {
		for {
			at := time.Now().Add(10 * time.Millisecond)
			select {
			case <-time.After(10 * time.Millisecond):
				most = max(most, time.Since(at))
			case <-stop:
				return
			}
		}
	})
	end := sync.OnceFunc(func() { close(stop); wg.Wait() })
	t.Cleanup(end)
	return func() (machine, answer time.Duration) { end(); return most, answered }
}

// scene is three nodes, of which the first is behind a door or is a process, and a sidecar.
type scene struct {
	*testing.T
	*door
	process *stand.Process
	address string // of the process
	s       *sidecar
}

func (s *scene) kill() {
	if err := s.process.Signal(syscall.SIGKILL); err != nil {
		s.Fatal(err)
	}
	_, _ = s.process.Wait(s.Context()) // its code is that of the signal
}

func (s *scene) restart() { s.process, _ = startNodeProcess(s.T, 1, s.address) }

// ejections counts those of a node.
func (s *sidecar) ejections(t testing.TB, id int) (byCause map[string]int) {
	t.Helper()
	var why struct{ Ejections map[string]int }
	if err := json.Unmarshal(s.get(t, fmt.Sprintf("/nodes/%d/why", id)), &why); err != nil {
		t.Fatal(err)
	}
	return why.Ejections
}

func garbage() []byte {
	b := make([]byte, 64<<10)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

var faults = []struct {
	name   string
	strike func(*scene)
	mend   func(*scene)
	causes string // one of which the node is ejected for
}{
	{"killed", (*scene).kill, (*scene).restart, "transport"},
	{"refused", func(s *scene) { s.shut(); s.reset() }, func(s *scene) { s.open(s.T) }, "transport"},
	{"half_open", func(s *scene) { s.freeze() }, func(*scene) {}, "silence probe"},
	{"black_hole", func(s *scene) { s.put(s.swallow); s.freeze() }, func(s *scene) { s.put(nil) }, "silence probe"},
	{"garbage", func(s *scene) { s.put(s.say(garbage())); s.reset() }, func(s *scene) { s.put(nil) }, "transport"},
	{"other_protocol", func(s *scene) {
		s.put(s.say([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")))
		s.reset()
	},
		func(s *scene) { s.put(nil) }, "transport"},
	{"closes_at_once", func(s *scene) { s.put(s.closeAtOnce); s.reset() }, func(s *scene) { s.put(nil) }, "transport"},
	{"closes_after_preface", func(s *scene) { s.put(s.closeAfterPreface); s.reset() }, func(s *scene) { s.put(nil) }, "transport"},
}

// One of three nodes fails under load and comes back: each call is answered, in time and
// with the truth; calls on the other nodes know nothing of it; the node is ejected for
// what it did; and nothing is left.
func TestFaultsOfANode(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			st := &scene{T: t}
			if f.name == "killed" {
				st.process, st.address = startNodeProcess(t, 1, standtest.FreeAddress(t))
			} else {
				st.door = newDoor(t, startNode(t, 1))
				st.address = st.door.address
			}
			// pool.min opens the connections of the sidecar's own calls to all nodes.
			st.s = startSidecar(t, []string{st.address, startNode(t, 2), startNode(t, 3)}, "pool.min=3", "health.slow_start=0")
			eventually(t, patience, "sessions on every node", func() string {
				return string(missing(st.s.get(t, "/state/nodes")))
			})
			st.run(f.strike, f.mend, f.causes)
		})
	}
}

// missing names what is not there yet.
func missing(nodes []byte) []byte {
	var state struct{ Nodes []struct{ Idle int } }
	if json.Unmarshal(nodes, &state) == nil {
		for _, n := range state.Nodes {
			if n.Idle == 0 {
				return nodes
			}
		}
	}
	return nil
}

func (s *scene) run(strike, mend func(*scene), causes string) {
	t := s.T
	bound, unbound, held := dial(t, s.s.GRPC, nil), dial(t, s.s.GRPC, nil), dial(t, s.s.GRPC, nil)
	for id := 1; id <= 3; id++ {
		for _, conn := range []*grpc.ClientConn{bound, unbound, held} {
			if err := query(t.Context(), conn, id, "", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := s.s.held(t)
	worst := slowness(t, s.s)

	others := startLoad(t, 4, func(ctx context.Context) error { return query(ctx, bound, 2+rand.IntN(2), "", nil) })
	its := startLoad(t, 4, func(ctx context.Context) error { return query(ctx, bound, 1, "", nil) })
	anywhere := startLoad(t, 4, func(ctx context.Context) error { return echo(ctx, unbound, future) })
	endings := s.inFlight(held)
	struck := time.Now()
	strike(s)
	s.theyEnd(endings, struck)
	s.ejected(struck, causes)
	s.callsGoOn(anywhere)
	mend(s)
	s.comesBack(held)
	slow, answer := worst()
	s.judge(map[string]*load{otherNodes: others, "on the node": its, "on any": anywhere}, slow, answer)
	for _, conn := range []*grpc.ClientConn{bound, unbound, held} { // they may have ended, and come back
		_ = query(t.Context(), conn, 2, "", nil)
	}
	s.s.backAt(t, before)
}

// eachWay is how many calls are in flight at the fault for each way that a node can leave one without an answer.
const eachWay = 3

// ending is how a call that was in flight at the fault ended.
type ending struct {
	text string
	err  error
	at   time.Time
}

// inFlight begins 2*eachWay calls on the node, which answers none of them, and waits until they are under way.
func (s *scene) inFlight(conn *grpc.ClientConn) <-chan ending {
	t := s.T
	endings, began := make(chan ending, 2*eachWay), make(chan struct{}, 2*eachWay)
	for range eachWay {
		for _, text := range []string{hold, silent} {
			go func() {
				ctx, end := tell(t.Context(), 30*time.Second)
				defer end()
				err := query(ctx, conn, 1, text, began)
				endings <- ending{text, err, time.Now()}
			}()
		}
	}
	for range eachWay {
		<-began
	}
	eventually(t, patience, "calls are under way", func() string {
		if n := s.s.node(t, 1); n.Calls < 2*eachWay {
			return fmt.Sprintf("%+v", n)
		}
		return ""
	})
	return endings
}

// theyEnd checks that calls in flight end because of the fault: with its error, before their deadline.
func (s *scene) theyEnd(endings <-chan ending, struck time.Time) {
	t := s.T
	for range 2 * eachWay {
		e := <-endings
		took := e.at.Sub(struck)
		t.Logf("%s: after %v: %v", e.text, took.Round(time.Millisecond), e.err)
		// It may have been executed, which YDB has a status for; part of an answer leaves no place for that.
		if e.err == nil ||
			!strings.Contains(strings.ToUpper(e.err.Error()), "UNAVAILABLE") && !strings.Contains(e.err.Error(), "UNDETERMINED") {
			t.Errorf("a call in flight ended with %v", e.err)
		}
		if took > 25*time.Second {
			t.Errorf("a call in flight ended %v after the fault, with its deadline", took)
		}
	}
}

// ejected waits until the node is ejected and checks what for.
func (s *scene) ejected(struck time.Time, causes string) {
	t := s.T
	var n nodeState
	var got map[string]int
	eventually(t, patience, "the node is ejected", func() string {
		n = s.s.node(t, 1)
		if got = s.s.ejections(t, 1); sum(got) == 0 {
			return fmt.Sprintf("%+v", n)
		}
		return ""
	})
	t.Logf("after %v: %+v, ejections %v", time.Since(struck).Round(time.Millisecond), n, got)
	for cause := range got {
		if !strings.Contains(causes, cause) {
			t.Errorf("ejected for %v; want %s", got, causes)
		}
	}
}

// callsGoOn checks that calls that are bound to no session go elsewhere now.
func (s *scene) callsGoOn(anywhere *load) {
	t := s.T
	good, failed := anywhere.so()
	eventually(t, patience, "calls go on", func() string {
		if now, _ := anywhere.so(); now < good+100 {
			return fmt.Sprintf("%d of 100", now-good)
		}
		return ""
	})
	if _, now := anywhere.so(); s.s.node(t, 1).Use == "none" && sum(now) > sum(failed)+4 { // calls under way may fail
		t.Errorf("with the node ejected, calls to any node fail: %v, before %v", now, failed)
	}
}

// comesBack waits until the node is healthy and its sessions can be used.
func (s *scene) comesBack(held *grpc.ClientConn) {
	t := s.T
	eventually(t, 60*time.Second, "the node is back", func() string {
		if n := s.s.node(t, 1); n.Use != "new" || n.Health != "healthy" {
			return fmt.Sprintf("%+v", n)
		}
		return ""
	})
	eventually(t, patience, "its sessions can be used", func() string {
		if err := query(t.Context(), held, 1, "", nil); err != nil {
			return err.Error()
		}
		return ""
	})
}

// otherNodes names the load on the two nodes that nothing happens to.
const otherNodes = "on other nodes"

// judge ends the loads: other nodes know nothing of the fault, and all answers are in time, as far as
// this machine (slow) and the sidecar (answer) were.
func (s *scene) judge(loads map[string]*load, slow, answer time.Duration) {
	t := s.T
	for name, l := range loads {
		good, failed, late := l.stop()
		t.Logf("%s: %d good, failed %v", name, good, failed)
		if name == otherNodes && len(failed) > 0 {
			t.Errorf("calls %s: %v", name, failed)
		}
		if late > time.Second+10*slow+answer {
			t.Errorf("calls %s were answered %v after their deadline; this machine is %v late, and the sidecar %v", name,
				late, slow, answer)
		}
		for text := range failed {
			if strings.Contains(text, "node ") && strings.Contains(text, "answers a call") {
				t.Error(text)
			}
		}
	}
}
