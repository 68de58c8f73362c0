package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/xds"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// xdsOptions are the flags of xds.
type xdsOptions struct {
	nodes    int
	clients  string
	rate     int
	duration time.Duration
	publish  bool
}

// publishXDS measures how fast changes of nodes reach clients of xDS. The publisher is
// a process of its own: this program once more.
func publishXDS(ctx context.Context, args []string) error {
	var o xdsOptions
	flags := flag.NewFlagSet("xds", flag.ContinueOnError)
	flags.IntVar(&o.nodes, "nodes", 200, "nodes that are published")
	flags.StringVar(&o.clients, "clients", "200,1000", "clients, each with a connection; several numbers with commas between them")
	flags.IntVar(&o.rate, "rate", 10, "changes a second")
	flags.DurationVar(&o.duration, "duration", 30*time.Second, "of changes, for each number of clients")
	flags.BoolVar(&o.publish, "publish", false, "be the publisher; for internal use")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.nodes < 1 || o.rate < 1 {
		return fmt.Errorf("arguments %q, nodes %d, rate %d: want none, at least 1, 1", flags.Args(), o.nodes, o.rate)
	}
	if o.publish {
		return o.publisher(ctx)
	}
	fmt.Printf("\n%d nodes, %d changes a second for %v; half of the clients Envoy's flavor, half gRPC's; half delta, half state of the world. %d cores for the publisher and all clients.\n\n", o.nodes, o.rate, o.duration, runtime.NumCPU())
	fmt.Println("| clients | changes | publications | a change to a client, p50 | p99 | to all clients, p50 | p99 | worst | CPU of the publisher | memory, before clients | after |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, text := range strings.Split(o.clients, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("clients = %q: want numbers of at least 1", o.clients)
		}
		if err := o.run(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// mark begins the name of a node that a change was made to; its number follows.
const mark = "mark-"

// publisher publishes nodes; a change gives one of them another name. It begins
// at SIGUSR1, and prints when each change was made.
func (o *xdsOptions) publisher(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	config := xds.Default()
	config.MaxStreams = 100_000
	p := xds.New(config, xds.Deps{
		Database: "/local", Sidecar: l.Addr(), Max: func() int { return 100 },
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	nodes := make([]cluster.ViewNode, o.nodes)
	for i := range nodes {
		nodes[i] = cluster.ViewNode{Node: cluster.Node{ID: cluster.NodeID(i + 1), Address: fmt.Sprintf("10.0.%d.%d:2136", i/250, i%250), Zone: string(rune('a' + i%3))}, Weight: 1}
	}
	p.SetView(cluster.View{Nodes: nodes})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var parts sync.WaitGroup
	parts.Go(func() { _ = p.Run(ctx) })
	parts.Go(func() { _ = p.Serve(l) })
	begin := make(chan os.Signal, 1)
	signal.Notify(begin, syscall.SIGUSR1)
	defer signal.Stop(begin)
	fmt.Printf(`{"ready":true,"xds":"%s"}`+"\n", l.Addr())
	defer parts.Wait()
	defer p.Stop()
	defer cancel()
	select {
	case <-ctx.Done():
		return nil
	case <-begin:
	}
	tick := time.NewTicker(time.Second / time.Duration(o.rate))
	defer tick.Stop()
	before := p.Stats().Published
	for i := 1; time.Duration(i)*time.Second/time.Duration(o.rate) <= o.duration; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		nodes = slices.Clone(nodes)
		nodes[i%len(nodes)].TLSName = mark + strconv.Itoa(i)
		fmt.Println("change", i, time.Now().UnixNano())
		p.SetView(cluster.View{Nodes: nodes})
	}
	time.Sleep(2 * time.Second) // until the last change has come everywhere
	fmt.Println("published", p.Stats().Published-before)
	<-ctx.Done()
	return nil
}

// run measures one number of clients.
func (o *xdsOptions) run(ctx context.Context, n int) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	child, err := stand.Start(stand.Spec{Path: path, Args: []string{"xds", "-publish", "-nodes", strconv.Itoa(o.nodes), "-rate", strconv.Itoa(o.rate), "-duration", o.duration.String()}})
	if err != nil {
		return err
	}
	defer func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, _ = child.Stop(limited)
	}()
	at, err := child.Ready(ctx)
	if err != nil {
		return err
	}
	time.Sleep(time.Second) // the first publication
	idle, err := stand.ReadUsage(child.Pid())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients := make([]*xdsClient, n)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for i := range clients {
		c := &xdsClient{came: make(chan struct{})}
		clients[i] = c
		running.Go(func() { c.run(ctx, at["xds"], i%2 == 0, i%4 < 2) })
	}
	for i, c := range clients {
		select {
		case <-c.came:
		case <-time.After(time.Minute):
			return fmt.Errorf("client %d of %d has no nodes after a minute: %v", i, n, c.err)
		}
	}
	before, err := stand.ReadUsage(child.Pid())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := child.Signal(syscall.SIGUSR1); err != nil {
		return err
	}
	for !strings.Contains(child.Stdout(), "published ") {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		if time.Since(began) > 2*o.duration+time.Minute {
			return errors.New("the publisher does not end: " + child.Log())
		}
	}
	took := time.Since(began)
	after, err := stand.ReadUsage(child.Pid())
	if err != nil {
		return err
	}
	cancel()
	running.Wait()
	made, publications := map[int]time.Time{}, ""
	for line := range strings.Lines(child.Stdout()) {
		words := strings.Fields(line)
		switch {
		case len(words) == 3 && words[0] == "change":
			i, err := strconv.Atoi(words[1])
			at, err2 := strconv.ParseInt(words[2], 10, 64)
			if err = errors.Join(err, err2); err != nil {
				return err
			}
			made[i] = time.Unix(0, at)
		case len(words) == 2 && words[0] == "published":
			publications = words[1]
		}
	}
	each, whole, err := reached(made, clients)
	if err != nil {
		return err
	}
	ms := func(all []time.Duration, part float64) string {
		return fmt.Sprintf("%.0f ms", float64(all[min(int(part*float64(len(all))), len(all)-1)].Microseconds())/1000)
	}
	fmt.Printf("| %d | %d | %s | %s | %s | %s | %s | %s | %.1f %% of a core | %.0f MiB | %.0f MiB |\n", n, len(made), publications,
		ms(each, 0.5), ms(each, 0.99), ms(whole, 0.5), ms(whole, 0.99), ms(whole, 1), 100*(after.CPU-before.CPU).Seconds()/took.Seconds(), float64(idle.RSS)/(1<<20), float64(after.RSS)/(1<<20))
	return nil
}

// reached returns, sorted, how long each change took to each client, and to the last one.
func reached(made map[int]time.Time, clients []*xdsClient) (each, whole []time.Duration, err error) {
	for i := 1; i <= len(made); i++ {
		worst := time.Duration(0)
		for k, c := range clients {
			j, _ := slices.BinarySearchFunc(c.seen, i, func(s xdsSeen, i int) int { return s.change - i })
			if j == len(c.seen) {
				return nil, nil, fmt.Errorf("change %d never came to client %d: %v", i, k, c.err)
			}
			took := c.seen[j].at.Sub(made[i])
			each = append(each, took)
			worst = max(worst, took)
		}
		whole = append(whole, worst)
	}
	slices.Sort(each)
	slices.Sort(whole)
	return each, whole, nil
}

// xdsClient has one connection with one stream. Its fields are for others once it has
// ended.
type xdsClient struct {
	came chan struct{} // closed at the first answer
	seen []xdsSeen     // ascending
	err  error
}

// xdsSeen is a change that came, with all before it.
type xdsSeen struct {
	change int
	at     time.Time
}

func (c *xdsClient) run(ctx context.Context, address string, envoy, delta bool) {
	c.err = c.follow(ctx, address, envoy, delta)
}

func (c *xdsClient) follow(ctx context.Context, address string, envoy, delta bool) error {
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer cc.Close()
	agent := "grpc"
	if envoy {
		agent = "envoy"
	}
	node := &corev3.Node{Id: "loadtest", UserAgentName: agent}
	service := discoveryv3.NewAggregatedDiscoveryServiceClient(cc)
	names := []string{"ydb/local"}
	if delta {
		stream, err := service.DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		ask := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resourcev3.EndpointType, ResourceNamesSubscribe: names}
		for {
			if err := stream.Send(ask); err != nil {
				return err
			}
			r, err := stream.Recv()
			if err != nil {
				return err
			}
			for _, one := range r.GetResources() {
				c.note(one.GetResource().GetValue())
			}
			ask = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
		}
	}
	stream, err := service.StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	ask := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: resourcev3.EndpointType, ResourceNames: names}
	for {
		if err := stream.Send(ask); err != nil {
			return err
		}
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, one := range r.GetResources() {
			c.note(one.GetValue())
		}
		ask = &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResourceNames: names, VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
	}
}

// note looks for the newest change in what came, without taking it apart: the clients
// share the machine with the publisher.
func (c *xdsClient) note(text []byte) {
	at, newest := time.Now(), 0
	for {
		i := bytes.Index(text, []byte(mark))
		if i < 0 {
			break
		}
		text = text[i+len(mark):]
		n := 0
		for k := 0; k < len(text) && '0' <= text[k] && text[k] <= '9'; k++ {
			n = 10*n + int(text[k]-'0')
		}
		newest = max(newest, n)
	}
	select {
	case <-c.came:
	default:
		close(c.came)
	}
	if newest > 0 && (len(c.seen) == 0 || newest > c.seen[len(c.seen)-1].change) {
		c.seen = append(c.seen, xdsSeen{newest, at})
	}
}
