package sim

import (
	"fmt"
	"math"
	"time"
)

// Verdict is one judgement on a course.
type Verdict struct {
	What string
	Got  float64
	Want float64
	Most bool // Want is the most that is good, else the least
}

// OK reports whether it is good.
func (v Verdict) OK() bool { return v.Got >= v.Want != v.Most || v.Got == v.Want }

func (v Verdict) String() string {
	sign := "at least"
	if v.Most {
		sign = "at most"
	}
	return fmt.Sprintf("%s: %.3g; want %s %.3g", v.What, v.Got, sign, v.Want)
}

// Steps of a course, in seconds.
const (
	startOver  = 5 // sidecars start within so long
	settled    = 75
	joined     = 93  // a tenth more sidecars
	nodesGone  = 153 // a third of the nodes
	nodesBack  = 213
	halfIdle   = 243 // half of the sidecars want nothing
	halfBack   = 273
	courseEnds = 336
)

// Course plays what is judged: sidecars that have more callers than the cluster
// can serve, except some that have two; one in ten comes later; a third of the nodes goes and
// comes back; half of the sidecars become idle and come back.
//
// Long: it is a script in the order of time, and each verdict is about the seconds that have just been played.
func Course(c Config) (*World, []Verdict) {
	w := New(c)
	early := c.Sidecars * 9 / 10
	until := func(second int) { w.Run(time.Duration(second)*time.Second - w.Now()) }
	var all []Verdict
	least := func(what string, got, want float64) { all = append(all, Verdict{what, got, want, false}) }
	most := func(what string, got, want float64) { all = append(all, Verdict{what, got, want, true}) }
	alone := c.Service.Seconds()

	for i := range early {
		w.Run(time.Duration(i+1)*startOver*time.Second/time.Duration(early) - w.Now())
		if i%10 == 9 {
			w.Want(i, 2)
		} else {
			w.Want(i, c.Max)
		}
	}
	// Every tenth has two callers only.
	isHungry := func(i int) bool { return i >= early || i%10 != 9 }
	converged := math.Inf(1)
	for from := 15; from < settled+15; from += 15 {
		until(from)
		w.Count()
		until(from + 15)
		fair := w.fairness(0, early, isHungry)
		if fair < 0.8 {
			converged = math.Inf(1)
		} else if math.IsInf(converged, 1) {
			converged = float64(from)
		}
		if from == settled {
			least("fairness from 75 s to 90 s, among those that want more than there is", fair, 0.8)
		}
	}
	most("seconds until it stays at 0.8 or more", converged, settled)
	until(joined)
	least("part of the capacity that is used, from 75 s to 93 s", w.goodput(settled, joined), 0.9)
	most("latency there, times that of a call alone", w.latency(settled, joined)/alone, 2)
	most("part of the calls that is refused there", w.refused(settled, joined), 0.01)
	most("swing of the sum of the limits there, outside marks", w.swing(settled, joined), 0.15)

	for i := early; i < c.Sidecars; i++ {
		w.Want(i, c.Max)
	}
	until(joined + 30)
	w.Count()
	until(nodesGone)
	least("fairness with a tenth more that come at 93 s, from 123 s to 153 s", w.fairness(0, c.Sidecars, isHungry), 0.8)
	most("worst second of latency when they come, times that of a call alone", w.worst(joined, joined+30)/alone, 4)

	w.Kill(c.Nodes / 3)
	until(nodesBack - 30)
	w.Count()
	until(nodesBack)
	least("part of the capacity that is used from the 15th second on after a third of the nodes went",
		w.goodput(nodesGone+15, nodesBack), 0.9)
	most("latency there, times that of a call alone", w.latency(nodesGone+15, nodesBack)/alone, 2.25)
	least("fairness there, in the second half", w.fairness(0, c.Sidecars, isHungry), 0.8)
	most("swing of the sum of the limits there, outside marks", w.swing(nodesGone+30, nodesBack), 0.15)
	least("least sum of the limits after the step, of what it came to", w.dip(nodesGone, nodesBack), 0.8)

	w.Revive()
	until(halfIdle)
	least("part of the capacity that is used from the 15th second on after they are back", w.goodput(nodesBack+15, halfIdle), 0.9)
	most("swing of the sum of the limits there, outside marks", w.swing(nodesBack+20, halfIdle), 0.15)

	for i := 0; i < c.Sidecars; i += 2 {
		w.Want(i, 0)
	}
	until(halfBack)
	least("part of the capacity that is used from the 15th second on after half have become idle", w.goodput(halfIdle+15, halfBack), 0.9)
	for i := 0; i < c.Sidecars; i += 2 {
		if isHungry(i) {
			w.Want(i, c.Max)
		} else {
			w.Want(i, 2)
		}
	}
	until(courseEnds - 30)
	w.Count()
	until(courseEnds)
	most("worst second of latency when they want again, times that of a call alone", w.worst(halfBack, halfBack+15)/alone, 4)
	least("fairness after that, from the 30th second on", w.fairness(0, c.Sidecars, isHungry), 0.8)
	least("part of the capacity that is used there", w.goodput(courseEnds-30, courseEnds), 0.9)
	most("part of all calls that is refused", w.refused(0, courseEnds), 0.01)
	return w, all
}

// mean is that of a figure over seconds.
func (w *World) mean(from, to int, of func(*Second) float64) (sum float64) {
	for i := from; i < to; i++ {
		sum += of(&w.Seconds[i])
	}
	return sum / float64(to-from)
}

func (w *World) goodput(from, to int) float64 {
	return w.mean(from, to, func(s *Second) float64 { return float64(s.Done) / float64(s.Capacity) })
}

func (w *World) latency(from, to int) float64 {
	return w.mean(from, to, func(s *Second) float64 { return s.Latency })
}

func (w *World) refused(from, to int) float64 {
	done := w.mean(from, to, func(s *Second) float64 { return float64(s.Done) })
	no := w.mean(from, to, func(s *Second) float64 { return float64(s.Refused) })
	return no / max(done+no, 1)
}

func (w *World) worst(from, to int) (most float64) {
	for i := from; i < to; i++ {
		most = max(most, w.Seconds[i].Latency)
	}
	return most
}

// swing is the range of the sum of the limits, in parts of its mean.
func (w *World) swing(from, to int) float64 {
	least, most := math.Inf(1), 0.0
	for i := from; i < to; i++ {
		least, most = min(least, w.Seconds[i].Limit), max(most, w.Seconds[i].Limit)
	}
	return (most - least) / w.mean(from, to, func(s *Second) float64 { return s.Limit })
}

// dip is the least sum of the limits, in parts of what it is in the last ten seconds.
func (w *World) dip(from, to int) float64 {
	least := math.Inf(1)
	for i := from; i < to; i++ {
		least = min(least, w.Seconds[i].Limit)
	}
	return least / w.mean(to-10, to, func(s *Second) float64 { return s.Limit })
}

// fairness is the least of what the sidecars that are counted have done since Count, in
// parts of the most.
func (w *World) fairness(first, last int, counted func(int) bool) float64 {
	least, most := int64(math.MaxInt64), int64(1)
	for i := first; i < last; i++ {
		if counted(i) {
			n := w.sidecars[i].Done - w.sidecars[i].doneThen
			least, most = min(least, n), max(most, n)
		}
	}
	return float64(least) / float64(most)
}
