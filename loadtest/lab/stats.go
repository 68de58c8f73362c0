package lab

import (
	"math"
	"slices"
)

// Estimate is a median with what it lies between.
type Estimate struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`  // of the 95 % interval of the median; the least value with fewer than six
	High   float64 `json:"high"` // and its other end
	N      int     `json:"n"`
}

// estimate finds the median of values and the 95 % interval of it, by the
// binomial distribution: the median lies between the values of ranks n/2 -+
// 0.98*sqrt(n) of n, whatever their distribution. Fewer than six values give no
// such interval: it is all of them then.
func estimate(values []float64) Estimate {
	n := len(values)
	if n == 0 {
		return Estimate{}
	}
	all := slices.Sorted(slices.Values(values))
	off := 0.98 * math.Sqrt(float64(n))
	low, high := max(0, int(math.Floor(float64(n)/2-off))), min(n-1, int(math.Ceil(float64(n)/2+off))-1)
	if n < 6 {
		low, high = 0, n-1
	}
	middle := all[n/2]
	if n%2 == 0 {
		middle = (all[n/2-1] + all[n/2]) / 2
	}
	return Estimate{middle, all[low], all[high], n}
}

// decided tells that the interval lies on one side of a limit.
func (e Estimate) decided(limit float64) bool { return e.N >= 6 && (e.High <= limit || e.Low >= limit) }
