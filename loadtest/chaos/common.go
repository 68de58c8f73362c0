package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

// common are the goals of every row.
func (r *run) common() {
	late := slack
	if r.o.Quick {
		late = quickSlack
	}
	r.goal(fmt.Sprintf("every call answered before its deadline plus %.0f s", late.Seconds()), r.rec.most.over <= late,
		"the latest %v after its deadline: %s, sent at %.2f s: %v", max(0, r.rec.most.over).Round(time.Millisecond),
		r.rec.most.kind, r.rec.most.sent.Seconds(), r.rec.most.failed)
	r.none("no error before anything is broken", r.rec.find(func(s sample) bool { return s.failed != nil && s.ended < r.event }))
	var lost, wrong, useless []string
	for _, s := range r.rec.all {
		if s.failed == nil {
			continue
		}
		r.result.Errors[s.kind+" "+s.failed.code+" "+s.failed.class()]++
		switch {
		case r.deaf && (s.failed.code == noAnswer || s.failed.code == unread || s.failed.code == absent):
		case s.failed.code == hung, s.failed.code == noAnswer, s.failed.code == unread && !r.over, s.failed.code == absent && !r.over:
			lost = append(lost, s.kind+" "+s.failed.Error())
		case s.kind == pay && !s.commit && s.failed.unknown && s.failed.code != hung:
			wrong = append(wrong, "a statement of an open transaction got "+s.failed.code+" with outcome_unknown")
		case s.failed.class() == "final" && s.failed.code != "DEADLINE_EXCEEDED":
			useless = append(useless, s.kind+" "+s.failed.Error())
		}
	}
	r.goal("every call is answered by the sidecar", len(lost) == 0, "%s", some(lost))
	r.goal("no error says that the outcome is unknown where nothing can have been kept", len(wrong) == 0, "%s", some(wrong))
	r.goal("no error blames the caller", len(useless) == 0, "%s", some(useless))
	r.goal("the generator kept its rate", r.load.missed.Load() == 0, "%d operations not begun", r.load.missed.Load())
}

// some shows a few of many.
func some(all []string) string {
	text := strings.Join(all[:min(3, len(all))], "; ")
	return fmt.Sprintf("%d %s", len(all), text)
}

// span is a window, to be computed when all its operations have ended.
type span struct {
	from, to time.Duration
	others   float64 // cores that other programs used meanwhile
}

// measure lets enough operations go by for a latency window.
func (r *run) measure(ctx context.Context) (span, error) {
	calls := windowCalls + windowCalls/50 // the last ones may not have ended
	if r.o.Quick {
		calls = quickCalls
	}
	ours, machine, err := r.stack.usage(ctx)
	if err != nil {
		return span{}, err
	}
	from := r.rec.now()
	for r.rec.count(from, r.rec.now()) < calls {
		if err := traffic.Pause(ctx, 100*time.Millisecond); err != nil {
			return span{}, err
		}
		if r.rec.now()-from > time.Minute {
			return span{}, errors.New("no latency window within a minute: the operations do not end")
		}
	}
	to := r.rec.now()
	oursThen, machineThen, err := r.stack.usage(ctx)
	others := float64(machineThen-machine-oursThen+ours) / float64(to-from)
	return span{from, to, max(0, others)}, err
}

// normal measures the window without fault, which is part of every row.
func (r *run) normal(ctx context.Context) (span, error) {
	_, before := r.line.sums()
	s, err := r.measure(ctx)
	if err == nil {
		if err := traffic.Pause(ctx, 2*sampleEvery); err != nil {
			return span{}, err
		}
		_, after := r.line.sums()
		r.forwarded = after - before
		w := r.rec.window(s.from, s.to)
		r.log("normal: %d calls, p50 %.1f ms, p99 %.1f ms", w.Calls, w.P50, w.P99)
	}
	return s, err
}

// show puts a window into the report, and the one without fault.
func (r *run) show(normal, after span) (n, a Window) {
	n, a = r.rec.window(normal.from, normal.to), r.rec.window(after.from, after.to)
	r.result.Normal, r.result.After = &n, &a
	r.result.Others = round(max(normal.others, after.others))
	r.figure("p99 after/normal", round(a.P99/n.P99))
	return n, a
}

// compare judges the p99 of a window against the one without fault.
func (r *run) compare(what string, normal, after span) {
	n, a := r.show(normal, after)
	r.timed(what, a.P99 <= ratio*n.P99, "%.1f ms, normal %.1f ms, ratio %.2f", a.P99, n.P99, a.P99/n.P99)
}

func round(x float64) float64 {
	out, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', 2, 64), 64) // it was just written
	return out
}
