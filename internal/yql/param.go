package yql

import (
	"errors"
	"fmt"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Param makes a parameter for the wire of a value of the gRPC API. declared is
// the type that the statement or the caller's types give it; nil leaves it to
// the value's own type or to the plain rule.
func Param(v *sidecarv1.Value, declared *Ydb.Type) (*Ydb.TypedValue, error) {
	t := declared
	if t == nil {
		var err error
		if t, err = Infer(v); err != nil {
			return nil, err
		}
	}
	value, err := FromValue(v, t)
	if err != nil && v.GetTypedValue() != nil {
		return nil, ownType(err, "a typed_value with the type %s")
	}
	if err != nil {
		return nil, err
	}
	return &Ydb.TypedValue{Type: t, Value: value}, nil
}

// ParamJSON is Param for JSON. A value may carry its type as
// {"type":"Decimal(22,9)","value":"1.50"}; where another type is declared such
// an object is an ordinary value of that type. Where Json or JsonDocument is declared,
// an object is the document as it stands, and one that names such a type is an error:
// which of the two it is must not depend on the data.
func ParamJSON(raw []byte, declared *Ydb.Type) (*Ydb.TypedValue, error) {
	return paramJSON(raw, declared, MaxValues)
}

// paramJSON is ParamJSON of at most so many values.
func paramJSON(raw []byte, declared *Ydb.Type, most int) (*Ydb.TypedValue, error) {
	t := declared
	own, value, typed, wrong := TypedJSON(raw)
	switch {
	case wrong != nil && t == nil:
		return nil, wrong
	case typed && isDocument(t) && isDocument(own):
		return nil, errorf(`an object with the members type and value, where %s is the type already, may be a document or a value `+
			`with its type; send the document as text, or name the type in one place only`, FormatType(t))
	case typed && (t == nil || EqualTypes(t, own)):
		t, raw = own, value
	case t == nil:
		var err error
		if t, err = InferJSON(raw); err != nil {
			return nil, err
		}
	}
	v, err := parseJSON(raw, t, most)
	if err != nil {
		if typed && !EqualTypes(t, own) {
			return nil, typeConflict(own, t)
		}
		if wrong != nil {
			return nil, wrong
		}
		if typed {
			return nil, ownType(err, `{"type": %q, "value": ...}`)
		}
		return nil, err
	}
	return &Ydb.TypedValue{Type: t, Value: v}, nil
}

// isDocument reports whether an object of JSON is a document of the type t.
func isDocument(t *Ydb.Type) bool {
	for t.GetOptionalType() != nil {
		t = t.GetOptionalType().GetItem()
	}
	return t.GetTypeId() == Ydb.Type_JSON || t.GetTypeId() == Ydb.Type_JSON_DOCUMENT
}

// ownType adds to the error of a value that carries its type how to write a type that would do.
func ownType(err error, form string) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Wants == "" {
		return err
	}
	out := *e
	if out.Wants = ""; out.Path == "" {
		out.Msg += "; write " + fmt.Sprintf(form, e.Wants)
	}
	return &out
}

// TypedJSON recognizes a value that carries its type: an object with exactly
// the members type, which is a text, and value. wrong says why that text names no YQL type.
func TypedJSON(raw []byte) (t *Ydb.Type, value []byte, ok bool, wrong error) {
	s := scanner{data: raw}
	if s.peek() != '{' {
		return nil, nil, false, nil
	}
	var name string
	var hasName, hasValue bool
	err := s.object(func(member string) (err error) {
		switch {
		case member == "type" && !hasName && s.peek() == '"':
			hasName = true
			name, err = s.str()
		case member == "value" && !hasValue:
			hasValue = true
			value, err = s.skip(1)
		default:
			return errorf("another member")
		}
		return err
	})
	if err != nil || s.end() != nil || !hasName || !hasValue {
		return nil, nil, false, nil
	}
	t, err = ParseType(name)
	return t, value, err == nil, err
}
