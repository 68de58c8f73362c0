package lab

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Profile asks a sidecar (admin.pprof=on) for a profile: profile (CPU), allocs,
// heap, mutex, block. Those of the CPU take as long as d; of the others d is
// the time between two whose difference is returned, or 0 for all since the start.
func Profile(ctx context.Context, admin, kind string, d time.Duration) (*profile.Profile, []byte, error) {
	path := "/debug/pprof/" + kind
	if d > 0 {
		path += fmt.Sprintf("?seconds=%d", max(1, int(d.Round(time.Second).Seconds())))
	}
	data, err := stand.Get(ctx, admin, path)
	if err != nil {
		return nil, nil, fmt.Errorf("profile %s (is admin.pprof on?): %w", kind, err)
	}
	p, err := profile.ParseData(data)
	if err != nil {
		return nil, nil, fmt.Errorf("profile %s: %w", kind, err)
	}
	return p, data, nil
}

// Share is the part of a profile's samples, by their last value (time, bytes), in whose
// stacks there is a function whose name has one of the prefixes.
func Share(p *profile.Profile, prefixes ...string) float64 {
	var all, some int64
	for _, s := range p.Sample {
		value := s.Value[len(s.Value)-1]
		all += value
		if has(s, prefixes) {
			some += value
		}
	}
	if all == 0 {
		return 0
	}
	return float64(some) / float64(all)
}

func has(s *profile.Sample, prefixes []string) bool {
	for _, l := range s.Location {
		for _, line := range l.Line {
			for _, prefix := range prefixes {
				if line.Function != nil && strings.HasPrefix(line.Function.Name, prefix) {
					return true
				}
			}
		}
	}
	return false
}
