package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// stack is the processes of one run: a cluster whose nodes, unless row.together, are
// processes of their own, one sidecar (for a while two), and the apps.
type stack struct {
	bin     string
	dir     string
	control stand.Control
	client  *http.Client
	started []*stand.Process // in the order of their start
	links   map[uint32]*link // from the sidecar to each node; empty: it reaches them directly
}

const patience = 40 * time.Second // for the start or the end of a process

func startStack(ctx context.Context, bin string, args ...string) (*stack, error) {
	dir, err := os.MkdirTemp(memory, "chaos-")
	if err != nil {
		dir, err = os.MkdirTemp("", "chaos-")
	}
	if err != nil {
		return nil, err
	}
	s := &stack{bin: bin, dir: dir, client: &http.Client{Transport: &http.Transport{}, Timeout: 5 * time.Second}}
	_, at, err := s.start(ctx, stand.Spec{Path: filepath.Join(bin, "devcluster"), Args: append([]string{"-port", strconv.Itoa(freePorts9()), "-control", "127.0.0.1:0",
		"-data", filepath.Join(dir, "data"), "-session-idle", orphanLife.String()}, args...)})
	if err != nil {
		s.stop()
		return nil, err
	}
	s.control.Address = at["control"]
	return s, nil
}

// freePorts9 returns the first of nine ports in a row that nobody listens on, below
// those that the kernel gives to outgoing connections: one of these could take the
// port of a node that is down.
func freePorts9() int {
	for {
		first := 10000 + 10*rand.IntN(2000)
		free := true
		for port := first; port < first+9 && free; port++ {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
			if free = err == nil; free {
				_ = l.Close() // it was never used
			}
		}
		if free {
			return first
		}
	}
}

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

// orphanLife is how long a node keeps a session that nobody is attached to: one
// whose creation was never answered, because the connection broke, has no id
// that the sidecar could delete.
const orphanLife = 3 * time.Second

// start starts a program and waits for its ready line.
func (s *stack) start(ctx context.Context, spec stand.Spec) (*stand.Process, map[string]string, error) {
	p, err := stand.Start(spec)
	if err != nil {
		return nil, nil, err
	}
	s.started = append(s.started, p)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	at, err := p.Ready(ctx)
	return p, at, err
}

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
	process           *stand.Process
	grpc, http, admin string
	faces             []face // over gRPC, over HTTP
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
	args := append([]string{"serve", "-ydb", "grpc://" + strings.Join(known, ",") + "/local"}, flags...)
	for _, setting := range settings {
		args = append(args, "-set", setting)
	}
	p, at, err := s.start(ctx, stand.Spec{Path: filepath.Join(s.bin, "sidecar"), Args: args})
	if err != nil {
		return nil, err
	}
	g, err := dialGRPC(at["grpc"])
	if err != nil {
		return nil, err
	}
	return &sidecar{process: p, grpc: at["grpc"], http: at["http"], admin: at["admin"], faces: []face{g, dialHTTP(at["http"])}}, nil
}

func (c *sidecar) close() {
	for _, f := range c.faces {
		f.close()
	}
}

// freePorts are the flags that let a sidecar choose its ports.
var freePorts = []string{"-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-admin", "127.0.0.1:0"}

// end stops a sidecar and returns its exit code and the last it said.
func (c *sidecar) end(ctx context.Context) (code int, said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	code, err = c.process.Stop(ctx)
	return code, lastLines(c.process.Log(), 5), err
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
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
	s.client.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections() // of stand.Control
	_ = os.RemoveAll(s.dir)                   // of the temporary directory; what stays harms nobody
}

// admin reads one page of a sidecar's admin API.
func (s *stack) admin(ctx context.Context, c *sidecar, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.admin+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("admin %s: %w", path, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	if err != nil {
		return nil, fmt.Errorf("admin %s: %w", path, err)
	}
	return data, nil
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

// nodes reads what the sidecar thinks of the nodes.
func (s *stack) nodes(ctx context.Context, c *sidecar) ([]judged, error) {
	data, err := s.admin(ctx, c, "/state/nodes")
	if err != nil {
		return nil, err
	}
	var state struct{ Nodes []judged }
	if err := json.Unmarshal(data, &state); err != nil {
		return nil, fmt.Errorf("admin /state/nodes: %w", err)
	}
	return state.Nodes, nil
}

// moved reads how many sessions the pool let go for the sake of another node.
func (s *stack) moved(ctx context.Context, c *sidecar) (int64, error) {
	data, err := s.admin(ctx, c, "/state/pool")
	if err != nil {
		return 0, err
	}
	var state struct{ Moved int64 }
	if err := json.Unmarshal(data, &state); err != nil {
		return 0, fmt.Errorf("admin /state/pool: %w", err)
	}
	return state.Moved, nil
}

// settings reads the values of all settings.
func (s *stack) settings(ctx context.Context, c *sidecar) (map[string]string, error) {
	data, err := s.admin(ctx, c, "/config")
	if err != nil {
		return nil, err
	}
	var list []struct{ Name, Value string }
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("admin /config: %w", err)
	}
	all := make(map[string]string, len(list))
	for _, one := range list {
		all[one.Name] = one.Value
	}
	return all, nil
}

// goroutines returns how many goroutines the sidecar has.
func (s *stack) goroutines(ctx context.Context, c *sidecar) (n int, err error) {
	data, err := s.admin(ctx, c, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscanf(string(data), "goroutine profile: total %d", &n); err != nil {
		return 0, fmt.Errorf("admin /debug/pprof/goroutine: %w", err)
	}
	return n, nil
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
