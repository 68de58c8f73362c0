// Package xds is the experiment that measures how fast changes of nodes reach clients of xDS:
// docs/dev/decisions/0020-xds.md.
package xds

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

	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/xds"
	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// options are the flags of the experiment.
type options struct {
	nodes   int
	clients string
	rate    int
}

const publisher = "publisher"

// Experiment returns the experiment.
func Experiment() lab.Experiment {
	var o options
	return lab.Experiment{
		Name:  "xds",
		Title: "How fast changes of nodes reach clients of xDS",
		Question: `A publisher (internal/xds, in a process of its own) has changes of nodes, and clients with a connection each follow it: half of them with Envoy's flavor, half with gRPC's; half with deltas, half with the state of the world. How long does a change
take to a client, and to all of them, and what does the publisher pay? Publisher and clients share the processors.`,
		Apart: true,
		Flags: func(flags *flag.FlagSet) {
			flags.IntVar(&o.nodes, "nodes", 200, "nodes that are published")
			flags.StringVar(&o.clients, "clients", "200,1000", "clients, each with a connection; several numbers with commas between them")
			flags.IntVar(&o.rate, "rate", 10, "changes a second")
		},
		Defaults: func(l *lab.Options) {
			if l.Duration == 0 {
				l.Duration = [...]time.Duration{time.Second, 10 * time.Second, 30 * time.Second}[l.Size]
			}
			if l.Rounds == 0 {
				l.Rounds = 1
			}
			if l.MaxRounds == 0 {
				l.MaxRounds = l.Rounds
			}
			if l.Size == lab.Smoke && o.clients == "200,1000" {
				o.clients = "20"
			}
		},
		Children: map[string]lab.Child{publisher: publish},
		Run:      o.measure,
	}
}

func (o *options) measure(ctx context.Context, l *lab.Lab) error {
	if o.nodes < 1 || o.rate < 1 {
		return fmt.Errorf("nodes %d, rate %d: want at least 1, 1", o.nodes, o.rate)
	}
	for text := range strings.SplitSeq(o.clients, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("clients = %q: want numbers of at least 1", o.clients)
		}
		if _, err := l.Compare(ctx, lab.Case{
			Name:    fmt.Sprint("clients-", n),
			Title:   fmt.Sprintf("%d nodes, %d changes a second, %d clients", o.nodes, o.rate, n),
			Figures: []string{changes, published, oneP50, oneP99, allP50, allP99, allMax, publisher + "-cores", idle, full},
			Text: "*one* is how long a change took to a client, *all* how long to all of them. *before* and " +
				"*after* is the publisher's resident memory before the clients come and after the changes.",
			Variants: []lab.Variant{
				{Name: "published", WarmUp: func(context.Context) error { return nil },
					Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
						return o.run(ctx, l, n, d)
					}},
			},
		}); err != nil {
			return err
		}
	}
	return nil
}

// The figures.
const (
	changes   = "changes"
	published = "publications"
	oneP50    = "one-p50-ns"
	oneP99    = "one-p99-ns"
	allP50    = "all-p50-ns"
	allP99    = "all-p99-ns"
	allMax    = "all-max-ns"
	idle      = "before-B"
	full      = "after-B"
)

// mark begins the name of a node that a change was made to; its number follows.
const mark = "mark-"

func publishing(args []string) (nodes, rate int, duration time.Duration, err error) {
	if len(args) != 3 {
		return 0, 0, 0, fmt.Errorf("arguments %q; want nodes, a rate and a duration", args)
	}
	nodes, err = strconv.Atoi(args[0])
	rate, rateErr := strconv.Atoi(args[1])
	duration, durationErr := time.ParseDuration(args[2])
	return nodes, rate, duration, errors.Join(err, rateErr, durationErr)
}

