package metrics

import (
	"runtime"

	"github.com/ydb-sidecar/sidecar/internal/snapshot"
)

// processRows are the figures of the process itself.
var processRows = []figure{
	gauge("ydb.sidecar.build.info", "{build}",
		"1, with the version of the program and of Go.",
		func(m *moment, tell ints) {
			tell(1, label("ydb.sidecar.version", m.Version), label("process.runtime.version", runtime.Version()))
		}),
	counter("ydb.sidecar.log.suppressed", "{line}",
		"Lines of the access log that were left out: log.access_rate.",
		func(m *moment, tell ints) { tell(int64(m.Unlogged)) }),
	counter("ydb.sidecar.log.dropped", "{line}",
		"Lines of the log that were dropped because the reader of standard error did not keep up.",
		func(m *moment, tell ints) { tell(int64(m.Lost)) }),
	counter("ydb.sidecar.caught.panics", "{panic}",
		"Panics that were caught: each is a fault of the sidecar, and the log has its stack.",
		func(m *moment, tell ints) { tell(int64(m.Panics.Count)) }),
	gauge("ydb.sidecar.drain.stage", "{process}",
		"1 for the stage of its life that the process is in.",
		func(m *moment, tell ints) {
			for s := snapshot.Starting; s <= snapshot.Deleting; s++ {
				tell(one(m.Stage == s), label("ydb.sidecar.stage", s.String()))
			}
		}),
	decimal("ydb.sidecar.drain.left", "s",
		"Until what is open is cut off, while the process ends.",
		func(m *moment, tell decimals) { tell(m.Left.Seconds()) }),
	counter("ydb.sidecar.config.reloads", "{reload}",
		"Times that the configuration was read again, by result: ok or failed, which changed nothing.",
		func(m *moment, tell ints) {
			tell(m.Reloads.Good, result("ok"))
			tell(m.Reloads.Bad, result("failed"))
		}),
	gauge("ydb.sidecar.config.pending", "{setting}",
		"Settings that were changed and count only after a restart.",
		func(m *moment, tell ints) { tell(int64(len(m.Reloads.Pending))) }),
	counter("ydb.sidecar.tls.reloads", "{reload}",
		"Times that files of TLS were read again, by section of settings and result: ok or failed, after which "+
			"those of before count.",
		func(m *moment, tell ints) {
			for section, read := range m.Certs {
				tell(read.Good, label("ydb.sidecar.settings", section), result("ok"))
				tell(read.Bad, label("ydb.sidecar.settings", section), result("failed"))
			}
		}),
	decimal("ydb.sidecar.tls.expires", "s",
		"Time at which the certificate in use expires, as seconds since 1970, by section of settings.",
		func(m *moment, tell decimals) {
			for section, read := range m.Certs {
				if !read.Expires.IsZero() {
					tell(float64(read.Expires.Unix()), label("ydb.sidecar.settings", section))
				}
			}
		}),
}

// memoryRows are those of the guard of memory.
var memoryRows = []figure{
	gauge("ydb.sidecar.memory", "By",
		"Memory that is in use for good, and the limit that the guard goes by.",
		func(m *moment, tell ints) {
			tell(int64(m.Memory.Used), kindOf("used"))
			tell(int64(m.Memory.Limit), kindOf("limit"))
		}),
	gauge("ydb.sidecar.memory.tight", "{alarm}",
		"1 while memory is short.",
		func(m *moment, tell ints) { tell(one(m.Memory.Tight)) }),
	counter("ydb.sidecar.memory.refused", "{call}",
		"Large work refused because memory was short.",
		func(m *moment, tell ints) { tell(int64(m.Memory.Refused)) }),
	counter("ydb.sidecar.memory.slowed", "{part}",
		"Parts of streams that had to wait because memory was short.",
		func(m *moment, tell ints) { tell(int64(m.Memory.Slowed)) }),
}
