// Command devtrace is where `make run` sends its traces: an OTLP receiver that
// keeps the newest ones in memory and shows each as a tree of spans.
//
//	devtrace [-otlp 127.0.0.1:4317] [-http 127.0.0.1:4318]
//	curl localhost:4318             # the ten newest; ?n=50, ?trace=<its id, or the first digits>
//
// The admin page of the sidecar links to it (admin.trace_link), so a browser may follow a link to it.
// It is for development only: nothing is kept on disk, and all of it is bounded.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/loopback"
)

func main() {
	otlp := flag.String("otlp", "127.0.0.1:4317", "`address` that takes spans over OTLP/gRPC")
	page := flag.String("http", "127.0.0.1:4318", "`address` that shows them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *otlp, *page, func(otlp, page string) {
		fmt.Printf("{\"ready\":true,\"otlp\":%q,\"http\":%q}\n", otlp, page)
	}); err != nil {
		fmt.Fprintln(os.Stderr, "devtrace:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends; ready is told the addresses once both listen.
func run(ctx context.Context, otlp, page string, ready func(otlp, page string)) error {
	spans, err := net.Listen("tcp", otlp)
	if err != nil {
		return err
	}
	views, err := net.Listen("tcp", page)
	if err != nil {
		return errors.Join(err, spans.Close())
	}
	kept := &traces{spans: make(map[string][]span)}
	receiver := grpc.NewServer()
	collector.RegisterTraceServiceServer(receiver, kept)
	guard, err := loopback.New(nil)
	if err != nil {
		return err
	}
	viewer := &http.Server{Handler: followed(guard.Wrap(http.HandlerFunc(kept.serve), loopback.Forbid)), ReadHeaderTimeout: 5 * time.Second}
	ready(spans.Addr().String(), views.Addr().String())

	var g errgroup.Group
	g.Go(func() error { return receiver.Serve(spans) })
	g.Go(func() error {
		if err := viewer.Serve(views); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	<-ctx.Done()
	receiver.Stop()
	return errors.Join(viewer.Close(), g.Wait())
}

// followed lets a browser follow a link of another page, such as the sidecar's: the answer is a document of its own,
// which that page cannot read. Everything else that a page asks stays with the guard.
func followed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Frame-Options", "DENY")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
		if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
			r.Header.Del("Sec-Fetch-Site")
		}
		next.ServeHTTP(w, r)
	})
}

func (t *traces) serve(w http.ResponseWriter, r *http.Request) {
	n := 10
	if asked := r.FormValue("n"); asked != "" {
		var err error
		if n, err = strconv.Atoi(asked); err != nil || n < 1 {
			http.Error(w, "n must be a number from 1", http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	t.print(w, min(n, maxTraces), r.FormValue("trace"))
}
