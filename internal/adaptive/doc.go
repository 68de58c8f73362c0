// Package adaptive is the law by which a sidecar finds out how many sessions it may
// have in use at a time, so that many of them share a cluster that is too weak for
// all, without knowing of each other.
//
// It owns arithmetic and counters: a Law for each pool, and the Meter that collects
// what came of the pool's calls. Neither has a goroutine, a lock or a clock: Limits,
// which keeps the laws of all pools, tells each the time, what was measured, and how
// the pool was used (Law.Step), and gives the pool the limit that it answers with
// (Law.Limit). Limits has one lock, and whoever makes it runs Limits.Run; no goroutine
// is started here. docs/dev/adaptive.md and docs/dev/decisions/0011-adaptive-limit.md say why
// it is as it is.
//
// What always holds: the limit is between Config.Floor and Config.Max; it grows only
// while callers wait for it, so that an idle sidecar hoards nothing; of two sidecars that
// meet the same answers the one with the higher limit gives up more and gains less in
// proportion, so that they become equal; one step never takes more than half of the
// limit away.
//
// # How
//
// Every window (Config.Window, or longer until enough calls have ended) the limit
//
//   - grows by 0.9 sessions, if callers waited, and falls by 0.15 of itself times what
//     the latency exceeds 1.1 times its base by;
//   - falls by the part of the calls that was refused for load, beyond half a percent.
//
// So growth is in steps that are the same for all, decrease in proportion to the limit
// and to the excess, half of it at most. Where the two balance the limit rests, at the
// same value for everybody.
//
// The base latency is that of the cluster without the queues that the sidecars
// themselves make. Nobody can see it alone: if one steps back, the others are still
// there. So all step back together, without a word: for a moment at the beginning of
// every Config.Period of the wall clock (a mark), to 70 % of what the calls in flight
// would be without queues. What begins then and is done tells the base. It also keeps
// those that came late from taking a full cluster for a slow one.
//
// Latencies are averaged by their logarithms, so that a few long statements among many
// short ones weigh no more than they are in number.
package adaptive
