package devcluster

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Auth_V1" // each of these imports puts the methods of a service into the registry
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Cms_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Coordination_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Export_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_FederationDiscovery_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Import_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Monitoring_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Operation_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_RateLimiter_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Scheme_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Scripting_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/draft/Ydb_DynamicConfig_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/draft/Ydb_FederatedQuery_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/draft/Ydb_KeyValue_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/draft/Ydb_Maintenance_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/draft/Ydb_ObjectStorage_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/draft/Ydb_Replication_V1"
	_ "github.com/ydb-platform/ydb-go-genproto/draft/Ydb_View_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
)

// handler serves one call whose request is decoded. It sends its answers
// itself; an error that it returns becomes the status of one last answer.
type handler func(c *call, request proto.Message) error

// method is one RPC. Every RPC of every YDB service has one, known from the
// registered descriptors; those without a handler answer UNSUPPORTED.
type method struct {
	name         string // full, with slashes: /Ydb.Query.V1.QueryService/ExecuteQuery
	short        string // ExecuteQuery
	request      protoreflect.MessageType
	response     protoreflect.MessageType
	clientStream bool
	serverStream bool
	handle       handler // nil: not supported
}

// newMethods lists every RPC of YDB's services, by full name.
func newMethods() (map[string]*method, error) {
	methods := make(map[string]*method)
	var bad error
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(file.Package()), "Ydb.") {
			return true
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				d := service.Methods().Get(j)
				m, err := newMethod(service, d)
				if err != nil {
					bad = err
					return false
				}
				methods[m.name] = m
			}
		}
		return true
	})
	if bad != nil {
		return nil, bad
	}
	for name, h := range handlers() {
		m := methods[name]
		if m == nil {
			return nil, fmt.Errorf("handler for an unknown method %s", name)
		}
		m.handle = h
	}
	return methods, nil
}

func newMethod(service protoreflect.ServiceDescriptor, d protoreflect.MethodDescriptor) (*method, error) {
	request, err := protoregistry.GlobalTypes.FindMessageByName(d.Input().FullName())
	if err != nil {
		return nil, fmt.Errorf("request of %s: %w", d.FullName(), err)
	}
	response, err := protoregistry.GlobalTypes.FindMessageByName(d.Output().FullName())
	if err != nil {
		return nil, fmt.Errorf("response of %s: %w", d.FullName(), err)
	}
	return &method{
		name:         fmt.Sprintf("/%s/%s", service.FullName(), d.Name()),
		short:        string(d.Name()),
		request:      request,
		response:     response,
		clientStream: d.IsStreamingClient(),
		serverStream: d.IsStreamingServer(),
	}, nil
}

// failure is the response of m that carries e: in its operation, in its own
// status and issues, or in its failure message (Coordination's streams).
func (m *method) failure(e *statusError) proto.Message {
	response := m.response.New()
	setStatus(response, e)
	return response.Interface()
}

func setStatus(response protoreflect.Message, e *statusError) {
	if operation, ok := response.Interface().(*Ydb_Operations.Operation); ok {
		proto.Merge(operation, failedOperation(e))
		return
	}
	fields := response.Descriptor().Fields()
	if f := fields.ByName("operation"); f != nil {
		response.Set(f, protoreflect.ValueOfMessage(failedOperation(e).ProtoReflect()))
		return
	}
	if f := fields.ByName("failure"); f != nil {
		setStatus(response.Mutable(f).Message(), e)
		return
	}
	response.Set(fields.ByName("status"), protoreflect.ValueOfEnum(e.status.Number()))
	issues := response.Mutable(fields.ByName("issues")).List()
	for _, issue := range e.issues {
		issues.Append(protoreflect.ValueOfMessage(issue.ProtoReflect()))
	}
}

func failedOperation(e *statusError) *Ydb_Operations.Operation {
	return &Ydb_Operations.Operation{Ready: true, Status: e.status, Issues: e.issues}
}

// plain adapts a method whose response carries its status itself.
func plain[Request, Response proto.Message](f func(*call, Request) (Response, error)) handler {
	return func(c *call, request proto.Message) error {
		response, err := f(c, request.(Request))
		if err != nil {
			return err
		}
		return c.send(response)
	}
}

// operation adapts a method that packs its result into an Operation. A nil
// result leaves the operation without one.
func operation[Request proto.Message](f func(*call, Request) (proto.Message, error)) handler {
	return func(c *call, request proto.Message) error {
		result, err := f(c, request.(Request))
		if err != nil {
			return err
		}
		done := &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_SUCCESS, Issues: c.warnings, CostInfo: c.cost}
		if result != nil {
			if done.Result, err = anypb.New(result); err != nil {
				return fmt.Errorf("pack %T: %w", result, err)
			}
		}
		response := c.method.response.New()
		response.Set(response.Descriptor().Fields().ByName("operation"), protoreflect.ValueOfMessage(done.ProtoReflect()))
		return c.send(response.Interface())
	}
}

// streaming adapts a method that answers with any number of messages.
func streaming[Request proto.Message, Response proto.Message](f func(*call, Request, func(Response) error) error) handler {
	return func(c *call, request proto.Message) error {
		return f(c, request.(Request), func(r Response) error { return c.send(r) })
	}
}

// limit applies the operation_timeout (then the status is TIMEOUT) and the
// cancel_after (CANCELLED) of the request to the call; the returned function
// releases the timers.
func (c *call) limit(request proto.Message) (release func()) {
	release = func() {}
	r, ok := request.(interface {
		GetOperationParams() *Ydb_Operations.OperationParams
	})
	if !ok || r.GetOperationParams() == nil {
		return release
	}
	shorten := func(after *durationpb.Duration, status Ydb.StatusIds_StatusCode, name string) {
		d := after.AsDuration()
		if d <= 0 {
			return
		}
		ctx, cancel := context.WithTimeoutCause(c.ctx, d, fail(status, "%s of %v passed", name, d))
		inner := release
		c.ctx, release = ctx, func() { cancel(); inner() }
	}
	shorten(r.GetOperationParams().GetOperationTimeout(), Ydb.StatusIds_TIMEOUT, "operation_timeout")
	shorten(r.GetOperationParams().GetCancelAfter(), Ydb.StatusIds_CANCELLED, "cancel_after")
	return release
}
