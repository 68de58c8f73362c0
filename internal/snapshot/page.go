package snapshot

import (
	"encoding/hex"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/statements"
)

// Bounds of what the page shows.
const (
	pageFresh        = 250 * time.Millisecond // how long pages share one look at the parts
	pageSlow         = 15                     // slow calls
	pageTransactions = 50                     // the oldest
	pageEvents       = 100                    // the newest
	pageApps         = 20                     // the apps that wait and use most
	pageCalls        = 10                     // the oldest open calls
	pageCallAge      = 100 * time.Millisecond // age from which an open call is shown: most calls end earlier
	pageStatements   = 15                     // most time in the last minute first
)

// pageState is /state/page: all that the page shows.
type pageState struct {
	*pageNow
	History history.History `json:"history"` // what the page does not have yet
}

// pageNow is the part that is the same for all who look. Wide: the page's script
// reads each field by its name in the document.
type pageNow struct {
	Process      string                    `json:"process"` // id of the process: points of the history are numbered for each
	At           int64                     `json:"at_ms"`   // milliseconds since 1970
	Version      string                    `json:"version"`
	Host         string                    `json:"host,omitempty"`
	Pod          string                    `json:"pod,omitempty"`
	Database     string                    `json:"database"`
	Stage        string                    `json:"stage"`
	UptimeS      float64                   `json:"uptime_s"`
	TraceLink    string                    `json:"trace_link,omitempty"`
	Findings     []pageFinding             `json:"findings"` // worst first; none: all is well
	Pool         PoolState                 `json:"pool"`
	Nodes        NodesState                `json:"nodes"`
	API          facade.State              `json:"api"`
	HeldLongMS   int64                     `json:"held_long_ms"` // age at which it is a finding; 0: never
	TxMaxMS      int64                     `json:"tx_max_ms"`    // age at which a transaction is rolled back
	Transactions []facade.TransactionState `json:"transactions"` // the oldest
	OpenCalls    openCalls                 `json:"open_calls"`   // under way or waiting
	Slow         []slowCall                `json:"slow"`         // slowest of ten minutes, slowest first
	Events       []admin.Event             `json:"events"`       // newest first
	Statements   []statements.Row          `json:"statements"`   // most time in the last minute first
	Apps         []appLine                 `json:"apps"`         // the app that waits and uses most first
	AppsMore     int                       `json:"apps_more"`    // apps that are not listed
	Retries      retriesState              `json:"retries"`
	Memory       MemoryState               `json:"memory"`
	Docs         string                    `json:"docs"` // address of the documentation
}

// pageFinding is a finding with the address of its section of the runbook.
type pageFinding struct {
	findings.Finding
	Runbook string `json:"runbook"`
}

// openCalls are the oldest calls that are under way or wait.
type openCalls struct {
	CallsState
	LeastMS int64  `json:"least_ms"` // age from which a call is listed or counted
	Guide   string `json:"guide"`    // address of the page that says why calls hang
}

// retriesState is how many retries could be sent at once, now and at most.
type retriesState struct {
	Left  float64 `json:"left"`
	Burst int     `json:"burst"`
}

// slowCall is a slow call. Times are milliseconds; those of its phases do not overlap.
type slowCall struct {
	At       int64   `json:"at_ms"` // of its end, since 1970
	API      string  `json:"face"`
	Name     string  `json:"name"`
	Status   string  `json:"status,omitempty"` // left out: it did its work
	App      string  `json:"app,omitempty"`
	Node     uint32  `json:"node,omitempty"`
	Attempts int     `json:"attempts"`
	Took     float64 `json:"took"`
	Queue    float64 `json:"queue"`
	Acquire  float64 `json:"acquire"`
	Hop      float64 `json:"hop"`
	Server   float64 `json:"server"`
	Others   int     `json:"others,omitempty"` // slow calls of the same stall that are not listed
	TraceID  string  `json:"trace_id,omitempty"`
}

// page keeps the newest look.
type page struct {
	mu     sync.Mutex // guards all below
	looked time.Time
	now    *pageNow // immutable
}

// Views are what the process shows of itself.
type Views struct {
	Source
	page page
}

// PageState answers who has the points up to a number, of a process.
func (v *Views) PageState(process string, after uint64) any {
	v.page.mu.Lock()
	if v.page.now == nil || time.Since(v.page.looked) >= pageFresh {
		v.page.now, v.page.looked = v.pageNow(), time.Now()
	}
	now := v.page.now
	v.page.mu.Unlock()
	if process != now.Process {
		after = 0
	}
	return pageState{now, v.History.Since(after)}
}

func (s *Source) pageNow() *pageNow {
	now := s.look(ofPool | ofLimits | ofNodes | ofAPI | ofApps)
	p := &pageNow{
		Process: s.Started.UTC().Format("20060102T150405.000000000"), At: now.At.UnixMilli(),
		Version: s.Self.Version, Host: s.Self.Host, Pod: s.Self.Pod, Database: s.Driver.Database(),
		Stage: now.Stage.String(), UptimeS: now.At.Sub(s.Started).Seconds(),
		TraceLink: s.Starting.TraceLink,
		Findings:  []pageFinding{}, Pool: now.PoolState(), Nodes: now.NodesState(s.Detector.Nexts()), API: now.API,
		HeldLongMS: now.Settings.HeldLong.Milliseconds(),
		TxMaxMS:    s.Starting.TxMax.Milliseconds(), Transactions: s.API.Transactions(),
		OpenCalls: openCalls{
			CallsState: s.CallsState(admin.Query{Limit: pageCalls, Least: pageCallAge}),
			LeastMS:    pageCallAge.Milliseconds(), Guide: findings.AppHangs,
		},
		Slow: []slowCall{}, Events: []admin.Event{},
		Statements: s.Statements.State(statements.Query{Window: "minute", Limit: pageStatements}).Rows,
		Retries:    retriesState{s.Client.Budget(), s.Client.Burst()}, Memory: s.MemoryState(), Docs: findings.Contents,
	}
	p.Apps, p.AppsMore = appLines(now.Apps, pageApps)
	for _, f := range s.Findings.Report().Findings {
		p.Findings = append(p.Findings, pageFinding{f, f.Code.Link()})
	}
	p.Transactions = p.Transactions[:min(len(p.Transactions), pageTransactions)]
	for _, slow := range s.History.Slowest(pageSlow) {
		p.Slow = append(p.Slow, slowCallOf(&slow))
	}
	events, _ := s.Events.After(0)
	for i := len(events) - 1; i >= 0 && len(p.Events) < pageEvents; i-- {
		p.Events = append(p.Events, events[i])
	}
	return p
}

func slowCallOf(s *history.Slow) slowCall {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return slowCall{
		At: s.At.UnixMilli(), API: s.API, Name: s.Name, Status: s.Status, App: s.App, Node: s.Node, Attempts: s.Attempts,
		Took: ms(s.Took), Queue: ms(s.Queue), Acquire: ms(s.Acquire), Hop: ms(max(s.Hop-s.Server, 0)), Server: ms(s.Server),
		TraceID: traceText(s.Trace), Others: s.Others,
	}
}

// traceText is the id of a trace as tracing UIs write it; "" is that of none.
func traceText(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	return hex.EncodeToString(id[:])
}
