// Package overhead is the experiment that finds what the sidecar costs: each API next to a direct call, an
// SDK and other proxies, tracing, the start, memory, and virtual sessions.
package overhead

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/peers"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Experiment is what the sidecar costs.
var Experiment = lab.Experiment{
	Name:  "overhead",
	Title: "What the sidecar costs",
	Question: `What is in the middle of a call costs latency and CPU. First the faces of the sidecar next to a direct call and to an SDK in the app, on the development cluster; then every face next to other
proxies in front of backends that answer from memory, so that the middle is what is measured; then tracing, the start, memory, and virtual sessions next to passthrough. Load, middle and nodes share the processors: rates of closed loops are rates of all together, and what
carries over to other machines are the ratios.`,
	Run: measureOverhead,
}

func measureOverhead(ctx context.Context, l *lab.Lab) error {
	for _, part := range []func(context.Context, *lab.Lab) error{faceCases, proxyCases, tracingCases, startCase,
		memoryCases, virtualCases} {
		if err := part(ctx, l); err != nil {
			return err
		}
		l.Stop() // each part has processes of its own
	}
	return nil
}

// faceCases are the faces next to a direct call and an SDK: README's first table.
func faceCases(ctx context.Context, l *lab.Lab) error {
	const sessions = 50 // as many as pool.max
	if !slices.ContainsFunc([]string{"faces-500", "faces-c1", "faces-c64", "faces-unix", "allocations", "pool-share"}, l.Wanted) {
		return nil
	}
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return fmt.Errorf("a place for a socket: %w", err)
	}
	l.Defer(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "grpc")
	side, err := l.Sidecar(ctx, cluster.Endpoint(), "pool.min=50", "admin.pprof=on", "grpc.socket="+socket)
	if err != nil {
		return err
	}
	if err := traffic.Fill(ctx, side.Client); err != nil {
		return err
	}
	d, err := traffic.DialNodes(ctx, cluster.Nodes, sessions)
	if err != nil {
		return err
	}
	l.Defer(d.Close)
	sdk, err := ydbsdk.Open(ctx, cluster.Endpoint(), ydbsdk.WithSessionPoolSizeLimit(sessions))
	if err != nil {
		return fmt.Errorf("open the SDK: %w", err)
	}
	l.Defer(func() { _ = sdk.Close(context.WithoutCancel(ctx)) }) // nothing is in flight
	web := traffic.NewWebReader(side.HTTP)
	l.Defer(web.Close)
	ways := []way{
		{"direct", nil, d.Read},
		{"ydb-go-sdk", nil, overSDK(sdk)},
		{"plain gRPC", []*lab.Process{side.Process}, traffic.OverSidecar(side.Client)},
		{"HTTP/JSON", []*lab.Process{side.Process}, web.Read},
	}
	if err := loadCases(ctx, l, ways); err != nil {
		return err
	}
	if err := unixCase(ctx, l, side, socket, lab.Variant{Name: "direct",
		Run: func(ctx context.Context, span time.Duration) (lab.Result, error) {
			return lab.Closed(ctx, 1, span, d.Read), nil
		}}); err != nil {
		return err
	}
	if err := allocations(ctx, l, side); err != nil {
		return err
	}
	return poolShare(ctx, l, side)
}

// way is one way to read a row.
type way struct {
	name  string
	under []*lab.Process
	call  lab.Call
}

