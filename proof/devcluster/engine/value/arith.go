package value

import "math"

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
	case IsSigned(k):
		return func(a, b Value) (Value, bool) { return intArith(op, k, int64(a.Lo), int64(b.Lo)) }
	}
	return func(a, b Value) (Value, bool) { return intArith(op, k, a.Lo, b.Lo) }
}

// intArith computes in 64 bits and cuts the result to the width of the kind.
func intArith[T int64 | uint64](op byte, k Kind, a, b T) (Value, bool) {
	var r T
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
		// the smallest number has no opposite: as in YQL, no result
		if IsSigned(k) && b+1 == 0 && (r == a && a != 0 || !InRange(k, int64(r))) {
			return Value{}, false
		}
	default:
		r = a % b
	}
	shift := 64 - intSize[k]
	return Uint(uint64(r << shift >> shift)), true
}

// Neg returns -v for a number of type t.
func Neg(t *Type, v Value) Value {
	if IsFloat(t.Kind) {
		return Real(-v.Float())
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
