package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// scope is the name of the instrumentation. It is part of what collectors get.
const scope = "github.com/ydb-sidecar/sidecar/internal/app"

// figure is one metric, a row of the tables: its instrument, and how its values are read from a moment. Histograms
// are fed by their parts and are not here.
type figure struct {
	kind             kind
	name, unit, help string
	ints             func(*moment, ints)     // of levels, counters and gauges
	decimals         func(*moment, decimals) // of decimals and amounts
}

// ints and decimals take the values of a figure, each with its attributes.
type (
	ints     func(n int64, with ...attribute.KeyValue)
	decimals func(x float64, with ...attribute.KeyValue)
)

type kind int

const (
	isLevel   kind = iota // may be summed, and falls again
	isCounter             // only rises
	isGauge               // must not be summed
	isDecimal             // must not be summed, and has a fraction
	isAmount              // only rises, and has a fraction
)

func level(name, unit, help string, read func(*moment, ints)) figure {
	return figure{kind: isLevel, name: name, unit: unit, help: help, ints: read}
}

func counter(name, unit, help string, read func(*moment, ints)) figure {
	return figure{kind: isCounter, name: name, unit: unit, help: help, ints: read}
}

func gauge(name, unit, help string, read func(*moment, ints)) figure {
	return figure{kind: isGauge, name: name, unit: unit, help: help, ints: read}
}

func decimal(name, unit, help string, read func(*moment, decimals)) figure {
	return figure{kind: isDecimal, name: name, unit: unit, help: help, decimals: read}
}

func amount(name, unit, help string, read func(*moment, decimals)) figure {
	return figure{kind: isAmount, name: name, unit: unit, help: help, decimals: read}
}

// rowsOf are the metrics of a process that looks at these parts.
func rowsOf(s *snapshot.Source) []figure {
	all := slices.Concat(poolRows, nodeRows, routingRows, healthRows, apiRows, appRows, wireRows, statementRows, processRows)
	if s.Limits() != nil {
		all = append(all, limitRows...)
	}
	if s.Memory != nil {
		all = append(all, memoryRows...)
	}
	if s.XDS != nil {
		all = append(all, xdsRows...)
	}
	return all
}

// Observe has the metrics of a process read whenever somebody asks for them.
func Observe(provider metric.MeterProvider, s *snapshot.Source) error {
	return register(provider, rowsOf(s), s.Look)
}

// register makes an instrument of each row. All are read from one look.
func register(provider metric.MeterProvider, rows []figure, look func() *snapshot.Snapshot) error {
	meter := provider.Meter(scope)
	var read []func(metric.Observer, *moment)
	var all []metric.Observable
	var errs []error
	for _, r := range rows {
		instrument, f, err := r.open(meter)
		read, all, errs = append(read, f), append(all, instrument), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make instruments: %w", err)
	}
	series := new(nodeSeries)
	callback := func(_ context.Context, o metric.Observer) error {
		m := newMoment(look(), series)
		for _, f := range read {
			f(o, m)
		}
		return nil
	}
	if _, err := meter.RegisterCallback(callback, all...); err != nil {
		return fmt.Errorf("register instruments: %w", err)
	}
	return nil
}

// open makes the row's instrument and the function that reads its values.
func (r *figure) open(meter metric.Meter) (of metric.Observable, read func(metric.Observer, *moment), err error) {
	text, unit := metric.WithDescription(r.help), metric.WithUnit(r.unit)
	if r.decimals != nil {
		var i interface {
			metric.Observable
			metric.Float64Observable
		}
		if r.kind == isAmount {
			i, err = meter.Float64ObservableCounter(r.name, unit, text)
		} else {
			i, err = meter.Float64ObservableGauge(r.name, unit, text)
		}
		return i, func(o metric.Observer, m *moment) {
			r.decimals(m, func(x float64, with ...attribute.KeyValue) { o.ObserveFloat64(i, x, metric.WithAttributes(with...)) })
		}, err
	}
	var i interface {
		metric.Observable
		metric.Int64Observable
	}
	switch r.kind {
	case isLevel:
		i, err = meter.Int64ObservableUpDownCounter(r.name, unit, text)
	case isCounter:
		i, err = meter.Int64ObservableCounter(r.name, unit, text)
	default:
		i, err = meter.Int64ObservableGauge(r.name, unit, text)
	}
	return i, func(o metric.Observer, m *moment) {
		r.ints(m, func(n int64, with ...attribute.KeyValue) { o.ObserveInt64(i, n, metric.WithAttributes(with...)) })
	}, err
}

// moment is what rows are read from: a look, and what several rows make of it.
type moment struct {
	*snapshot.Snapshot
	pool       attribute.KeyValue // the pool of the plain API
	ofSessions []nodeFigures      // sessions by node
	ofNodes    []nodeFigures      // all else by node
}

func newMoment(s *snapshot.Snapshot, series *nodeSeries) *moment {
	m := &moment{Snapshot: s, pool: poolName(s.Database)}
	m.ofSessions, m.ofNodes = series.figures(s.Pool.Nodes, s.Routed.Nodes)
	return m
}

// virtual is the state of the sessions of SDKs; nil: there are none.
func (m *moment) virtual() *virtual.State {
	if m.Wire == nil {
		return nil
	}
	return m.Wire.Virtual
}

// sumOf adds up pools of callers: there may be a thousand.
func sumOf(pools []virtual.PoolState) (sum virtual.PoolState) {
	for _, p := range pools {
		sum.Idle += p.Idle
		sum.InUse += p.InUse
		sum.Opening += p.Opening
		sum.Closing += p.Closing
		sum.Waiting += p.Waiting
	}
	return sum
}

// eachClass calls f for each class that an app uses, with the attributes of both.
func (m *moment) eachClass(f func(c *apps.ClassState, app, class attribute.KeyValue)) {
	for _, s := range m.Apps {
		for i := range s.Classes {
			f(&s.Classes[i], app(s.App), priority(s.Classes[i].Class))
		}
	}
}

// callers is the name that the pools of callers have together.
var callers = poolName("callers")

func label(key, value string) attribute.KeyValue { return attribute.String(key, value) }

func poolName(name string) attribute.KeyValue  { return label("db.client.connection.pool.name", name) }
func state(name string) attribute.KeyValue     { return label("db.client.connection.state", name) }
func app(name string) attribute.KeyValue       { return label("ydb.sidecar.app", name) }
func direction(name string) attribute.KeyValue { return label("ydb.sidecar.direction", name) }
func api(name string) attribute.KeyValue       { return label("ydb.sidecar.face", name) }
func kindOf(name string) attribute.KeyValue    { return label("ydb.sidecar.kind", name) }
func peer(name string) attribute.KeyValue      { return label("ydb.sidecar.peer", name) }
func priority(class string) attribute.KeyValue { return label("ydb.sidecar.priority", class) }
func reason(name string) attribute.KeyValue    { return label("ydb.sidecar.reason", name) }
func result(name string) attribute.KeyValue    { return label("ydb.sidecar.result", name) }

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}
