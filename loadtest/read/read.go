// Package read is the three workloads of the application that YDB's Java SDK was measured with: single
// records, several records, and many tasks.
package read

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

// readWorkload is one of the workloads of the Java application.
type readWorkload struct {
	reads   int   // with one session
	threads bool  // each chain of reads has a thread of the operating system; else they share as many as there are cores
	chains  []int // swept
}

const readQuestion = `A re-creation of the workload %q of the application that YDB's Java SDK was measured with: %s. A read is of one row of app_record by its key, with one declared
parameter, in serializable autocommit; every row is verified. The pool has room for as many sessions as there are %s, and they are there before the load begins, as in the application. Closed loop, as there: a slow server slows the load down.

*direct* is a client with sessions of the table service on all nodes and a pool of its own (a Go channel), as an SDK has; *wire* is the same client with its sessions at the sidecar, which in mode transaction are virtual, in mode passthrough the
nodes'. *gRPC* and *HTTP* are the plain API, whose client has no sessions at all. *get session* and *read data* are the means of the application's GET_SESSION and READ_DATA: for direct and wire the client's own pool and the call; for gRPC
and HTTP what the sidecar says that getting a session took (` + "`info.acquire_ms`" +
	`), and the rest of the call. Behind wire in mode transaction the sidecar gets a session once more, which is in *read data*.`

const readPublished = "No figures of this workload are quoted: what was published with the application is the CPU " +
	"of getting a session, which the experiment `acquire` has beside ours. The metrics are the application's: " +
	"GET_SESSION and READ_DATA, their average and greatest value. What differs: " +
	"Go in place of Java, a development cluster in place of YDB, everything on one machine, and a table of %d rows " +
	"of 2000 bytes in place of 1,000,000 (it is in memory)."

func readExperiment(name, title, how, chains string, w readWorkload) lab.Experiment {
	return lab.Experiment{
		Name: name, Title: title, Question: fmt.Sprintf(readQuestion, name, how, chains),
		Published: fmt.Sprintf(readPublished, recordsFull),
		Defaults: func(o *lab.Options) {
			if o.Size == lab.Full && o.Duration == 0 {
				o.Duration = time.Second
			}
			if o.Size == lab.Short && o.Duration == 0 {
				o.Duration = 500 * time.Millisecond
			}
		},
		Run: func(ctx context.Context, l *lab.Lab) error { return w.measure(ctx, l, name, chains) },
	}
}

// One reads one record for each session taken from the pool.
var One = readExperiment("read", "Reads, one for each session taken from the pool",
	"each thread takes a session, reads one row, and gives the session back", "threads",
	readWorkload{reads: 1, threads: true, chains: []int{1, 4, 16, 64}})

// Many reads ten records for each session taken from the pool.
var Many = readExperiment("multiread", "Reads, ten for each session taken from the pool",
	"each thread takes a session, reads ten rows one after the other, and gives the session back; the plain API "+
		"knows no sessions, so there each of the ten reads gets one. p50, p99 and the CPU of the load are of ten reads, all else is of one",
	"threads", readWorkload{reads: 10, threads: true, chains: []int{1, 4, 16, 64}})

// Tasks reads with many tasks on few threads.
var Tasks = readExperiment("reactive", "Reads of many tasks on few threads",
	"tasks are chains of one read after the other, each with a session of its own, on as many threads as there are "+
		"cores (goroutines here, completions of futures there)",
	"tasks", readWorkload{reads: 1, chains: []int{100, 500, 1000, 2000}})

const recordsFull = 20_000

// readFigures are by read: get is GET_SESSION, data READ_DATA.
const (
	getMean, getMax   = "get-session-ns", "get-session-max-ns"
	dataMean, dataMax = "read-data-ns", "read-data-max-ns"
)

