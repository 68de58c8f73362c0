package value

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Format writes a primitive or Decimal value as CAST(... AS Utf8) does.
func Format(t *Type, v Value) string {
	switch t.Kind {
	case Bool:
		return strconv.FormatBool(v.Lo != 0)
	case Float:
		return formatFloat(v.Float(), 32)
	case Double:
		return formatFloat(v.Float(), 64)
	case Date, Date32:
		return dateText(int64(v.Lo))
	case Datetime, Datetime64:
		return secondsText(int64(v.Lo)) + "Z"
	case Timestamp, Timestamp64:
		return microsText(int64(v.Lo)) + "Z"
	case Interval, Interval64:
		return intervalText(int64(v.Lo))
	case Uuid:
		return uuidText(v)
	case Decimal:
		return formatDecimal(t, v)
	}
	switch {
	case IsText(t.Kind):
		return v.S
	case signed(t.Kind):
		return strconv.FormatInt(int64(v.Lo), 10)
	}
	return strconv.FormatUint(v.Lo, 10)
}

func formatFloat(f float64, size int) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	return strconv.FormatFloat(f, 'g', -1, size)
}

func floorDiv(a, b int64) (q, r int64) {
	q, r = a/b, a%b
	if r < 0 {
		q, r = q-1, r+b
	}
	return q, r
}

func dateText(days int64) string {
	y, m, d := time.Unix(days*86400, 0).UTC().Date()
	if y < 1 { // there is no year 0 in the text form
		return fmt.Sprintf("%d-%02d-%02d", y-1, m, d)
	}
	return fmt.Sprintf("%04d-%02d-%02d", y, m, d)
}

func secondsText(sec int64) string {
	days, s := floorDiv(sec, 86400)
	return fmt.Sprintf("%sT%02d:%02d:%02d", dateText(days), s/3600, s/60%60, s%60)
}

func microsText(us int64) string {
	sec, frac := floorDiv(us, 1_000_000)
	if frac == 0 {
		return secondsText(sec)
	}
	return fmt.Sprintf("%s.%06d", secondsText(sec), frac)
}

func intervalText(us int64) string {
	sign, u := "", uint64(us)
	if us < 0 {
		sign, u = "-", uint64(-us)
	}
	var b strings.Builder
	b.WriteString(sign + "P")
	days, u := u/86_400_000_000, u%86_400_000_000
	if days > 0 {
		fmt.Fprintf(&b, "%dD", days)
	}
	if u == 0 {
		if days == 0 {
			return "PT0S"
		}
		return b.String()
	}
	b.WriteByte('T')
	sec, frac := u/1_000_000, u%1_000_000
	if h := sec / 3600; h > 0 {
		fmt.Fprintf(&b, "%dH", h)
	}
	if m := sec / 60 % 60; m > 0 {
		fmt.Fprintf(&b, "%dM", m)
	}
	switch s := sec % 60; {
	case frac > 0:
		fmt.Fprintf(&b, "%d.%06dS", s, frac)
	case s > 0:
		fmt.Fprintf(&b, "%dS", s)
	}
	return b.String()
}

// uuidBytes returns the 16 bytes of a Uuid as they lie in memory.
func uuidBytes(v Value) (b [16]byte) {
	binary.LittleEndian.PutUint64(b[:8], v.Lo)
	binary.LittleEndian.PutUint64(b[8:], v.Hi)
	return b
}

func uuidText(v Value) string {
	b := uuidBytes(v) // the first three groups are little-endian
	return fmt.Sprintf("%x-%x-%x-%x-%x",
		[]byte{b[3], b[2], b[1], b[0]}, []byte{b[5], b[4]}, []byte{b[7], b[6]}, b[8:10], b[10:])
}

func parseUUID(s string) (Value, error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(raw) != 16 || len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return Value{}, errors.New("not a UUID")
	}
	return UUIDFromBytes([16]byte(raw)), nil
}

// UUIDFromBytes returns the Uuid of 16 bytes in the order of its text form.
func UUIDFromBytes(b [16]byte) Value {
	m := [16]byte{b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]}
	return Value{Lo: binary.LittleEndian.Uint64(m[:8]), Hi: binary.LittleEndian.Uint64(m[8:])}
}

