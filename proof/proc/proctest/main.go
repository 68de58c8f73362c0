// Package proctest is what the tests of the built programs begin and end with.
//
// What always holds: the programs are built anew into a directory that is gone
// afterwards, and tests that pass have left no goroutine behind.
package proctest

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/proof/proc"
)

// Main is the body of a TestMain: it builds the programs into a directory, stores its
// path at bin, runs the tests of m and exits.
func Main(m interface{ Run() int }, bin *string, programs ...string) {
	flag.Parse()
	code, err := run(m, bin, programs)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m interface{ Run() int }, bin *string, programs []string) (int, error) {
	dir, err := os.MkdirTemp("", "proctest")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	*bin = dir
	if err := proc.Build(context.Background(), dir, programs...); err != nil {
		return 1, err
	}
	if code := m.Run(); code != 0 {
		return code, nil
	}
	http.DefaultClient.CloseIdleConnections()
	// gRPC's xDS client never ends the watch of the certificates that its bootstrap names.
	return 0, goleak.Find(goleak.IgnoreTopFunction("google.golang.org/grpc/credentials/tls/certprovider/pemfile.(*watcher).run"))
}