// loadCases compares the ways under a rate, and in closed loops.
func loadCases(ctx context.Context, l *lab.Lab, ways []way) error {
	rate := min(l.MaxRate, 500)
	for _, load := range []struct {
		name, title string
		run         func(ctx context.Context, d time.Duration, c lab.Call) lab.Result
	}{
		{"faces-500", fmt.Sprintf("%d point reads a second", rate), func(ctx context.Context, d time.Duration, c lab.Call) lab.Result {
			return lab.Open(ctx, lab.Rate(rate), d, c)
		}},
		{"faces-c1", "One point read after the other",
			func(ctx context.Context, d time.Duration, c lab.Call) lab.Result { return lab.Closed(ctx, 1, d, c) }},
		{"faces-c64", "64 point reads in flight",
			func(ctx context.Context, d time.Duration, c lab.Call) lab.Result { return lab.Closed(ctx, 64, d, c) }},
	} {
		c := lab.Case{Name: load.name, Title: load.title, Baseline: "direct", Ratios: []string{lab.P50},
			Text: "*direct* is a client with a session for each call, made before, that calls their nodes; " +
				"*ydb-go-sdk* is YDB's SDK for Go in the app; *load* is the CPU of the process that makes the " +
				"calls, with its client in it.",
			Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.LoadCPU, lab.CPU}, Added: []string{lab.P50, lab.P99}}
		for _, way := range ways {
			c.Variants = append(c.Variants, lab.Variant{Name: way.name, Under: way.under,
				Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
					return load.run(ctx, d, way.call), nil
				}})
		}
		if load.name == "faces-c1" {
			c.Claims = []lab.Claim{
				{Text: "plain gRPC: p50 with 1 in flight, of a direct call, on the development cluster",
					Variant: "plain gRPC", Figure: lab.P50, Kind: lab.Ratio, Of: "direct", Most: 1.6},
			}
		}
		if _, err := l.Compare(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// What the sidecar allocates on its heap for each call, as figures.
const (
	allocated      = "allocations"
	allocatedBytes = "allocated bytes"
)

// allocations measures how many objects the sidecar allocates for each call.
func allocations(ctx context.Context, l *lab.Lab, side *lab.Sidecar) error {
	if !l.Wanted("allocations") {
		return nil
	}
	proxied, err := traffic.DialNodes(ctx, []stand.Node{{Address: side.GRPC}}, 16)
	if err != nil {
		return err
	}
	l.Defer(proxied.Close)
	web := traffic.NewWebReader(side.HTTP)
	l.Defer(web.Close)
	c := lab.Case{Name: "allocations", Title: "Allocations of a point read", Figures: []string{allocated, lab.CPU}, Ratios: []string{},
		Text: "Objects that the sidecar allocates on its heap for each call, with 16 in flight " +
			"(`go_memstats_mallocs_total`). *SDK proxy*: the same read over YDB's protocol.",
		Claims: []lab.Claim{
			{Text: "objects on the heap for a point read over plain gRPC", Variant: "plain gRPC", Figure: allocated,
				Kind: lab.Value, Most: 8},
		}}
	for _, way := range []struct {
		name string
		call lab.Call
	}{{"SDK proxy", proxied.Read}, {"plain gRPC", traffic.OverSidecar(side.Client)}, {"HTTP/JSON", web.Read}} {
		c.Variants = append(c.Variants, allocating(side, way.name, 16, way.call))
	}
	_, err = l.Compare(ctx, c)
	return err
}

// allocating is a variant that counts what the sidecar allocates for each call.
func allocating(side *lab.Sidecar, name string, inFlight int, call lab.Call) lab.Variant {
	return lab.Variant{Name: name, Under: []*lab.Process{side.Process},
		Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
			objects, bytes, err := side.Allocated(ctx)
			if err != nil {
				return lab.Result{}, err
			}
			r := lab.Closed(ctx, inFlight, d, call)
			objectsNow, bytesNow, err := side.Allocated(ctx)
			calls := float64(max(r.Calls, 1))
			r.Figures = lab.Figures{allocated: (objectsNow - objects) / calls, allocatedBytes: (bytesNow - bytes) / calls}
			return r, err
		}}
}

// unixCase is grpc.socket next to the port, for both APIs.
func unixCase(ctx context.Context, l *lab.Lab, side *lab.Sidecar, socket string, direct lab.Variant) error {
	if !l.Wanted("faces-unix") {
		return nil
	}
	c := lab.Case{Name: "faces-unix", Title: "One point read after the other, over TCP and over a Unix socket", Baseline: "direct",
		Text:    "*SDK proxy* is YDB's protocol with a session made before, *plain gRPC* the sidecar's own; *Unix* is `grpc.socket`.",
		Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.LoadCPU, lab.CPU}, Added: []string{lab.P50}, Variants: []lab.Variant{direct}}
	for _, way := range []struct{ name, target string }{{"", side.GRPC}, {", Unix", "unix:" + socket}} {
		proxied, err := traffic.DialNodes(ctx, []stand.Node{{Address: way.target}}, 1)
		if err != nil {
			return err
		}
		l.Defer(proxied.Close)
		plain := sidecarv1.NewSidecarClient(proxied.Conns[0])
		for name, call := range map[string]lab.Call{"SDK proxy": proxied.Read, "plain gRPC": traffic.OverSidecar(plain)} {
			c.Variants = append(c.Variants, lab.Variant{Name: name + way.name, Under: []*lab.Process{side.Process},
				Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
					return lab.Closed(ctx, 1, d, call), nil
				}})
		}
	}
	for _, name := range []string{"SDK proxy", "plain gRPC"} {
		c.Claims = append(c.Claims,
			lab.Claim{Text: name + " over a Unix socket: CPU of a call, of TCP", Variant: name + ", Unix",
				Figure: lab.CPU, Kind: lab.Ratio, Of: name, Most: 0.85})
	}
	slices.SortFunc(c.Variants[1:], func(a, b lab.Variant) int { return strings.Compare(a.Name, b.Name) })
	_, err := l.Compare(ctx, c)
	return err
}

// PoolPart is the pool's part of a profile.
const PoolPart = "pool-share"

