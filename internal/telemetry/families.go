package telemetry

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Instrument is one metric that is measured, or derived from one that is.
type Instrument struct {
	Name        string
	Kind        string // histogram, counter, gauge, updown (a level that may go down)
	Unit        string
	Description string
	Labels      []string // of derived ones; those of measured ones are where they are fed
}

// families makes what is exported of what is measured. Calls are measured once:
// what other families say of them is derived when somebody asks, so that a second
// family of names costs calls nothing. Safe for concurrent use.
type families struct {
	reader   *sdkmetric.ManualReader
	names    string
	endpoint atomic.Pointer[string]
	like     *families // has the endpoint; nil: this one
}

// source is one metric that a derived one is made of.
type source struct {
	name string
	keep map[string]string // attribute to the name that it gets; others are left out
	add  map[string]string // attributes of all points
	need string            // only points with this attribute; "": all
}

// derivation is a metric that is made of others. The points that are told apart
// only by attributes which are left out are put together.
type derivation struct {
	Instrument
	from  []source
	value map[string]string // values of attributes that have another name here
}

var poolName = map[string]string{"db.client.connection.pool.name": "ydb.query.session.pool.name"}

var poolAndState = map[string]string{
	"db.client.connection.pool.name": "ydb.query.session.pool.name", "db.client.connection.state": "ydb.query.session.state",
}

const (
	hopDuration     = "db.client.operation.duration"
	createTime      = "db.client.connection.create_time"
	forwardDuration = "ydb.sidecar.forward.duration"
)

// derivations are the metrics that nothing feeds. The names, units and attributes
// of ydb.* are those of YDB's own SDKs (their page "Metrics with OpenTelemetry").
var derivations = []derivation{
	{Instrument{Name: "ydb.client.operation.duration", Kind: "histogram", Unit: "s", Description: "Time of one attempt of one operation."},
		[]source{
			{name: hopDuration, keep: map[string]string{"db.namespace": "database", "db.operation.name": "operation.name"}},
			{name: createTime, keep: map[string]string{"db.client.connection.pool.name": "database"},
				add: map[string]string{"operation.name": "CreateSession"}},
		}, operations},
	{Instrument{Name: "ydb.client.operation.failed", Kind: "counter", Unit: "{operation}", Description: "Attempts that failed, by status."},
		[]source{{name: hopDuration, need: "db.response.status_code",
			keep: map[string]string{"db.namespace": "database", "db.operation.name": "operation.name",
				"db.response.status_code": "status_code"}}}, operations},
	{Instrument{Name: "ydb.query.session.create_time", Kind: "histogram", Unit: "s", Description: "Time to create and attach a session."},
		[]source{{name: createTime, keep: poolName}}, nil},
	{
		Instrument{Name: "ydb.query.session.timeouts", Kind: "counter", Unit: "{timeout}",
			Description: "Callers who left the queue without a session: their time was up, or they went away."},
		[]source{{name: "db.client.connection.timeouts", keep: poolName}}, nil,
	},
	{Instrument{Name: "ydb.query.session.count", Kind: "gauge", Unit: "{session}", Description: "Sessions by state."},
		[]source{{name: "db.client.connection.count", keep: poolAndState}}, nil},
	{Instrument{Name: "ydb.query.session.min", Kind: "gauge", Unit: "{session}", Description: "Sessions kept open."},
		[]source{{name: "db.client.connection.idle.min", keep: poolName}}, nil},
	{Instrument{Name: "ydb.query.session.max", Kind: "gauge", Unit: "{session}", Description: "Limit of sessions."},
		[]source{{name: "db.client.connection.max", keep: poolName}}, nil},
	{
		Instrument{Name: "rpc.client.call.duration", Kind: "histogram", Unit: "s",
			Description: "Time of one gRPC call to a node, of the plain API and forwarded ones."},
		[]source{
			{name: hopDuration, keep: rpcClient, add: rpcSystem, need: rpcMethod},
			{name: forwardDuration, keep: rpcClient, add: rpcSystem, need: "ydb.node.id"},
		},
		nil,
	},
	{
		Instrument{Name: rpcCalls, Kind: "histogram", Unit: "s",
			Description: "Time of one gRPC call of a client, to the plain API and forwarded ones."},
		[]source{
			{name: rpcCalls,
				keep: map[string]string{"rpc.system.name": "rpc.system.name", rpcMethod: rpcMethod, rpcStatus: rpcStatus,
					"error.type": "error.type"}},
			{name: forwardDuration,
				keep: map[string]string{rpcMethod: rpcMethod, rpcStatus: rpcStatus, "db.response.status_code": "error.type"},
				add:  rpcSystem},
		},
		nil,
	},
}

const (
	rpcCalls  = "rpc.server.call.duration"
	rpcMethod = "rpc.method"
	rpcStatus = "rpc.response.status_code"
	errorType = "error.type"
)

