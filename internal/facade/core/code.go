package core

import (
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
)

// Code is one row of the error map: a stable name, what it is over either API,
// and what the caller can do about it. docs/api.md shows the same table; a test
// compares them.
type Code struct {
	Name string
	HTTP int
	GRPC codes.Code
	// Safe says that nothing was kept, so that the same call (inside a
	// transaction: the whole transaction) may be sent again and may succeed. For
	// codes that depend on the case it is the usual one; fault has the truth.
	Safe  bool
	Title string
	Hint  string // what to do
}

// Codes lists the error map: the sidecar's own codes, then those of the database.
func Codes() []Code {
	out := make([]Code, 0, len(ownCodes)+len(ydbCodes))
	for _, c := range ownCodes {
		out = append(out, *c)
	}
	for _, s := range slices.Sorted(maps.Keys(ydbCodes)) {
		out = append(out, *ydbCodes[s])
	}
	return out
}
