package rules

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Auth_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Scheme_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Auth"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Scheme"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Target says which cluster is asked, and how.
type Target struct {
	Address   string      // host:port
	Database  string      // its path, with the leading slash
	TLS       *tls.Config // nil: plaintext
	Ticket    string      // sent with every call; "": none is
	Directory string      // of the database, for all that is created: a relative path
}

// Cluster is a connection to the target and to every node that discovery lists.
type Cluster struct {
	target Target
	first  *node   // the target's own address
	nodes  []*node // at the addresses that discovery lists
	listed *Ydb_Discovery.ListEndpointsResult
}

// node is a connection to one address.
type node struct {
	id        uint32 // as discovery lists it; 0 of first
	address   string
	conn      *grpc.ClientConn
	query     Ydb_Query_V1.QueryServiceClient
	table     Ydb_Table_V1.TableServiceClient
	scheme    Ydb_Scheme_V1.SchemeServiceClient
	discovery Ydb_Discovery_V1.DiscoveryServiceClient
}

const (
	headerDatabase = "x-ydb-database"
	headerTicket   = "x-ydb-auth-ticket"

	maxMessage = 80 << 20 // of this client: more than the server's
	window     = 64 << 10 // as small as it goes: an answer that is not read stops the server early
)

// Open connects to the cluster and asks for its nodes.
func Open(ctx context.Context, target Target) (*Cluster, error) {
	c := &Cluster{target: target}
	var err error
	if c.first, err = c.dial(target.Address, ""); err != nil {
		return nil, err
	}
	if c.listed, err = c.endpoints(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("discovery at %s: %w", target.Address, err)
	}
	for _, e := range c.listed.GetEndpoints() {
		n, err := c.dial(addressOf(e), e.GetSslTargetNameOverride())
		if err != nil {
			c.Close()
			return nil, err
		}
		n.id = e.GetNodeId()
		c.nodes = append(c.nodes, n)
	}
	return c, nil
}

func addressOf(e *Ydb_Discovery.EndpointInfo) string {
	return net.JoinHostPort(e.GetAddress(), strconv.FormatUint(uint64(e.GetPort()), 10))
}

// Close ends the connections.
func (c *Cluster) Close() {
	for _, n := range append(c.nodes, c.first) {
		if n != nil {
			_ = n.conn.Close()
		}
	}
}

// Nodes are the ids and addresses that discovery lists.
func (c *Cluster) Nodes() (list []string) {
	for _, n := range c.nodes {
		list = append(list, fmt.Sprintf("%d at %s", n.id, n.address))
	}
	return list
}

func (c *Cluster) dial(address, serverName string) (*node, error) {
	secure := insecure.NewCredentials()
	if c.target.TLS != nil {
		config := c.target.TLS.Clone()
		config.ServerName = cmp.Or(config.ServerName, serverName)
		secure = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(secure),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window*4),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(c.headers(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(c.headers(ctx), desc, cc, method, opts...)
		}))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return &node{address: address, conn: conn, query: Ydb_Query_V1.NewQueryServiceClient(conn),
		table:  Ydb_Table_V1.NewTableServiceClient(conn),
		scheme: Ydb_Scheme_V1.NewSchemeServiceClient(conn), discovery: Ydb_Discovery_V1.NewDiscoveryServiceClient(conn)}, nil
}

type headerKey string

// with replaces a header in the calls of the context; "" leaves it out.
func with(ctx context.Context, header, value string) context.Context {
	return context.WithValue(ctx, headerKey(header), value)
}

func (c *Cluster) headers(ctx context.Context) context.Context {
	for name, value := range map[string]string{headerDatabase: c.target.Database, headerTicket: c.target.Ticket} {
		if other, ok := ctx.Value(headerKey(name)).(string); ok {
			value = other
		}
		if value != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, name, value)
		}
	}
	return ctx
}

// mask takes out of a text what a report must not show.
func (c *Cluster) mask(text string) string {
	if c.target.Ticket != "" {
		text = strings.ReplaceAll(text, c.target.Ticket, "***")
	}
	return text
}

