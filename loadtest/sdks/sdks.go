// Package sdks is the experiment that finds what an app in Python, Node or Go pays for a point read with
// YDB's SDK, and with the sidecar.
package sdks

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Experiment measures what an app pays for a read, with YDB's SDK and through the sidecar.
var Experiment = lab.Experiment{
	Name:  "sdks",
	Title: "Apps in Python, Node and Go: YDB's SDK, or the sidecar",
	Question: `What does an app pay for a call of the sidecar, next to YDB's own SDK that calls the nodes directly? Each app is a process of its own. It reads random rows of the table *bench* by their key and checks each row; the statement and
its one parameter are the same in all ways. *sidecar* behind the name of an SDK: the same program, given the address of the sidecar (wire.mode=transaction). The apps are loadtest/sdks/read.py (*ydb*, or the client of clients/python), loadtest/sdks/read.mjs (*ydb-sdk*, *@ydbjs/query*, or the npm package of clients/node) and loadtest/sdks/sdks.go (*ydb-go-sdk*, the
generated gRPC client, or net/http). Calls in flight are threads in Python, promises in Node and goroutines in Go. No way names a transaction mode, so the server chooses it (implicit). The pools of ydb, ydb-sdk and ydb-go-sdk have a session for each call in flight;
@ydbjs/query has no pool and makes a session for each statement. The sidecar has 50 sessions (pool.min). Every app warms up before its first window. Apps, sidecar and nodes share the processors.`,
	Defaults: func(o *lab.Options) {
		if o.Duration == 0 {
			o.Duration = [...]time.Duration{300 * time.Millisecond, time.Second, 2500 * time.Millisecond}[o.Size]
		}
		if o.Rounds == 0 && o.MaxRounds == 0 && o.Size > lab.Smoke {
			o.Rounds = 3
			o.MaxRounds = 3
		}
	},
	Run:      measureSDKs,
	Children: map[string]lab.Child{sdksReader: readSDKs},
}

// Figures that only sdks has: CPU per call.
const (
	sdksApp     = "app-cpu-ns/call"     // of the app's process
	sdksSidecar = "sidecar-cpu-ns/call" // of the sidecar's process
	sdksBoth    = "both-cpu-ns/call"    // of both
	sdksCluster = "cluster-cpu-ns/call" // of the nodes
)

// sdksWay is one way in which an app reads.
type sdksWay struct {
	name string
	app  []string // program and first arguments; an empty program is the child sdksReader
	way  string   // value of the app's flag --way
	over string   // grpc or http: the API of the sidecar; wire: YDB's own protocol, for the SDK; "": no sidecar
}

// sdksLanguage has the ways of a language. The others are compared with the first.
type sdksLanguage struct {
	name, title string
	ways        []sdksWay
}

// sdksApps are all apps. Paths are below the module's directory.
func sdksApps() []sdksLanguage {
	const script = "loadtest/sdks/read.py"
	node := []string{"node", "loadtest/sdks/read.mjs"}
	self := []string{""}
	return []sdksLanguage{
		{"python", "Python", []sdksWay{
			{"ydb", []string{sdksPython, script}, "sdk", ""},
			{"ydb, sidecar", []string{sdksPython, script}, "sdk", "wire"},
			{"plain gRPC", []string{plainPython, script}, "plain", "grpc"},
			{"HTTP/JSON", []string{plainPython, script}, "plain", "http"},
		}},
		{"node", "Node", []sdksWay{
			{"ydb-sdk", node, "ydb-sdk", ""},
			{"ydb-sdk, sidecar", node, "ydb-sdk", "wire"},
			{"@ydbjs/query", node, "ydbjs", ""},
			{"@ydbjs/query, sidecar", node, "ydbjs", "wire"},
			{"plain gRPC", node, "plain", "grpc"},
			{"HTTP/JSON", node, "plain", "http"},
		}},
		{"go", "Go", []sdksWay{
			{"ydb-go-sdk", self, "sdk", ""},
			{"ydb-go-sdk, sidecar", self, "sdk", "wire"},
			{"plain gRPC", self, "plain", "grpc"},
			{"HTTP/JSON", self, "plain", "http"},
		}},
	}
}

