package overhead

import (
	"context"
	"fmt"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/peers"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// virtualCases are what virtual sessions cost next to passthrough, in CPU and memory, and what SDKs'
// protocol beside it costs the plain API: docs/dev/virtual-sessions-cost.md.
func virtualCases(ctx context.Context, l *lab.Lab) error {
	for _, part := range []func(context.Context, *lab.Lab) error{modeCases, besideCases, virtualMemory} {
		if err := part(ctx, l); err != nil {
			return err
		}
		l.Stop()
	}
	return nil
}

// modeCases compare the modes in front of backends that cost little, so that the sidecar is busy.
func modeCases(ctx context.Context, l *lab.Lab) error {
	program, before := l.Sidecars[len(l.Sidecars)-1], l.Sidecars[:len(l.Sidecars)-1]
	o := peers.Options{Conns: 1}
	for _, s := range peers.Virtual() {
		if l.Wanted(s.Name) && (l.Size == lab.Full || s.Name == lab.At(l, "query-c16", "query-c64", "")) {
			o.Matrix = append(o.Matrix, s)
		}
	}
	if len(o.Matrix) == 0 {
		return nil
	}
	for _, mode := range []string{"passthrough", "transaction", "session"} {
		o.Names = append(o.Names, mode)
		o.Own = append(o.Own, program+" -set wire.mode="+mode+" -set pool.max=100 -set pool.max_per_node=100")
	}
	for _, other := range before {
		o.Names, o.Own = append(o.Names, "passthrough, "+other), append(o.Own, other)
	}
	o.Only = o.Names
	l.Report.Add(lab.Section{Title: "Virtual sessions next to passthrough"})
	return peers.Compare(ctx, l, o)
}

// besideCases compare the plain API with and without SDKs' protocol beside it.
func besideCases(ctx context.Context, l *lab.Lab) error {
	cluster := (*lab.Cluster)(nil)
	for _, n := range lab.At(l, []int{16}, []int{16}, []int{1, 16, 64}) {
		c := lab.Case{Name: fmt.Sprint("beside-c", n),
			Title:    fmt.Sprint("The plain API over gRPC beside SDKs' protocol, ", n, " in flight"),
			Baseline: "wire.mode=off",
			Ratios:   []string{lab.CPU}, Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.CPU}}
		if !l.Wanted(c.Name) {
			continue
		}
		if cluster == nil {
			var err error
			if cluster, err = l.Cluster(ctx, 3); err != nil {
				return err
			}
		}
		for _, mode := range []string{"wire.mode=off", "wire.mode=passthrough"} {
			side, err := l.Sidecar(ctx, cluster.Endpoint(), "pool.min=50", mode)
			if err != nil {
				return err
			}
			defer l.End(side.Process)
			if err := traffic.Fill(ctx, side.Client); err != nil {
				return err
			}
			read := traffic.OverSidecar(side.Client)
			c.Variants = append(c.Variants, lab.Variant{Name: mode, Under: []*lab.Process{side.Process},
				Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
					return lab.Closed(ctx, n, d, read), nil
				}})
		}
		if _, err := l.Compare(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// attached is a figure: resident memory of each virtual session that is not in use.
const attached = "KiB a session"

// virtualMemory counts what is allocated for a forwarded call, and what unused virtual sessions take.
func virtualMemory(ctx context.Context, l *lab.Lab) error {
	if !l.Wanted("virtual-memory") {
		return nil
	}
	const inFlight, unused = 16, 1000
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	c := lab.Case{Name: "virtual-memory", Title: "Allocations of a forwarded ExecuteQuery",
		Figures: []string{allocated, allocatedBytes, attached},
		Text: fmt.Sprintf(
			"Of the whole sidecar, for each call, with %d in flight. *KiB a session*: resident memory of each of %d "+
				"attached virtual sessions that nobody uses.",
			inFlight, unused,
		)}
	for _, mode := range []string{"passthrough", "transaction", "session"} {
		side, err := l.Sidecar(ctx, cluster.Endpoint(), "pool.min=16", "wire.mode="+mode)
		if err != nil {
			return err
		}
		if err := traffic.Fill(ctx, side.Client); err != nil {
			return err
		}
		for _, implicit := range []bool{false, true} {
			name := mode
			if implicit {
				name += ", no session"
			}
			if implicit && mode != "transaction" {
				continue
			}
			d, err := dialWire(ctx, side, inFlight, implicit)
			if err != nil {
				return err
			}
			defer d.Close()
			v := allocating(side, name, inFlight, d.Read)
			if mode == "transaction" && !implicit {
				v.Run = withUnused(side, unused, v.Run)
			}
			c.Variants = append(c.Variants, v)
		}
	}
	_, err = l.Compare(ctx, c)
	return err
}

// withUnused adds the memory of virtual sessions to a run: of n that are opened after it and closed again.
func withUnused(
	side *lab.Sidecar, n int, run func(context.Context, time.Duration) (lab.Result, error),
) func(context.Context, time.Duration) (lab.Result, error) {
	return func(ctx context.Context, d time.Duration) (lab.Result, error) {
		r, err := run(ctx, d)
		if err != nil {
			return r, err
		}
		before, err := stand.ReadUsage(side.Pid())
		if err != nil {
			return r, err
		}
		sessions, err := dialWire(ctx, side, n, false)
		if err != nil {
			return r, err
		}
		defer sessions.Close()
		after, err := stand.ReadUsage(side.Pid())
		r.Figures[attached] = float64(after.RSS-before.RSS) / float64(n) / 1024
		return r, err
	}
}

// dialWire opens sessions through a sidecar, as an SDK would, on one connection.
func dialWire(ctx context.Context, side *lab.Sidecar, sessions int, implicit bool) (*traffic.Direct, error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &traffic.Direct{Sessions: make(chan traffic.DirectSession, sessions), Cancel: cancel}
	client := Ydb_Query_V1.NewQueryServiceClient(side.Conn)
	for range sessions {
		if implicit {
			d.Sessions <- traffic.DirectSession{Client: client}
		} else if err := d.Open(ctx, client); err != nil {
			d.Close()
			return nil, err
		}
	}
	return d, nil
}
