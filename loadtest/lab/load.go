package lab

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// Call makes one call and says what went wrong.
type Call func(ctx context.Context) error

// Result is what the load of one run saw. Latency counts from the instant at
// which a call was due in an open loop, and from its begin in a closed one.
type Result struct {
	Closed    bool // a closed loop: a slow server slows the load down
	Calls     int64
	Rows      int64 // that the calls wrote or read, if that is what counts: adds the figures RowsPerS and RowCPU
	Failed    int64
	FirstFail string
	Offered   float64 // calls a second that were due; in a closed loop those that were made
	Took      time.Duration
	Figures   Figures // further ones, of the experiment's own
	hist      *hdrhistogram.Histogram
}

// Mean is the mean latency; 0 without calls.
func (r Result) Mean() time.Duration {
	if r.hist == nil {
		return 0
	}
	return time.Duration(r.hist.Mean() * float64(grain))
}

// maxLatency is the greatest latency that is told from greater ones.
const maxLatency = 2 * time.Minute

// Recorder collects latencies of many goroutines.
type Recorder struct {
	mu     sync.Mutex // guards all
	hist   *hdrhistogram.Histogram
	failed int64
	first  string
}

// NewRecorder returns an empty one. Its grain is 100 ns, its precision three digits.
func NewRecorder() *Recorder {
	return &Recorder{hist: hdrhistogram.New(1, int64(maxLatency/grain), 3)}
}

// grain is the unit of recorded latencies.
const grain = 100 * time.Nanosecond

// Add notes one call. The latency of a failed call counts like any other.
func (r *Recorder) Add(took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// It is within the range, so it cannot fail.
	_ = r.hist.RecordValue(int64(min(max(took, grain), maxLatency) / grain))
	if err != nil {
		r.failed++
		if r.first == "" {
			r.first = err.Error()
		}
	}
}

// Result returns what was noted in the given time.
func (r *Recorder) Result(took time.Duration) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.hist.TotalCount()
	return Result{Calls: calls, Failed: r.failed, FirstFail: r.first, Took: took, Offered: float64(calls) / took.Seconds(), hist: r.hist}
}

// Open is Result of an open loop whose calls were due within the duration.
func (r *Recorder) Open(took, duration time.Duration) Result {
	result := r.Result(took)
	result.Offered = float64(result.Calls) / duration.Seconds()
	return result
}

// Quantile is the latency that the share p of the calls did not exceed, 0 to 100; 0 without calls.
func (r Result) Quantile(p float64) time.Duration {
	if r.hist == nil {
		return 0
	}
	return time.Duration(r.hist.ValueAtPercentile(p)) * grain
}

// Merge is the result of loads that ran at the same time.
func Merge(all ...Result) Result {
	sum := Result{hist: NewRecorder().hist}
	for _, r := range all {
		sum.Closed = sum.Closed || r.Closed
		sum.Calls, sum.Failed, sum.Rows, sum.Offered = sum.Calls+r.Calls, sum.Failed+r.Failed, sum.Rows+r.Rows, sum.Offered+r.Offered
		sum.Took = max(sum.Took, r.Took)
		if sum.FirstFail == "" {
			sum.FirstFail = r.FirstFail
		}
		if r.hist != nil {
			sum.hist.Merge(r.hist)
		}
	}
	return sum
}

// grace is how long calls may take after the last was due.
const grace = 20 * time.Second

// maxUnderWay bounds the calls under way in an open loop. One that is due when
// so many are waits, and the wait counts.
const maxUnderWay = 10_000

// schedule returns the instants at which calls are due by the pacer, counted
// from the begin, until the duration is over, its last instant included; one of 0 never is.
func schedule(pacer vegeta.Pacer, duration time.Duration) func() (time.Duration, bool) {
	var hits uint64
	var due time.Duration
	return func() (time.Duration, bool) {
		// The pacer is asked as if every call had been sent in time: what it says is the schedule, not a way to catch up.
		wait, stop := pacer.Pace(due, hits)
		if stop {
			return 0, false
		}
		due += wait
		hits++
		return due, due <= duration
	}
}

// Open sends calls as the pacer says, whatever becomes of them, and counts
// latency from the instant at which a call was due: a server that falls behind
// cannot hide it by slowing the load down.
func Open(ctx context.Context, pacer vegeta.Pacer, duration time.Duration, c Call) Result {
	return open(ctx, pacer, duration, func(due time.Time) { time.Sleep(time.Until(due)) }, c)
}

