package stand

import (
	"context"
)

// Cluster is a running development cluster.
type Cluster struct {
	*Process
	Control
	Nodes []Node // at the start; those of now are Control.Nodes
}

// StartCluster starts the devcluster of a path on free ports. The caller must Stop it.
func StartCluster(ctx context.Context, spec Spec) (*Cluster, error) {
	spec.Args = append([]string{"-port", "0", "-control", "127.0.0.1:0"}, spec.Args...)
	p, err := Launch(ctx, spec)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Process: p, Control: Control{Address: p.At["control"]}}
	if c.Nodes, err = c.Control.Nodes(ctx); err != nil {
		p.kill()
		return nil, err
	}
	return c, nil
}

// Endpoint is the address of its first node, for -ydb.
func (c *Cluster) Endpoint() string { return "grpc://" + c.Nodes[0].Address + "/local" }

// Everywhere does the same to every node that was there at the start.
func (c *Cluster) Everywhere(ctx context.Context, what string, body any) error {
	for _, node := range c.Nodes {
		if err := c.Do(ctx, node.ID, what, body); err != nil {
			return err
		}
	}
	return nil
}

// Counter sums a counter of the nodes' own over all nodes.
func (c *Cluster) Counter(ctx context.Context, name string) (sum int64, err error) {
	nodes, err := c.Control.Nodes(ctx)
	for _, node := range nodes {
		sum += node.Counters[name]
	}
	return sum, err
}