// What the apps need, below the module's directory.
const (
	sdksPython  = ".cache/official/bin/python"
	plainPython = ".venv/bin/python"
	sdksNode    = "proof/sdktest/testdata/node/node_modules"
	plainNode   = "examples/node/node_modules"
)

// sdksMissing returns an error that names what the apps need and do not have, and what installs it.
func sdksMissing(root string) error {
	var errs []error
	for _, need := range []struct{ path, target string }{
		{sdksPython, ".cache/official/.installed"},
		{plainPython, ".venv/.installed"},
		{sdksNode, sdksNode + "/.installed"},
		{plainNode, plainNode + "/.installed"},
		{poollessNode + "/node_modules", poollessNode + "/node_modules/.installed"},
	} {
		if _, err := os.Stat(filepath.Join(root, need.path)); err != nil {
			errs = append(errs, fmt.Errorf("%s is missing; run: make %s", need.path, need.target))
		}
	}
	return errors.Join(errs...)
}

// sdksVersions notes the versions of the SDKs.
func sdksVersions(ctx context.Context, l *lab.Lab, root string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(root, sdksPython), "-c", "import ydb; print(ydb.__version__)").CombinedOutput()
	if err != nil {
		return fmt.Errorf("ask Python for the version of the SDK: %w %s", err, out)
	}
	l.Report.Versions["ydb (Python)"] = strings.TrimSpace(string(out))
	for _, name := range []string{"ydb-sdk", "@ydbjs/query"} {
		text, err := os.ReadFile(filepath.Join(root, sdksNode, name, "package.json"))
		if err != nil {
			return fmt.Errorf("read the version of %s: %w", name, err)
		}
		var about struct{ Version string }
		if err := json.Unmarshal(text, &about); err != nil {
			return fmt.Errorf("read the version of %s: %w", name, err)
		}
		l.Report.Versions[name+" (Node)"] = about.Version
	}
	if built, ok := debug.ReadBuildInfo(); ok {
		for _, m := range built.Deps {
			if m.Path == "github.com/ydb-platform/ydb-go-sdk/v3" {
				l.Report.Versions["ydb-go-sdk (Go)"] = m.Version
			}
		}
	}
	return nil
}

func measureSDKs(ctx context.Context, l *lab.Lab) error {
	root, err := stand.Root()
	if err != nil {
		return err
	}
	if err := sdksMissing(root); err != nil {
		return err
	}
	if err := sdksVersions(ctx, l, root); err != nil {
		return err
	}
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	side, err := l.Sidecar(ctx, cluster.Endpoint(), "pool.min=50")
	if err != nil {
		return err
	}
	if err := traffic.Fill(ctx, side.Client); err != nil {
		return err
	}
	if err := side.Warm(ctx); err != nil {
		return err
	}
	for _, language := range sdksApps() {
		for _, inFlight := range lab.At(l, []int{2}, []int{1, 16}, []int{1, 16}) {
			if err := sdksCase(ctx, l, root, cluster, side, language, inFlight); err != nil {
				return err
			}
		}
	}
	l.Stop() // what follows has processes of its own
	return poollessCases(ctx, l, root)
}