// OpenExactly is Open that sleeps in the kernel until a call is due: the timers of Go's runtime are up to a millisecond
// late, which counts where calls take less.
func OpenExactly(ctx context.Context, pacer vegeta.Pacer, duration time.Duration, c Call) Result {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // a thread that ended would take the processes along that it started
	const setTimerSlack = 29       // PR_SET_TIMERSLACK, in ns; 0 is what the thread began with
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 1, 0)
	defer func() { _, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 0, 0) }()
	return open(ctx, pacer, duration, func(due time.Time) {
		if wait := time.Until(due); wait > 0 {
			ts := syscall.NsecToTimespec(int64(wait))
			_ = syscall.Nanosleep(&ts, nil) // a signal makes one call early
		}
	}, c)
}

func open(ctx context.Context, pacer vegeta.Pacer, duration time.Duration, sleep func(until time.Time), c Call) Result {
	r, begun := NewRecorder(), time.Now()
	send(ctx, pacer, duration, sleep, func(ctx context.Context, due time.Time) {
		err := c(ctx)
		r.Add(time.Since(due), err)
	})
	return r.Open(time.Since(begun), duration)
}

// Send makes calls as the pacer says, whatever becomes of them, and tells each the instant at which it was due.
func Send(ctx context.Context, pacer vegeta.Pacer, duration time.Duration, c func(ctx context.Context, due time.Time)) {
	send(ctx, pacer, duration, func(due time.Time) { time.Sleep(time.Until(due)) }, c)
}

func send(ctx context.Context, pacer vegeta.Pacer, duration time.Duration, sleep func(time.Time), c func(context.Context, time.Time)) {
	ctx, cancel := context.WithTimeout(ctx, duration+grace)
	defer cancel()
	begun := time.Now()
	next := schedule(pacer, duration)
	room := make(chan struct{}, maxUnderWay)
	var calls sync.WaitGroup
	for at, more := next(); more && ctx.Err() == nil; at, more = next() {
		due := begun.Add(at)
		sleep(due)
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		calls.Go(func() {
			c(ctx, due)
			<-room
		})
	}
	calls.Wait()
}

// Rate is a constant number of calls a second.
func Rate(perSecond int) vegeta.Pacer { return vegeta.Rate{Freq: perSecond, Per: time.Second} }

// Poisson is calls that come at random, perSecond of them on average, and at the same instants in each run.
func Poisson(perSecond float64) vegeta.Pacer {
	return poisson{perSecond, rand.New(rand.NewPCG(1, uint64(perSecond)))}
}

type poisson struct {
	perSecond float64
	random    *rand.Rand
}

// Pace is called by one goroutine.
func (p poisson) Pace(time.Duration, uint64) (time.Duration, bool) {
	return time.Duration(p.random.ExpFloat64() / p.perSecond * float64(time.Second)), false
}

// Rate is the average.
func (p poisson) Rate(time.Duration) float64 { return p.perSecond }

// Closed keeps a constant number of calls under way.
func Closed(ctx context.Context, underWay int, duration time.Duration, c Call) Result {
	calls := make([]Call, underWay)
	for i := range calls {
		calls[i] = c
	}
	return ClosedEach(ctx, duration, calls...)
}

// ClosedEach is Closed with a call of its own for each worker.
func ClosedEach(ctx context.Context, duration time.Duration, calls ...Call) Result {
	ctx, cancel := context.WithTimeout(ctx, duration+grace)
	defer cancel()
	begun := time.Now()
	recorders := make([]*Recorder, len(calls)) // one each: workers share nothing
	var workers sync.WaitGroup
	for i, c := range calls {
		recorders[i] = NewRecorder()
		workers.Go(func() {
			for time.Since(begun) < duration && ctx.Err() == nil {
				start := time.Now()
				err := c(ctx)
				recorders[i].Add(time.Since(start), err)
			}
		})
	}
	workers.Wait()
	all := recorders[0]
	for _, r := range recorders[1:] {
		all.hist.Merge(r.hist)
		all.failed += r.failed
		if all.first == "" {
			all.first = r.first
		}
	}
	result := all.Result(time.Since(begun))
	result.Closed = true
	return result
}

