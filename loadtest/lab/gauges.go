package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Gauges is what a sidecar holds at an instant.
type Gauges struct {
	Goroutines  int
	Descriptors int   // open files and sockets
	Anonymous   int64 // resident memory that no file is behind, bytes
	Heap        int64 // what the last collection found alive, as its goal for the next one tells, bytes
	Sessions    int   // on the nodes, of all its pools
	Busy        int   // of them in use
	Waiting     int   // callers in line for one
	Virtual     int   // sessions of SDKs
	Clients     int   // connections of callers
}

// The names of gauges as figures.
const (
	Goroutines  = "goroutines"
	Descriptors = "descriptors"
	Anonymous   = "anonymous-B"
	Heap        = "heap-B"
	Sessions    = "sessions"
	Busy        = "sessions-in-use"
	Waiting     = "waiting"
	Virtual     = "sessions-of-SDKs"
	Clients     = "connections"
)

// Figures returns the gauges by their names.
func (g Gauges) Figures() Figures {
	return Figures{Goroutines: float64(g.Goroutines), Descriptors: float64(g.Descriptors),
		Anonymous: float64(g.Anonymous), Heap: float64(g.Heap),
		Sessions: float64(g.Sessions), Busy: float64(g.Busy), Waiting: float64(g.Waiting), Virtual: float64(g.Virtual),
		Clients: float64(g.Clients)}
}

// Gauges reads what a sidecar holds, through its admin API and /stand. One with
// admin.pprof=on collects its garbage first if collect is set.
func (s *Sidecar) Gauges(ctx context.Context, collect bool) (g Gauges, err error) {
	if collect {
		if _, err := s.Get(ctx, "/debug/pprof/heap?gc=1"); err != nil {
			return g, err
		}
	}
	if g, err = gauges(ctx, s.Admin); err != nil {
		return g, err
	}
	if g.Descriptors, err = DescriptorsOf(s.Pid()); err != nil {
		return g, err
	}
	g.Anonymous, err = AnonymousOf(s.Pid())
	return g, err
}

// Allocated is how many objects a sidecar has put on its heap so far, and their bytes.
func (s *Sidecar) Allocated(ctx context.Context) (objects, bytes float64, err error) {
	metrics, err := s.Get(ctx, "/metrics")
	if err != nil {
		return 0, 0, err
	}
	objects, bytes = metric(metrics, "go_memstats_mallocs_total", ""), metric(metrics, "go_memstats_alloc_bytes_total", "")
	if objects == 0 || bytes == 0 {
		return 0, 0, fmt.Errorf("admin %s: the metrics do not tell the number of allocations", s.Admin)
	}
	return objects, bytes, nil
}

// gauges reads those that the admin API tells.
func gauges(ctx context.Context, admin string) (g Gauges, err error) {
	metrics, err := stand.Get(ctx, admin, "/metrics")
	if err != nil {
		return g, err
	}
	sum := func(name, label string) int { return int(metric(metrics, name, label)) }
	live := metric(metrics, "go_memstats_next_gc_bytes", "") / (1 + metric(metrics, "go_gc_gogc_percent", "")/100)
	g = Gauges{Goroutines: sum("go_goroutines", ""), Heap: int64(live),
		Sessions: sum("ydb_query_session_count", ""), Busy: sum("ydb_query_session_count", `_state="used"`),
		Waiting: sum("db_client_connection_pending_requests", ""), Clients: sum("ydb_sidecar_api_connections", "")}
	if g.Goroutines == 0 {
		return g, fmt.Errorf("admin %s: the metrics do not tell the number of goroutines", admin)
	}
	connections, err := stand.Get(ctx, admin, "/state/connections")
	if err != nil {
		return g, err
	}
	var state struct {
		Clients int
		Virtual struct{ Sessions int } `json:"virtual_sessions"`
	}
	if err := json.Unmarshal(connections, &state); err != nil {
		return g, fmt.Errorf("admin %s/state/connections: %w", admin, err)
	}
	g.Virtual = state.Virtual.Sessions
	return g, nil
}

// metric sums the samples of a metric whose labels contain a text.
func metric(page []byte, name, label string) (sum float64) {
	for line := range strings.Lines(string(page)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		at := strings.LastIndexByte(rest, '}') + 1
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[at:]), 64)
		if err == nil && strings.Contains(rest[:at], label) {
			sum += value
		}
	}
	return sum
}

// DescriptorsOf returns how many files and sockets a process has open.
func DescriptorsOf(pid int) (int, error) { return stand.Descriptors(pid) }

// AnonymousOf returns the resident memory of a process that no file is behind, in bytes.
func AnonymousOf(pid int) (int64, error) { return stand.Anonymous(pid) }

// PeakOf returns the most memory that a process had resident, in bytes.
func PeakOf(pid int) (int64, error) { return stand.Peak(pid) }

// Slope is the growth of y for each unit of x: the median of the slopes between
// all pairs of points (Theil and Sen), which outliers do not bend. It takes
// time and memory that grow with the square of the number of points.
func Slope(x, y []float64) float64 {
	var all []float64
	for i := range x {
		for j := range i {
			if dx := x[i] - x[j]; dx != 0 {
				all = append(all, (y[i]-y[j])/dx)
			}
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	if n := len(all); n%2 == 0 {
		return (all[n/2-1] + all[n/2]) / 2
	}
	return all[len(all)/2]
}

// Growth tells what y grew by over the second half of the points, by their
// slope, and the median that it grew from.
func Growth(x, y []float64) (growth, median float64) {
	half := len(x) / 2
	if len(x)-half < 2 {
		return math.NaN(), math.NaN()
	}
	x, y = x[half:], y[half:]
	return Slope(x, y) * (x[len(x)-1] - x[0]), estimate(y).Median
}