// sdksCase compares the ways of one language.
func sdksCase(ctx context.Context, l *lab.Lab, root string, cluster *lab.Cluster, side *lab.Sidecar,
	language sdksLanguage, inFlight int) error {
	c := lab.Case{Name: fmt.Sprintf("%s-c%d", language.name, inFlight),
		Title: fmt.Sprintf("%s, %d in flight", language.title, inFlight), Baseline: language.ways[0].name,
		Text: "CPU of a call: of the app's process with all its threads, of the sidecar's process, of both " +
			"together, and of the cluster, whose three nodes are one process.",
		Figures: []string{lab.PerSecond, lab.P50, lab.P99, sdksApp, sdksSidecar, sdksBoth, sdksCluster},
		Ratios:  []string{lab.P50, sdksApp, sdksBoth}}
	if !l.Wanted(c.Name) {
		return nil
	}
	addresses := map[string]string{"": cluster.Endpoint(), "grpc": "grpc://" + side.GRPC, "http": "http://" + side.HTTP,
		"wire": "grpc://" + side.GRPC + "/local"}
	for _, way := range language.ways {
		app, err := startSDKsApp(ctx, l, root, way, addresses[way.over], inFlight)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", c.Name, way.name, err)
		}
		defer l.End(app.Process)
		v := lab.Variant{Name: way.name, WarmUp: func(context.Context) error { return nil }, // the app has
			Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
				return app.run(ctx, cluster, side, way, d)
			}}
		if way.over != "" {
			v.Under = []*lab.Process{side.Process}
		}
		c.Variants = append(c.Variants, v)
	}
	_, err := l.Compare(ctx, c)
	return err
}

// sdksProcess is a running app.
type sdksProcess struct {
	*lab.Process
	read int // windows that were read from its output
}

// sdksPatience is how long an app may take to print a window after its end.
const sdksPatience = 30 * time.Second

func startSDKsApp(ctx context.Context, l *lab.Lab, root string, way sdksWay, address string, inFlight int) (*sdksProcess, error) {
	spec := stand.Spec{Path: way.app[0], Args: way.app[1:len(way.app):len(way.app)]}
	if spec.Path == "" {
		var err error
		if spec, err = lab.ChildSpec(l.Experiment, sdksReader); err != nil {
			return nil, err
		}
	} else if strings.Contains(spec.Path, "/") {
		spec.Path = filepath.Join(root, spec.Path)
	}
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }
	spec.Args = append(spec.Args, "--way", way.way, "--address", address, "--in-flight", strconv.Itoa(inFlight),
		"--warm", seconds(lab.At(l, 200*time.Millisecond, time.Second, 2*time.Second)), "--window", seconds(l.Duration))
	spec.Dir, spec.Env = root, []string{"PYTHONDONTWRITEBYTECODE=1"}
	p, err := l.Start(ctx, "app", spec)
	if err != nil {
		return nil, err
	}
	return &sdksProcess{Process: p}, nil
}

// run has the app measure one window.
func (p *sdksProcess) run(ctx context.Context, cluster *lab.Cluster, side *lab.Sidecar, way sdksWay, d time.Duration) (lab.Result, error) {
	var before, after [2]time.Duration // CPU of the cluster and of the sidecar
	used := func(into *[2]time.Duration) error {
		for i, pid := range []int{cluster.Pid(), side.Pid()} {
			u, err := stand.ReadUsage(pid)
			if err != nil {
				return err
			}
			into[i] = u.CPU
		}
		return nil
	}
	if err := used(&before); err != nil {
		return lab.Result{}, err
	}
	if err := p.Signal(syscall.SIGUSR2); err != nil {
		return lab.Result{}, err
	}
	w, err := p.window(ctx, d)
	if err != nil {
		return lab.Result{}, fmt.Errorf("%w\n%s", err, p.Log())
	}
	if err := used(&after); err != nil {
		return lab.Result{}, err
	}
	r := w.result(after[0] - before[0])
	if way.over != "" { // what the sidecar does at rest is not the app's
		w.through(r.Figures, after[1]-before[1])
	}
	return r, nil
}

// window waits for the next window of the app.
func (p *sdksProcess) window(ctx context.Context, d time.Duration) (sdksWindow, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+sdksPatience, errors.New("the app printed no window"))
	defer cancel()
	if err := traffic.Pause(ctx, d); err != nil {
		return sdksWindow{}, err
	}
	for {
		all, err := sdksWindows(p.Stdout())
		if err != nil {
			return sdksWindow{}, err
		}
		if len(all) > p.read {
			p.read++
			return all[p.read-1], nil
		}
		if err := traffic.Pause(ctx, 2*time.Millisecond); err != nil {
			return sdksWindow{}, err
		}
	}
}