// poolShare finds what of the sidecar's CPU is the pool's.
func poolShare(ctx context.Context, l *lab.Lab, side *lab.Sidecar) error {
	if !l.Wanted("pool-share") {
		return nil
	}
	span := lab.At(l, time.Second, 5*time.Second, 10*time.Second)
	loaded, cancel := context.WithCancel(ctx)
	done := make(chan lab.Result, 1)
	go func() { done <- lab.Closed(loaded, 64, span+time.Minute, traffic.OverSidecar(side.Client)) }()
	p, data, err := lab.Profile(ctx, side.Admin, "profile", span)
	cancel()
	result := <-done // the calls that the end of the load broke off count as failed, and are not the sidecar's fault
	if err != nil {
		return err
	}
	const pool = "github.com/ydb-sidecar/sidecar/internal/pool."
	l.Report.File("plain-c64.cpu.pprof", data)
	l.Report.Add(lab.Section{Table: lab.NewTable(lab.Case{Name: "pool-share", Title: "The pool's share", Figures: []string{PoolPart},
		Text: fmt.Sprintf(
			"Of the sidecar's CPU, by a profile of %v with 64 plain calls in flight (`plain-c64.cpu.pprof`): "+
				"samples with a function of `internal/pool` in their stack.",
			span,
		),
		Variants: []lab.Variant{{Name: "plain gRPC"}}}, [][]lab.Run{
		{{Closed: true, Calls: result.Calls, Failed: 0, Figures: lab.Figures{PoolPart: lab.Share(p, pool)}}},
	})})
	return nil
}

// overSDK reads a random row by the SDK.
func overSDK(sdk *ydbsdk.Driver) lab.Call {
	return func(ctx context.Context) error {
		_, err := traffic.SdkAnswer(ctx, sdk, traffic.RandomID())
		return err
	}
}

// proxyCases are the faces next to other proxies, in front of backends that answer from memory.
func proxyCases(ctx context.Context, l *lab.Lab) error {
	scenarios := regexp.MustCompile(lab.At(l, "^(unary100|stream500)-c16$", "^(unary100-(c1|c64|2k)|stream500-c64|rows100k-c1)$", ""))
	o := peers.Options{Own: l.Sidecars, APIs: true, Conns: 1,
		Matrix: slices.DeleteFunc(peers.Scenarios(),
			func(s peers.Scenario) bool { return !scenarios.MatchString(s.Name) || !l.Wanted(s.Name) })}
	if len(o.Matrix) == 0 {
		return nil
	}
	if l.Size == lab.Smoke {
		o.Only = []string{"direct", "grpc-go", "sidecar", "sidecar-plain", "sidecar-http"}
	}
	l.Report.Add(lab.Section{Title: "Next to other proxies"})
	return peers.Compare(ctx, l, o)
}

// tracingCases are plain calls with tracing off, and with some and all calls recorded.
func tracingCases(ctx context.Context, l *lab.Lab) error {
	if !l.Wanted("tracing") {
		return nil
	}
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	collector, err := discardTraces(l)
	if err != nil {
		return err
	}
	c := lab.Case{Name: "tracing", Title: "Plain gRPC with tracing, 64 in flight", Baseline: "off",
		Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.CPU}, Ratios: []string{lab.CPU, lab.P50},
		Text: "Spans go to a collector in the load's process, which throws them away.",
		Claims: []lab.Claim{
			{Text: "tracing 1 %: CPU of a plain call, of off", Variant: "1 %", Figure: lab.CPU, Kind: lab.Ratio, Of: "off", Most: 1.03},
			{Text: "tracing 100 %: CPU of a plain call, of off", Variant: "100 %", Figure: lab.CPU, Kind: lab.Ratio, Of: "off", Most: 1.35},
		}}
	for i, way := range []struct {
		name, ratio string
		environment []string
	}{{"off", "1", nil}, {"1 %", "0.01", collector}, {"100 %", "1", collector}} {
		side, err := l.SidecarOf(
			ctx, l.Sidecars[len(l.Sidecars)-1], cluster.Endpoint(), way.environment, "pool.min=50", "pool.max=64",
			"pool.max_per_node=64", "tracing.ratio="+way.ratio,
		)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := traffic.Fill(ctx, side.Client); err != nil {
				return err
			}
		}
		c.Variants = append(c.Variants, lab.Variant{Name: way.name, Under: []*lab.Process{side.Process},
			Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
				return lab.Closed(ctx, 64, d, traffic.OverSidecar(side.Client)), nil
			}})
	}
	_, err = l.Compare(ctx, c)
	return err
}

// discardTraces serves as a collector that takes all and keeps nothing, and
// returns the environment that leads to it.
func discardTraces(l *lab.Lab) ([]string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the collector: %w", err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		for {
			// Fields that a message does not know are kept as they came; it is thrown away with them.
			if err := stream.RecvMsg(&emptypb.Empty{}); errors.Is(err, io.EOF) {
				return stream.SendMsg(&emptypb.Empty{})
			} else if err != nil {
				return err
			}
		}
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(listener) // ends with Stop
	}()
	l.Defer(func() { s.Stop(); <-done })
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + listener.Addr().String(), "OTEL_METRICS_EXPORTER=none"}, nil
}