// Login exchanges a user and a password for a ticket.
func Login(ctx context.Context, target Target, user, password string) (string, error) {
	c := &Cluster{target: target}
	n, err := c.dial(target.Address, "")
	if err != nil {
		return "", err
	}
	defer func() { _ = n.conn.Close() }()
	answer, err := Ydb_Auth_V1.NewAuthServiceClient(n.conn).Login(ctx, &Ydb_Auth.LoginRequest{User: user, Password: password})
	result := &Ydb_Auth.LoginResult{}
	if err := unpack(answer.GetOperation(), err, result); err != nil {
		return "", fmt.Errorf("login: %w", err)
	}
	return result.GetToken(), nil
}

// seen is the short form of an answer: the status of YDB, or of gRPC.
func seen(s Ydb.StatusIds_StatusCode, issues []*Ydb_Issue.IssueMessage, err error) Seen {
	if err != nil {
		return Seen{Answer: "gRPC " + status.Code(err).String(), Text: status.Convert(err).Message()}
	}
	return Seen{Answer: s.String(), Text: texts(issues)}
}

func texts(issues []*Ydb_Issue.IssueMessage) string {
	var list []string
	for _, i := range issues {
		text := i.GetMessage()
		if i.GetIssueCode() != 0 {
			text += fmt.Sprintf(" (%d)", i.GetIssueCode())
		}
		if inner := texts(i.GetIssues()); inner != "" {
			text += ": " + inner
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

// answered is any message that carries a status.
type answered interface {
	GetStatus() Ydb.StatusIds_StatusCode
	GetIssues() []*Ydb_Issue.IssueMessage
}

// plain is the answer of a method that has its status in its message.
func plain(m answered, err error) (Seen, error) { return seen(m.GetStatus(), m.GetIssues(), err), nil }

// in is the answer of a method that has its status in an operation.
func in(m interface {
	GetOperation() *Ydb_Operations.Operation
}, err error) (Seen, error) {
	return plain(m.GetOperation(), err)
}

// fine turns an answer that is not SUCCESS into an error.
func fine(s Seen, err error) error {
	if err == nil && s.Answer != Ydb.StatusIds_SUCCESS.String() {
		err = errors.New(s.String())
	}
	return err
}

func unpack(o *Ydb_Operations.Operation, err error, into proto.Message) error {
	if err := fine(plain(o, err)); err != nil {
		return err
	}
	return o.GetResult().UnmarshalTo(into)
}

func (c *Cluster) endpoints(ctx context.Context) (*Ydb_Discovery.ListEndpointsResult, error) {
	answer, err := c.first.discovery.ListEndpoints(ctx, &Ydb_Discovery.ListEndpointsRequest{Database: c.target.Database})
	result := &Ydb_Discovery.ListEndpointsResult{}
	return result, unpack(answer.GetOperation(), err, result)
}

// directory is the absolute path of the target's directory.
func (c *Cluster) directory() string { return path.Join(c.target.Database, c.target.Directory) }

// path is that of the table of the rules.
func (c *Cluster) path() string { return path.Join(c.directory(), "rules") }

// rows are those of the table of the rules: more than ExecuteDataQuery returns.
const rows = 1500

// Prepare makes the directory and the table. Call Remove in the end.
func (c *Cluster) Prepare(ctx context.Context) error {
	if err := fine(in(c.first.scheme.MakeDirectory(ctx, &Ydb_Scheme.MakeDirectoryRequest{Path: c.directory()}))); err != nil {
		return fmt.Errorf("make directory %s: %w", c.directory(), err)
	}
	if err := fine(c.first.run(ctx, "CREATE TABLE `"+c.path()+"` (id Uint64 NOT NULL, n Int32, one Int32, pad Utf8, "+
		"PRIMARY KEY (id))")); err != nil {
		return fmt.Errorf("create table %s: %w", c.path(), err)
	}
	if err := fine(in(c.first.table.BulkUpsert(ctx, c.upsert(rows)))); err != nil {
		return fmt.Errorf("fill table %s: %w", c.path(), err)
	}
	return nil
}

// upsert writes rows 1 to n.
func (c *Cluster) upsert(n int) *Ydb_Table.BulkUpsertRequest {
	of := func(id Ydb.Type_PrimitiveTypeId) *Ydb.Type { return &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}} }
	pad := strings.Repeat("x", 1000) // few rows are more than a server has ready
	list := &Ydb.Value{}
	for i := range n {
		list.Items = append(list.Items, &Ydb.Value{Items: []*Ydb.Value{
			{Value: &Ydb.Value_Uint64Value{Uint64Value: uint64(i + 1)}},
			{Value: &Ydb.Value_Int32Value{Int32Value: int32(i)}}, {Value: &Ydb.Value_Int32Value{Int32Value: 1}},
			{Value: &Ydb.Value_TextValue{TextValue: pad}},
		}})
	}
	return &Ydb_Table.BulkUpsertRequest{Table: c.path(), Rows: &Ydb.TypedValue{
		Type: &Ydb.Type{
			Type: &Ydb.Type_ListType{
				ListType: &Ydb.ListType{Item: &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: []*Ydb.StructMember{
					{Name: "id", Type: of(Ydb.Type_UINT64)}, {Name: "n", Type: of(Ydb.Type_INT32)},
					{Name: "one", Type: of(Ydb.Type_INT32)}, {Name: "pad", Type: of(Ydb.Type_UTF8)},
				}}}}},
			},
		},
		Value: list,
	}}
}

