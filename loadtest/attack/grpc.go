package attack

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1" // registers its methods
	_ "github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1" // registers its methods
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/ydb-sidecar/sidecar/proto/sidecar/v1" // registers its methods
)

// Limits of what a target may ask for.
const (
	maxMessage   = 64 << 20 // bytes of a request or of one message of the answer
	maxAddresses = 64       // of gRPC targets
)

// isGRPC tells that a URL names a method in place of a resource.
func isGRPC(target string) bool {
	return strings.HasPrefix(target, "grpc://") || strings.HasPrefix(target, "grpcs://")
}

// call is a gRPC target, ready to be sent.
type call struct {
	url      string // as it was given
	address  string // host:port
	secure   bool   // grpcs
	method   string // /package.Service/Method
	request  []byte
	metadata metadata.MD
	output   protoreflect.MessageDescriptor
	status   []protowire.Number // where the status of YDB is in an answer; nil if it has none
}

// parse makes a call of a target: grpc://host:port/package.Service/Method with a request in the
// JSON of protobuf and headers that become metadata.
func parse(t *vegeta.Target) (*call, error) {
	u, err := url.Parse(t.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("target %.200q: %w", t.URL, err)
	case !isGRPC(t.URL):
		return nil, fmt.Errorf("target %.200q: want grpc://host:port/package.Service/Method, or grpcs://; a file has gRPC targets or HTTP ones", t.URL)
	case u.Hostname() == "" || u.Port() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("target %.200q: want grpc://host:port/package.Service/Method, with a port and nothing behind the method", t.URL)
	case len(t.Body) > maxMessage:
		return nil, fmt.Errorf("target %.200q: its body has %d bytes; want at most %d", t.URL, len(t.Body), maxMessage)
	}
	c := &call{url: t.URL, address: u.Host, secure: u.Scheme == "grpcs", method: u.Path, metadata: metadata.MD{}}
	service, name, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	described, isService := found.(protoreflect.ServiceDescriptor)
	if err != nil || !isService {
		return nil, fmt.Errorf("target %.200q: no service %.100q; known are those of the plain API (sidecar.v1.Sidecar, sidecar.v1.KeyValue) and of YDB (Ydb.Query.V1.QueryService, Ydb.Table.V1.TableService)", t.URL, service)
	}
	method := described.Methods().ByName(protoreflect.Name(name))
	switch {
	case method == nil:
		return nil, fmt.Errorf("target %.200q: %s has no method %.100q", t.URL, service, name)
	case method.IsStreamingClient():
		return nil, fmt.Errorf("target %.200q: %s takes a stream of requests; a target is one request", t.URL, name)
	}
	input, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return nil, fmt.Errorf("target %.200q: %w", t.URL, err)
	}
	message := input.New().Interface()
	if len(t.Body) > 0 {
		if err := protojson.Unmarshal(t.Body, message); err != nil {
			return nil, fmt.Errorf("target %.200q: its body is not a %s in JSON: %w", t.URL, method.Input().FullName(), err)
		}
	}
	if c.request, err = proto.Marshal(message); err != nil {
		return nil, fmt.Errorf("target %.200q: %w", t.URL, err)
	}
	for key, values := range t.Header {
		if err := c.header(strings.ToLower(key), values); err != nil {
			return nil, fmt.Errorf("target %.200q: %w", t.URL, err)
		}
	}
	c.output, c.status = method.Output(), statusPath(method.Output())
	return c, nil
}

// header takes a header of a target as metadata. Names that gRPC sets itself are left
// out if files have them by habit, and refused if they would change the protocol.
func (c *call) header(key string, values []string) error {
	switch key {
	case "content-type", "content-length", "accept", "user-agent", "connection":
		return nil
	}
	plain := key != "" && strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
	if !plain || strings.HasPrefix(key, "grpc-") || key == "te" || key == "host" {
		return fmt.Errorf("header %.100q cannot be metadata: want letters, digits, -, _ and ., and no name that is gRPC's own", key)
	}
	for _, value := range values {
		if strings.HasSuffix(key, "-bin") {
			decoded, err := base64.StdEncoding.DecodeString(value)
			if err != nil {
				return fmt.Errorf("header %.100q: want base64, because its name ends in -bin: %w", key, err)
			}
			value = string(decoded)
		} else if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return fmt.Errorf("header %.100q: want printable ASCII; other bytes need a name that ends in -bin, and base64", key)
		}
		c.metadata[key] = append(c.metadata[key], value)
	}
	return nil
}

// statusPath finds the field with YDB's status in the messages of its API: a status beside the
// result, or one within the operation.
func statusPath(m protoreflect.MessageDescriptor) []protowire.Number {
	if f := m.Fields().ByName("status"); f != nil && f.Enum() != nil && f.Enum().FullName() == Ydb.StatusIds_SUCCESS.Descriptor().FullName() {
		return []protowire.Number{f.Number()}
	}
	if f := m.Fields().ByName("operation"); f != nil && f.Message() != nil && f.Message().FullName() == (&Ydb_Operations.Operation{}).ProtoReflect().Descriptor().FullName() {
		return append([]protowire.Number{f.Number()}, statusPath(f.Message())...)
	}
	return nil
}

