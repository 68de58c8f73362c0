package yql

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Error says that a type, a declaration or a value cannot be used.
type Error struct {
	Path string // the place inside the value, such as "rows[3].quantity"; "" is the value itself
	Msg  string

	NoColumn bool   // a row names a column that the table does not have
	Wants    string // a type that the value at Path could have in place of the one it has, or lacks; "": none is known
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Msg
	}
	return e.Path + ": " + e.Msg
}

// Known refuses a message with fields that this process does not know: a caller with a newer sidecar.proto
// may count on what they say. It does not look at the messages inside.
func Known(m protoreflect.Message) error {
	octets := m.GetUnknown()
	if len(octets) == 0 {
		return nil
	}
	number, _, _ := protowire.ConsumeTag(octets)
	return UnknownField(number, m.Descriptor().FullName())
}

// UnknownField is why a message with a field of that number is refused.
func UnknownField(number protowire.Number, of protoreflect.FullName) error {
	return errorf("field %d of %s is not known here: the caller's sidecar.proto is newer than this sidecar", number, of)
}

// At puts name, such as "params", before the path of err. An error that is not
// an *Error is wrapped; nil stays nil.
func At(err error, name string) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return &Error{Path: join(name, e.Path), Msg: e.Msg, NoColumn: e.NoColumn, Wants: e.Wants}
	}
	return fmt.Errorf("%s: %w", name, err)
}

func errorf(format string, args ...any) error {
	return &Error{Msg: fmt.Sprintf(format, args...)}
}

// inMember and inItem add one step to the path on an error's way up.
func inMember(err error, name string) error {
	if !isIdent(name) || len(name) > clipAt {
		name = "[" + clip(name) + "]"
	}
	return At(err, name)
}

func inItem(err error, i int) error {
	return At(err, "["+strconv.Itoa(i)+"]")
}

// inAlternative adds a Variant's step: its tag, or its index if it has no tags.
func inAlternative(err error, tag string, index uint32) error {
	if tag == "" {
		return inItem(err, int(index))
	}
	return inMember(err, tag)
}

func join(name, path string) string {
	if path == "" || path[0] == '[' {
		return name + path
	}
	return name + "." + path
}

// clipAt is how many bytes of a caller's text a message repeats.
const clipAt = 64

// clip quotes s for a message and keeps the message short.
func clip(s string) string {
	if len(s) <= clipAt {
		return strconv.Quote(s)
	}
	cut := clipAt
	for cut > clipAt-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.Quote(s[:cut]) + "..."
}

// article puts the indefinite article before the name of a type.
func article(typeName string) string {
	switch typeName[0] {
	case 'E', 'I', 'O':
		return "an " + typeName
	}
	return "a " + typeName
}
