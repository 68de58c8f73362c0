package wire

import (
	"context"
	"net"
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// endpoints answers ListEndpoints: the sidecar alone, at the address that the client
// has dialled. It needs no node for that.
type endpoints struct {
	advertise string   // in place of what the client dialled; "": that
	secure    bool     // clients dial with TLS
	listen    net.Addr // where clients come over TCP; of those that dialled something else
	apps      *apps.Registry
	databases served
}

// register adds ListEndpoints, and no other method of its service, to a server.
func (e *endpoints) register(r grpc.ServiceRegistrar) {
	all := Ydb_Discovery_V1.DiscoveryService_ServiceDesc
	one := grpc.ServiceDesc{ServiceName: all.ServiceName, HandlerType: (*any)(nil), Metadata: all.Metadata}
	one.Methods = []grpc.MethodDesc{
		{MethodName: "ListEndpoints",
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				in := new(Ydb_Discovery.ListEndpointsRequest)
				if err := decode(in); err != nil {
					return nil, err
				}
				return e.list(ctx, in.GetDatabase())
			}},
	}
	r.RegisterService(&one, e)
}

func (e *endpoints) list(ctx context.Context, database string) (*Ydb_Discovery.ListEndpointsResponse, error) {
	address := e.advertise
	if address == "" {
		md, _ := metadata.FromIncomingContext(ctx)
		if named := md.Get(":authority"); len(named) > 0 {
			address = named[0]
		}
	}
	op := &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_SUCCESS}
	by := callerOf(ctx)
	if _, err := e.apps.Of(by); err != nil {
		r := refusalOf(err, 0)
		op.Status = r.status
		op.Issues = []*Ydb_Issue.IssueMessage{{Severity: protocol.SeverityError, Message: r.text}}
		return &Ydb_Discovery.ListEndpointsResponse{Operation: op}, nil
	}
	if _, ok := e.databases.path(database); !ok {
		op.Status = errDatabase.status
		op.Issues = []*Ydb_Issue.IssueMessage{{Severity: protocol.SeverityError, Message: errDatabase.text}}
		return &Ydb_Discovery.ListEndpointsResponse{Operation: op}, nil
	}
	host, port, ok := hostPort(address)
	if tcp, isTCP := e.listen.(*net.TCPAddr); !ok && by.Local && isTCP { // it has dialled a Unix socket, which the answer cannot name
		host, port, ok = tcp.IP.String(), uint32(tcp.Port), true
		if tcp.IP.IsUnspecified() {
			host = "localhost"
		}
	}
	if !ok {
		op.Status = Ydb.StatusIds_BAD_REQUEST
		op.Issues = []*Ydb_Issue.IssueMessage{
			{Severity: protocol.SeverityError, Message: "the call does not name the sidecar's host and port; set wire.advertise"},
		}
		return &Ydb_Discovery.ListEndpointsResponse{Operation: op}, nil
	}
	result, err := anypb.New(&Ydb_Discovery.ListEndpointsResult{Endpoints: []*Ydb_Discovery.EndpointInfo{{
		Address: host, Port: port, NodeId: virtual.NodeID, Ssl: e.secure,
	}}})
	op.Result = result
	return &Ydb_Discovery.ListEndpointsResponse{Operation: op}, err
}

// callerOf is what the headers of a call that grpc-go received claim.
func callerOf(ctx context.Context) (c apps.Caller) {
	md, _ := metadata.FromIncomingContext(ctx)
	c.Bear(md.Get("authorization"))
	if names := md.Get("x-ydb-application-name"); len(names) > 0 {
		c.Name = names[0]
	}
	if from := md.Get(apps.HeaderOrigin); len(from) > 0 {
		o := apps.ParseOrigin(from[0])
		c.User, c.Local, c.Certificate = o.User, o.Local, o.Certificate
	}
	return c
}

// hostPort splits an address that has both.
func hostPort(address string) (host string, port uint32, ok bool) {
	host, text, err := net.SplitHostPort(address)
	n, wrong := strconv.ParseUint(text, 10, 16)
	return host, uint32(n), err == nil && wrong == nil && host != "" && n > 0
}
