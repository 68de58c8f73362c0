// Package attack sends what vegeta's targets say, over HTTP or gRPC, and
// reports on the results, in vegeta's own formats: `loadtest attack` and
// `loadtest report` are to be piped into each other, and into vegeta.
//
// What always holds: a request is sent when it is due, whatever becomes of those
// before it; its latency counts from that instant; one that could not be sent is a result
// too; everything is bounded: time, rate, calls under way, bodies.
package attack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// Bounds of an attack.
const (
	maxTargets  = 1_000_000 // that are kept
	maxBytes    = 256 << 20 // of their bodies
	maxRate     = 1_000_000 // requests a second
	maxDuration = 24 * time.Hour
)

// options are the flags, named as vegeta's are.
type options struct {
	targets, format, body, encode, output, name string
	header                                      http.Header
	lazy, keepAlive, h2c, insecure              bool
	rate                                        vegeta.Rate
	duration, timeout                           time.Duration
	workers, maxWorkers                         uint64
	connections, grpcConnections, redirects     int
	maxBody                                     int64
	unixSocket, rootCerts                       string
}

// rateFlag reads N, N/s, N/1m ...; 0 means as fast as workers are free.
func (o *options) rateFlag(text string) error {
	o.rate = vegeta.Rate{Per: time.Second}
	count, per, ok := strings.Cut(text, "/")
	n, err := strconv.Atoi(count)
	if err == nil && ok {
		if per != "" && (per[0] < '0' || per[0] > '9') {
			per = "1" + per
		}
		o.rate.Per, err = time.ParseDuration(per)
	}
	o.rate.Freq = n
	if err != nil || n < 0 || o.rate.Per <= 0 || float64(n)/o.rate.Per.Seconds() > maxRate {
		return fmt.Errorf("want a number of requests, or of requests per time: 50, 50/s, 3000/1m; at most %d/s; 0 for as fast as -max-workers allow", maxRate)
	}
	return nil
}

func (o *options) headerFlag(text string) error {
	name, value, ok := strings.Cut(text, ":")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return errors.New("want name: value")
	}
	o.header[name] = append(o.header[name], strings.TrimSpace(value)) // names keep their case, as vegeta's do
	return nil
}

