// Package sdktest takes unmodified clients of YDB, each in its own language and from its own
// registry, through the same steps: directly, and through a sidecar in every mode of wire.mode.
//
// It owns the clients' programs (goclient, testdata) and docs/reference/sdk-matrix.md, which `make test-sdk`
// writes. A program prints one line for each step, and the lines must be those of the one list
// in the test, whichever program prints them and wherever it runs; afterwards nothing may be left
// in the cluster. `make test` runs each client directly and in mode transaction, with a small
// table and no node killed; the Rust client only where `make sdks` has built it.
//
// With -ydb the clients run at an endpoint that is there already, in a directory of it: no node is
// killed, and sessions and hops are not counted. proof/cmd/realtest does that.
package sdktest