func (w readWorkload) measure(ctx context.Context, l *lab.Lab, name, unit string) error {
	const size = 2000 // bytes of a record, as in the application
	count := lab.At(l, 200, 2000, recordsFull)
	all := lab.At(l, w.chains[:2], w.chains, w.chains)
	most := all[len(all)-1]
	cluster, err := l.Cluster(ctx, 3, "-sessions", strconv.Itoa(4*most+100))
	if err != nil {
		return err
	}
	filled := false
	rate, get := map[string]*lab.Line{}, map[string]*lab.Line{}
	var order []string
	for _, n := range all {
		c := lab.Case{Name: name + "-" + strconv.Itoa(n), Title: fmt.Sprintf("%d %s", n, unit), Baseline: "direct",
			Ratios:  []string{lab.RowsPerS, lab.P50},
			Figures: []string{lab.RowsPerS, getMean, getMax, dataMean, dataMax, lab.P50, lab.P99, lab.RowCPU, lab.LoadCPU, lab.RSS}}
		if !l.Wanted(c.Name) {
			continue
		}
		faces, end, err := w.faces(ctx, l, cluster, n, count, size)
		if err != nil {
			return err
		}
		if !filled {
			if err := traffic.FillRecords(ctx, faces[0].side.Client, count, size); err != nil {
				return err
			}
			filled = true
		}
		for _, f := range faces {
			c.Variants = append(c.Variants, f.variant(w, n))
		}
		t, err := l.Compare(ctx, c)
		if err != nil {
			return err
		}
		if err := end(ctx); err != nil {
			return err
		}
		for _, row := range t.Rows {
			if rate[row.Variant] == nil {
				rate[row.Variant], get[row.Variant] = &lab.Line{Name: row.Variant}, &lab.Line{Name: row.Variant}
				order = append(order, row.Variant)
			}
			for line, value := range map[*lab.Line]float64{rate[row.Variant]: row.Figures[lab.RowsPerS].Median,
				get[row.Variant]: row.Figures[getMean].Median / 1e3} {
				line.X, line.Y = append(line.X, float64(n)), append(line.Y, value)
			}
		}
	}
	draw(l, unit, order, rate, get)
	return nil
}

// draw adds the pictures of all variants, in their order.
func draw(l *lab.Lab, unit string, order []string, rate, get map[string]*lab.Line) {
	for _, p := range []struct {
		title, y string
		lines    map[string]*lab.Line
	}{{"Reads a second by " + unit, "reads/s", rate}, {"Getting a session by " + unit + ", mean", "us", get}} {
		picture := &lab.Picture{Title: p.title, X: unit, Y: p.y, LogX: true}
		for _, name := range order {
			picture.Lines = append(picture.Lines, *p.lines[name])
		}
		if len(order) > 0 {
			l.Report.Add(lab.Section{Picture: picture})
		}
	}
}

// readFace is one way to read, or to read ten times with one session.
type readFace struct {
	name  string
	side  *lab.Sidecar // nil if it is direct; for the first it is there to fill the table
	under []*lab.Process
	read  func(ctx context.Context, reads int, note func(get, data time.Duration)) error
}

// faces makes what n chains of reads need: sidecars, clients, sessions. The
// function that comes back ends all of it.
func (w readWorkload) faces(
	ctx context.Context, l *lab.Lab, cluster *lab.Cluster, n, count, size int,
) (all []readFace, end func(context.Context) error, err error) {
	var closers []func(context.Context) error
	end = func(ctx context.Context) (err error) {
		for i := len(closers) - 1; i >= 0 && err == nil; i-- {
			err = closers[i](ctx)
		}
		return err
	}
	record := func() traffic.AppRecord { return traffic.RandomRecord(count, size) }
	pooled := func(conns ...*grpc.ClientConn) (func(context.Context, int, func(get, data time.Duration)) error, error) {
		p, err := traffic.OpenRecordSessions(ctx, max(2, n), conns...)
		if err != nil {
			return nil, err
		}
		closers = append(closers, p.Close)
		return func(ctx context.Context, reads int, note func(get, data time.Duration)) error {
			return readOn(ctx, p, reads, record, note)
		}, nil
	}
	nodes, err := dialAll(l, cluster)
	if err != nil {
		return nil, nil, err
	}
	direct, err := pooled(nodes...)
	if err != nil {
		return nil, nil, err
	}
	all = append(all, readFace{name: "direct", read: direct})
	for i, program := range l.Sidecars {
		sides := map[string]*lab.Sidecar{}
		for _, mode := range []string{"transaction", "passthrough"} {
			s, err := warmSidecar(ctx, l, program, cluster.Endpoint(), mode, strconv.Itoa(max(2, n)))
			if err != nil {
				return nil, nil, err
			}
			sides[mode], closers = s, append(closers, func(context.Context) error { l.End(s.Process); return nil })
		}
		s := sides["transaction"]
		faces, hangUp := plainFaces(l, i, s, max(2, n), record)
		all, closers = append(all, faces...), append(closers, func(context.Context) error { hangUp(); return nil })
		for _, mode := range []string{"transaction", "passthrough"} {
			s := sides[mode]
			read, err := pooled(s.Conn)
			if err != nil {
				return nil, nil, err
			}
			all = append(all, readFace{l.Name("wire, "+mode, i), s, []*lab.Process{s.Process}, read})
		}
		all[0].side = s
	}
	return all, end, nil
}

