package statements

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// State is /state/statements.
type State struct {
	Since     time.Time `json:"since"`
	Digests   int       `json:"digests"`   // number of those with a row
	Forgotten uint64    `json:"forgotten"` // how often a digest made room for another one, and its figures became part of the rest
	All       Figures   `json:"all"`       // since the start
	Rest      Figures   `json:"rest"`      // part of All: digests without a row
	Rows      []Row     `json:"rows"`
}

// Row is one digest.
type Row struct {
	Digest string    `json:"digest"`
	Kind   string    `json:"kind"`           // the first keyword, such as SELECT; "": none
	Text   string    `json:"text,omitempty"` // the normal form, with statements.texts
	App    string    `json:"app"`            // of the last call
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
	Texts  int       `json:"texts"` // in the last five minutes, about
	Start  Figures   `json:"since_start"`
	Minute Figures   `json:"last_minute"` // the last whole minute
}

// Figures are those of some time. Wide: its fields are those of a document.
type Figures struct {
	Calls    uint64            `json:"calls"`
	Failed   uint64            `json:"failed"`
	Statuses map[string]uint64 `json:"statuses,omitempty"` // of failed calls
	Retries  uint64            `json:"retries"`
	Rows     uint64            `json:"rows"`  // of answers over the plain API
	Bytes    uint64            `json:"bytes"` // of answers

	TookMS    float64 `json:"took_ms"` // the whole time of all calls; of that,
	AcquireMS float64 `json:"acquire_ms"`
	HopMS     float64 `json:"hop_ms"`
	P50MS     float64 `json:"p50_ms"` // of the whole time of a call
	P99MS     float64 `json:"p99_ms"`
	HopP50MS  float64 `json:"hop_p50_ms"`
	HopP99MS  float64 `json:"hop_p99_ms"`
}

// By are the orders of rows.
var By = []string{"time", "calls", "errors"}

// Windows are the times by which rows can be ordered.
var Windows = []string{"start", "minute"}

// Query says which rows are asked for. Empty members have the first values of By and Windows.
type Query struct {
	By, Window string
	Limit      int // of rows
}

// Check returns an error if the query has a value that is unknown.
func (q Query) Check() error {
	switch {
	case q.By != "" && !slices.Contains(By, q.By):
		return fmt.Errorf("by = %.40q; want one of %v", q.By, By)
	case q.Window != "" && !slices.Contains(Windows, q.Window):
		return fmt.Errorf("window = %.40q; want one of %v", q.Window, Windows)
	}
	return nil
}

// Document is State, or the error of what is asked for.
func (r *Recorder) Document(by, window string, limit int) any {
	q := Query{by, window, limit}
	if err := q.Check(); err != nil {
		return err
	}
	return r.State(q)
}

// State returns the rows that come first.
func (r *Recorder) State(q Query) State {
	out := State{Rows: []Row{}}
	if r == nil {
		return out
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out.Since, out.Digests, out.Forgotten = r.since, len(r.digests), r.forgotten
	all, sums := slices.Collect(maps.Values(r.digests)), r.totalLocked()
	out.All, out.Rest = figuresOf(&figures{Sums: sums}), figuresOf(&figures{Sums: r.rest})
	slices.SortFunc(all, func(a, b *digest) int {
		return cmp.Or(cmp.Compare(b.measure(q), a.measure(q)), cmp.Compare(a.id, b.id))
	})
	for _, d := range all[:min(len(all), q.Limit)] {
		out.Rows = append(out.Rows, Row{d.id.String(), d.kind, d.text, d.app, d.first, d.last, d.allTexts(),
			figuresOf(&d.total), figuresOf(&d.minute)})
	}
	return out
}

// Total is of all calls since the start. It only grows, unlike the sum of all series, which come and go.
func (r *Recorder) Total() Sums {
	if r == nil {
		return Sums{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.totalLocked()
}

func (r *Recorder) totalLocked() Sums {
	sums := r.rest
	for _, d := range r.digests {
		sums.add(&d.total.Sums)
	}
	return sums
}

// measure is what rows are ordered by.
func (d *digest) measure(q Query) uint64 {
	of := &d.total.Sums
	if q.Window == "minute" {
		of = &d.minute.Sums
	}
	switch q.By {
	case "calls":
		return of.Calls
	case "errors":
		return of.Failed
	}
	return uint64(of.Took)
}

func figuresOf(f *figures) Figures {
	sum := 0
	for _, n := range f.took {
		sum += int(n)
	}
	return Figures{
		Calls: f.Calls, Failed: f.Failed, Statuses: f.errors.byName(), Retries: f.Retries, Rows: f.Rows, Bytes: f.Bytes,
		TookMS: ms(f.Took), AcquireMS: ms(f.Acquire), HopMS: ms(f.Hop),
		P50MS: ms(f.took.Quantile(0.5, sum)), P99MS: ms(f.took.Quantile(0.99, sum)),
		HopP50MS: ms(f.hop.Quantile(0.5, sum)), HopP99MS: ms(f.hop.Quantile(0.99, sum)),
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
