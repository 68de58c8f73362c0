package config

import (
	"encoding"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strconv"
	"strings"
	"time"
)

var (
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	durationType = reflect.TypeFor[time.Duration]()
)

func isText(t reflect.Type) bool { return reflect.PointerTo(t).Implements(textType) }

// settable reports whether a setting may have the type: text, bool, numbers,
// durations, anything that parses itself, and lists of these.
func settable(t reflect.Type) bool {
	if isText(t) {
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	case reflect.Slice:
		return t.Elem().Kind() != reflect.Slice && settable(t.Elem())
	default:
		return false
	}
}

// parse sets the value. items are the elements of a list if isList, and
// otherwise one text, which for a list means its elements with commas between
// (see split).
func (set *setting) parse(items []string, isList bool) error {
	t := set.value.Type()
	if t.Kind() != reflect.Slice || isText(t) {
		if isList {
			return fmt.Errorf("%s takes one value, not a list", set.name)
		}
		return set.parseOne(set.value, items[0])
	}
	if !isList {
		items = split(items[0])
		if len(items) == 1 && strings.TrimSpace(items[0]) == "" {
			items = nil
		}
	}
	list := reflect.MakeSlice(t, len(items), len(items))
	for i, item := range items {
		if err := set.parseOne(list.Index(i), strings.TrimSpace(item)); err != nil {
			return err
		}
	}
	set.value.Set(list)
	return nil
}

// split cuts a list at its commas, but not at those between brackets: they
// belong to an element, such as Decimal(22,9).
func split(text string) (items []string) {
	depth, begin := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth <= 0 {
				items = append(items, text[begin:i])
				begin = i + 1
			}
		}
	}
	return append(items, text[begin:])
}

// parseOne sets v, which is the value or an element of it, if text fits.
func (set *setting) parseOne(v reflect.Value, text string) error {
	next := reflect.New(v.Type()).Elem()
	if err := parseInto(next, text); err != nil {
		return fmt.Errorf("%s = %s; %w", set.name, set.shown(strconv.Quote(shorten(text))), err)
	}
	v.Set(next)
	return nil
}

func shorten(text string) string {
	if len(text) > 100 {
		return strings.ToValidUTF8(text[:100], "") + "..."
	}
	return text
}

func parseInto(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	if v.Type() == durationType {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("want a duration such as 500ms, 30s or 5m")
		}
		v.SetInt(int64(d))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, ok := map[string]bool{"on": true, "true": true, "yes": true, "off": false, "false": false, "no": false}[strings.ToLower(text)]
		if !ok {
			return fmt.Errorf("want on or off")
		}
		v.SetBool(b)
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(text, v.Type().Bits())
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("want a number")
		}
		v.SetFloat(f)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := parseSize(text)
		if err != nil {
			return err
		}
		if !n.IsInt64() || v.OverflowInt(n.Int64()) {
			return fmt.Errorf("out of range")
		}
		v.SetInt(n.Int64())
	default: // unsigned, by settable
		n, err := parseSize(text)
		if err != nil {
			return err
		}
		if !n.IsUint64() || v.OverflowUint(n.Uint64()) {
			return fmt.Errorf("out of range")
		}
		v.SetUint(n.Uint64())
	}
	return nil
}

// units of sizes; a number without one counts as it is.
var units = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1},
}

// cutUnit parts the digits of a size from its unit.
func cutUnit(text string) (digits string, factor uint64) {
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			return strings.TrimSpace(rest), uint64(u.factor)
		}
	}
	return text, 1
}

// ParseSize reads a number that may have a unit of bytes: 50, 8MiB, "1 kB". It is
// what sizes in requests, in tables of key-value and in quotas are read with.
func ParseSize(text string) (n uint64, ok bool) {
	digits, factor := cutUnit(text)
	n, err := strconv.ParseUint(strings.TrimPrefix(digits, "+"), 10, 64)
	if err != nil || n > math.MaxUint64/factor {
		return 0, false
	}
	return n * factor, true
}

// parseSize reads an integer in decimal, with a unit if it counts bytes. Unlike
// ParseSize it takes negative ones, and tells out of range from what is no number.
func parseSize(text string) (*big.Int, error) {
	digits, factor := cutUnit(text)
	n, ok := new(big.Int), len(digits) <= 30
	if ok {
		_, ok = n.SetString(digits, 10)
	}
	if !ok || strings.Contains(digits, "_") {
		return nil, fmt.Errorf("want an integer, such as 50 or 8MiB")
	}
	return n.Mul(n, new(big.Int).SetUint64(factor)), nil
}

// text is the value as it could be set.
func (set *setting) text() string {
	v := set.value
	if v.Kind() != reflect.Slice || isText(v.Type()) {
		return textOf(v)
	}
	items := make([]string, v.Len())
	for i := range items {
		items[i] = textOf(v.Index(i))
	}
	return strings.Join(items, ",")
}

func textOf(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		if err != nil {
			return "(" + err.Error() + ")"
		}
		return string(text)
	}
	if v.Type() == durationType {
		return durationText(time.Duration(v.Int()))
	}
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return "on"
		}
		return "off"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return sizeText(strconv.FormatInt(v.Int(), 10), v.Int())
	default:
		return fmt.Sprint(v.Interface()) // a secret's String hides it
	}
}

// durationText leaves out the zeros at the end: 5m, not 5m0s.
func durationText(d time.Duration) string {
	text := d.String()
	for _, tail := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, tail) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// sizeText writes whole KiB, MiB and GiB, where numbers are that large.
func sizeText(text string, n int64) string {
	for _, u := range []int{2, 1, 0} {
		if factor := units[u].factor; n >= factor && n%factor == 0 {
			return strconv.FormatInt(n/factor, 10) + units[u].suffix
		}
	}
	return text
}