// sdksWindow is what an app measured in one window.
type sdksWindow struct {
	Calls   int64   `json:"calls"`
	Failed  int64   `json:"failed"`
	First   string  `json:"first"` // failure
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_seconds"` // of all threads of the app's process
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
}

// sdksWindows reads what an app printed: a window in each line, after the line that says that it is ready. The last line may be incomplete.
func sdksWindows(stdout string) (all []sdksWindow, err error) {
	for line := range strings.Lines(stdout) {
		if !strings.HasSuffix(line, "\n") || strings.Contains(line, `"ready"`) {
			continue
		}
		var w sdksWindow
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			return nil, fmt.Errorf("an app printed %.200q: %w", line, err)
		}
		if w.Calls < 1 || w.Failed < 0 || w.Failed > w.Calls || w.Seconds <= 0 || w.CPU <= 0 || w.P50 <= 0 || w.P99 < w.P50 {
			return nil, fmt.Errorf("an app printed %.200q; each window needs at least one call, a length, CPU, and p50 of at most p99",
				line)
		}
		all = append(all, w)
	}
	return all, nil
}

// result returns the window as a lab.Result. cluster is the CPU that the nodes used meanwhile.
func (w sdksWindow) result(cluster time.Duration) lab.Result {
	calls := float64(w.Calls)
	app := w.CPU * 1e9 / calls
	return lab.Result{Closed: true, Calls: w.Calls, Failed: w.Failed, FirstFail: w.First,
		Took: time.Duration(w.Seconds * 1e9), Figures: lab.Figures{
			lab.PerSecond: float64(w.Calls-w.Failed) / w.Seconds, lab.P50: w.P50 * 1e3, lab.P99: w.P99 * 1e3, sdksApp: app,
			sdksBoth: app, sdksCluster: float64(cluster) / calls}}
}

// through adds the CPU that the sidecar used meanwhile.
func (w sdksWindow) through(f lab.Figures, sidecar time.Duration) {
	f[sdksSidecar] = float64(sidecar) / float64(w.Calls)
	f[sdksBoth] = f[sdksApp] + f[sdksSidecar]
}

// sdksReader is the name of the app in Go: a process of its own, so that its CPU is its own.
const sdksReader = "app"

// readSDKs is the app in Go. It warms up, prints that it is ready, measures a window for each SIGUSR2 and prints it, until ctx ends.
func readSDKs(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(sdksReader, flag.ContinueOnError)
	way := flags.String("way", "", "sdk or plain")
	address := flags.String("address", "",
		"of the database or of the sidecar: grpc://host:port/database, grpc://host:port or http://host:port")
	inFlight := flags.Int("in-flight", 1, "calls under way")
	warm := flags.Float64("warm", 1, "seconds before the first window")
	window := flags.Float64("window", 2, "seconds")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *inFlight < 1 || *warm <= 0 || *window <= 0 {
		return fmt.Errorf(
			"arguments %q, --in-flight %d, --warm %v, --window %v: give no arguments, --in-flight of at least 1, "+
				"and --warm and --window above 0",
			flags.Args(), *inFlight, *warm, *window,
		)
	}
	read, end, err := sdksCall(ctx, *way, *address, *inFlight)
	if err != nil {
		return err
	}
	defer end()
	begin := make(chan os.Signal, 1)
	signal.Notify(begin, syscall.SIGUSR2)
	defer signal.Stop(begin)
	warmed := measureWindow(ctx, *inFlight, *warm, read)
	if warmed.Failed > 0 {
		return fmt.Errorf("%d of %d calls of the warm-up failed: %s", warmed.Failed, warmed.Calls, warmed.First)
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(map[string]bool{"ready": true}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-begin:
		}
		if err := out.Encode(measureWindow(ctx, *inFlight, *window, read)); err != nil {
			return err
		}
	}
}

