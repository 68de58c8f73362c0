// Package chaos breaks a running development cluster on purpose, under load,
// and judges what the sidecar made of it. docs/dev/chaos.md says what is broken and
// what must hold; `loadtest chaos` and the whole-product tests run it.
//
// It drives the built programs over the wire and knows nothing of their inside:
// what a caller was told is kept in a ledger outside the database, and compared
// with the tables when everything is over; the judge's own state is read from
// the admin API. A run owns all processes that it starts and ends them.
//
// What always holds: a run that could not be judged is an error, never a good
// result; a goal that depends on the speed of the machine is marked as such.
package chaos
