package telemetry

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/ydb-sidecar/sidecar/internal/latency"
)

// direct are the histograms that calls write without OpenTelemetry's instruments.
type direct struct {
	mu  sync.Mutex // guards all
	all []directHistogram
}

type directHistogram struct {
	Instrument
	bounds []float64
	times  *latency.Durations
	began  time.Time
}

// Histogram is a latency.Maker, for what is counted with each call. name must be new.
func (t *Telemetry) Histogram(name, unit, description string, of ...float64) *latency.Durations {
	if of == nil {
		of = bounds
	}
	upper := make([]time.Duration, len(of))
	for i, b := range of {
		upper[i] = time.Duration(b*1e9 + 0.5)
	}
	h := directHistogram{Instrument{Name: name, Kind: "histogram", Unit: unit, Description: description}, of,
		latency.NewDurations(upper), time.Now()}
	t.figures.direct.mu.Lock()
	t.figures.direct.all = append(t.figures.direct.all, h)
	t.figures.direct.mu.Unlock()
	t.figures.noted.mu.Lock()
	defer t.figures.noted.mu.Unlock()
	t.figures.noted.all = append(t.figures.noted.all, h.Instrument)
	return h.times
}

// producer reads the histograms of direct for one reader.
type producer struct {
	*direct
	temporality metricdata.Temporality // delta: what came since the last time; else since the start

	mu     sync.Mutex // guards what follows; used for delta only
	last   time.Time
	before map[string]map[attribute.Distinct]latency.Counted
}

// Produce implements sdkmetric.Producer.
func (p *producer) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	p.direct.mu.Lock()
	all := p.all[:len(p.all):len(p.all)]
	p.direct.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	s := metricdata.ScopeMetrics{}
	s.Scope.Name = scope
	for _, h := range all {
		data := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
		if p.temporality == metricdata.DeltaTemporality {
			data.Temporality = p.temporality
		}
		for _, c := range h.times.Read() {
			since := h.began
			if data.Temporality == metricdata.DeltaTemporality {
				c = p.since(h.Name, c)
				if since.Before(p.last) {
					since = p.last
				}
			}
			point := metricdata.HistogramDataPoint[float64]{Attributes: c.Set, StartTime: since, Time: now,
				Bounds: h.bounds, BucketCounts: c.Counts, Sum: c.Sum.Seconds()}
			for _, n := range c.Counts {
				point.Count += n
			}
			if point.Count > 0 {
				data.DataPoints = append(data.DataPoints, point)
			}
		}
		if len(data.DataPoints) > 0 {
			s.Metrics = append(s.Metrics, metricdata.Metrics{Name: h.Name, Unit: h.Unit, Description: h.Description, Data: data})
		}
	}
	p.last = now
	if len(s.Metrics) == 0 {
		return nil, nil
	}
	return []metricdata.ScopeMetrics{s}, nil
}

var _ sdkmetric.Producer = (*producer)(nil)

// since is what was counted since the last call for the same set.
func (p *producer) since(name string, c latency.Counted) latency.Counted {
	if p.before[name] == nil {
		if p.before == nil {
			p.before = map[string]map[attribute.Distinct]latency.Counted{}
		}
		p.before[name] = map[attribute.Distinct]latency.Counted{}
	}
	old, ok := p.before[name][c.Set.Equivalent()]
	p.before[name][c.Set.Equivalent()] = c
	if !ok {
		return c
	}
	diff := latency.Counted{Set: c.Set, Counts: make([]uint64, len(c.Counts)), Sum: c.Sum - old.Sum}
	for i := range c.Counts {
		diff.Counts[i] = c.Counts[i] - old.Counts[i]
	}
	return diff
}