func (o *options) parse(args []string) error {
	f := flag.NewFlagSet("attack", flag.ContinueOnError)
	o.header, o.rate = http.Header{}, vegeta.Rate{Freq: 50, Per: time.Second}
	f.StringVar(&o.targets, "targets", "stdin", "`file` of targets")
	f.StringVar(&o.format, "format", vegeta.HTTPTargetFormat, "of the targets: http or json")
	f.StringVar(&o.body, "body", "", "`file` of the body of targets that have none")
	f.Func("header", "`name: value` that every target gets; may repeat", o.headerFlag)
	f.BoolVar(&o.lazy, "lazy", false, "read targets as they are sent, and end with the last; else all are read, and sent in turn")
	f.Func("rate", "requests per time, `N/s`; 0: as fast as -max-workers allow (default 50/s)", o.rateFlag)
	f.DurationVar(&o.duration, "duration", 0, "of the attack; needed without -lazy")
	f.DurationVar(&o.timeout, "timeout", vegeta.DefaultTimeout, "of one request")
	f.Uint64Var(&o.workers, "workers", vegeta.DefaultWorkers, "requests under way for which there are workers from the begin")
	f.Uint64Var(&o.maxWorkers, "max-workers", 10_000, "requests under way at most; one that is due meanwhile waits, and the wait counts")
	f.IntVar(&o.connections, "connections", vegeta.DefaultConnections, "HTTP: idle connections that are kept for an address")
	f.IntVar(&o.grpcConnections, "grpc-connections", 4, "gRPC: connections to an address")
	f.IntVar(&o.redirects, "redirects", vegeta.DefaultRedirects, "HTTP: how many are followed; -1: none, and they are successes")
	f.Int64Var(&o.maxBody, "max-body", 64<<10, "HTTP: bytes of an answer that are read and written; gRPC's are counted only")
	f.BoolVar(&o.keepAlive, "keepalive", true, "HTTP: use connections again")
	f.BoolVar(&o.h2c, "h2c", false, "HTTP/2 without TLS")
	f.BoolVar(&o.insecure, "insecure", false, "take any certificate")
	f.StringVar(&o.rootCerts, "root-certs", "", "`file` of the authorities (PEM) of certificates; empty: the system's")
	f.StringVar(&o.unixSocket, "unix-socket", "", "`path` to dial in place of the targets' addresses")
	f.StringVar(&o.name, "name", "", "of the attack, in the results")
	f.StringVar(&o.encode, "encode", "gob", "format of the results: gob, json or csv")
	f.StringVar(&o.output, "output", "stdout", "`file` of the results")
	if err := f.Parse(args); err != nil {
		return err
	}
	var errs []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	given := false
	f.Visit(func(f *flag.Flag) { given = given || f.Name == "max-workers" })
	want(f.NArg() == 0, "arguments %q: want none; targets come from -targets or stdin", f.Args())
	want(o.duration > 0 || o.duration == 0 && o.lazy, "-duration %v: want more than 0; 0 only with -lazy, which ends with the targets", o.duration)
	want(o.duration <= maxDuration, "-duration %v: want at most %v", o.duration, maxDuration)
	want(o.timeout > 0 && o.timeout <= time.Hour, "-timeout %v: want more than 0 and at most 1h", o.timeout)
	want(o.maxWorkers >= 1 && o.maxWorkers <= 100_000, "-max-workers %d: want 1 to 100000", o.maxWorkers)
	want(o.rate.Freq > 0 || given, "-rate 0 needs -max-workers: it is how many requests are under way")
	want(o.grpcConnections >= 1 && o.grpcConnections <= 1000, "-grpc-connections %d: want 1 to 1000", o.grpcConnections)
	want(o.maxBody >= 0 && o.maxBody <= maxMessage, "-max-body %d: want 0 to %d", o.maxBody, maxMessage)
	want(o.format == vegeta.HTTPTargetFormat || o.format == vegeta.JSONTargetFormat, "-format %q: want http or json; the format of results is -encode", o.format)
	want(o.encode == "gob" || o.encode == "json" || o.encode == "csv", "-encode %q: want gob, json or csv", o.encode)
	return errors.Join(errs...)
}

// Main is `loadtest attack`: it sends the targets and writes what became of them. When the context
// ends nothing more is sent, and what is under way is waited for.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	var o options
	if err := o.parse(args); err != nil {
		return err
	}
	var body []byte
	if o.body != "" {
		if body, err = os.ReadFile(o.body); err != nil {
			return fmt.Errorf("-body: %w", err)
		}
	}
	source := stdin
	if o.targets != "stdin" {
		f, err := os.Open(o.targets)
		if err != nil {
			return fmt.Errorf("-targets: %w", err)
		}
		defer f.Close()
		source = f
	}
	security, err := o.security()
	if err != nil {
		return err
	}
	source = io.MultiReader(source, strings.NewReader("\n")) // vegeta overlooks a last line of JSON that does not end
	targeter := vegeta.NewHTTPTargeter(source, body, o.header)
	if o.format == vegeta.JSONTargetFormat {
		targeter = vegeta.NewJSONTargeter(source, body, o.header)
	}
	targets := &targets{read: targeter}
	if !o.lazy {
		if err := targets.all(); err != nil {
			return err
		}
	}
	first, err := targets.peek()
	if err != nil {
		return err
	}
	out, done, err := file(o.output, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	encoder := map[string]func(io.Writer) vegeta.Encoder{"gob": vegeta.NewEncoder, "json": vegeta.NewJSONEncoder, "csv": vegeta.NewCSVEncoder}[o.encode](out)
	results := o.overHTTP(ctx, targets, security)
	if isGRPC(first.URL) {
		pool := &conns{each: o.grpcConnections, tls: security, unix: o.unixSocket, of: map[string][]*grpc.ClientConn{}}
		defer pool.close()
		results = o.overGRPC(ctx, targets, pool)
	}
	n := 0
	for r := range results {
		if err := encoder.Encode(r); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
		n++
	}
	if targets.err == nil && n == 0 {
		return errors.New("no request was due: the duration is shorter than one interval of the rate")
	}
	return targets.err
}