// plainFaces read by the plain API of the sidecar of the i-th program, over gRPC and HTTP.
func plainFaces(l *lab.Lab, i int, s *lab.Sidecar, conns int, record func() traffic.AppRecord) (all []readFace, hangUp func()) {
	transport := &http.Transport{MaxIdleConnsPerHost: conns, DisableCompression: true}
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	return []readFace{
		{l.Name("gRPC", i), s, []*lab.Process{s.Process},
			plain(record, func(ctx context.Context, r traffic.AppRecord) (time.Duration, error) {
				return traffic.RecordsOverGRPC(ctx, s.Client, r)
			})},
		{l.Name("HTTP", i), s, []*lab.Process{s.Process},
			plain(record, func(ctx context.Context, r traffic.AppRecord) (time.Duration, error) {
				return traffic.RecordsOverHTTP(ctx, client, s.HTTP, r)
			})},
	}, transport.CloseIdleConnections
}

// dialAll connects to all nodes.
func dialAll(l *lab.Lab, cluster *lab.Cluster) (nodes []*grpc.ClientConn, err error) {
	for _, node := range cluster.Nodes {
		conn, err := l.Dial(node.Address)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, conn)
	}
	return nodes, nil
}

// warmSidecar starts a sidecar with a mode of YDB's own protocol and as many sessions, which are open then.
func warmSidecar(ctx context.Context, l *lab.Lab, program, endpoint, mode, sessions string) (*lab.Sidecar, error) {
	s, err := l.SidecarOf(ctx, program, endpoint, nil, "wire.mode="+mode, "wire.auth=own", "wire.max_server_sessions=10000",
		"pool.max="+sessions, "pool.max_per_node="+sessions, "pool.min="+lab.At(l, "1", sessions, sessions), "startup.wait=1m")
	if err != nil {
		return nil, err
	}
	return s, s.Warm(ctx)
}

// plain reads so many records by the plain API, one after the other. What one returns is the time of getting a session.
func plain(
	record func() traffic.AppRecord, one func(ctx context.Context, r traffic.AppRecord) (time.Duration, error),
) func(context.Context, int, func(get, data time.Duration)) error {
	return func(ctx context.Context, reads int, note func(get, data time.Duration)) error {
		for range reads {
			r := record()
			begun := time.Now()
			get, err := one(ctx, r)
			if err != nil {
				return err
			}
			note(get, time.Since(begun)-get)
		}
		return nil
	}
}

// gotBefore stands for the time of getting a session that is there already.
const gotBefore = time.Duration(-1)

// readOn takes a session, reads so many records with it, and gives it back.
func readOn(ctx context.Context, p *traffic.RecordSessions, reads int, record func() traffic.AppRecord,
	note func(get, data time.Duration)) error {
	begun := time.Now()
	s, err := p.Acquire(ctx)
	if err != nil {
		return err
	}
	defer p.Release(s)
	get := time.Since(begun)
	for range reads {
		r := record()
		begun := time.Now()
		if err := s.Read(ctx, r); err != nil {
			return err
		}
		note(get, time.Since(begun))
		get = gotBefore
	}
	return nil
}

// variant is n chains of reads in a closed loop.
func (f readFace) variant(w readWorkload, n int) lab.Variant {
	return lab.Variant{Name: f.name, Under: f.under, Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
		chains, calls := make([]readTimes, n), make([]lab.Call, n)
		for i := range chains {
			calls[i] = func(ctx context.Context) error {
				if w.threads {
					// Not for longer: a goroutine that ends so takes its thread with it, and the
					// kernel kills the processes that the thread started.
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
				}
				return f.read(ctx, w.reads, chains[i].note)
			}
		}
		result := lab.ClosedEach(ctx, d, calls...)
		var all readTimes
		for _, t := range chains {
			all.add(t)
		}
		result.Rows, result.Figures = all.reads, all.figures()
		return result, nil
	}}
}

// readTimes are the times of one chain's reads.
type readTimes struct {
	gets, reads       int64
	get, data         time.Duration // in all
	mostGet, mostData time.Duration
	_                 [64]byte // chains write theirs all the time: each in lines of its own
}

func (t *readTimes) note(get, data time.Duration) {
	one := readTimes{reads: 1, data: data, mostData: data}
	if get != gotBefore {
		one.gets, one.get, one.mostGet = 1, get, get
	}
	t.add(one)
}

func (t *readTimes) add(other readTimes) {
	t.gets, t.reads = t.gets+other.gets, t.reads+other.reads
	t.get, t.data = t.get+other.get, t.data+other.data
	t.mostGet, t.mostData = max(t.mostGet, other.mostGet), max(t.mostData, other.mostData)
}

func (t readTimes) figures() lab.Figures {
	if t.gets == 0 || t.reads == 0 {
		return nil
	}
	return lab.Figures{getMean: float64(t.get) / float64(t.gets), getMax: float64(t.mostGet),
		dataMean: float64(t.data) / float64(t.reads), dataMax: float64(t.mostData)}
}