// List returns the paths of everything below a directory of the database, "" for the whole of it.
// What the system keeps there itself (names with a leading dot) is left out.
func (c *Cluster) List(ctx context.Context, directory string) ([]string, error) {
	entries, err := c.children(ctx, path.Join(c.target.Database, directory))
	if err != nil {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		name := path.Join(directory, e.GetName())
		list = append(list, name)
		if e.GetType() != Ydb_Scheme.Entry_DIRECTORY {
			continue
		}
		below, err := c.List(ctx, name)
		if err != nil {
			return nil, err
		}
		list = append(list, below...)
	}
	return list, nil
}

func (c *Cluster) children(ctx context.Context, at string) ([]*Ydb_Scheme.Entry, error) {
	answer, err := c.first.scheme.ListDirectory(ctx, &Ydb_Scheme.ListDirectoryRequest{Path: at})
	result := &Ydb_Scheme.ListDirectoryResult{}
	if err := unpack(answer.GetOperation(), err, result); err != nil {
		return nil, fmt.Errorf("list %s: %w", at, err)
	}
	var visible []*Ydb_Scheme.Entry
	for _, e := range result.GetChildren() {
		if !strings.HasPrefix(e.GetName(), ".") {
			visible = append(visible, e)
		}
	}
	return visible, nil
}

// Remove drops the target's directory with all that is in it.
func (c *Cluster) Remove(ctx context.Context) error {
	if strings.Trim(c.target.Directory, "/") == "" {
		return errors.New("the directory has no name: nothing is removed")
	}
	return c.remove(ctx, c.directory())
}

func (c *Cluster) remove(ctx context.Context, directory string) error {
	entries, err := c.children(ctx, directory)
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := path.Join(directory, e.GetName())
		switch e.GetType() {
		case Ydb_Scheme.Entry_DIRECTORY:
			err = c.remove(ctx, at)
		case Ydb_Scheme.Entry_TABLE:
			err = fine(c.first.run(ctx, "DROP TABLE `"+at+"`"))
		default:
			err = fmt.Errorf("it is a %v", e.GetType())
		}
		if err != nil {
			return fmt.Errorf("remove %s: %w", at, err)
		}
	}
	return fine(in(c.first.scheme.RemoveDirectory(ctx, &Ydb_Scheme.RemoveDirectoryRequest{Path: directory})))
}

// session is a query session with its attach stream.
type session struct {
	*node
	id     string
	stream Ydb_Query_V1.QueryService_AttachSessionClient
	cancel context.CancelFunc // ends the stream
	closed sync.Once
}

// until asks again and again until the answer is not one of those, and returns it.
func until(ctx context.Context, ask func() (Seen, error), unlike ...string) (Seen, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := ask()
		if err != nil {
			return got, err
		}
		again := false
		for _, u := range unlike {
			again = again || got.Answer == u
		}
		if !again {
			return got, nil
		}
		select {
		case <-ctx.Done():
			return got, nil // it stays so
		case <-tick.C:
		}
	}
}
