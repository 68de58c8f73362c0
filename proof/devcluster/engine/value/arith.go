package value

import (
	"math"
	"math/bits"
)

func floatArith(op byte, a, b float64) float64 {
	switch op {
	case '+':
		return a + b
	case '-':
		return a - b
	case '*':
		return a * b
	case '/':
		return a / b
	}
	return math.Mod(a, b)
}

// Arith returns a op b for numbers of one type t, where op is one of + - * / %.
// ok is false for a division of integers by zero. Integers wrap around.
func Arith(op byte, t *Type) func(a, b Value) (r Value, ok bool) {
	k := t.Kind
	switch {
	case IsFloat(k):
		return func(a, b Value) (Value, bool) { return roundTo(k, floatArith(op, a.Float(), b.Float())), true }
	case k == Decimal:
		return func(a, b Value) (Value, bool) { return DecimalArith(t, op, a, b), true }
	case IsSigned(k):
		return func(a, b Value) (Value, bool) { return signedArith(op, k, int64(a.Lo), int64(b.Lo)) }
	}
	return func(a, b Value) (Value, bool) { return unsignedArith(op, k, a.Lo, b.Lo) }
}

func signedArith(op byte, k Kind, a, b int64) (Value, bool) {
	var r int64
	switch {
	case op == '+':
		r = a + b
	case op == '-':
		r = a - b
	case op == '*':
		r = a * b
	case b == 0:
		return Value{}, false
	case b == -1: // the smallest number has no opposite: as YQL, no result
		if r = -a; op == '%' {
			r = 0
		} else if r == a && a != 0 || !InRange(k, r) {
			return Value{}, false
		}
	case op == '/':
		r = a / b
	default:
		r = a % b
	}
	shift := 64 - intSize[k]
	return Int(r << shift >> shift), true
}

func unsignedArith(op byte, k Kind, a, b uint64) (Value, bool) {
	var r uint64
	switch {
	case op == '+':
		r = a + b
	case op == '-':
		r = a - b
	case op == '*':
		r = a * b
	case b == 0:
		return Value{}, false
	case op == '/':
		r = a / b
	default:
		r = a % b
	}
	shift := 64 - intSize[k]
	return Uint(r << shift >> shift), true
}

// Bits returns a op b for unsigned integers of kind k, op one of & | ^, and of < (shift left),
// > (shift right).
func Bits(op byte, k Kind, a, b uint64) Value {
	switch op {
	case '&':
		a &= b
	case '|':
		a |= b
	case '^':
		a ^= b
	case '<':
		a <<= b
	default:
		a >>= b
	}
	shift := 64 - intSize[k]
	return Uint(a << shift >> shift)
}

// AddTime moves a time of kind k by an interval in microseconds; false if it leaves the range.
func AddTime(k Kind, v Value, us int64) (Value, bool) {
	unit := timeUnit[timeRank[k]%10]
	n, carry := addInt(int64(v.Lo)*unit, us)
	if carry {
		return Value{}, false
	}
	n, _ = floorDiv(n, unit)
	return Int(n), InRange(k, n)
}

func addInt(a, b int64) (int64, bool) {
	r := a + b
	return r, (a > 0) == (b > 0) && (r > 0) != (a > 0) && a != 0 && b != 0
}

// SubTimes returns the interval between two times of kind k, in microseconds.
func SubTimes(k Kind, a, b Value) Value {
	return Int((int64(a.Lo) - int64(b.Lo)) * timeUnit[timeRank[k]%10])
}

// MulInterval multiplies an interval by a number; false if it leaves the range of kind k.
func MulInterval(k Kind, us, by int64) (Value, bool) {
	neg := (us < 0) != (by < 0)
	hi, lo := bits.Mul64(absInt(us), absInt(by))
	if hi != 0 || lo > math.MaxInt64 {
		return Value{}, false
	}
	r := int64(lo)
	if neg {
		r = -r
	}
	return Int(r), InRange(k, r)
}

func absInt(i int64) uint64 {
	if i < 0 {
		return -uint64(i)
	}
	return uint64(i)
}

// Neg returns -v for a number of type t.
func Neg(t *Type, v Value) Value {
	switch {
	case IsFloat(t.Kind):
		return Real(-v.Float())
	case t.Kind == Decimal:
		return DecimalArith(t, '-', Value{}, v)
	case IsInterval(t.Kind):
		return Int(-int64(v.Lo))
	}
	r, _ := Arith('-', t)(Value{}, v)
	return r
}

// CompareNumbers orders numbers of two integer kinds exactly, whatever their signs.
func CompareNumbers(ka Kind, a Value, kb Kind, b Value) int {
	an, bn := IsSigned(ka) && int64(a.Lo) < 0, IsSigned(kb) && int64(b.Lo) < 0
	switch {
	case an && bn:
		return cmp(int64(a.Lo), int64(b.Lo))
	case an:
		return -1
	case bn:
		return 1
	}
	return cmp(a.Lo, b.Lo)
}
