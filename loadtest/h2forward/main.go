// Command h2forward is the data path alone: it forwards gRPC calls to nodes by the
// node_id in the session id of their first message, and others in turn. It is what
// benchmarks of the data path measure, and what h2spec talks to.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:22010", "address for clients")
	nodes := flag.String("nodes", "127.0.0.1:21001,127.0.0.1:21002,127.0.0.1:21003", "addresses of nodes 1, 2 ...")
	profile := flag.String("pprof", "", "address of the profiler")
	cert := flag.String("cert", "", "file with the certificate for clients; empty: plaintext")
	key := flag.String("key", "", "file with the certificate's private key")
	ca := flag.String("ca", "", "file with the certificates that vouch for the nodes; empty: plaintext")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("h2forward takes flags alone; got %q", flag.Args())
	}
	if *profile != "" {
		go func() { log.Fatal(http.ListenAndServe(*profile, nil)) }()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	clients, upstream, err := secure(*cert, *key, *ca)
	if err == nil {
		err = run(ctx, *listen, strings.Split(*nodes, ","), clients, upstream)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// bySession routes by the owner that a session id names.
type bySession struct {
	nodes []*driver.Upstream
	turn  int
}

func (r *bySession) Route(c *h2.Call) (*h2.Conn, error) {
	message, whole := c.Message()
	session, _, to := protocol.Field(message, 1)
	if to == 0 && !whole {
		return nil, h2.ErrNeedMessage
	}
	n := int(protocol.HomeNode(session))
	if n == 0 {
		r.turn++
		n = r.turn
	}
	return r.nodes[n%len(r.nodes)].Conn()
}

func (r *bySession) Answer(*h2.Call) {}

func (r *bySession) Done(*h2.Call, *h2.Outcome) {}

// secure makes the TLS configurations for clients and for nodes; nil is plaintext.
func secure(cert, key, ca string) (clients, upstream *tls.Config, err error) {
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, nil, err
		}
		clients = &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
	}
	if ca != "" {
		data, err := os.ReadFile(ca)
		if err != nil {
			return nil, nil, err
		}
		upstream = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
		if !upstream.RootCAs.AppendCertsFromPEM(data) {
			return nil, nil, fmt.Errorf("%s: there is no certificate in it", ca)
		}
	}
	return clients, upstream, nil
}

func run(ctx context.Context, listen string, nodes []string, clients, upstream *tls.Config) error {
	r := &bySession{}
	s := driver.New(h2.Default(), r)
	for i := range nodes {
		address := nodes[(i+len(nodes)-1)%len(nodes)] // node 1 is at nodes[1%n]
		r.nodes = append(r.nodes, s.Upstream(func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}, upstream))
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "h2forward listens on", l.Addr())
	done := make(chan error, 1)
	ends, end := context.WithCancel(context.Background())
	go func() { done <- s.Run(ends) }()
	go func() {
		<-ctx.Done()
		l.Close()
		grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		s.Drain(grace, nil)
		cancel()
		end()
	}()
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			s.Accept(nc, clients)
		case errors.Is(err, net.ErrClosed):
			return <-done
		default:
			return err
		}
	}
}
