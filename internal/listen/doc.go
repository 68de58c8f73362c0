// Package listen owns the listeners of the sidecar, the connections that come
// over them, and how HTTP servers serve and let go of these connections.
//
// A Set has all listeners: TCP ports and Unix sockets of the API, and those of
// operators, probes and xDS. Each Listener has a Door, which bounds how many
// connections are open, and the Conns that came through it. Conns know which
// connections have a request under way, bound what waits for the rest of its
// headers, let connections of HTTP/2 make room, and move idle connections to
// another process. Between requests a connection of HTTP/1.1 is parked
// (Parking), and goes back to its server through a Channel. Clients and
// Shutdown let clients go without hitting a request that is on its way. Health
// is the one service that is served here: its calls last as long as clients
// want, and Release ends them.
//
// What always holds: a connection that is accepted is counted until it is
// closed, has moved, or has ended; of what it sends before it moves or is
// parked no byte is lost; a failure to accept is no end of a listener; a
// connection with a request under way gives way to no other on a listener of
// operators; the name of a Unix socket is removed only if no process listens
// there. The package knows nothing of the APIs that are served: who parks
// connections and what a handler is to know of one comes in as functions.
//
// Goroutines: one for each connection that is about to be parked, or to go to
// its server, for a moment; those that ServeUntil and Set.Finish start end
// before these return; timers of idle connections of HTTP/2 end with them.
package listen
