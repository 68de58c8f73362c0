package peers

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/template"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/certtest"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// The names of the targets that others are compared with.
const (
	direct     = "direct"
	haproxyTCP = "haproxy-tcp"
	haproxy    = "haproxy-1"
	haproxyOld = "haproxy-debian"
	envoy      = "envoy-1"
)

// target is something that calls are sent to.
type target struct {
	Name, Version, Command string
	Own                    bool // it is the project's

	routes    bool // a call goes to the node that its session id names
	virtual   bool // sessions are the target's own
	api       api
	endpoints map[sides]*endpoint
}

// endpoint is where a target listens.
type endpoint struct {
	addresses []string     // one, or one of each node, of which the caller chooses
	process   *lab.Process // nil: there is none but the nodes
}

// at returns where calls of a scenario go; nil: the target cannot serve it.
func (t *target) at(s Scenario) *endpoint { return t.endpoints[s.TLS] }

// field is everything that runs during a benchmark.
type field struct {
	lab     *lab.Lab
	options Options
	dir     string            // for configuration files
	nodes   map[bool][]string // addresses of the backends, plain (false) and with TLS
	targets []*target
	left    []string // what was left out, and why
}

// A peer tells how to run one kind of proxy.
type peer struct {
	name    string
	own     bool
	routes  bool
	virtual bool
	api     api
	plainly string // why it does not speak TLS; "" if it does
	find    func(f *field) (string, error)
	version func(program string) (string, error)
	// command returns what to start, so that it listens and forwards to the backends.
	command func(f *field, program, listen string, tls sides) (stand.Spec, error)
}

const unconfigured = "no goal needs it"

