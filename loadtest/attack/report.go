package attack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	vegeta "github.com/tsenart/vegeta/v12/lib"
	"github.com/tsenart/vegeta/v12/lib/plot"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// Report is `loadtest report`: what vegeta's reports say of results in any of its encodings, with
// percentiles of an HDR histogram, and with both rates.
func Report(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	f := flag.NewFlagSet("report", flag.ContinueOnError)
	kind := f.String("type", "text", "text, json, hist[BUCKETS], hdrplot or plot (a page of HTML)")
	buckets := f.String("buckets", "", "of hist, and of json if they are wanted there: [0,1ms,10ms]")
	title := f.String("title", "Latencies", "of the plot")
	output := f.String("output", "stdout", "`file` of the report")
	if err := f.Parse(args); err != nil {
		return err
	}
	s := summary{hist: hdrhistogram.New(1, int64(time.Hour), 3), texts: map[string]bool{}}
	if b, ok := strings.CutPrefix(*kind, "hist"); ok {
		*kind, *buckets = "hist", cmp.Or(b, *buckets)
	}
	if *buckets != "" {
		s.Histogram = &vegeta.Histogram{}
		if err := s.Histogram.Buckets.UnmarshalText([]byte(*buckets)); err != nil {
			return fmt.Errorf("buckets: %w; want for example [0,1ms,10ms]", err)
		}
	}
	write, ok := map[string]func(io.Writer) error{"text": s.text, "json": s.json, "hist": s.histogram, "hdrplot": s.hdrplot, "plot": s.page}[*kind]
	if !ok || *kind == "hist" && s.Histogram == nil {
		return fmt.Errorf("-type %q: want text, json, hist[0,1ms,10ms] (or with -buckets), hdrplot or plot", *kind)
	}
	if *kind == "plot" {
		s.plot = plot.New(plot.Title(*title), plot.Downsample(4000), plot.Label(plot.ErrorLabeler))
	}
	names := f.Args()
	if len(names) == 0 {
		names = []string{"stdin"}
	}
	for _, name := range names {
		if err := s.read(ctx, name, stdin); err != nil {
			return err
		}
	}
	if s.Requests == 0 {
		return errors.New("there are no results")
	}
	s.close()
	out, done, err := file(*output, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	return write(out)
}

// maxTexts is how many different errors a report names.
const maxTexts = 100

// summary gathers results.
type summary struct {
	vegeta.Metrics
	Offered  float64 `json:"offered"`  // requests a second that were due, by the instants at which they were
	Achieved float64 `json:"achieved"` // successes a second, until the last answer
	P999     float64 `json:"99.9th"`   // latency in nanoseconds
	P9999    float64 `json:"99.99th"`  // latency in nanoseconds
	NotSent  int     `json:"not_sent"` // requests that were due and could not be sent

	hist  *hdrhistogram.Histogram
	plot  *plot.Plot
	texts map[string]bool
}

// read adds the results of one file.
func (s *summary) read(ctx context.Context, name string, stdin io.Reader) error {
	source := stdin
	if name != "stdin" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		source = f
	}
	decoder := vegeta.DecoderFor(source)
	if decoder == nil {
		return fmt.Errorf("%s: these are no results: want what attack writes, as gob, json or csv", name)
	}
	for ctx.Err() == nil { // who stops it gets the report of what was read
		var r vegeta.Result
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: result %d: %w", name, s.Requests+1, err)
		}
		if err := s.add(&r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (s *summary) add(r *vegeta.Result) error {
	if r.Error == lab.NotSent {
		s.NotSent++
	}
	if s.plot != nil {
		if err := s.plot.Add(r); err != nil {
			return err
		}
	}
	if r.Error != "" && !s.texts[r.Error] {
		if len(s.texts) == maxTexts {
			r.Error = "other errors"
		} else {
			s.texts[r.Error] = true
		}
	}
	s.Add(r)
	// It is within the range, so it cannot fail.
	return s.hist.RecordValue(int64(min(max(r.Latency, 1), time.Hour)))
}

// close computes what is known at the end.
func (s *summary) close() {
	s.Close()
	at := func(p float64) time.Duration { return time.Duration(s.hist.ValueAtPercentile(p)) }
	// vegeta estimates them by a sketch that is wrong in the tail.
	s.Latencies.P50, s.Latencies.P90, s.Latencies.P95, s.Latencies.P99 = at(50), at(90), at(95), at(99)
	s.P999, s.P9999 = float64(at(99.9)), float64(at(99.99))
	if s.Duration > 0 { // from the first to the last: one interval less than there are requests
		s.Offered = float64(s.Requests-1) / s.Duration.Seconds()
	}
	s.Achieved = s.Throughput
	if s.plot != nil {
		s.plot.Close()
	}
}

func (s *summary) text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	share := "-"
	if s.Offered > 0 {
		share = fmt.Sprintf("%.2f%%", 100*min(1, s.Achieved/s.Offered))
	}
	fmt.Fprintf(tw, "Rates\t[offered, achieved, of offered, not sent]\t%.2f/s, %.2f/s, %s, %d\n", s.Offered, s.Achieved, share, s.NotSent)
	fmt.Fprintf(tw, "Tail\t[99.9, 99.99, max]\t%v, %v, %v\n", time.Duration(s.P999), time.Duration(s.P9999), s.Latencies.Max)
	return errors.Join(tw.Flush(), vegeta.NewTextReporter(&s.Metrics).Report(w))
}

func (s *summary) json(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

func (s *summary) histogram(w io.Writer) error {
	return vegeta.NewHistogramReporter(s.Histogram).Report(w)
}

// hdrplot is the text that hdrhistogram.github.io/HdrHistogram/plotFiles.html draws, in milliseconds.
func (s *summary) hdrplot(w io.Writer) error {
	_, err := s.hist.PercentilesPrint(w, 5, float64(time.Millisecond))
	return err
}

func (s *summary) page(w io.Writer) error {
	_, err := s.plot.WriteTo(w)
	return err
}
