package core

import (
	"errors"
	"math"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// What a request takes once it is decoded, in bytes, besides what came: TestRequestsTakeWhatIsCounted measures it.
const (
	// copies: by a decoder, and as it goes on to a node; what large parameters take in between is
	// counted once they are bound
	DecodedTwice = 2
	ValueCost    = 300 // of each value: the message of either API and that of YDB
)

// Bound is how many entries a part of a request may have.
type Bound struct {
	what    string
	Most    int // 0: any number
	setting string
}

// BoundOf is that of a member of a request.
func (a API) BoundOf(member string) Bound {
	switch member {
	case "params":
		return Bound{"params", a.MaxParams, "api.max_params"}
	case "types":
		return Bound{"types", a.MaxParams, "api.max_params"}
	case "statements":
		return Bound{"statements", a.MaxStatements, "api.max_statements"}
	}
	return Bound{}
}

// Exceeded is the fault of a request with more than the bound.
func (b Bound) Exceeded() error { return OverLimit(b.what, b.Most, b.Most, b.setting) }

// ErrSize is the error of a number of bytes that cannot be read.
var ErrSize = errors.New(`write a number of bytes, or one with a unit (kB, MiB...) such as "8MiB"`)

// ParseBytes reads a number of bytes with or without a unit.
func ParseBytes(text string) (uint64, error) {
	n, ok := config.ParseSize(text)
	if !ok || n > math.MaxInt64 {
		return 0, ErrSize
	}
	return uint64(n), nil
}
