// Package systemtest proves the product as a whole: the built programs as real
// processes on loopback, the Python and Node apps of examples/, killed nodes,
// and a real OTLP receiver. It holds tests only.
//
// Every test starts its own cluster and sidecar on free ports and leaves no
// process behind. Nothing here reaches into the programs: what a test knows it
// got over the API, from the cluster's control API, from /proc or from spans.
// Tests that wait for longer than they work call t.Parallel: they run after all
// others, as many at a time as there are processors. Those that measure run alone.
package systemtest
