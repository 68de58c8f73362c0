package app

import "strings"

// Effect says when another value of a setting counts.
type Effect uint8

// The effects.
const (
	AfterRestart Effect = iota // at the next start
	Live                       // after a reload, see App.Reload
)

// String returns the word for people.
func (e Effect) String() string {
	if e == Live {
		return "live"
	}
	return "restart"
}

// effects says of each setting when another value counts. A name that ends with a
// dot stands for all settings that begin with it and have no longer entry.
var effects = map[string]Effect{
	// connections, sessions and credentials of the whole process hang on them; files of
	// credentials are read again all the same
	"ydb.":         AfterRestart,
	"discovery.":   AfterRestart,
	"routing.":     AfterRestart,
	"retry.":       AfterRestart,
	"api.":         AfterRestart,
	"kv.":          AfterRestart,
	"tx.":          AfterRestart,
	"ingest.":      AfterRestart,
	"grpc.":        AfterRestart,
	"http.":        AfterRestart,
	"wire.":        AfterRestart,
	"data_path.":   AfterRestart,
	"takeover.":    AfterRestart,
	"connections.": AfterRestart,
	"xds.":         AfterRestart, // its files are read again all the same
	"memory.":      AfterRestart,
	"reload.":      AfterRestart,
	"telemetry.":   AfterRestart,

	"pool.":         Live,
	"pool.adaptive": AfterRestart,

	"apps.":         Live,
	"apps.sessions": AfterRestart,

	"health.":              Live,
	"health.silence":       AfterRestart, // connections watch for it
	"health.probe_timeout": AfterRestart, // and for this
	"health.shutdown":      AfterRestart, // given to the driver
	"health.forget":        AfterRestart, // tied to tx.max

	"admin.":           AfterRestart,
	"admin.control":    Live,
	"admin.held_long":  Live,
	"admin.token":      Live,
	"admin.token_file": Live,

	"startup.": Live,
	"drain.":   Live,

	"tracing.":    Live,
	"statements.": Live,

	"log.":                  AfterRestart,
	"log.level":             Live,
	"log.access":            Live,
	"log.access_slow":       Live,
	"log.access_rate":       Live,
	"log.access_statements": Live,
}

// EffectOf returns when another value of a setting counts; false if nobody has
// said, which a test forbids.
func EffectOf(name string) (e Effect, known bool) {
	if e, known = effects[name]; known {
		return e, true
	}
	for section := name; ; {
		dot := strings.LastIndexByte(strings.TrimSuffix(section, "."), '.')
		if dot < 0 {
			return AfterRestart, false
		}
		section = section[:dot+1]
		if e, known = effects[section]; known {
			return e, true
		}
	}
}