// Parse reads a text as a value of a primitive or Decimal type: literals such as
// Date("2020-01-01"), and CAST from texts.
func Parse(t *Type, s string) (Value, error) {
	k := t.Kind
	switch {
	case k == String || k == Yson:
		return Text(s), nil
	case k == Utf8 && !utf8.ValidString(s):
		return Value{}, errors.New("not UTF-8")
	case IsText(k):
		return checkedText(k, s)
	case IsSigned(k):
		i, err := strconv.ParseInt(s, 10, 64)
		if err != nil || !InRange(k, i) {
			return Value{}, fmt.Errorf("not a number of type %s", t)
		}
		return Int(i), nil
	case IsInt(k):
		u, err := strconv.ParseUint(s, 10, 64)
		if err != nil || k != Uint64 && (u > math.MaxInt64 || !InRange(k, int64(u))) {
			return Value{}, fmt.Errorf("not a number of type %s", t)
		}
		return Uint(u), nil
	case IsTime(k):
		return parseTime(k, s)
	case IsInterval(k):
		return parseInterval(k, s)
	}
	switch k {
	case Bool:
		switch strings.ToLower(s) {
		case "true":
			return Truth(true), nil
		case "false":
			return Truth(false), nil
		}
		return Value{}, errors.New("not true or false")
	case Float:
		f, err := strconv.ParseFloat(s, 32)
		return Real(f), numberError(err)
	case Double:
		f, err := strconv.ParseFloat(s, 64)
		return Real(f), numberError(err)
	case Decimal:
		return parseDecimal(t, s)
	case Uuid:
		return parseUUID(s)
	}
	return Value{}, fmt.Errorf("%s has no text form", t)
}

func numberError(err error) error {
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return errors.New("not a number")
	}
	return nil
}

func parseTime(k Kind, s string) (Value, error) {
	bad := fmt.Errorf("not a text of type %s", primitives[k].name)
	day := k == Date || k == Date32
	var at time.Time
	var err error
	switch {
	case day:
		at, err = time.Parse("2006-01-02", s)
	default:
		at, err = time.Parse("2006-01-02T15:04:05.999999999Z07:00", s)
	}
	if err != nil {
		return Value{}, bad
	}
	n := at.Unix()
	switch k {
	case Date, Date32:
		n, _ = floorDiv(n, 86400)
	case Datetime, Datetime64:
		if at.Nanosecond() != 0 {
			return Value{}, bad
		}
	default:
		n = at.UnixMicro()
	}
	if !InRange(k, n) {
		return Value{}, fmt.Errorf("out of the range of %s", primitives[k].name)
	}
	return Int(n), nil
}

// parseInterval reads ISO 8601 durations of weeks, days, hours, minutes and seconds.
func parseInterval(k Kind, s string) (Value, error) {
	bad := errors.New("not an ISO 8601 interval")
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	if len(s) < 3 || s[0] != 'P' {
		return Value{}, bad
	}
	s = s[1:]
	var total float64
	var micros int64
	units := map[byte]int64{'W': 7 * 86400, 'D': 86400}
	for s != "" {
		if s[0] == 'T' {
			units, s = map[byte]int64{'H': 3600, 'M': 60, 'S': 1}, s[1:]
			continue
		}
		i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if i <= 0 || units[s[i]] == 0 {
			return Value{}, bad
		}
		whole, frac, dot := strings.Cut(s[:i], ".")
		n, err := strconv.ParseInt(whole, 10, 40)
		if err != nil || dot && (s[i] != 'S' || len(frac) > 6 || frac == "") {
			return Value{}, bad
		}
		total += float64(n) * float64(units[s[i]])
		if total > 2e13 {
			return Value{}, errors.New("interval out of range")
		}
		micros += n * units[s[i]] * 1_000_000
		if dot {
			f, err := strconv.ParseInt((frac + "000000")[:6], 10, 64)
			if err != nil {
				return Value{}, bad
			}
			micros += f
		}
		delete(units, s[i])
		s = s[i+1:]
	}
	if neg {
		micros = -micros
	}
	if !InRange(k, micros) {
		return Value{}, errors.New("interval out of range")
	}
	return Int(micros), nil
}

var tzLayouts = map[Kind]string{TzDate: "2006-01-02", TzDatetime: "2006-01-02T15:04:05", TzTimestamp: "2006-01-02T15:04:05.999999"}

// checkTz checks "<local time>,<zone>". Zones are not looked up: the name is kept.
func checkTz(k Kind, s string) error {
	_, _, err := splitTz(k, s)
	return err
}

func splitTz(k Kind, s string) (time.Time, string, error) {
	local, zone, ok := strings.Cut(s, ",")
	if !ok || zone == "" || len(zone) > 64 {
		return time.Time{}, "", fmt.Errorf("%s needs the form <local time>,<zone>", primitives[k].name)
	}
	at, err := time.Parse(tzLayouts[k], local)
	if err != nil {
		return time.Time{}, "", fmt.Errorf("not a text of type %s", primitives[k].name)
	}
	return at, zone, nil
}