var (
	operations = map[string]string{"CommitTransaction": "Commit", "RollbackTransaction": "Rollback"}
	rpcClient  = map[string]string{rpcMethod: rpcMethod, rpcStatus: rpcStatus, "ydb.node.id": "ydb.node.id"}
	rpcSystem  = map[string]string{"rpc.system.name": "grpc"}
)

// private are the attributes of a measured metric that only others show.
var private = map[string][]attribute.Key{
	hopDuration: {rpcMethod, rpcStatus}, forwardDuration: {rpcMethod, rpcStatus, errorType},
	"ydb.sidecar.forward.wait": {rpcMethod, rpcStatus, errorType},
}

// hidden tells whether a family is switched off.
func (f *families) hidden(name string) bool {
	switch f.names {
	case NamesOTel:
		return strings.HasPrefix(name, "ydb.client.") || strings.HasPrefix(name, "ydb.query.")
	case NamesYDB:
		return strings.HasPrefix(name, "db.client.")
	}
	return false
}

// Produce implements sdkmetric.Producer: it collects what is exported now.
func (f *families) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) {
	var all metricdata.ResourceMetrics
	if err := f.reader.Collect(ctx, &all); err != nil {
		return nil, err
	}
	measured := map[string]metricdata.Metrics{}
	out := make([]metricdata.ScopeMetrics, 0, len(all.ScopeMetrics)+1)
	for _, s := range all.ScopeMetrics {
		kept := metricdata.ScopeMetrics{Scope: s.Scope}
		for _, m := range s.Metrics {
			measured[m.Name] = m
			if m.Name == rpcCalls || f.hidden(m.Name) {
				continue
			}
			if drop := private[m.Name]; drop != nil {
				m.Data = without(m.Data, drop)
			}
			kept.Metrics = append(kept.Metrics, m)
		}
		out = append(out, kept)
	}
	derived := metricdata.ScopeMetrics{}
	derived.Scope.Name = scope
	for i := range derivations {
		d := &derivations[i]
		if f.hidden(d.Name) {
			continue
		}
		if m, ok := f.derive(d, measured); ok {
			derived.Metrics = append(derived.Metrics, m)
		}
	}
	return append(out, derived), nil
}

// derive makes one metric; false: nothing of it was measured yet.
func (f *families) derive(d *derivation, measured map[string]metricdata.Metrics) (metricdata.Metrics, bool) {
	histograms := merged[metricdata.HistogramDataPoint[float64]]{add: addHistogram}
	numbers := merged[metricdata.DataPoint[int64]]{
		add: func(to *metricdata.DataPoint[int64], p metricdata.DataPoint[int64]) { to.Value += p.Value },
	}
	temporality := metricdata.CumulativeTemporality
	for i := range d.from {
		s := &d.from[i]
		switch data := measured[s.name].Data.(type) {
		case metricdata.Histogram[float64]:
			temporality = data.Temporality
			for _, p := range data.DataPoints {
				set, ok := f.attributes(d, s, p.Attributes)
				switch {
				case !ok:
				case d.Kind == "counter":
					numbers.put(set,
						metricdata.DataPoint[int64]{Attributes: set, StartTime: p.StartTime, Time: p.Time, Value: int64(p.Count)})
				default:
					p.Attributes, p.Exemplars = set, nil
					p.BucketCounts = slices.Clone(p.BucketCounts)
					histograms.put(set, p)
				}
			}
		case metricdata.Sum[int64]:
			temporality = data.Temporality
			for _, p := range data.DataPoints {
				if set, ok := f.attributes(d, s, p.Attributes); ok {
					p.Attributes, p.Exemplars = set, nil
					numbers.put(set, p)
				}
			}
		}
	}
	m := metricdata.Metrics{Name: d.Name, Unit: d.Unit, Description: d.Description}
	switch {
	case d.Kind == "histogram" && len(histograms.all) > 0:
		m.Data = metricdata.Histogram[float64]{Temporality: temporality, DataPoints: histograms.all}
	case d.Kind == "counter" && len(numbers.all) > 0:
		m.Data = metricdata.Sum[int64]{Temporality: temporality, IsMonotonic: true, DataPoints: numbers.all}
	case d.Kind == "gauge" && len(numbers.all) > 0:
		m.Data = metricdata.Gauge[int64]{DataPoints: numbers.all}
	}
	return m, m.Data != nil
}

