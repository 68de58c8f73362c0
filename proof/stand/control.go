package stand

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Node is one node of the development cluster, as its control API tells it.
type Node struct {
	ID       uint32           `json:"id"`
	Address  string           `json:"address"`
	State    string           `json:"state"` // "up" while it serves
	Pid      int              `json:"pid"`   // of the node's own process, 0 if it has none
	Counters map[string]int64 `json:"counters"`
}

// Session is one live session on a node.
type Session struct {
	ID     string `json:"id"`
	NodeID uint32 `json:"node_id"`
	State  string `json:"state"`

	Transactions int `json:"transactions"` // open ones
}

// Control drives the control API of a development cluster.
type Control struct{ Address string }

// Nodes returns all nodes in the order of the answer.
func (c Control) Nodes(ctx context.Context) ([]Node, error) {
	var answer struct{ Nodes []Node }
	err := c.call(ctx, http.MethodGet, "/nodes", nil, &answer)
	return answer.Nodes, err
}

// Sessions returns every live session of the cluster.
func (c Control) Sessions(ctx context.Context) ([]Session, error) {
	var answer struct{ Sessions []Session }
	err := c.call(ctx, http.MethodGet, "/sessions", nil, &answer)
	return answer.Sessions, err
}

// Add starts one more node, in the given location; "" leaves that to the cluster.
func (c Control) Add(ctx context.Context, location string) (Node, error) {
	var node Node
	err := c.call(ctx, http.MethodPost, "/nodes", map[string]string{"location": location}, &node)
	return node, err
}

// Do posts to one node one of the actions of docs/dev/devcluster.md. body may be nil.
func (c Control) Do(ctx context.Context, node uint32, what string, body any) error {
	return c.call(ctx, http.MethodPost, "/nodes/"+strconv.FormatUint(uint64(node), 10)+"/"+what, body, nil)
}

// Fault is something that is wrong with a table, the database or a node: see docs/dev/devcluster.md.
type Fault struct {
	ID     string  `json:"id,omitempty"`
	Kind   string  `json:"kind"`
	Table  string  `json:"table,omitempty"`
	Pool   string  `json:"pool,omitempty"`
	Node   uint32  `json:"node,omitempty"`
	Share  float64 `json:"share"`
	Delay  string  `json:"delay,omitempty"`
	Status string  `json:"status,omitempty"`
}

// AddFault makes something go wrong until RemoveFault and returns the fault's id.
func (c Control) AddFault(ctx context.Context, f Fault) (string, error) {
	var made Fault
	err := c.call(ctx, http.MethodPost, "/faults", f, &made)
	return made.ID, err
}

// RemoveFault ends a fault.
func (c Control) RemoveFault(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/faults/"+id, nil, nil)
}

// SetPiles gives piles new states, by their names.
func (c Control) SetPiles(ctx context.Context, states map[string]string) error {
	return c.call(ctx, http.MethodPost, "/piles", states, nil)
}

func (c Control) call(ctx context.Context, method, path string, body, answer any) error {
	var send io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("control %s %s: %w", method, path, err)
		}
		send = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+c.Address+path, send)
	if err != nil {
		return fmt.Errorf("control %s %s: %w", method, path, err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("control %s %s: %w", method, path, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("control %s %s: %w", method, path, err)
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("control %s %s: %s: %s", method, path, response.Status, data)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("control %s %s: %w", method, path, err)
	}
	return nil
}
