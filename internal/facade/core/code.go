package core

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// Code is one row of the error map: a stable name, the status over either API, and what the
// caller and the operator can do. A name has further rows for cases that have another
// status. docs/reference/api.md and docs/reference/errors.md are written from these rows; a test compares them.
type Code struct {
	Name string
	Case string // when this row holds in place of the usual one of its name; "": it is the usual one
	HTTP int
	GRPC codes.Code
	// Safe says that nothing was kept, so that the same call (inside a
	// transaction: the whole transaction) may be sent again and may succeed. For
	// codes that depend on the case it is the usual one; Fault.Safe has the truth.
	Safe bool
	// Caller says that such an error is the caller's own: its request, a limit or right of its app, or the data.
	// All others are errors of the service: of the sidecar, the cluster or the network. The page and the
	// alerts count the two apart.
	Caller   bool
	Title    string
	Hint     string // for the caller, who cannot change the sidecar's settings
	Operator string // for whoever runs the sidecar: settings, commands, sections of the runbook; "": there is nothing to do
	old      bool   // its statuses are those of the version before
}

// errorsPage is where docs/reference/errors.md is read. Errors link to it.
const errorsPage = "https://github.com/ydb-sidecar/sidecar/blob/main/docs/reference/errors.md"

// Link is the address of the page that says what the code means.
func (c *Code) Link() string { return errorsPage + "#" + strings.ToLower(c.Name) }

// Codes lists the error map: the sidecar's own codes, then those of the database. Rows of
// one name stand together, the usual one first.
func Codes() []Code {
	var out []Code
	add := func(c *Code) {
		out = append(out, *c)
		for _, special := range specialCodes {
			if special.Name == c.Name {
				out = append(out, *special)
			}
		}
	}
	for _, c := range ownCodes {
		add(c)
	}
	for _, s := range slices.Sorted(maps.Keys(ydbCodes)) {
		add(ydbCodes[s])
	}
	return out
}