func peers() []peer {
	return []peer{
		{name: haproxyTCP, plainly: "it copies bytes", find: installed("haproxy"), version: says("-v"),
			command: configured("haproxy.cfg", true, "-db", "-f")},
		{name: haproxy, find: installed("haproxy"), version: says("-v"), command: configured("haproxy.cfg", false, "-db", "-f")},
		{name: haproxyOld, find: ofDebian("haproxy"), version: says("-v"), command: configured("haproxy.cfg", false, "-db", "-f")},
		{name: envoy, find: installed("envoy"), version: says("--version"),
			command: configured("envoy.yaml", false, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error", "-c")},
		{name: "nginx", plainly: unconfigured, find: installed("nginx"), version: says("-v"),
			command: configured("nginx.conf", false, "-e", "stderr", "-c")},
		{name: "grpc-go", plainly: unconfigured, find: func(*field) (string, error) { return os.Executable() },
			version: func(string) (string, error) { return "grpc-go " + grpc.Version + ", " + runtime.Version(), nil },
			command: func(f *field, _, listen string, _ sides) (stand.Spec, error) {
				return lab.ChildSpec(experiment, forward, append([]string{listen}, f.nodes[false]...)...)
			}},
	}
}

// own returns the peers of a command line that Options.Own gives: the sidecar, or
// h2forward, which is the data path alone and known by its name. With faces the sidecar's
// plain API is two more.
func own(name, line string, faces bool) []peer {
	words := strings.Fields(line)
	i := max(0, slices.IndexFunc(words, func(word string) bool { return !strings.Contains(word, "=") }))
	environment, words := words[:i], words[i:]
	alone := len(words) > 0 && strings.HasPrefix(filepath.Base(words[0]), "h2forward")
	virtual := strings.Contains(line, "wire.mode=transaction") || strings.Contains(line, "wire.mode=session")
	serves := []api{ydbAPI}
	if faces && !alone {
		serves = append(serves, plainAPI, webAPI)
	}
	var all []peer
	for _, face := range serves {
		p := peer{name: name + face.suffix(), own: true, routes: !virtual && face == ydbAPI, virtual: virtual, api: face}
		if face != ydbAPI {
			p.plainly = unconfigured
		}
		p.find = func(*field) (string, error) {
			if len(words) == 0 {
				return "", errors.New("there is no program in the command line")
			}
			return exec.LookPath(words[0])
		}
		p.version = built
		arguments := h2forwardArguments
		if !alone {
			arguments, p.version = face.arguments, says("version")
		}
		p.command = func(f *field, program, listen string, tls sides) (stand.Spec, error) {
			return stand.Spec{Path: program, Args: append(arguments(f, listen, tls), words[1:]...), Env: environment}, nil
		}
		all = append(all, p)
	}
	return all
}

// arguments makes the shipped configuration serve a face in front of the backends.
func (face api) arguments(f *field, listen string, tls sides) []string {
	other := "127.0.0.1:0"
	switch face {
	case plainAPI:
		return append(sidecarArguments(f, listen, other, tls), roomy...)
	case webAPI:
		return append(sidecarArguments(f, other, listen, tls), roomy...)
	}
	return sidecarArguments(f, listen, other, tls)
}

// roomy is a session for each of the calls in flight, so that none waits for one.
var roomy = []string{"-set", "pool.max=100", "-set", "pool.max_per_node=100"}

func sidecarArguments(f *field, grpc, http string, tls sides) []string {
	addresses, scheme := f.nodes[tls != nowhere], "grpc://"
	var list, secured []string
	for i, address := range addresses {
		list = append(list, fmt.Sprintf("%d=%s", i+1, address))
	}
	if tls != nowhere {
		scheme, secured = "grpcs://", []string{"-set", "ydb.ca_file=" + certFile(f.dir)}
	}
	if tls == both {
		secured = append(secured, "-set", "grpc.cert_file="+certFile(f.dir), "-set", "grpc.key_file="+keyFile(f.dir))
	}
	return append([]string{"serve", "-grpc", grpc, "-http", http, "-admin", "127.0.0.1:0", "-ydb", scheme + addresses[0] + database,
		"-set", "discovery.mode=static", "-set", "discovery.nodes=" + strings.Join(list, ","), "-set", "wire.mode=passthrough"}, secured...)
}

func h2forwardArguments(f *field, listen string, tls sides) []string {
	arguments := []string{"-listen", listen, "-nodes", strings.Join(f.nodes[tls != nowhere], ",")}
	if tls != nowhere {
		arguments = append(arguments, "-ca", certFile(f.dir))
	}
	if tls == both {
		arguments = append(arguments, "-cert", certFile(f.dir), "-key", keyFile(f.dir))
	}
	return arguments
}

// installed finds a program among the tools, else on the path or where Debian has daemons.
func installed(name string) func(*field) (string, error) {
	return func(f *field) (string, error) {
		program, err := exec.LookPath(filepath.Join(f.lab.Tools, name, name, "_bin", name))
		if err != nil {
			return ofDebian(name)(f)
		}
		return program, nil
	}
}

// ofDebian finds a program on the path, or where Debian has daemons.
func ofDebian(name string) func(*field) (string, error) {
	return func(*field) (string, error) {
		program, err := exec.LookPath(name)
		if err != nil {
			program, err = exec.LookPath(filepath.Join("/usr/sbin", name))
		}
		if err != nil {
			return "", errors.New("it is not installed; `make peers-deps` installs it")
		}
		return program, nil
	}
}

// says returns a program's answer to the question for its version.
func says(question string) func(string) (string, error) {
	return func(program string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), startUp)
		defer cancel()
		out, err := exec.CommandContext(ctx, program, question).CombinedOutput()
		if err != nil {
			return "", err
		}
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return strings.TrimSpace(strings.TrimPrefix(line, program)), nil
	}
}

// built tells the commit that a Go program was built from.
func built(program string) (string, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", err
	}
	version := info.GoVersion
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			version = s.Value[:min(12, len(s.Value))] + ", " + version
		case s.Key == "vcs.modified" && s.Value == "true":
			version += ", modified"
		}
	}
	return version, nil
}

