package core

import (
	"errors"
	"fmt"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// typeSource says where the type of a parameter comes from.
type typeSource uint8

const (
	fromTypes     typeSource = iota // the types of the request
	fromStatement                   // a DECLARE of the statement
	fromValue                       // the value itself, or the plain rule
)

// longestType is how many bytes a type may have that a message names in full.
const longestType = 256

// toWrite adds to the error of a parameter what to write for its type: the very words, for the place where the
// type that does not do comes from.
func toWrite(err error, name string, source typeSource) error {
	e, ok := errors.AsType[*yql.Error](err)
	if !ok || e.Wants == "" || len(e.Wants) > longestType {
		return err
	}
	if e.Path != "" && source != fromValue { // a part of the type that is named: the message says which
		return err
	}
	inTypes := fmt.Sprintf("\"types\": {%q: %q}", name, e.Wants)
	declare := fmt.Sprintf("DECLARE $%s AS %s;", name, e.Wants)
	out := *e
	switch source {
	case fromTypes:
		out.Msg += "; write " + inTypes + " in the request"
	case fromStatement:
		out.Msg += "; write " + declare + " in the statement"
	case fromValue:
		out.Msg += fmt.Sprintf("; write %s in the request, or %s in the statement, with the type that you mean", inTypes, declare)
	}
	return &out
}
