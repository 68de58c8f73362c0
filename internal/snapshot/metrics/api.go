package metrics

// apiRows are the figures of the plain API, and of the connections to all listeners.
var apiRows = []figure{
	level("ydb.sidecar.api.open", "{call}",
		"Calls open at the API.",
		func(m *moment, tell ints) { tell(int64(m.API.OpenCalls)) }),
	counter("ydb.sidecar.api.refused", "{call}",
		"Calls refused for api.max_open or while draining.",
		func(m *moment, tell ints) { tell(int64(m.API.Refused)) }),
	level("ydb.sidecar.transactions", "{transaction}",
		"Open interactive transactions.",
		func(m *moment, tell ints) { tell(int64(m.API.Transactions)) }),
	counter("ydb.sidecar.transactions.ended", "{transaction}",
		"Interactive transactions that ended, by how: committed, rolled_back by the caller, failed (a statement or the "+
			"commit), lost with the session, timeout of a call, cancelled as the caller went away in the middle of a "+
			"statement, idle (tx.idle), expired (tx.max), drained as the sidecar stopped.",
		func(m *moment, tell ints) {
			for how, n := range m.API.Ended {
				tell(int64(n), reason(how))
			}
		}),
	counter("ydb.sidecar.transactions.replayed", "{call}",
		"Repeated calls of interactive transactions (seq, commit, rollback) that got the stored outcome of the first.",
		func(m *moment, tell ints) { tell(int64(m.API.Replayed)) }),
	counter("ydb.sidecar.api.truncated", "{call}",
		"Calls whose reply lacks rows, because a limit was reached: the caller's own, api.max_rows or api.max_bytes.",
		func(m *moment, tell ints) { tell(int64(m.API.Truncated)) }),
	counter("ydb.sidecar.api.unknown", "{call}",
		"Calls, and statements of batches, that failed with outcome_unknown: they may have run.",
		func(m *moment, tell ints) { tell(int64(m.API.Unknown)) }),
	level("ydb.sidecar.api.connections", "{connection}",
		"Connections of clients, by API.",
		func(m *moment, tell ints) {
			for name, n := range m.Clients {
				tell(int64(n), api(name))
			}
		}),
	counter("ydb.sidecar.connections.refused", "{connection}",
		"Connections closed because as many were open as there may be (connections.each, and twice as many on all "+
			"listeners together; those of which no request has come are closed first; of HTTP/2 on a listener of the "+
			"HTTP API as many as half of the memory limit has room for. 64 on each listener of operators; idle ones "+
			"are closed first), by API.",
		func(m *moment, tell ints) {
			for name, n := range m.Doors.Refused {
				tell(n, api(name))
			}
		}),
	counter("ydb.sidecar.connections.failed", "{failure}",
		"Attempts to accept a connection that failed, such as for want of descriptors, and were tried again, by "+
			"API.",
		func(m *moment, tell ints) {
			for name, n := range m.Doors.Failed {
				tell(n, api(name))
			}
		}),
	gauge("ydb.sidecar.memory.requests", "By",
		"Memory that requests of the plain API hold, and as much as they may.",
		func(m *moment, tell ints) {
			tell(m.Requests.Held, kindOf("used"))
			tell(m.Requests.Most, kindOf("limit"))
		}),
	counter("ydb.sidecar.memory.requests.refused", "{request}",
		"Requests of the plain API for which there was no memory: refused, or ended because they came slowly, or "+
			"with most others on their connection, while others asked.",
		func(m *moment, tell ints) {
			tell(int64(m.Requests.Refused), reason("refused"))
			tell(int64(m.Requests.Ended), reason("slow"))
		}),
}