// statusIn reads the status at a path of an encoded message, without decoding the rest; 0 if it is not there.
func statusIn(message []byte, path []protowire.Number) (found Ydb.StatusIds_StatusCode) {
	for len(message) > 0 && len(path) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return found
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return found
		}
		if number == path[0] {
			switch {
			case kind == protowire.VarintType && len(path) == 1:
				v, _ := protowire.ConsumeVarint(message)
				found = Ydb.StatusIds_StatusCode(v)
			case kind == protowire.BytesType && len(path) > 1:
				inner, _ := protowire.ConsumeBytes(message)
				found = statusIn(inner, path[1:])
			}
		}
		message = message[n:]
	}
	return found
}

// failure tells the status of an answer of YDB's, if it is not a success.
func (c *call) failure(message []byte) (uint16, error) {
	at := statusIn(message, c.status)
	if c.status == nil || at == Ydb.StatusIds_SUCCESS || at == Ydb.StatusIds_STATUS_CODE_UNSPECIFIED {
		return 0, nil
	}
	var issues []*Ydb_Issue.IssueMessage
	if t, err := protoregistry.GlobalTypes.FindMessageByName(c.output.FullName()); err == nil {
		m := t.New().Interface()
		if proto.Unmarshal(message, m) == nil {
			if o, ok := m.(interface {
				GetOperation() *Ydb_Operations.Operation
			}); ok {
				m = o.GetOperation()
			}
			if o, ok := m.(interface {
				GetIssues() []*Ydb_Issue.IssueMessage
			}); ok {
				issues = o.GetIssues()
			}
		}
	}
	text := ""
	if len(issues) > 0 {
		text = ": " + issues[0].GetMessage()
	}
	code, known := statusCodes[at]
	if !known {
		code = 500
	}
	return code, fmt.Errorf("YDB %s%.200s", at, text)
}

// statusCodes are the codes of HTTP that results have in place of a status of YDB; 500 for those that are not here.
var statusCodes = map[Ydb.StatusIds_StatusCode]uint16{
	Ydb.StatusIds_BAD_REQUEST: 400, Ydb.StatusIds_GENERIC_ERROR: 400, Ydb.StatusIds_UNAUTHORIZED: 401, Ydb.StatusIds_SCHEME_ERROR: 404, Ydb.StatusIds_NOT_FOUND: 404,
	Ydb.StatusIds_ABORTED: 409, Ydb.StatusIds_ALREADY_EXISTS: 409, Ydb.StatusIds_SESSION_BUSY: 409, Ydb.StatusIds_BAD_SESSION: 410, Ydb.StatusIds_SESSION_EXPIRED: 410,
	Ydb.StatusIds_PRECONDITION_FAILED: 412, Ydb.StatusIds_CANCELLED: 499, Ydb.StatusIds_UNSUPPORTED: 501,
	Ydb.StatusIds_UNAVAILABLE: 503, Ydb.StatusIds_OVERLOADED: 503, Ydb.StatusIds_TIMEOUT: 504,
}

// grpcCodes are the codes of HTTP in place of gRPC's; 500 for those that are not here.
var grpcCodes = map[codes.Code]uint16{
	codes.InvalidArgument: 400, codes.OutOfRange: 400, codes.Unauthenticated: 401, codes.PermissionDenied: 403, codes.NotFound: 404, codes.Aborted: 409, codes.AlreadyExists: 409,
	codes.FailedPrecondition: 412, codes.ResourceExhausted: 429, codes.Canceled: 499, codes.Unimplemented: 501, codes.Unavailable: 503, codes.DeadlineExceeded: 504,
}

// raw passes messages through as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}

var stream = &grpc.StreamDesc{ServerStreams: true}

// send makes the call and reads its answer to the end.
func (c *call) send(ctx context.Context, conn *grpc.ClientConn) (code uint16, in uint64, err error) {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, c.metadata))
	defer cancel() // of a stream that is left early
	s, err := conn.NewStream(ctx, stream, c.method, grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage))
	if err == nil {
		// What went wrong with sending, the answer tells.
		_ = s.SendMsg(&c.request)
		_ = s.CloseSend()
	}
	for err == nil {
		var message []byte
		if err = s.RecvMsg(&message); err == nil {
			in += uint64(len(message))
			code, err = c.failure(message)
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return 200, in, nil
	case code == 0:
		state := status.Convert(err)
		if code = grpcCodes[state.Code()]; code == 0 {
			code = 500
		}
		err = fmt.Errorf("gRPC %s: %.200s", state.Code(), state.Message())
	}
	return code, in, err
}

// conns are the connections to each address, used in turn. They are for one goroutine.
type conns struct {
	each     int // connections to an address
	tls      *tls.Config
	unix     string // a socket in place of the addresses
	of       map[string][]*grpc.ClientConn
	position uint64
}

func (p *conns) get(c *call) (*grpc.ClientConn, error) {
	key := fmt.Sprint(c.secure, c.address)
	if p.of[key] == nil {
		if len(p.of) >= maxAddresses {
			return nil, fmt.Errorf("targets have more than %d addresses", maxAddresses)
		}
		for range p.each {
			options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
			if c.secure {
				options = []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(p.tls))}
			}
			if p.unix != "" {
				options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
					return (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "unix", p.unix)
				}))
			}
			conn, err := grpc.NewClient("passthrough:///"+c.address, options...)
			if err != nil {
				return nil, fmt.Errorf("dial %s: %w", c.address, err)
			}
			p.of[key] = append(p.of[key], conn)
		}
	}
	p.position++
	return p.of[key][p.position%uint64(p.each)], nil
}

func (p *conns) close() {
	for _, all := range p.of {
		for _, conn := range all {
			_ = conn.Close() // nothing is in flight
		}
	}
}
