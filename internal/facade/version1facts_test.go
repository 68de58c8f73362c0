package facade

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

const secretOfBilling = "0123456789abcdefghijklmnop"

// version1Now gathers the facts from their sources: descriptors, openapi.yaml as it is served, the table of codes, and real calls.
func version1Now(t *testing.T) version1 {
	t.Helper()
	v := version1{}
	for _, file := range []protoreflect.FileDescriptor{
		sidecarv1.File_sidecar_v1_sidecar_proto, sidecarv1.File_sidecar_v1_kv_proto, sidecarv1.File_sidecar_v1_ingest_proto,
	} {
		v.addFile(file)
	}
	for _, f := range core.Features() {
		v["feature "+f.Name] = ""
	}
	for _, c := range core.Codes() {
		key := "code " + c.Name
		if c.Case != "" {
			key += " when " + c.Case
		}
		v[key] = fmt.Sprintf(" %d %s", c.HTTP, c.GRPC)
	}
	all, err := apps.New(apps.Config{Max: 5, Token: []string{"billing=" + secretOfBilling}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	v.addHonoured(t, start(t, small(), &facadetest.Driver{Answer: facadetest.Echo}, func(d *core.Deps) { d.Apps = all }))
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	v.addOpenAPI(t, b)
	v.addErrors(t, b)
	return v
}

func (was version1) addFile(file protoreflect.FileDescriptor) {
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		for i := range s.Methods().Len() {
			m := s.Methods().Get(i)
			was["rpc "+string(m.FullName())] = " " + stream(m.IsStreamingClient()) + string(m.Input().FullName()) +
				" returns " + stream(m.IsStreamingServer()) + string(m.Output().FullName())
		}
	}
	for i := range file.Enums().Len() {
		values := file.Enums().Get(i).Values()
		for i := range values.Len() {
			was["enum "+string(values.Get(i).FullName())] = fmt.Sprintf(" %d", values.Get(i).Number())
		}
	}
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		was["message "+string(m.FullName())] = ""
		for i := range m.Fields().Len() {
			was["field "+string(m.Fields().Get(i).FullName())] = fieldFact(m.Fields().Get(i))
		}
	}
}

func stream(is bool) string {
	if is {
		return "stream "
	}
	return ""
}

func fieldFact(f protoreflect.FieldDescriptor) string {
	b := fmt.Sprintf(" %d ", f.Number())
	switch {
	case f.IsMap():
		return b + "map of " + kindOf(f.MapKey()) + " to " + kindOf(f.MapValue())
	case f.IsList():
		b += "repeated "
	case f.HasOptionalKeyword():
		b += "optional "
	case f.ContainingOneof() != nil:
		b += "oneof " + string(f.ContainingOneof().Name()) + " "
	}
	return b + kindOf(f)
}

func kindOf(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		return string(f.Message().FullName())
	case f.Enum() != nil:
		return string(f.Enum().FullName())
	}
	return f.Kind().String()
}

// described is the part of OpenAPI that is promised.
type described struct {
	Paths      map[string]map[string]describedCall
	Components struct {
		Parameters map[string]describedParameter
		Headers    map[string]struct{}
		Responses  map[string]describedAnswer
		Schemas    map[string]form
	}
}

type describedCall struct {
	OperationID string `yaml:"operationId"`
	Parameters  []describedParameter
	RequestBody struct {
		Required bool
		Content  map[string]struct{ Schema form }
	} `yaml:"requestBody"`
	Responses map[string]describedAnswer
}

type describedParameter struct {
	Ref      string `yaml:"$ref"`
	Name, In string
	Required bool
	Schema   form
}

type describedAnswer struct {
	Ref     string `yaml:"$ref"`
	Headers map[string]any
	Content map[string]struct{ Schema form }
}

// form is a schema of JSON.
type form struct {
	Ref        string `yaml:"$ref"`
	Type       any
	Enum       []string
	Default    any
	Properties map[string]form
	Required   []string
	Items      *form
	OneOf      []form `yaml:"oneOf"`
	Additional any    `yaml:"additionalProperties"`
}

