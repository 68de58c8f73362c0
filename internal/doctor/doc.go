// Package doctor tries out, step by step, what a sidecar needs: the machine, names,
// connections, TLS, credentials, nodes, a session, a query.
//
// It owns the checks, their order and what to do about each failure. What always holds: each
// step has a bound of time; a step that depends on one that failed is not tried; an
// examination opens no port, runs the parts that it was given, and has stopped them, deleted
// its session and left no goroutine when Cluster returns.
package doctor
