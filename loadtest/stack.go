package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/internal/proc"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// stack is what a measurement runs against: one cluster of three nodes in one
// process, and any number of sidecars.
type stack struct {
	bin     string
	control proc.Control
	nodes   []proc.Node
	started []*proc.Process // in the order of their start
	conns   []*grpc.ClientConn
}

// sidecar is one running sidecar.
type sidecar struct {
	process *proc.Process
	http    string
	admin   string
	conn    *grpc.ClientConn
	client  sidecarv1.SidecarClient
}

func startStack(ctx context.Context, bin string) (*stack, error) {
	s := &stack{bin: bin}
	ready, err := s.start(ctx, "devcluster", "-nodes", "3", "-port", "0", "-control", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.control.Address = ready["control"]
	if s.nodes, err = s.control.Nodes(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// start starts one program and waits for its ready line. Whatever it started
// is ended by stop.
func (s *stack) start(ctx context.Context, name string, args ...string) (map[string]string, error) {
	p, err := proc.Start(proc.Spec{Path: filepath.Join(s.bin, name), Args: args})
	if err != nil {
		return nil, err
	}
	s.started = append(s.started, p)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	ready, err := p.Ready(ctx)
	if err != nil {
		s.stop()
	}
	return ready, err
}

// sidecar starts a sidecar with the given settings (name=value).
func (s *stack) sidecar(ctx context.Context, settings ...string) (*sidecar, error) {
	args := []string{"serve", "-ydb", "grpc://" + s.nodes[0].Address + "/local",
		"-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-set", "log.level=warn"}
	for _, setting := range settings {
		args = append(args, "-set", setting)
	}
	ready, err := s.start(ctx, "sidecar", args...)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+ready["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial the sidecar: %w", err)
	}
	s.conns = append(s.conns, conn)
	return &sidecar{process: s.started[len(s.started)-1], http: ready["http"], admin: ready["admin"],
		conn: conn, client: sidecarv1.NewSidecarClient(conn)}, nil
}

// counters sums a counter of the nodes' own over all nodes.
func (s *stack) counters(ctx context.Context, name string) (int64, error) {
	nodes, err := s.control.Nodes(ctx)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, node := range nodes {
		sum += node.Counters[name]
	}
	return sum, nil
}

// end stops one sidecar.
func (s *stack) end(side *sidecar) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = side.conn.Close() // nothing is in flight
	_, err := side.process.Stop(ctx)
	return err
}

// stop ends everything, last started first.
func (s *stack) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, conn := range s.conns {
		_ = conn.Close() // nothing is in flight
	}
	for i := len(s.started) - 1; i >= 0; i-- {
		_, _ = s.started[i].Stop(ctx) // it is gone after this, whatever its code
	}
}
