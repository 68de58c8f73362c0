package tracing

import (
	"bytes"
	"encoding/hex"

	"go.opentelemetry.io/otel/trace"
)

// The W3C header, and how long it is in version 00.
const (
	Header       = "traceparent"
	headerLength = 55
)

// Parse reads the value of Header without allocating. What it cannot read is no trace.
func Parse(value []byte) trace.SpanContext {
	if len(value) < headerLength || value[2] != '-' || value[35] != '-' || value[52] != '-' {
		return trace.SpanContext{}
	}
	var version, flags [1]byte
	var c trace.SpanContextConfig
	if !fromHex(version[:], value[:2]) || version[0] == 0xff || len(value) > headerLength && value[headerLength] != '-' ||
		!fromHex(c.TraceID[:], value[3:35]) || !fromHex(c.SpanID[:], value[36:52]) || !fromHex(flags[:], value[53:headerLength]) ||
		version[0] == 0 && (len(value) != headerLength || flags[0] > 3) || !c.TraceID.IsValid() || !c.SpanID.IsValid() {
		return trace.SpanContext{}
	}
	c.TraceFlags, c.Remote = trace.TraceFlags(flags[0])&(trace.FlagsSampled|trace.FlagsRandom), true
	return trace.NewSpanContext(c)
}

// fromHex reads lower case digits only, as W3C has them.
func fromHex(to, from []byte) bool {
	bad := byte(0)
	for i := range to {
		high, low := digits[from[2*i]], digits[from[2*i+1]]
		bad |= high | low
		to[i] = high<<4 | low
	}
	return bad < 16
}

// digits are the values of hexadecimal digits; of others 255.
var digits = func() (d [256]byte) {
	for i := range d {
		d[i] = byte(255)
		if at := bytes.IndexByte([]byte("0123456789abcdef"), byte(i)); at >= 0 {
			d[i] = byte(at)
		}
	}
	return d
}()

// Format writes the value of Header that names a span of a recorded call.
func Format(id trace.TraceID, span trace.SpanID) string {
	var b [headerLength]byte
	copy(b[:], "00-")
	hex.Encode(b[3:], id[:])
	b[35] = '-'
	hex.Encode(b[36:], span[:])
	copy(b[52:], "-01")
	return string(b[:])
}
