package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Cluster is a development cluster in one process.
type Cluster struct {
	*Process
	Control stand.Control
	Nodes   []stand.Node
}

// Endpoint is the address for -ydb.
func (c *Cluster) Endpoint() string { return "grpc://" + c.Nodes[0].Address + "/local" }

// Counter sums a counter of the nodes' own over all nodes.
func (c *Cluster) Counter(ctx context.Context, name string) (sum int64, err error) {
	nodes, err := c.Control.Nodes(ctx)
	for _, node := range nodes {
		sum += node.Counters[name]
	}
	return sum, err
}

// Cluster starts a development cluster of n nodes.
func (l *Lab) Cluster(ctx context.Context, n int, args ...string) (*Cluster, error) {
	args = append([]string{"-nodes", strconv.Itoa(n), "-port", "0", "-control", "127.0.0.1:0"}, args...)
	p, err := l.Start(ctx, "cluster", stand.Spec{Path: filepath.Join(l.Bin, "devcluster"), Args: args})
	if err != nil {
		return nil, err
	}
	c := &Cluster{Process: p, Control: stand.Control{Address: p.Ready["control"]}}
	if c.Nodes, err = c.Control.Nodes(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Sidecar is one running sidecar.
type Sidecar struct {
	*Process
	GRPC, HTTP, Admin string // addresses
	Conn              *grpc.ClientConn
	Client            sidecarv1.SidecarClient
}

// Sidecar starts the first of the programs under test with the given settings (name=value).
func (l *Lab) Sidecar(ctx context.Context, endpoint string, settings ...string) (*Sidecar, error) {
	return l.SidecarOf(ctx, l.Sidecars[0], endpoint, nil, settings...)
}

// Each starts all programs under test: the variants of `-sidecar OLD,NEW`. The
// name of a variant gets the program behind it when there are several.
func (l *Lab) Each(ctx context.Context, endpoint string, settings ...string) (all []*Sidecar, err error) {
	for _, program := range l.Sidecars {
		s, err := l.SidecarOf(ctx, program, endpoint, nil, settings...)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// Name tells the variants of several programs apart: "name" with one, "name, program" with more.
func (l *Lab) Name(name string, i int) string {
	if len(l.Sidecars) > 1 {
		name += ", " + l.Sidecars[i]
	}
	return name
}

// SidecarOf starts a sidecar of a program, with additions to its environment.
func (l *Lab) SidecarOf(ctx context.Context, program, endpoint string, environment []string, settings ...string) (*Sidecar, error) {
	args := []string{"serve", "-ydb", endpoint, "-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-set", "log.level=warn"}
	for _, setting := range settings {
		args = append(args, "-set", setting)
	}
	p, err := l.Start(ctx, "sidecar", stand.Spec{Path: program, Args: args, Env: environment})
	if err != nil {
		return nil, err
	}
	conn, err := l.Dial(p.Ready["grpc"])
	if err != nil {
		return nil, err
	}
	return &Sidecar{Process: p, GRPC: p.Ready["grpc"], HTTP: p.Ready["http"], Admin: p.Ready["admin"],
		Conn: conn, Client: sidecarv1.NewSidecarClient(conn)}, nil
}

// Warm waits until a sidecar has a node and its pool.min sessions, or startup.wait is over.
func (s *Sidecar) Warm(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the sidecar has no node, or not its pool.min sessions, after a minute"))
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Admin+"/startupz", nil)
		if err != nil {
			return fmt.Errorf("warm: %w", err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close() // its code has said it
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Dial makes a connection without TLS, which Stop closes.
func (l *Lab) Dial(address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	l.Defer(func() { _ = conn.Close() }) // nothing is in flight
	return conn, nil
}