func name(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// String is the form in one line.
func (f form) String() string {
	switch {
	case f.Ref != "":
		return name(f.Ref)
	case f.Items != nil:
		return "array of " + f.Items.String()
	case len(f.OneOf) > 0:
		var all []string
		for _, one := range f.OneOf {
			all = append(all, one.String())
		}
		return strings.Join(all, " or ")
	case f.Type == nil:
		return "any"
	}
	return strings.Trim(fmt.Sprint(f.Type), "[]")
}

func (was version1) addOpenAPI(t *testing.T, b *bench) {
	_, _, text := facadetest.Send(t, "GET", b.base+"/openapi.yaml", "", nil)
	var d described
	if err := yaml.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	for path, calls := range d.Paths {
		for method, c := range calls {
			was["route "+strings.ToUpper(method)+" "+path] = " " + c.OperationID
			was.addCall(&d, c)
		}
	}
	for name, f := range d.Components.Schemas {
		was.addForm(name, f)
	}
}

func (was version1) addCall(d *described, c describedCall) {
	for _, p := range c.Parameters {
		if p.Ref != "" {
			p = d.Components.Parameters[name(p.Ref)]
		}
		key := ofParameter + c.OperationID + " " + p.In + " " + p.Name
		was[key] = " " + p.Schema.String() + needed(p.Required)
		was.addWords(key, p.Schema)
	}
	for media, body := range c.RequestBody.Content {
		was["body "+c.OperationID+" "+media] = " " + body.Schema.String()
	}
	for code, answer := range c.Responses {
		if answer.Ref != "" {
			answer = d.Components.Responses[name(answer.Ref)]
		}
		key := "status " + c.OperationID + " " + code
		was[key] = ""
		for media, body := range answer.Content {
			was[key+" "+media] = " " + body.Schema.String()
		}
		for header := range answer.Headers {
			was[key+" header "+header] = ""
		}
	}
}

func needed(is bool) string {
	if is {
		return required
	}
	return optional
}

// addForm adds a schema that has a name. Requests are those that take no other members.
func (was version1) addForm(name string, f form) {
	if f.Properties == nil {
		key := "form " + name
		was[key] = " " + f.String()
		was.addWords(key, f)
		return
	}
	kind := ofAnswer
	if f.Additional == false {
		kind = ofRequest
	}
	for member, inner := range f.Properties {
		key := kind + name + "." + member
		was[key] = " " + inner.String() + needed(slices.Contains(f.Required, member))
		was.addWords(key, inner)
		if inner.Properties != nil {
			was.addForm(name+"."+member, inner)
		}
	}
}

// addWords adds the words that a text may be, and which of them counts without it.
func (was version1) addWords(key string, f form) {
	for _, word := range f.Enum {
		was[key+" word "+word] = ""
	}
	if f.Default != nil {
		was[key+" default"] = fmt.Sprintf(" %v", f.Default)
	}
}

// addHonoured adds the headers of requests that count over both APIs: a value that is refused shows it.
func (was version1) addHonoured(t *testing.T, b *bench) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for _, h := range [][2]string{
		{"X-Ydb-Priority", "nope"}, {"Priority", "nope"}, {"X-Sidecar-App", "another"}, {"Authorization", "Bearer nope"},
		{"Traceparent", "00-" + trace + "-b7ad6b7169203331-01"},
	} {
		md, header := metadata.Pairs("authorization", "Bearer "+secretOfBilling), http.Header{
			"Authorization": {"Bearer " + secretOfBilling},
		}
		md.Set(h[0], h[1])
		header.Set(h[0], h[1])
		ctx := metadata.NewOutgoingContext(t.Context(), md)
		res, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S"})
		said := reason(err)
		if res.GetInfo().GetTraceId() == trace {
			said = "joins the trace"
		}
		if said != "" {
			was["honours gRPC "+strings.ToLower(h[0])] = " " + said
		}
		_, _, text := facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, func(r *http.Request) { maps.Copy(r.Header, header) })
		_, said, _ = strings.Cut(text, `"code":"`)
		said, _, _ = strings.Cut(said, `"`)
		if strings.Contains(text, trace) {
			said = "joins the trace"
		}
		if said != "" {
			was["honours HTTP "+h[0]] = " " + said
		}
	}
}

func reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

// addErrors adds what an error is beside its code, over gRPC and over HTTP.
func (was version1) addErrors(t *testing.T, b *bench) {
	var trailer metadata.MD
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S"}, grpc.Trailer(&trailer)); err != nil {
		t.Fatal(err)
	}
	for key := range trailer {
		was["grpc trailer "+key] = ""
	}
	b.s.core.RefuseNew() // what is refused so comes with a pause
	_, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S"})
	for _, detail := range status.Convert(err).Details() {
		was["grpc detail "+string(detail.(proto.Message).ProtoReflect().Descriptor().FullName())] = ""
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			was["grpc domain"] = " " + info.Domain
			for key := range info.Metadata {
				was["grpc metadata of errors "+key] = ""
			}
		}
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/query", strings.NewReader(`{"sql":"S"}`))
	r.Header.Set("Content-Type", core.MediaJSON)
	b.s.Handler().ServeHTTP(w, r)
	was["problem media"] = " " + w.Header().Get("Content-Type")
	_, kind, _ := strings.Cut(w.Body.String(), `"type":"`)
	kind, _, _ = strings.Cut(kind, `"`)
	was["problem type"] = " " + kind
}
