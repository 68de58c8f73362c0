package core

import (
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
)

// mode is how a statement or a transaction is isolated.
type mode struct {
	name     string
	settings *Ydb_Query.TransactionSettings // nil: none is sent and the server decides
	readOnly bool
	// interactive says that it may last for several statements.
	interactive bool
}

var modes = []*mode{
	{name: "implicit"},
	{name: "serializable_rw", interactive: true, settings: &Ydb_Query.TransactionSettings{
		TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}}}},
	{name: "snapshot_ro", interactive: true, readOnly: true, settings: &Ydb_Query.TransactionSettings{
		TxMode: &Ydb_Query.TransactionSettings_SnapshotReadOnly{SnapshotReadOnly: &Ydb_Query.SnapshotModeSettings{}}}},
	{name: "snapshot_rw", interactive: true, settings: &Ydb_Query.TransactionSettings{
		TxMode: &Ydb_Query.TransactionSettings_SnapshotReadWrite{SnapshotReadWrite: &Ydb_Query.SnapshotRWModeSettings{}}}},
	{name: "stale_ro", readOnly: true, settings: &Ydb_Query.TransactionSettings{
		TxMode: &Ydb_Query.TransactionSettings_StaleReadOnly{StaleReadOnly: &Ydb_Query.StaleModeSettings{}}}},
	{name: "online_ro", readOnly: true, settings: &Ydb_Query.TransactionSettings{
		TxMode: &Ydb_Query.TransactionSettings_OnlineReadOnly{OnlineReadOnly: &Ydb_Query.OnlineModeSettings{}}}},
}

var modeImplicit, ModeSerializable, ModeSnapshotRO = modes[0], modes[1], modes[2]

// parseMode reads the mode of one statement.
func parseMode(name string) (*mode, error) {
	if name == "" {
		return modeImplicit, nil
	}
	return findMode(name, func(*mode) bool { return true })
}

// parseTxMode reads the mode of a transaction of several statements.
func parseTxMode(name string) (*mode, error) {
	if name == "" {
		return ModeSerializable, nil
	}
	return findMode(name, func(m *mode) bool { return m.interactive })
}

func findMode(name string, fits func(*mode) bool) (*mode, error) {
	var known []string
	for _, m := range modes {
		if !fits(m) {
			continue
		}
		if m.name == name {
			return m, nil
		}
		known = append(known, m.name)
	}
	return nil, BadRequest("mode: %.40q; must be one of %s", name, strings.Join(known, ", "))
}

// parseStats reads the amount of statistics.
func parseStats(name string) (Ydb_Query.StatsMode, error) {
	switch name {
	case "", "none":
		return Ydb_Query.StatsMode_STATS_MODE_NONE, nil
	case "basic":
		return Ydb_Query.StatsMode_STATS_MODE_BASIC, nil
	case "full":
		return Ydb_Query.StatsMode_STATS_MODE_FULL, nil
	}
	return 0, BadRequest("stats: %.40q; must be one of none, basic, full", name)
}

// control says which transaction a statement belongs to. The zero value leaves that to the server.
type control struct {
	begin  *Ydb_Query.TransactionSettings // of the transaction that it opens; nil: it opens none
	within bool                           // it belongs to the open transaction id
	id     string
	commit bool
}

// open reports whether the transaction is open after the statement.
func (c control) open() bool { return (c.begin != nil || c.within) && !c.commit }

// Single is the control of a statement that is a transaction of its own.
func (m *mode) Single() control {
	if m.settings == nil {
		return control{}
	}
	return m.Begin(true)
}

// Begin is the control of a statement that begins a transaction.
func (m *mode) Begin(commit bool) control { return control{begin: m.settings, commit: commit} }

// Inside is the control of a statement of an open transaction.
func Inside(tx string, commit bool) control {
	return control{within: true, id: tx, commit: commit}
}