//go:embed conf
var conf embed.FS

// configured returns a command that ends in the name of a configuration file.
func configured(file string, tcp bool, arguments ...string) func(*field, string, string, sides) (stand.Spec, error) {
	return func(f *field, program, listen string, tls sides) (stand.Spec, error) {
		t, err := template.ParseFS(conf, "conf/"+file)
		if err != nil {
			return stand.Spec{}, err
		}
		host, port, err := net.SplitHostPort(listen)
		if err != nil {
			return stand.Spec{}, err
		}
		var text bytes.Buffer
		if err := t.Execute(&text, map[string]any{
			"Host": host, "Port": port, "Nodes": f.split(tls != nowhere), "TCP": tcp, "TLS": tls == both,
			"NodesTLS": tls != nowhere, "Dir": f.dir,
			"Cert": certFile(f.dir), "Key": keyFile(f.dir), "Both": bothFile(f.dir), "Name": serverName,
		}); err != nil {
			return stand.Spec{}, err
		}
		path := filepath.Join(f.dir, port+"-"+file)
		if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
			return stand.Spec{}, err
		}
		return stand.Spec{Path: program, Args: append(slices.Clone(arguments), path), Dir: f.dir}, nil
	}
}

// split returns the backends' addresses in the form that templates need.
func (f *field) split(secure bool) (all []struct{ Host, Port string }) {
	for _, address := range f.nodes[secure] {
		host, port, _ := net.SplitHostPort(address) // it is from a listener
		all = append(all, struct{ Host, Port string }{host, port})
	}
	return all
}

// startUp bounds the start of a process, until it has answered a call.
const startUp = 15 * time.Second

// start starts the backends and every target that can be had.
func (f *field) start(ctx context.Context, where []sides) error {
	if err := certify(f.dir); err != nil {
		return err
	}
	if err := f.startBackends(ctx); err != nil {
		return err
	}
	all := peers()
	for i, line := range f.options.Own {
		name := ownName(f.options.Own, i)
		if f.options.Names != nil {
			name = f.options.Names[i]
		}
		all = append(all, own(name, line, f.options.APIs)...)
	}
	wanted := func(name string) bool { return f.options.Only == nil || slices.Contains(f.options.Only, name) }
	if wanted(direct) {
		f.targets = append(f.targets, &target{Name: direct, routes: true, endpoints: map[sides]*endpoint{
			nowhere: {addresses: f.nodes[false]}, both: {addresses: f.nodes[true]}, toNodes: {addresses: f.nodes[true]},
		}})
	}
	for _, p := range all {
		if !wanted(p.name) {
			continue
		}
		t, err := f.startPeer(ctx, p, where)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			f.leave("%s is left out: %v", p.name, err)
			continue
		}
		f.targets = append(f.targets, t)
	}
	if len(f.targets) == 0 {
		return errors.New("there is nothing to measure")
	}
	return nil
}

// leave notes what is not measured.
func (f *field) leave(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	f.lab.Progress("%s", line)
	f.left = append(f.left, line)
}

// ownName names the project's own targets: by the program, with a number if there are several of the name.
func ownName(lines []string, i int) string {
	base := func(line string) string {
		for word := range strings.FieldsSeq(line) {
			if !strings.Contains(word, "=") {
				return filepath.Base(word)
			}
		}
		return "own"
	}
	name, number, of := base(lines[i]), 0, 0
	for j, line := range lines {
		if base(line) == name {
			of++
			if j <= i {
				number++
			}
		}
	}
	if of > 1 {
		name = fmt.Sprintf("%s-%d", name, number)
	}
	return name
}

