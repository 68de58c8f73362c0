package lab

import (
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// weights is the index of the values of a profile's samples that count: CPU time, waiting time, allocated bytes.
func weights(p *profile.Profile) int {
	for i, t := range p.SampleType {
		if t.Type == "alloc_space" {
			return i
		}
	}
	return len(p.SampleType) - 1
}

// Total is the sum of a profile's values: nanoseconds, or allocated bytes.
func Total(p *profile.Profile) (sum int64) {
	i := weights(p)
	for _, s := range p.Sample {
		sum += s.Value[i]
	}
	return sum
}

// stack returns the names of a sample's functions, the outermost first.
func stack(s *profile.Sample) (names []string) {
	for _, l := range s.Location {
		for _, line := range l.Line {
			if line.Function != nil {
				names = append(names, line.Function.Name)
			}
		}
	}
	slices.Reverse(names)
	return names
}

// Shares returns the part of a profile's values that each function has itself, without
// those that it calls; or another name, if by makes one of the stack, the outermost function first.
func Shares(p *profile.Profile, by func(stack []string) string) map[string]float64 {
	all, i, sum := map[string]float64{}, weights(p), float64(Total(p))
	for _, s := range p.Sample {
		if names := stack(s); len(names) > 0 && sum > 0 {
			all[by(names)] += float64(s.Value[i]) / sum
		}
	}
	return all
}

// Leaf is the function that was running.
func Leaf(stack []string) string { return stack[len(stack)-1] }

// Package is the package of the function that was running.
func Package(stack []string) string { return packageOf(Leaf(stack)) }

// Waiter is the function that waits or lets go, behind those of the runtime that do it for it.
func Waiter(stack []string) string {
	for i := len(stack) - 1; i > 0; i-- {
		switch packageOf(stack[i]) {
		case "runtime", "sync", "internal/sync", "internal/poll", "sync/atomic":
		default:
			return stack[i]
		}
	}
	return stack[0]
}

// packageOf cuts the package out of a function's name: a/b.(*T).f is of a/b.
func packageOf(name string) string {
	slash := strings.LastIndexByte(strings.SplitN(name, "[", 2)[0], '/') + 1
	if dot := strings.IndexByte(name[slash:], '.'); dot >= 0 {
		return name[:slash+dot]
	}
	return name
}