// security is the configuration of TLS.
func (o *options) security() (*tls.Config, error) {
	c := &tls.Config{InsecureSkipVerify: o.insecure, MinVersion: tls.VersionTLS12}
	if o.rootCerts != "" {
		text, err := os.ReadFile(o.rootCerts)
		if err != nil {
			return nil, fmt.Errorf("-root-certs: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("-root-certs: %s has no certificate; want PEM", o.rootCerts)
		}
	}
	return c, nil
}

// file opens an output; "stdout" is the one that is given.
func file(name string, stdout io.Writer) (io.Writer, func() error, error) {
	if name == "stdout" {
		return stdout, func() error { return nil }, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, nil, fmt.Errorf("-output: %w", err)
	}
	return f, f.Close, nil
}

// targets hands out the targets of a file: as they are read, or all of them in turn.
type targets struct {
	read vegeta.Targeter

	mu     sync.Mutex // guards all below
	kept   []vegeta.Target
	next   int
	peeked *vegeta.Target
	isGRPC bool
	err    error // a target that makes no sense
}

// all reads all targets.
func (t *targets) all() error {
	size := 0
	for {
		var one vegeta.Target
		switch err := t.read(&one); {
		case errors.Is(err, vegeta.ErrNoTargets) && len(t.kept) == 0:
			return errors.New("no targets: want lines such as GET http://127.0.0.1:7401/v1/status")
		case errors.Is(err, vegeta.ErrNoTargets):
			return nil
		case err != nil:
			return fmt.Errorf("target %d: %w", len(t.kept)+1, err)
		}
		t.kept = append(t.kept, one)
		if size += len(one.Body); len(t.kept) > maxTargets || size > maxBytes {
			return fmt.Errorf("more than %d targets or %d bytes of bodies: read them with -lazy", maxTargets, maxBytes)
		}
		if isGRPC(one.URL) != isGRPC(t.kept[0].URL) {
			return fmt.Errorf("target %d: %.200q is not of the kind of the first; want a file for gRPC and one for HTTP", len(t.kept), one.URL)
		}
	}
}

// peek returns the first target, which will be handed out still.
func (t *targets) peek() (*vegeta.Target, error) {
	if t.kept != nil {
		return &t.kept[0], nil
	}
	var one vegeta.Target
	if err := t.read(&one); err != nil {
		return nil, fmt.Errorf("the first target: %w", err)
	}
	t.peeked, t.isGRPC = &one, isGRPC(one.URL)
	return t.peeked, nil
}

// get is a vegeta.Targeter. vegeta calls it from many goroutines, and targets must come in their order.
func (t *targets) get(one *vegeta.Target) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.kept != nil:
		*one = t.kept[t.next]
		t.next = (t.next + 1) % len(t.kept)
		return nil
	case t.peeked != nil:
		*one, t.peeked = *t.peeked, nil
		return nil
	case t.err != nil:
		return vegeta.ErrNoTargets
	}
	err := t.read(one)
	if err == nil && isGRPC(one.URL) != t.isGRPC {
		err = fmt.Errorf("%.200q is not of the kind of the first; want a file for gRPC and one for HTTP", one.URL)
	}
	if err != nil && !errors.Is(err, vegeta.ErrNoTargets) {
		t.err = fmt.Errorf("a target: %w", err)
	}
	return err
}

// overHTTP has vegeta send the targets.
func (o *options) overHTTP(ctx context.Context, t *targets, security *tls.Config) iter.Seq[*vegeta.Result] {
	return lab.Hits(ctx, t.get, o.rate, o.duration, o.name,
		vegeta.TLSConfig(security), vegeta.Workers(o.workers), vegeta.MaxWorkers(o.maxWorkers), vegeta.KeepAlive(o.keepAlive), vegeta.Connections(o.connections),
		vegeta.HTTP2(true), vegeta.H2C(o.h2c), vegeta.UnixSocket(o.unixSocket), vegeta.Redirects(o.redirects), vegeta.MaxBody(o.maxBody), vegeta.Timeout(o.timeout))
}