// Attack has vegeta send HTTP requests; an answer that is not 2xx is a failure.
func Attack(ctx context.Context, targeter vegeta.Targeter, pacer vegeta.Pacer, duration time.Duration,
	options ...func(*vegeta.Attacker)) Result {
	r, begun := NewRecorder(), time.Now()
	for hit := range Hits(ctx, targeter, pacer, duration, "attack", options...) {
		var err error
		if hit.Code < 200 || hit.Code > 299 {
			err = fmt.Errorf("%s %s: HTTP %d: %s %.200s", hit.Method, hit.URL, hit.Code, hit.Error, hit.Body)
		}
		r.Add(hit.Latency, err)
	}
	return r.Open(time.Since(begun), duration)
}

// Hits has vegeta send HTTP requests as they are due by the pacer, until the duration is over, and yields the
// results as they come. vegeta counts latency from the instant at which a worker sends. Here timestamp and latency
// count from the one at which the request was due, except with a rate of 0, which has no schedule. A request that
// could not be sent until the grace after the last was due is yielded as one that failed.
func Hits(ctx context.Context, targeter vegeta.Targeter, pacer vegeta.Pacer, duration time.Duration, name string,
	options ...func(*vegeta.Attacker)) iter.Seq[*vegeta.Result] {
	return func(yield func(*vegeta.Result) bool) {
		attacker := vegeta.NewAttacker(
			append(
				[]func(*vegeta.Attacker){vegeta.Timeout(grace), vegeta.Workers(16), vegeta.MaxWorkers(maxUnderWay),
					vegeta.MaxBody(1 << 20), vegeta.KeepAlive(true)},
				options...,
			)...,
		)
		defer context.AfterFunc(ctx, func() { attacker.Stop() })()
		begun := time.Now()
		scheduled := !Unpaced(pacer)
		var results <-chan *vegeta.Result
		if scheduled {
			// vegeta would give up what it could not send until the end of the duration.
			results = attacker.Attack(targeter, &follower{next: schedule(pacer, duration), duration: duration}, 0, name)
		} else {
			results = attacker.Attack(targeter, pacer, duration, name)
		}
		defer func() {
			attacker.Stop()
			for range results { // its workers end when all is taken
			}
		}()
		// by the number of the hit; results come in another order
		next, seen, dues := schedule(pacer, duration), uint64(0), map[uint64]time.Duration{}
		for hit := range results {
			if scheduled {
				for ; seen <= hit.Seq; seen++ {
					dues[seen], _ = next()
				}
				due := begun.Add(dues[hit.Seq])
				delete(dues, hit.Seq)
				hit.Timestamp, hit.Latency = due, hit.End().Sub(due)
			}
			if !yield(hit) {
				return
			}
		}
		if !scheduled || ctx.Err() != nil {
			return
		}
		for due, more := next(); more; due, more = next() {
			at := begun.Add(due)
			if !yield(&vegeta.Result{Attack: name, Seq: seen, Timestamp: at, Latency: time.Since(at), Error: notSent}) {
				return
			}
			seen++
		}
	}
}

// notSent is the error of a request that was due and could not be sent.
const notSent = "not sent: too many were under way"

// Unpaced tells that a pacer has no schedule: it sends as fast as workers are free.
func Unpaced(pacer vegeta.Pacer) bool {
	rate, ok := pacer.(vegeta.Rate)
	return ok && rate.Freq == 0
}

// follower has vegeta send exactly what is due, late rather than never, until the grace is over.
type follower struct {
	next     func() (time.Duration, bool)
	duration time.Duration
}

// Pace is called once for each hit, by one goroutine.
func (f *follower) Pace(elapsed time.Duration, _ uint64) (time.Duration, bool) {
	due, more := f.next()
	return max(0, due-elapsed), !more || elapsed > f.duration+grace
}

// Rate is for vegeta's own use.
func (f *follower) Rate(time.Duration) float64 { return 0 }

// Post is a targeter of POSTs of JSON whose bodies f makes.
func Post(url string, f func() []byte) vegeta.Targeter {
	header := http.Header{"Content-Type": {"application/json"}}
	return func(t *vegeta.Target) error {
		t.Method, t.URL, t.Header, t.Body = http.MethodPost, url, header, f()
		return nil
	}
}

// Turns hands out the calls of a list in turn, for loads of several kinds.
func Turns(calls ...Call) Call {
	var n atomic.Uint64
	return func(ctx context.Context) error { return calls[(n.Add(1)-1)%uint64(len(calls))](ctx) }
}
