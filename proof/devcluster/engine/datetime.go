package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// makes compiles calls that make a function: DateTime::Format("%Y"). nil if this one does not.
func (c *compiler) makes(call *syntax.Call) applied {
	if !strings.EqualFold(call.Name, "DateTime::Format") {
		return nil
	}
	var lit *syntax.Literal
	ok := false
	if len(call.Args) == 1 {
		lit, ok = call.Args[0].(*syntax.Literal)
	}
	if !ok || lit.Type.Kind != value.String && lit.Type.Kind != value.Utf8 {
		c.fail(call.Pos, "%s takes a literal text", call.Name)
	}
	layout := lit.Value.S
	if _, err := formatTime(layout, time.Time{}); err != nil {
		c.fail(lit.Pos, "%v", err)
	}
	return func(pos syntax.Pos, args []*expr) *expr {
		if len(args) != 1 {
			c.fail(pos, "The function takes 1 argument, but got %d", len(args))
		}
		at := c.instant(pos, args[0])
		return lift1(value.TypeString, args[0], false, func(v value.Value) (value.Value, bool) {
			s, _ := formatTime(layout, at(v)) // the layout was tried
			return value.Text(s), true
		})
	}
}

// formatTime writes a time with the letters of strftime.
func formatTime(layout string, t time.Time) (string, error) {
	var b strings.Builder
	for i := 0; i < len(layout); i++ {
		if layout[i] != '%' {
			b.WriteByte(layout[i])
			continue
		}
		if i++; i == len(layout) {
			return "", fmt.Errorf("a format ends with %%")
		}
		switch layout[i] {
		case '%':
			b.WriteByte('%')
		case 'Y':
			b.WriteString(t.Format("2006"))
		case 'm':
			b.WriteString(t.Format("01"))
		case 'd':
			b.WriteString(t.Format("02"))
		case 'H':
			b.WriteString(t.Format("15"))
		case 'M':
			b.WriteString(t.Format("04"))
		case 'S':
			b.WriteString(t.Format("05"))
			if us := t.Nanosecond() / 1000; us != 0 {
				fmt.Fprintf(&b, ".%06d", us)
			}
		case 'b':
			b.WriteString(t.Format("Jan"))
		case 'B':
			b.WriteString(t.Format("January"))
		case 'z':
			b.WriteString("+0000")
		case 'Z':
			b.WriteString("GMT")
		default:
			return "", fmt.Errorf("%%%c in a format is outside of the supported subset of YQL", layout[i])
		}
	}
	return b.String(), nil
}

// instant returns how a value of the expression's type, a date or a time, is a time.
func (c *compiler) instant(pos syntax.Pos, x *expr) func(value.Value) time.Time {
	t := value.Bare(x.typ)
	if !value.IsTime(t.Kind) {
		c.fail(pos, "Expected a date or a time, but got: %s", x.typ)
	}
	conv, ok := value.Convert(t, value.Primitive(value.Timestamp64))
	if !ok {
		c.fail(pos, "Expected a date or a time, but got: %s", x.typ)
	}
	return func(v value.Value) time.Time { return time.UnixMicro(int64(conv(v).Lo)).UTC() }
}

// timePart is a function from a time to a number of it.
func timePart(kind value.Kind, f func(time.Time) int) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		at := c.instant(call.Pos, a[0])
		return lift1(value.Primitive(kind), a[0], false, func(v value.Value) (value.Value, bool) { return value.Int(int64(f(at(v)))), true })
	}
}

// timeTo is the time since the epoch, or the length of an interval, in units of so many microseconds.
func timeTo(unit int64, ofTime, ofInterval value.Kind) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		if t := value.Bare(a[0].typ); value.IsInterval(t.Kind) {
			return lift1(value.Primitive(ofInterval), a[0], false, func(v value.Value) (value.Value, bool) { return value.Int(int64(v.Lo) / unit), true })
		}
		at := c.instant(call.Pos, a[0])
		return lift1(value.Primitive(ofTime), a[0], false, func(v value.Value) (value.Value, bool) { return value.Int(at(v).UnixMicro() / unit), true })
	}
}

// timeFrom makes a time or an interval of a number of units; NULL if it is out of range.
func timeFrom(to, arg value.Kind, unit int64) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		t := value.Primitive(arg)
		x := a[0]
		if x.konst != nil && x.typ.Kind != value.Optional {
			if v, ok := literalAs(x.typ, *x.konst, t); ok {
				x = constant(t, v)
			}
		}
		if !value.IsInt(value.Bare(x.typ).Kind) || !value.Lossless(value.Bare(x.typ), t) {
			c.fail(call.Pos, "%s needs %s, but got: %s", call.Name, t, a[0].typ)
		}
		return lift1(value.Primitive(to), x, true, func(v value.Value) (value.Value, bool) {
			r, ok := value.MulInterval(value.Interval64, int64(v.Lo), unit)
			return r, ok && value.InRange(to, int64(r.Lo))
		})
	}
}

// dateTimeFunctions are the functions of the module DateTime by name in lower case.
func dateTimeFunctions() map[string]function {
	const second = 1_000_000
	out := map[string]function{}
	for name, f := range map[string]builder{
		"toseconds":                timeTo(second, value.Uint32, value.Int32),
		"tomilliseconds":           timeTo(1000, value.Uint64, value.Int64),
		"tomicroseconds":           timeTo(1, value.Uint64, value.Int64),
		"fromseconds":              timeFrom(value.Timestamp, value.Uint32, second),
		"frommilliseconds":         timeFrom(value.Timestamp, value.Uint64, 1000),
		"frommicroseconds":         timeFrom(value.Timestamp, value.Uint64, 1),
		"intervalfromdays":         timeFrom(value.Interval, value.Int16, 86400*second),
		"intervalfromhours":        timeFrom(value.Interval, value.Int32, 3600*second),
		"intervalfromminutes":      timeFrom(value.Interval, value.Int32, 60*second),
		"intervalfromseconds":      timeFrom(value.Interval, value.Int32, second),
		"intervalfrommilliseconds": timeFrom(value.Interval, value.Int64, 1000),
		"intervalfrommicroseconds": timeFrom(value.Interval, value.Int64, 1),
		"getyear":                  timePart(value.Uint16, time.Time.Year),
		"getmonth":                 timePart(value.Uint8, func(t time.Time) int { return int(t.Month()) }),
		"getdayofmonth":            timePart(value.Uint8, time.Time.Day),
		"gethour":                  timePart(value.Uint8, time.Time.Hour),
		"getminute":                timePart(value.Uint8, time.Time.Minute),
		"getsecond":                timePart(value.Uint8, time.Time.Second),
	} {
		out["datetime::"+name] = function{1, 1, f}
	}
	return out
}
