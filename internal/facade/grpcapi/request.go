package grpcapi

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// understood refuses a request with fields that this process does not know: a caller
// with a newer sidecar.proto may count on what they say. Values are not looked at: yql refuses
// such fields of theirs where it converts them.
func understood(m protoreflect.Message) error {
	if err := yql.Known(m); err != nil {
		return err
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() == nil || f.IsMap() || f.Message().FullName() == valueName || !m.Has(f) {
			continue
		}
		if !f.IsList() {
			if err := understood(m.Get(f).Message()); err != nil {
				return err
			}
			continue
		}
		list := m.Get(f).List()
		for i := range list.Len() {
			if err := understood(list.Get(i).Message()); err != nil {
				return err
			}
		}
	}
	return nil
}

var valueName = (&sidecarv1.Value{}).ProtoReflect().Descriptor().FullName()

// requestSize is how many bytes a request has, which its server may know.
func requestSize(ctx context.Context, early *received, req proto.Message) int {
	if early != nil {
		return early.size
	}
	if request, ok := requestBytes(ctx); ok {
		return len(request)
	}
	return proto.Size(req) // of a stream
}

func metadataSize(md metadata.MD) int {
	n := 0
	for key, list := range md {
		for _, v := range list {
			n += len(key) + len(v)
		}
	}
	return n
}

// onceKeys are core.OnceHeaders as keys of metadata.
var onceKeys = func() (keys [len(core.OnceHeaders)]string) {
	for i, name := range core.OnceHeaders {
		keys[i] = strings.ToLower(name)
	}
	return keys
}()

// repeated refuses metadata that a call may have once and has more often.
func repeated(md metadata.MD) error {
	for i, key := range onceKeys {
		if n := len(md[key]); n > 1 { // Get would copy the key to make it lower case
			return core.Repeated(core.OnceHeaders[i], n)
		}
	}
	return nil
}

// incoming reads gRPC metadata as a propagation.TextMapCarrier.
type incoming metadata.MD

// Get returns the first value of a key.
func (m incoming) Get(key string) string {
	if v := metadata.MD(m).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set is of no use on what came in.
func (m incoming) Set(string, string) {}

// Keys lists what came in.
func (m incoming) Keys() []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