// job is one request that is due.
type job struct {
	seq  uint64
	due  time.Time // zero: when a worker has it
	call *call
	conn *grpc.ClientConn
}

// overGRPC sends the targets when they are due. As many workers as are needed take them, up to the limit; what is due
// while all are busy waits, and is given up when the time for the last request is over too.
func (o *options) overGRPC(ctx context.Context, t *targets, pool *conns) iter.Seq[*vegeta.Result] {
	return func(yield func(*vegeta.Result) bool) {
		stopped, stop := context.WithCancel(ctx)
		defer stop()
		results := make(chan *vegeta.Result, 64)
		var all sync.WaitGroup
		all.Go(func() { o.dispatch(stopped, t, pool, results) })
		go func() { all.Wait(); close(results) }() // ends with the range below
		more := true
		for r := range results {
			if more = more && yield(r); !more {
				stop()
			}
		}
	}
}

func (o *options) dispatch(ctx context.Context, t *targets, pool *conns, results chan<- *vegeta.Result) {
	begun := time.Now()
	last := time.Duration(math.MaxInt64)
	if o.duration > 0 {
		last = o.duration + o.timeout
	}
	given, cancel := context.WithDeadline(ctx, begun.Add(min(last, 10*maxDuration)))
	defer cancel()
	jobs := make(chan job)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(jobs)
	count, parsed := uint64(0), map[*vegeta.Target]*call{}
	hire := func() {
		count++
		workers.Go(func() {
			for j := range jobs {
				results <- o.do(ctx, j)
			}
		})
	}
	for range min(o.workers, o.maxWorkers) {
		hire()
	}
	next := lab.Schedule(o.rate, o.duration)
	for seq := uint64(0); ; seq++ {
		j := job{seq: seq}
		if lab.Unpaced(o.rate) {
			if o.duration > 0 && time.Since(begun) > o.duration {
				return
			}
		} else {
			due, more := next()
			if !more {
				return
			}
			j.due = begun.Add(due)
			if !sleep(ctx, time.Until(j.due)) {
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		var err error
		if j.call, err = t.call(parsed); err == nil {
			j.conn, err = pool.get(j.call)
		}
		if err != nil {
			t.fail(err)
			return
		}
		select {
		case jobs <- j:
			continue
		default:
		}
		if count < o.maxWorkers {
			hire()
		}
		select {
		case jobs <- j:
		case <-given.Done():
			if ctx.Err() != nil {
				return
			}
			r := o.result(j)
			r.Latency, r.Error = time.Since(j.due), lab.NotSent
			results <- r
		}
	}
}

// sleep waits; false if the context ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (o *options) result(j job) *vegeta.Result {
	if j.due.IsZero() {
		j.due = time.Now()
	}
	return &vegeta.Result{Attack: o.name, Seq: j.seq, Timestamp: j.due, Method: http.MethodPost, URL: j.call.url}
}

// do makes a call. One that is under way when the attack is stopped may end in its time.
func (o *options) do(ctx context.Context, j job) *vegeta.Result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.timeout)
	defer cancel()
	r := o.result(j)
	code, in, err := j.call.send(ctx, j.conn)
	r.Latency, r.Code, r.BytesIn, r.BytesOut = time.Since(r.Timestamp), code, in, uint64(len(j.call.request))
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// call returns the next target as a call. Those that are kept are parsed once.
func (t *targets) call(parsed map[*vegeta.Target]*call) (*call, error) {
	if t.kept == nil {
		var one vegeta.Target
		if err := t.get(&one); err != nil {
			return nil, err
		}
		return parse(&one)
	}
	one := &t.kept[t.next]
	t.next = (t.next + 1) % len(t.kept)
	if parsed[one] == nil {
		c, err := parse(one)
		if err != nil {
			return nil, err
		}
		parsed[one] = c
	}
	return parsed[one], nil
}

// fail notes why there is no further target, if it is not that there are no more.
func (t *targets) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil && !errors.Is(err, vegeta.ErrNoTargets) {
		t.err = err
	}
}