// publish publishes as many nodes as the first argument says; a change gives one of them another name. It begins
// at SIGUSR1, goes on for the time that the third argument is, at the rate of the second, and prints when each change was made.
func publish(ctx context.Context, args []string) error {
	count, rate, duration, err := publishing(args)
	if err != nil {
		return err
	}
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
	nodes := make([]cluster.ViewNode, count)
	for i := range nodes {
		nodes[i] = cluster.ViewNode{
			Node: cluster.Node{ID: cluster.NodeID(i + 1), Address: fmt.Sprintf("10.0.%d.%d:2136", i/250, i%250),
				Zone: string(rune('a' + i%3))},
			Weight: 1,
		}
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
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	before := p.Stats().Published
	for i := 1; time.Duration(i)*time.Second/time.Duration(rate) <= duration; i++ {
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
func (o *options) run(ctx context.Context, l *lab.Lab, n int, d time.Duration) (result lab.Result, err error) {
	spec, err := lab.ChildSpec(l.Experiment, publisher, strconv.Itoa(o.nodes), strconv.Itoa(o.rate), d.String())
	if err != nil {
		return result, err
	}
	child, err := l.Start(ctx, publisher, spec)
	if err != nil {
		return result, err
	}
	defer l.End(child)
	time.Sleep(time.Second) // the first publication
	empty, err := stand.ReadUsage(child.Pid())
	if err != nil {
		return result, err
	}
	clients, stop, err := follow(ctx, child.At["xds"], n)
	defer stop()
	if err != nil {
		return result, err
	}
	before, err := stand.ReadUsage(child.Pid())
	if err != nil {
		return result, err
	}
	began := time.Now()
	if err := child.Signal(syscall.SIGUSR1); err != nil {
		return result, err
	}
	for !strings.Contains(child.Stdout(), "published ") {
		if !awake.Sleep(ctx, 100*time.Millisecond) {
			return result, ctx.Err()
		}
		if time.Since(began) > 2*d+time.Minute {
			return result, errors.New("the publisher does not end: " + child.Log())
		}
	}
	took := time.Since(began)
	after, err := stand.ReadUsage(child.Pid())
	if err != nil {
		return result, err
	}
	stop()
	made, publications, err := said(child.Stdout())
	if err != nil {
		return result, err
	}
	each, whole, err := reached(made, clients)
	if err != nil {
		return result, err
	}
	at := func(all []time.Duration, part float64) float64 {
		return float64(all[min(int(part*float64(len(all))), len(all)-1)])
	}
	return lab.Result{Took: took,
		Figures: lab.Figures{publisher + "-cores": (after.CPU - before.CPU).Seconds() / took.Seconds(),
			changes: float64(len(made)), published: publications,
			oneP50: at(each, 0.5), oneP99: at(each, 0.99), allP50: at(whole, 0.5), allP99: at(whole, 0.99),
			allMax: at(whole, 1), idle: float64(empty.RSS), full: float64(after.RSS)}}, nil
}

// follow has n clients follow the publisher and waits until each has nodes. After stop they have ended.
func follow(ctx context.Context, address string, n int) (clients []*client, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	clients = make([]*client, n)
	var running sync.WaitGroup
	stop = func() { cancel(); running.Wait() }
	for i := range clients {
		c := &client{came: make(chan struct{})}
		clients[i] = c
		running.Go(func() { c.run(ctx, address, i%2 == 0, i%4 < 2) })
	}
	for i, c := range clients {
		select {
		case <-c.came:
		case <-time.After(time.Minute):
			return nil, stop, fmt.Errorf("client %d of %d has no nodes after a minute: %v", i, n, c.err)
		}
	}
	return clients, stop, nil
}

// said reads what the publisher printed: when it made each change, and the number of publications.
func said(text string) (made map[int]time.Time, publications float64, err error) {
	made = map[int]time.Time{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 3 && words[0] == "change":
			i, err := strconv.Atoi(words[1])
			at, err2 := strconv.ParseInt(words[2], 10, 64)
			if err = errors.Join(err, err2); err != nil {
				return nil, 0, err
			}
			made[i] = time.Unix(0, at)
		case len(words) == 2 && words[0] == "published":
			if publications, err = strconv.ParseFloat(words[1], 64); err != nil {
				return nil, 0, err
			}
		}
	}
	return made, publications, nil
}

// reached returns, sorted, how long each change took to each client, and to the last one.
func reached(made map[int]time.Time, clients []*client) (each, whole []time.Duration, err error) {
	for i := 1; i <= len(made); i++ {
		worst := time.Duration(0)
		for k, c := range clients {
			j, _ := slices.BinarySearchFunc(c.seen, i, func(s seen, i int) int { return s.change - i })
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

// client has one connection with one stream. Its fields are for others once it has
// ended.
type client struct {
	came chan struct{} // closed at the first answer
	seen []seen        // ascending
	err  error
}

// seen is a change that came, with all before it.
type seen struct {
	change int
	at     time.Time
}

func (c *client) run(ctx context.Context, address string, envoy, delta bool) {
	c.err = c.follow(ctx, address, envoy, delta)
}

func (c *client) follow(ctx context.Context, address string, envoy, delta bool) error {
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
	var ask func() error                 // for what comes next, and says that the last one came
	var answers func() ([][]byte, error) // the resources of one answer
	if delta {
		stream, err := service.DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		next := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resourcev3.EndpointType, ResourceNamesSubscribe: names}
		ask = func() error { return stream.Send(next) }
		answers = func() (all [][]byte, err error) {
			r, err := stream.Recv()
			for _, one := range r.GetResources() {
				all = append(all, one.GetResource().GetValue())
			}
			next = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
			return all, err
		}
	} else {
		stream, err := service.StreamAggregatedResources(ctx)
		if err != nil {
			return err
		}
		next := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: resourcev3.EndpointType, ResourceNames: names}
		ask = func() error { return stream.Send(next) }
		answers = func() (all [][]byte, err error) {
			r, err := stream.Recv()
			for _, one := range r.GetResources() {
				all = append(all, one.GetValue())
			}
			next = &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResourceNames: names,
				VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
			return all, err
		}
	}
	for {
		if err := ask(); err != nil {
			return err
		}
		all, err := answers()
		if err != nil {
			return err
		}
		for _, one := range all {
			c.note(one)
		}
	}
}

// note looks for the newest change in what came, without taking it apart: the clients
// share the machine with the publisher.
func (c *client) note(text []byte) {
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
		c.seen = append(c.seen, seen{newest, at})
	}
}
