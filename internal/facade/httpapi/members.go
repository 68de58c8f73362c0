package httpapi

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Requests in JSON are the messages of sidecar.proto: each field is a member of the same name, and null is as if the member were not
// there. What differs is in the two tables below.

// inPath are the fields that stand in the path of a request, and so not in its JSON.
var inPath = map[protoreflect.FullName]bool{
	"sidecar.v1.CommitRequest.id": true, "sidecar.v1.RollbackRequest.id": true, "sidecar.v1.KvBatchGetRequest.table": true,
}

// own are the members that JSON has in a form of its own.
var own = map[protoreflect.FullName]taker{
	"sidecar.v1.Limits.bytes": takeSize, // a text with a unit, too

	"sidecar.v1.ExecuteRequest.rows":  takeRows, // no fields: gRPC has one form of rows
	"sidecar.v1.ExecuteRequest.ints":  takeInts,
	"sidecar.v1.TransactRequest.rows": takeRows,
	"sidecar.v1.TransactRequest.ints": takeInts,
	"sidecar.v1.BatchRequest.rows":    takeRows,
	"sidecar.v1.BatchRequest.ints":    takeInts,

	"sidecar.v1.KvBatchGetRequest.ids":  takeIDs,  // values whose types the table has
	"sidecar.v1.BulkUpsertRequest.rows": takeNull, // its place: see decodeAround
}

// taker reads the value of a member.
type taker func(d *decoder, m protoreflect.Message, f *member) error

// member is one of the JSON of a request.
type member struct {
	name  string
	field protoreflect.FieldDescriptor // nil: only JSON has it
	take  taker
	inner *shapeOf // of a message, or of the items of a list
}

// shapeOf are the members of one message, by name.
type shapeOf struct {
	members map[string]*member
}

// requests are the shapes of whatever can be the JSON of a request.
var requests = func() map[protoreflect.FullName]*shapeOf {
	all := make(map[protoreflect.FullName]*shapeOf)
	for _, m := range []protoreflect.ProtoMessage{
		&sidecarv1.ExecuteRequest{}, &sidecarv1.TransactRequest{}, &sidecarv1.BeginRequest{}, &sidecarv1.CommitRequest{},
		&sidecarv1.RollbackRequest{}, &sidecarv1.BatchRequest{}, &sidecarv1.BulkUpsertRequest{}, &sidecarv1.ExplainRequest{},
		&sidecarv1.KvBatchGetRequest{},
	} {
		newShape(all, m.ProtoReflect().Descriptor())
	}
	return all
}()

// withRequests are the names of members whose values are messages of requests, and not a caller's own names.
var withRequests = func() map[string]bool {
	all := make(map[string]bool)
	for _, s := range requests {
		for name, f := range s.members {
			if f.inner != nil {
				all[name] = true
			}
		}
	}
	return all
}()

// newShape makes the shape of a message, and of those within, unless it is there.
func newShape(all map[protoreflect.FullName]*shapeOf, d protoreflect.MessageDescriptor) *shapeOf {
	if s := all[d.FullName()]; s != nil {
		return s
	}
	s := &shapeOf{members: make(map[string]*member)}
	all[d.FullName()] = s
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if inPath[f.FullName()] {
			continue
		}
		one := &member{name: string(f.Name()), field: f, take: own[f.FullName()]}
		if one.take == nil {
			one.take = takerOf(f)
			if f.Message() != nil && !f.IsMap() {
				one.inner = newShape(all, f.Message())
			}
		}
		s.members[one.name] = one
	}
	for name, take := range own {
		if name.Parent() == d.FullName() && s.members[string(name.Name())] == nil {
			s.members[string(name.Name())] = &member{name: string(name.Name()), take: take}
		}
	}
	return s
}

// takerOf is what reads a field. A kind of field that no request has yet panics when the process starts.
func takerOf(f protoreflect.FieldDescriptor) taker {
	switch {
	case f.IsMap() && f.MapValue().Message() != nil && f.MapValue().Message().FullName() == valueName:
		return takeValues
	case f.IsMap() && f.MapValue().Kind() == protoreflect.StringKind:
		return takeTexts
	case f.IsMap():
	case f.Message() != nil && f.IsList():
		return takeMessages
	case f.Message() != nil && f.Message().FullName() != valueName:
		return takeMessage
	case readScalar[f.Kind()] != nil && f.IsList():
		return takeList
	case readScalar[f.Kind()] != nil:
		return takeScalar
	}
	panic("the JSON of " + string(f.FullName()) + " is not known")
}

var valueName = (&sidecarv1.Value{}).ProtoReflect().Descriptor().FullName()