func (f *field) startBackends(ctx context.Context) error {
	spec, err := lab.ChildSpec(experiment, backends, f.dir)
	if err != nil {
		return err
	}
	process, err := f.lab.Start(ctx, "backends", spec)
	if err != nil {
		return err
	}
	f.nodes = map[bool][]string{}
	for node := 1; node <= nodes; node++ {
		for _, secure := range []bool{false, true} {
			address, ok := process.At[listenerName(node, secure)]
			if !ok {
				return fmt.Errorf("the backends do not tell the address of %s", listenerName(node, secure))
			}
			f.nodes[secure] = append(f.nodes[secure], address)
		}
	}
	return nil
}

func (f *field) startPeer(ctx context.Context, p peer, where []sides) (*target, error) {
	program, err := p.find(f)
	if err != nil {
		return nil, err
	}
	if program, err = filepath.Abs(program); err != nil {
		return nil, err
	}
	t := &target{Name: p.name, Own: p.own, routes: p.routes, virtual: p.virtual, api: p.api, endpoints: map[sides]*endpoint{}}
	if t.Version, err = p.version(program); err != nil {
		return nil, err
	}
	told := false
	for _, tls := range where {
		if tls != nowhere && p.plainly != "" {
			if !told {
				f.leave("%s is not measured with TLS: %s", p.name, p.plainly)
			}
			told = true
			continue
		}
		if t.endpoints[tls], err = f.startEndpoint(ctx, p, t, program, tls); err != nil {
			return nil, fmt.Errorf("TLS %q: %w", tls, err)
		}
	}
	return t, nil
}

// startEndpoint starts a proxy and waits until a call to each node passes through it.
func (f *field) startEndpoint(ctx context.Context, p peer, t *target, program string, tls sides) (*endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, startUp)
	defer cancel()
	listen, err := stand.FreeAddress()
	if err != nil {
		return nil, err
	}
	spec, err := p.command(f, program, listen, tls)
	if err != nil {
		return nil, err
	}
	process, err := f.lab.Spawn("middle", spec)
	if err != nil {
		return nil, err
	}
	if tls == nowhere {
		t.Command = strings.Join(slices.Concat(spec.Env, []string{filepath.Base(program)}, spec.Args), " ")
		t.Command = strings.ReplaceAll(t.Command, f.dir+"/", "")
	}
	e := &endpoint{addresses: []string{listen}, process: process}
	probe := &target{Name: t.Name, routes: t.routes, virtual: t.virtual, api: t.api, endpoints: map[sides]*endpoint{tls: e}}
	for {
		if err = f.probe(ctx, probe, tls); err == nil {
			return e, nil
		}
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		code, gone := process.Wait(soon)
		cancel()
		if gone == nil {
			return nil, fmt.Errorf("it ended with exit code %d: %s", code, lastLine(process.Log()))
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("it does not serve within %v: %w; it says: %s", startUp, err, lastLine(process.Log()))
		}
	}
}

// probe makes a call on a session of each node.
func (f *field) probe(ctx context.Context, t *target, tls sides) error {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, headers), 2*time.Second)
	defer cancel()
	callers, hangUp, err := f.callers(ctx, t, Scenario{Size: 100, Parts: 1, TLS: tls}, nodes)
	defer hangUp()
	for _, c := range callers {
		err = errors.Join(err, c.call(ctx))
	}
	return err
}

func lastLine(log string) string {
	log = strings.TrimSpace(log)
	return log[strings.LastIndexByte(log, '\n')+1:]
}

// serverName is what the certificate of backends and proxies is for.
const serverName = certtest.Name

func certFile(dir string) string { return filepath.Join(dir, "cert.pem") }
func keyFile(dir string) string  { return filepath.Join(dir, "key.pem") }
func bothFile(dir string) string { return filepath.Join(dir, "both.pem") }

// certify writes a certificate that vouches for itself, its key, and both in one file.
func certify(dir string) error {
	c, err := certtest.New()
	if err != nil {
		return err
	}
	return errors.Join(c.Write(certFile(dir), keyFile(dir)), os.WriteFile(bothFile(dir), slices.Concat(c.PEM, c.Key), 0o600))
}
