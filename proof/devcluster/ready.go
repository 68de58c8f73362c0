package devcluster

import "context"

// Ready is what a cluster says of itself when it is ready.
type Ready struct {
	Ready    bool        `json:"ready"`    // true
	Endpoint string      `json:"endpoint"` // connection string, by the first node
	Control  string      `json:"control"`  // address of the control API; empty if there is none
	Nodes    []ReadyNode `json:"nodes"`
}

// ReadyNode is one node of Ready.
type ReadyNode struct {
	ID      uint32 `json:"id"`
	Address string `json:"address"`        // for clients
	Peer    string `json:"peer,omitempty"` // for other nodes
	PID     int    `json:"pid,omitempty"`  // of a node that is a process of its own
}

// Ready describes the cluster.
func (c *Cluster) Ready(context.Context) (Ready, error) {
	r := Ready{Ready: true, Endpoint: c.Endpoint(), Control: c.Control(), Nodes: []ReadyNode{}}
	for _, n := range c.all() {
		m := n.member()
		r.Nodes = append(r.Nodes, ReadyNode{ID: m.ID, Address: n.Address(), Peer: m.Peer, PID: n.info().PID})
	}
	return r, nil
}
