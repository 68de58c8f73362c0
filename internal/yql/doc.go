// Package yql is what the plain API understands of YQL without asking a server:
// the words of a statement, the parameters that it declares, the names of
// types, and the forms in which values come and go.
//
// One type, three forms of a value: the wire's (Ydb.Value), the gRPC API's
// (sidecarv1.Value) and JSON. They agree: whatever one form can say of a value
// of a type, the others say as well, and no way there and back loses anything.
// docs/reference/types.md is the contract, type by type.
//
// It is pure: no I/O, no state, no clock. Everything here is total and bounded:
// no input panics, the time is linear in the input, types nest at most
// MaxTypeDepth deep and one call makes at most MaxValues values. Types and
// values that it returns may share parts and must not be changed.
//
// An *Error names the place inside the value. It quotes the offending part, so
// it goes to the caller and never into a log.
package yql

// MaxTypeDepth bounds the nesting of a type, and so of its values: Int64 is 1
// deep, List<Int64> is 2.
const MaxTypeDepth = 64

// MaxValues bounds how many values, at all depths together, one call makes of
// its input; a null that fills in a missing member counts.
const MaxValues = 1 << 20
