package engine

import (
	"math"
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// substring counts in bytes for String and in characters for Utf8.
func substring(c *compiler, call *syntax.Call, a []*expr) *expr {
	c.text(call.Pos, a[0])
	t := value.Bare(a[0].typ)
	nums := []*expr{constant(value.TypeUint64, value.Uint(0)), constant(value.TypeUint64, value.Uint(math.MaxInt32))}
	for i, x := range a[1:] {
		if k := value.Bare(x.typ).Kind; !value.IsInt(k) && k != value.Null {
			c.fail(call.Args[i+1].At(), "Expected an integer, but got: %s", x.typ)
		}
		if x.typ.Kind != value.Null {
			nums[i] = x
		}
	}
	out := t
	if a[0].typ.Kind == value.Optional {
		out = a[0].typ
	}
	return pure(out, append(a[:1:1], nums...), func(v []value.Value) (value.Value, error) {
		if v[0].Null > 0 {
			return v[0], nil
		}
		from, n := v[1].Lo, v[2].Lo
		if v[1].Null > 0 {
			from = 0
		}
		if v[2].Null > 0 {
			n = math.MaxInt32
		}
		s := v[0].S
		if t.Kind == value.Utf8 {
			r := []rune(s)
			return value.Text(string(part(r, from, n))), nil
		}
		return value.Text(string(part([]byte(s), from, n))), nil
	})
}

func part[T any](s []T, from, n uint64) []T {
	l := uint64(len(s))
	from = min(from, l)
	return s[from : from+min(n, l-from)]
}

func find(c *compiler, call *syntax.Call, a []*expr) *expr {
	c.text(call.Pos, a[0])
	c.text(call.Pos, a[1])
	return lift2(value.TypeUint32, a[0], a[1], true, func(x, y value.Value) (value.Value, bool) {
		i := strings.Index(x.S, y.S)
		return value.Uint(uint64(max(i, 0))), i >= 0
	})
}

func textTest(f func(a, b string) bool) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		c.text(call.Pos, a[0])
		c.text(call.Pos, a[1])
		return lift2(value.TypeBool, a[0], a[1], false, func(x, y value.Value) (value.Value, bool) { return value.Truth(f(x.S, y.S)), true })
	}
}

// textMap is a function from text to text; functions of Unicode need Utf8.
func textMap(t *value.Type, f func(string) string) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		c.text(call.Pos, a[0])
		if t.Kind == value.Utf8 && value.Bare(a[0].typ).Kind == value.String && a[0].konst == nil {
			c.fail(call.Pos, "%s needs Utf8, but got: %s", call.Name, a[0].typ)
		}
		return lift1(t, a[0], false, func(v value.Value) (value.Value, bool) { return value.Text(f(v.S)), true })
	}
}

func reverseBytes(s string) string {
	b := []byte(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}

func reverseRunes(s string) string {
	b := []rune(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}

func replaceAll(t *value.Type) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		out := t
		for _, x := range a {
			c.text(call.Pos, x)
			if x.typ.Kind == value.Optional {
				out = value.OptionalOf(t)
			}
		}
		return pure(out, a, func(v []value.Value) (value.Value, error) {
			if v[0].Null > 0 || v[1].Null > 0 || v[2].Null > 0 {
				return value.NullValue, nil
			}
			if (len(v[0].S)+1)*(len(v[2].S)+1) > maxValue {
				return v[0], tooLarge(call.Pos)
			}
			return value.Text(strings.ReplaceAll(v[0].S, v[1].S, v[2].S)), nil
		})
	}
}

func joinList(c *compiler, call *syntax.Call, a []*expr) *expr {
	lt := value.Bare(a[0].typ)
	if lt.Kind != value.List || value.Bare(lt.Elem).Kind != value.String && value.Bare(lt.Elem).Kind != value.Utf8 {
		c.fail(call.Pos, "Expected a list of texts, but got: %s", a[0].typ)
	}
	return lift2(value.Bare(lt.Elem), a[0], a[1], false, func(l, sep value.Value) (value.Value, bool) {
		var parts []string
		for _, it := range l.Items {
			if it.Null == 0 {
				parts = append(parts, it.S)
			}
		}
		return value.Text(strings.Join(parts, sep.S)), true
	})
}
