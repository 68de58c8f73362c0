package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// stack is the processes of one run: a cluster whose nodes, unless row.together, are
// processes of their own, one sidecar (for a while two), and the apps.
type stack struct {
	bin     string
	dir     string
	control stand.Control
	started []*stand.Process // in the order of their start
	links   map[uint32]*link // from the sidecar to each node; empty: it reaches them directly
}

const patience = 40 * time.Second // for the end of a process

func startStack(ctx context.Context, bin string, args ...string) (*stack, error) {
	dir, err := os.MkdirTemp(memory, "chaos-")
	if err != nil {
		dir, err = os.MkdirTemp("", "chaos-")
	}
	if err != nil {
		return nil, err
	}
	s := &stack{bin: bin, dir: dir}
	port, err := stand.FreePorts(mostNodes)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	args = append([]string{"-port", strconv.Itoa(port), "-data", filepath.Join(dir, "data"), "-session-idle", orphanLife.String()}, args...)
	c, err := stand.StartCluster(ctx, stand.Spec{Path: filepath.Join(bin, "devcluster"), Args: args})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.control, s.started = c.Control, append(s.started, c.Process)
	return s, nil
}

// mostNodes is how many nodes a row has at most. Their ports are not those that the kernel gives to
// outgoing connections: one of these could take the port of a node that is down.
const mostNodes = 9

// memory is where files are kept if it is there: the nodes' database must not wait
// for a disk, which is not what is tested.
const memory = "/dev/shm"

// usage returns the CPU time that the run itself has used so far, and the machine.
func (s *stack) usage(ctx context.Context) (ours, machine time.Duration, err error) {
	nodes, err := s.control.Nodes(ctx)
	if err != nil {
		return 0, 0, err
	}
	pids := []int{os.Getpid()}
	for _, p := range s.started {
		pids = append(pids, p.Pid())
	}
	for _, n := range nodes {
		if n.Pid != 0 {
			pids = append(pids, n.Pid)
		}
	}
	for _, pid := range pids {
		if usage, err := stand.ReadUsage(pid); err == nil { // else it has ended
			ours += usage.CPU
		}
	}
	machine, err = stand.ReadMachine()
	return ours, machine, err
}

// orphanLife is how long a node keeps a session that no client is attached to: one
// whose creation was never answered, because the connection broke, has no id
// that the sidecar could delete.
const orphanLife = 3 * time.Second

// link puts a proxy before every node: discovery tells its address.
func (s *stack) link(ctx context.Context) error {
	nodes, err := s.control.Nodes(ctx)
	if err != nil {
		return err
	}
	s.links = map[uint32]*link{}
	for _, node := range nodes {
		l, err := newLink(node.Address)
		if err != nil {
			return err
		}
		s.links[node.ID] = l
		if err := s.control.Do(ctx, node.ID, "advertise", map[string]string{"address": l.address()}); err != nil {
			return err
		}
	}
	return nil
}

// act does something to a node, or to the link to it.
func (s *stack) act(ctx context.Context, node uint32, what string, body any) error {
	state, ok := map[string]linkState{"cut the link to": cut, "freeze the link to": frozen, "mend the link to": whole}[what]
	if !ok {
		return s.control.Do(ctx, node, what, body)
	}
	if l := s.links[node]; l != nil { // a node that was added has none
		l.set(state)
	}
	return nil
}

// sidecar is one running sidecar.
type sidecar struct {
	*stand.Sidecar
	apis []api // over gRPC, over HTTP
}

// sidecar starts a sidecar with settings (name=value) and flags of serve.
func (s *stack) sidecar(ctx context.Context, settings []string, flags ...string) (*sidecar, error) {
	nodes, err := s.control.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var known []string
	for _, node := range nodes {
		if l := s.links[node.ID]; l != nil {
			node.Address = l.address()
		}
		known = append(known, node.Address)
	}
	c, err := stand.StartSidecar(ctx, stand.Serve{Program: filepath.Join(s.bin, "sidecar"), Settings: settings, Flags: flags,
		URL: "grpc://" + strings.Join(known, ",") + "/local"})
	if err != nil {
		return nil, err
	}
	s.started = append(s.started, c.Process)
	return &sidecar{c, []api{{contract.OverGRPC(c.Conn)}, {contract.OverHTTP("http://" + c.HTTP)}}}, nil
}

func (c *sidecar) close() {
	for _, f := range c.apis {
		f.Close()
	}
}

// end stops a sidecar and returns its exit code and the last it said.
func (c *sidecar) end(ctx context.Context) (code int, said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	code, err = c.Stop(ctx)
	return code, stand.LastLines(c.Log(), 5), err
}

// stop ends everything, last started first, and removes the files.
func (s *stack) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := len(s.started) - 1; i >= 0; i-- {
		_, _ = s.started[i].Stop(ctx) // it is gone after this, whatever its code
	}
	for _, l := range s.links {
		l.close()
	}
	http.DefaultClient.CloseIdleConnections() // of stand.Control and the admin API
	_ = os.RemoveAll(s.dir)                   // of the temporary directory; what stays does no harm
}

// judged is what the sidecar thinks of a node.
type judged struct {
	ID          uint32
	Health      string
	Use         string
	Reason      string
	Leaving     bool
	Unreachable bool
	Since       time.Time
	Sessions    int
	Creating    int
	Pile        string
	PileState   string `json:"pile_state"`
}

// out says that the node gets no new work.
func (j judged) out() bool { return j.Use != "new" }

// adminWait bounds a look at the admin API: the sidecar may be about to end.
const adminWait = 5 * time.Second

// read reads a page of the admin API into a value.
func (c *sidecar) read(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, adminWait)
	defer cancel()
	return c.JSON(ctx, path, into)
}

// nodes reads what the sidecar thinks of the nodes.
func (c *sidecar) nodes(ctx context.Context) ([]judged, error) {
	var state struct{ Nodes []judged }
	err := c.read(ctx, "/state/nodes", &state)
	return state.Nodes, err
}

// counts are what the sidecar's pool did so far. Moved is how many sessions it let go for the sake of another node.
type counts struct {
	Created, Closed, Recovered, Moved int64
}

func (c *sidecar) pool(ctx context.Context) (n counts, err error) {
	err = c.read(ctx, "/state/pool", &n)
	return n, err
}

// settings reads the values of all settings.
func (c *sidecar) settings(ctx context.Context) (map[string]string, error) {
	var list []struct{ Name, Value string }
	err := c.read(ctx, "/config", &list)
	all := make(map[string]string, len(list))
	for _, one := range list {
		all[one.Name] = one.Value
	}
	return all, err
}

// goroutines returns how many goroutines the sidecar has.
func (c *sidecar) goroutines(ctx context.Context) (n int, err error) {
	data, err := c.Get(ctx, "/debug/pprof/goroutine?debug=1")
	if err == nil {
		_, err = fmt.Sscanf(string(data), "goroutine profile: total %d", &n)
	}
	return n, err
}

// heal takes back every fault: all nodes run and serve.
func (s *stack) heal(ctx context.Context) error {
	nodes, err := s.control.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, l := range s.links {
		l.set(whole)
	}
	for _, node := range nodes {
		if node.State != "up" {
			if err := s.control.Do(ctx, node.ID, "start", nil); err != nil {
				return err
			}
		}
		if err := s.control.Do(ctx, node.ID, "clear", nil); err != nil {
			return err
		}
	}
	return nil
}
