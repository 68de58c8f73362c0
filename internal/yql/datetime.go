package yql

import (
	"math"
	"strconv"
)

const (
	secondsPerDay   = 86400
	microsPerSecond = 1_000_000
	microsPerDay    = secondsPerDay * microsPerSecond
)

// maxYear bounds the years that are read, well beyond every type's range, so
// that no count of microseconds overflows before the range is checked.
const maxYear = 200_000

// Dates are those of the proleptic Gregorian calendar, and years are numbered
// as ISO 8601 does, with a year 0. Both directions count in eras of 400 years
// that begin in March, so that the leap day comes last.
const (
	daysPerEra   = 146_097
	daysToEpoch  = 719_468 // from 0000-03-01 to 1970-01-01
	yearsPerEra  = 400
	daysPerMarch = 306 // from March to the end of the year
)

// civil returns the date that is days after 1970-01-01.
func civil(days int64) (year int64, month, day int) {
	days += daysToEpoch
	era := floorDiv(days, daysPerEra)
	inEra := days - era*daysPerEra
	yearOfEra := (inEra - inEra/1460 + inEra/36524 - inEra/146096) / 365
	inYear := inEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	fromMarch := (5*inYear + 2) / 153
	day = int(inYear - (153*fromMarch+2)/5 + 1)
	month = int(fromMarch) + 3
	year = yearOfEra + era*yearsPerEra
	if inYear >= daysPerMarch {
		month -= 12
		year++
	}
	return year, month, day
}

// daysOf is civil's inverse. ok is false if there is no such date.
func daysOf(year int64, month, day int) (days int64, ok bool) {
	if month < 1 || month > 12 || day < 1 {
		return 0, false
	}
	shifted, y := month-3, year
	if shifted < 0 {
		shifted += 12
		y--
	}
	era := floorDiv(y, yearsPerEra)
	yearOfEra := y - era*yearsPerEra
	inYear := int64((153*shifted+2)/5 + day - 1)
	days = era*daysPerEra + yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + inYear - daysToEpoch
	y, m, d := civil(days)
	return days, y == year && m == month && d == day
}

func floorDiv(n, by int64) int64 {
	q := n / by
	if n%by < 0 {
		q--
	}
	return q
}

// appendDate writes 2024-01-31. A year outside 0..9999 has a sign and at least
// six digits, which is how JavaScript writes and reads it.
func appendDate(dst []byte, days int64) []byte {
	year, month, day := civil(days)
	switch {
	case year < 0:
		dst = appendPadded(append(dst, '-'), uint64(-year), 6)
	case year > 9999:
		dst = appendPadded(append(dst, '+'), uint64(year), 6)
	default:
		dst = appendPadded(dst, uint64(year), 4)
	}
	dst = appendPadded(append(dst, '-'), uint64(month), 2)
	return appendPadded(append(dst, '-'), uint64(day), 2)
}

// appendDatetime writes 2024-01-31T10:00:00Z of seconds since the epoch, with
// micros as three or six digits of a fraction unless they are 0.
func appendDatetime(dst []byte, seconds, micros int64) []byte {
	days := floorDiv(seconds, secondsPerDay)
	inDay := uint64(seconds - days*secondsPerDay)
	dst = appendDate(dst, days)
	dst = appendPadded(append(dst, 'T'), inDay/3600, 2)
	dst = appendPadded(append(dst, ':'), inDay/60%60, 2)
	dst = appendPadded(append(dst, ':'), inDay%60, 2)
	switch {
	case micros == 0:
	case micros%1000 == 0:
		dst = appendPadded(append(dst, '.'), uint64(micros/1000), 3)
	default:
		dst = appendPadded(append(dst, '.'), uint64(micros), 6)
	}
	return append(dst, 'Z')
}

func appendTimestamp(dst []byte, micros int64) []byte {
	seconds := floorDiv(micros, microsPerSecond)
	return appendDatetime(dst, seconds, micros-seconds*microsPerSecond)
}

// appendInterval writes microseconds as P1DT2H3M4.5S; nothing is PT0S.
func appendInterval(dst []byte, micros int64) []byte {
	if micros == 0 {
		return append(dst, "PT0S"...)
	}
	v := uint64(micros)
	if micros < 0 {
		dst = append(dst, '-')
		v = -v
	}
	dst = append(dst, 'P')
	if days := v / microsPerDay; days > 0 {
		dst = append(strconv.AppendUint(dst, days, 10), 'D')
		v %= microsPerDay
	}
	if v == 0 {
		return dst
	}
	dst = append(dst, 'T')
	seconds, fraction := v/microsPerSecond, v%microsPerSecond
	if hours := seconds / 3600; hours > 0 {
		dst = append(strconv.AppendUint(dst, hours, 10), 'H')
	}
	if minutes := seconds / 60 % 60; minutes > 0 {
		dst = append(strconv.AppendUint(dst, minutes, 10), 'M')
	}
	if seconds %= 60; seconds == 0 && fraction == 0 {
		return dst
	}
	dst = strconv.AppendUint(dst, seconds, 10)
	if fraction > 0 {
		dst = appendPadded(append(dst, '.'), fraction, 6)
		for dst[len(dst)-1] == '0' {
			dst = dst[:len(dst)-1]
		}
	}
	return append(dst, 'S')
}