// attributes are those of a derived point.
func (f *families) attributes(d *derivation, s *source, of attribute.Set) (attribute.Set, bool) {
	if s.need != "" && !of.HasValue(attribute.Key(s.need)) {
		return attribute.Set{}, false
	}
	var out []attribute.KeyValue
	for i := of.Iter(); i.Next(); {
		a := i.Attribute()
		name, ok := s.keep[string(a.Key)]
		if !ok {
			continue
		}
		// As text: what one source has as a number and another as text is one label in Prometheus.
		value := a.Value.String()
		if other, ok := d.value[value]; ok {
			value = other
		}
		out = append(out, attribute.String(name, value))
	}
	for name, value := range s.add {
		out = append(out, attribute.String(name, value))
	}
	if at := cmp.Or(f.like, f).endpoint.Load(); at != nil && strings.HasPrefix(d.Name, "ydb.client.") {
		out = append(out, attribute.String("endpoint", *at))
	}
	return attribute.NewSet(out...), true
}

// merged puts points of the same attributes together.
type merged[P any] struct {
	add func(to *P, p P)
	at  map[attribute.Distinct]int
	all []P
}

func (m *merged[P]) put(set attribute.Set, p P) {
	if i, ok := m.at[set.Equivalent()]; ok {
		m.add(&m.all[i], p)
		return
	}
	if m.at == nil {
		m.at = map[attribute.Distinct]int{}
	}
	m.at[set.Equivalent()] = len(m.all)
	m.all = append(m.all, p)
}

// addHistogram adds a histogram of the same bounds.
func addHistogram(to *metricdata.HistogramDataPoint[float64], p metricdata.HistogramDataPoint[float64]) {
	to.Count += p.Count
	to.Sum += p.Sum
	for i := range min(len(to.BucketCounts), len(p.BucketCounts)) {
		to.BucketCounts[i] += p.BucketCounts[i]
	}
	to.Min, to.Max = extreme(to.Min, p.Min, math.Min), extreme(to.Max, p.Max, math.Max)
	if p.StartTime.Before(to.StartTime) {
		to.StartTime = p.StartTime
	}
	if p.Time.After(to.Time) {
		to.Time = p.Time
	}
}

func extreme(a, b metricdata.Extrema[float64], pick func(float64, float64) float64) metricdata.Extrema[float64] {
	x, ok := a.Value()
	y, too := b.Value()
	switch {
	case !ok:
		return b
	case !too:
		return a
	}
	return metricdata.NewExtrema(pick(x, y))
}

// without is a histogram without some attributes.
func without(data metricdata.Aggregation, drop []attribute.Key) metricdata.Aggregation {
	h, ok := data.(metricdata.Histogram[float64])
	if !ok {
		return data
	}
	points := merged[metricdata.HistogramDataPoint[float64]]{add: addHistogram}
	for _, p := range h.DataPoints {
		p.Attributes, _ = p.Attributes.Filter(attribute.NewDenyKeysFilter(drop...))
		p.BucketCounts = slices.Clone(p.BucketCounts)
		points.put(p.Attributes, p)
	}
	return metricdata.Histogram[float64]{Temporality: h.Temporality, DataPoints: points.all}
}

// noted keeps every instrument that is made.
type noted struct {
	mu  sync.Mutex // guards all
	all []Instrument
}

// view is a sdkmetric.View that changes nothing.
func (n *noted) view(i sdkmetric.Instrument) (sdkmetric.Stream, bool) {
	kind := map[sdkmetric.InstrumentKind]string{
		sdkmetric.InstrumentKindCounter: "counter", sdkmetric.InstrumentKindObservableCounter: "counter",
		sdkmetric.InstrumentKindUpDownCounter: "updown", sdkmetric.InstrumentKindObservableUpDownCounter: "updown",
		sdkmetric.InstrumentKindHistogram: "histogram",
		sdkmetric.InstrumentKindGauge:     "gauge", sdkmetric.InstrumentKindObservableGauge: "gauge",
	}[i.Kind]
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, Instrument{Name: i.Name, Kind: kind, Unit: i.Unit, Description: i.Description})
	return sdkmetric.Stream{}, false
}

// Instruments lists what is measured and what is derived of it, by name, each
// once, whatever telemetry.names is.
func (t *Telemetry) Instruments() []Instrument {
	t.figures.noted.mu.Lock()
	all := slices.Clone(t.figures.noted.all)
	t.figures.noted.mu.Unlock()
	all = slices.DeleteFunc(all, func(i Instrument) bool { return i.Name == rpcCalls }) // it is derived of itself
	for _, d := range derivations {
		labels := map[string]bool{}
		for _, s := range d.from {
			for _, name := range s.keep {
				labels[name] = true
			}
			for name := range s.add {
				labels[name] = true
			}
		}
		if strings.HasPrefix(d.Name, "ydb.client.") {
			labels["endpoint"] = true
		}
		for name := range labels {
			d.Labels = append(d.Labels, name)
		}
		slices.Sort(d.Labels)
		all = append(all, d.Instrument)
	}
	slices.SortFunc(all, func(a, b Instrument) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b Instrument) bool { return a.Name == b.Name })
}
