package tracing

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// Sampler decides when a call begins. The zero one picks none.
type Sampler struct {
	byParent bool   // a caller's own decision counts
	bound    uint64 // of the trace ids that are picked, as 63 bits; all: 1<<63
}

// Ratio picks as the caller's trace says, and that share of the calls without one.
func Ratio(share float64) Sampler { return Sampler{true, uint64(share * (1 << 63))} }

// ParseSampler reads OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG; "" is fallback.
func ParseSampler(name, argument string, fallback Sampler) (Sampler, error) {
	kind, byParent := strings.CutPrefix(name, "parentbased_")
	switch kind {
	case "":
		if !byParent {
			return fallback, nil
		}
	case "always_on":
		return Sampler{byParent, 1 << 63}, nil
	case "always_off":
		return Sampler{byParent, 0}, nil
	case "traceidratio":
		share := 1.0
		if argument != "" {
			var err error
			if share, err = strconv.ParseFloat(argument, 64); err != nil || !(share >= 0 && share <= 1) {
				return Sampler{}, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG = %.40q; want a number from 0 to 1", argument)
			}
		}
		s := Ratio(share)
		s.byParent = byParent
		return s, nil
	}
	return Sampler{}, fmt.Errorf(
		"OTEL_TRACES_SAMPLER = %.40q; want always_on, always_off, traceidratio, or one of these after parentbased_",
		name,
	)
}

// Sample decides about a call of that trace; parent is the caller's span, if that is valid.
func (s Sampler) Sample(parent trace.SpanContext, id trace.TraceID) bool {
	if s.byParent && parent.IsValid() {
		return parent.IsSampled()
	}
	// As OpenTelemetry's own, so that all who see the trace pick the same ones.
	return binary.BigEndian.Uint64(id[8:])>>1 < s.bound
}