func appendPadded(dst []byte, v uint64, width int) []byte {
	var buf [20]byte
	i := len(buf)
	for v > 0 || width > 0 {
		i--
		buf[i] = byte('0' + v%10)
		v /= 10
		width--
	}
	return append(dst, buf[i:]...)
}

// parseDate reads a date and returns what follows it.
func parseDate(s string) (days int64, rest string, ok bool) {
	signed := s != "" && (s[0] == '+' || s[0] == '-')
	negative := signed && s[0] == '-'
	if signed {
		s = s[1:]
	}
	digits, s := cutDigits(s)
	if len(digits) < 4 || len(digits) > 6 || !signed && len(digits) > 4 {
		return 0, "", false
	}
	year, _ := strconv.ParseInt(digits, 10, 64)
	if year > maxYear {
		return 0, "", false
	}
	if negative {
		year = -year
	}
	month, s, ok1 := twoDigits(s, '-')
	day, s, ok2 := twoDigits(s, '-')
	if !ok1 || !ok2 {
		return 0, "", false
	}
	days, ok = daysOf(year, month, day)
	return days, s, ok
}

// twoDigits reads the separator and two digits.
func twoDigits(s string, separator byte) (v int, rest string, ok bool) {
	if len(s) < 3 || s[0] != separator || !isDigit(s[1]) || !isDigit(s[2]) {
		return 0, "", false
	}
	return int(s[1]-'0')*10 + int(s[2]-'0'), s[3:], true
}

// parseDatetime reads a date, a time and its distance from UTC: Z or +03:00.
// Fractions finer than microseconds must be zeros.
func parseDatetime(s string) (seconds, micros int64, ok bool) {
	days, s, ok := parseDate(s)
	if !ok || s == "" {
		return 0, 0, false
	}
	separator := s[0]
	if separator != 'T' && separator != 't' && separator != ' ' {
		return 0, 0, false
	}
	hour, s, ok1 := twoDigits(s, separator)
	minute, s, ok2 := twoDigits(s, ':')
	second, s, ok3 := twoDigits(s, ':')
	if !ok1 || !ok2 || !ok3 || hour > 23 || minute > 59 || second > 59 {
		return 0, 0, false
	}
	if s != "" && s[0] == '.' {
		if micros, s, ok = fractionOf(s[1:]); !ok {
			return 0, 0, false
		}
	}
	seconds = days*secondsPerDay + int64(hour*3600+minute*60+second)
	if s == "Z" || s == "z" {
		return seconds, micros, true
	}
	if s == "" || s[0] != '+' && s[0] != '-' {
		return 0, 0, false
	}
	hour, rest, ok1 := twoDigits(s, s[0])
	minute, rest, ok2 = twoDigits(rest, ':')
	if !ok1 || !ok2 || rest != "" || hour > 23 || minute > 59 {
		return 0, 0, false
	}
	offset := int64(hour*3600 + minute*60)
	if s[0] == '-' {
		offset = -offset
	}
	return seconds - offset, micros, true
}

// fractionOf reads the digits behind a point as microseconds.
func fractionOf(s string) (micros int64, rest string, ok bool) {
	digits, rest := cutDigits(s)
	if digits == "" {
		return 0, "", false
	}
	for i := range max(6, len(digits)) {
		d := int64(0)
		if i < len(digits) {
			d = int64(digits[i] - '0')
		}
		if i < 6 {
			micros = micros*10 + d
		} else if d != 0 {
			return 0, "", false
		}
	}
	return micros, rest, true
}

// intervalUnits are the parts of a duration in their order, with their length
// in microseconds. Years and months have no fixed length and are not known.
var intervalUnits = [...]struct {
	letter byte
	inTime bool
	micros uint64
}{
	{'W', false, 7 * microsPerDay},
	{'D', false, microsPerDay},
	{'H', true, 3600 * microsPerSecond},
	{'M', true, 60 * microsPerSecond},
	{'S', true, microsPerSecond},
}

// parseInterval reads an ISO 8601 duration such as P1DT2H3M4.5S or -PT1S.
func parseInterval(s string) (micros int64, ok bool) {
	negative := s != "" && s[0] == '-'
	if s != "" && (s[0] == '-' || s[0] == '+') {
		s = s[1:]
	}
	if s == "" || s[0] != 'P' {
		return 0, false
	}
	s = s[1:]
	var total uint64
	inTime, unit := false, 0
	for first := true; s != "" || first; first = false {
		if s != "" && s[0] == 'T' && !inTime {
			inTime, s = true, s[1:]
		}
		digits, rest := cutDigits(s)
		count, err := strconv.ParseUint(digits, 10, 64)
		var fraction int64
		fractional := rest != "" && rest[0] == '.'
		if fractional {
			if fraction, rest, ok = fractionOf(rest[1:]); !ok {
				return 0, false
			}
		}
		if err != nil || rest == "" {
			return 0, false
		}
		for unit < len(intervalUnits) && (intervalUnits[unit].letter != rest[0] || intervalUnits[unit].inTime != inTime) {
			unit++
		}
		if unit == len(intervalUnits) || fractional && rest[0] != 'S' {
			return 0, false
		}
		// A fraction always fits: what came before are whole minutes, and the
		// largest number of those leaves more than a second.
		size, room := intervalUnits[unit].micros, math.MaxInt64-total-uint64(fraction)
		if count > room/size {
			return 0, false
		}
		total += count*size + uint64(fraction)
		unit++
		s = rest[1:]
	}
	if negative {
		return -int64(total), true
	}
	return int64(total), true
}
