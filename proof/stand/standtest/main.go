// Package standtest is what the tests of the built programs begin and end with.
//
// What always holds: the programs are built into a directory that is gone
// afterwards, and tests that pass have left no goroutine behind.
package standtest

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// patience is for goroutines that end.
const patience = 20 * time.Second

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
	dir, err := os.MkdirTemp("", "standtest")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	*bin = dir
	if err := stand.Build(context.Background(), dir, programs...); err != nil {
		return 1, err
	}
	if code := m.Run(); code != 0 {
		return code, nil
	}
	http.DefaultClient.CloseIdleConnections()
	// One search looks for less than half a second, and a goroutine that ends may not be scheduled for longer.
	var left error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		// gRPC's xDS client never ends the watch of the certificates that its bootstrap names.
		left = goleak.Find(goleak.IgnoreTopFunction("google.golang.org/grpc/credentials/tls/certprovider/pemfile.(*watcher).run"))
		if left == nil {
			return 0, nil
		}
	}
	return 0, left
}
