package lab

import (
	"context"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Cluster is a development cluster in one process.
type Cluster = stand.Cluster

// Cluster starts a development cluster of n nodes.
func (l *Lab) Cluster(ctx context.Context, n int, args ...string) (*Cluster, error) {
	args = append([]string{"-nodes", strconv.Itoa(n)}, args...)
	c, err := stand.StartCluster(ctx, stand.Spec{Path: filepath.Join(l.Bin, "devcluster"), Args: args})
	if err != nil {
		return nil, err
	}
	_, err = l.note("cluster", c.Process, nil)
	return c, err
}

// Sidecar is one running sidecar.
type Sidecar struct{ *stand.Sidecar }

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
	s, err := stand.StartSidecar(
		ctx,
		stand.Serve{Program: program, URL: endpoint, Env: environment, Settings: append([]string{"log.level=warn"}, settings...)},
	)
	if err != nil {
		return nil, err
	}
	l.Defer(s.Close)
	_, err = l.note("sidecar", s.Process, nil)
	return &Sidecar{s}, err
}

// Dial makes a connection without TLS, which Stop closes.
func (l *Lab) Dial(address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := stand.Dial(address, options...)
	if err != nil {
		return nil, err
	}
	l.Defer(func() { _ = conn.Close() }) // nothing is in flight
	return conn, nil
}