// sdksCall returns the call that a way makes, and a function that closes it.
func sdksCall(ctx context.Context, way, address string, inFlight int) (lab.Call, func(), error) {
	scheme, host, _ := strings.Cut(address, "://")
	switch {
	case way == "sdk":
		sdk, err := ydbsdk.Open(ctx, address, ydbsdk.WithSessionPoolSizeLimit(inFlight))
		if err != nil {
			return nil, nil, fmt.Errorf("open the SDK: %w", err)
		}
		return rowCall(sdkReads(sdk)), func() { _ = sdk.Close(context.WithoutCancel(ctx)) }, nil // nothing is in flight
	case way == "plain" && scheme == "grpc":
		conn, err := grpc.NewClient("passthrough:///"+host, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, nil, fmt.Errorf("dial the sidecar: %w", err)
		}
		return rowCall(plainReads(sidecarv1.NewSidecarClient(conn))), func() { _ = conn.Close() }, nil // nothing is in flight
	case way == "plain" && scheme == "http":
		web := traffic.NewWebReader(host)
		return rowCall(webReads(web)), web.Close, nil
	}
	return nil, nil, fmt.Errorf("--way %q with --address %q: give --way sdk, or --way plain with grpc://host:port or http://host:port",
		way, address)
}

// rowReader reads the row of a key.
type rowReader func(ctx context.Context, key uint64) (id uint64, payload string, err error)

// rowCall reads a random row and looks at all of it.
func rowCall(read rowReader) lab.Call {
	payload := strings.Repeat("x", 100)
	return func(ctx context.Context) error {
		key := traffic.RandomID()
		id, got, err := read(ctx, key)
		if err == nil && (id != key || got != payload) {
			err = fmt.Errorf("row %d: got %d, %.100q", key, id, got)
		}
		return err
	}
}

func sdkReads(sdk *ydbsdk.Driver) rowReader {
	return func(ctx context.Context, key uint64) (id uint64, payload string, err error) {
		row, err := traffic.SdkAnswer(ctx, sdk, key)
		if err != nil {
			return 0, "", err
		}
		err = row.Scan(&id, &payload)
		return id, payload, err
	}
}

func plainReads(client sidecarv1.SidecarClient) rowReader {
	return func(ctx context.Context, key uint64) (id uint64, payload string, err error) {
		answer, err := traffic.PlainAnswer(ctx, client, key)
		if err != nil {
			return 0, "", err
		}
		if len(answer.Rows) != 1 || len(answer.Rows[0].Values) != 2 {
			return 0, "", fmt.Errorf("got %.200v; want a row of two columns", answer.Rows)
		}
		return answer.Rows[0].Values[0].GetUint64Value(), answer.Rows[0].Values[1].GetTextValue(), nil
	}
}

func webReads(w *traffic.WebReader) rowReader {
	return func(ctx context.Context, key uint64) (id uint64, payload string, err error) {
		body, err := json.Marshal(map[string]any{"sql": traffic.Read, "params": map[string]any{"id": key}})
		if err != nil {
			return 0, "", err
		}
		row, err := traffic.WebRow[struct {
			ID      uint64 `json:"id,string"`
			Payload string `json:"payload"`
		}](ctx, w, body)
		return row.ID, row.Payload, err
	}
}

// measureWindow keeps calls in flight for some seconds.
func measureWindow(ctx context.Context, inFlight int, seconds float64, read lab.Call) sdksWindow {
	before := stand.Own()
	r := lab.Closed(ctx, inFlight, time.Duration(seconds*1e9), read)
	used := stand.Own() - before
	us := func(q float64) float64 { return float64(r.Quantile(q)) / 1e3 }
	return sdksWindow{r.Calls, r.Failed, r.FirstFail, r.Took.Seconds(), used.Seconds(), us(50), us(99)}
}
