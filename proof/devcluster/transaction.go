package devcluster

import (
	"context"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// txKind says which transaction a statement runs in.
type txKind uint8

const (
	txImplicit txKind = iota // no transaction control: the server decides
	txBegin                  // a new one
	txOpen                   // one that is open
)

// txControl is the transaction control of a request, of either service.
type txControl struct {
	kind   txKind
	mode   engine.Mode // of txBegin
	id     string      // of txOpen
	commit bool
	noMode bool // of txBegin: the session is to refuse it
}

// queryControl reads the query service's transaction control.
func queryControl(c *Ydb_Query.TransactionControl) (txControl, error) {
	if c == nil {
		return txControl{}, nil
	}
	out := txControl{commit: c.GetCommitTx()}
	switch selector := c.GetTxSelector().(type) {
	case *Ydb_Query.TransactionControl_TxId:
		out.kind, out.id = txOpen, selector.TxId
	case *Ydb_Query.TransactionControl_BeginTx:
		mode, err := queryMode(selector.BeginTx, false) // BeginTransaction alone refuses to keep online and stale ones open
		if err != nil {
			return txControl{}, err
		}
		out.kind, out.mode = txBegin, mode
	default:
		return txControl{}, fail(Ydb.StatusIds_BAD_REQUEST, "tx_control without tx_selector")
	}
	return out, nil
}

// errInteractive refuses to keep a single-statement transaction open.
func errInteractive(mode string) error {
	return fail(Ydb.StatusIds_BAD_REQUEST, "A %s transaction holds one statement: it must be committed with it", mode)
}

// queryMode reads transaction settings, which must name a mode.
// interactive tells that the transaction stays open after this request.
//
// Read committed runs as snapshot_rw, which promises more; strict serializable
// is what serializable is here.
func queryMode(s *Ydb_Query.TransactionSettings, interactive bool) (engine.Mode, error) {
	switch s.GetTxMode().(type) {
	case nil:
		return 0, fail(Ydb.StatusIds_BAD_REQUEST, "Invalid tx_settings: tx mode was not set")
	case *Ydb_Query.TransactionSettings_SerializableReadWrite, *Ydb_Query.TransactionSettings_StrictSerializableReadWrite:
		return engine.Serializable, nil
	case *Ydb_Query.TransactionSettings_SnapshotReadOnly:
		return engine.SnapshotRO, nil
	case *Ydb_Query.TransactionSettings_SnapshotReadWrite, *Ydb_Query.TransactionSettings_ReadCommittedReadWrite:
		return engine.SnapshotRW, nil
	case *Ydb_Query.TransactionSettings_OnlineReadOnly:
		return single(engine.OnlineRO, interactive)
	case *Ydb_Query.TransactionSettings_StaleReadOnly:
		return single(engine.StaleRO, interactive)
	}
	return 0, fail(Ydb.StatusIds_BAD_REQUEST, "unknown transaction mode %T", s.GetTxMode())
}

func single(mode engine.Mode, interactive bool) (engine.Mode, error) {
	if interactive {
		return 0, errInteractive(mode.String())
	}
	return mode, nil
}

// tableControl reads the table service's transaction control, which must be there.
func tableControl(c *Ydb_Table.TransactionControl) (txControl, error) {
	out := txControl{commit: c.GetCommitTx()}
	switch selector := c.GetTxSelector().(type) {
	case *Ydb_Table.TransactionControl_TxId:
		out.kind, out.id = txOpen, selector.TxId
	case *Ydb_Table.TransactionControl_BeginTx:
		if selector.BeginTx.GetTxMode() == nil {
			out.kind, out.noMode = txBegin, true
			return out, nil
		}
		mode, err := tableMode(selector.BeginTx, !out.commit)
		if err != nil {
			return txControl{}, err
		}
		out.kind, out.mode = txBegin, mode
	default:
		return txControl{}, fail(Ydb.StatusIds_BAD_REQUEST, "Empty TxControl")
	}
	return out, nil
}

// errNoMode is the answer of a session to a transaction without a mode. The table service
// lets such a transaction through.
func errNoMode() error { return fail(Ydb.StatusIds_INTERNAL_ERROR, "tx_mode not set") }

// tableMode is queryMode for the table service's message, read in the session.
func tableMode(s *Ydb_Table.TransactionSettings, interactive bool) (engine.Mode, error) {
	switch s.GetTxMode().(type) {
	case nil:
		return 0, errNoMode()
	case *Ydb_Table.TransactionSettings_SerializableReadWrite, *Ydb_Table.TransactionSettings_StrictSerializableReadWrite:
		return engine.Serializable, nil
	case *Ydb_Table.TransactionSettings_SnapshotReadOnly:
		return engine.SnapshotRO, nil
	case *Ydb_Table.TransactionSettings_SnapshotReadWrite, *Ydb_Table.TransactionSettings_ReadCommittedReadWrite:
		return engine.SnapshotRW, nil
	case *Ydb_Table.TransactionSettings_OnlineReadOnly:
		return single(engine.OnlineRO, interactive)
	case *Ydb_Table.TransactionSettings_StaleReadOnly:
		return single(engine.StaleRO, interactive)
	}
	return 0, fail(Ydb.StatusIds_BAD_REQUEST, "unknown transaction mode %T", s.GetTxMode())
}

// transactionOf is the id of the open transaction that a request names, or "".
func transactionOf(request proto.Message) string {
	switch r := request.(type) {
	case *Ydb_Query.ExecuteQueryRequest:
		return r.GetTxControl().GetTxId()
	case *Ydb_Table.ExecuteDataQueryRequest:
		return r.GetTxControl().GetTxId()
	case *Ydb_Topic.UpdateOffsetsInTransactionRequest:
		return r.GetTx().GetId()
	case interface{ GetTxId() string }:
		return r.GetTxId()
	}
	return ""
}

// begin opens a transaction that stays open in the session.
func (c *call) begin(s *session, mode engine.Mode) (*engine.Tx, string, error) {
	tx, err := c.db.Begin(c.ctx, mode)
	if err != nil {
		return nil, "", err
	}
	id, err := s.keep(tx)
	if err != nil {
		tx.Rollback()
		return nil, "", err
	}
	c.counters.transactions.Add(1)
	return tx, id, nil
}

// commit ends an open transaction of the session, well or not.
func (c *call) commit(s *session, id string) error {
	tx := s.forget(id)
	if tx == nil {
		return errNoTransaction(id)
	}
	return c.commitTx(c.ctx, tx)
}

func (c *call) commitTx(ctx context.Context, tx *engine.Tx) error {
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	c.counters.commits.Add(1)
	return nil
}

func (c *call) rollback(s *session, id string) error {
	tx := s.forget(id)
	if tx == nil {
		return errNoTransaction(id)
	}
	tx.Rollback()
	c.counters.rollbacks.Add(1)
	return nil
}

func errNoTransaction(id string) error {
	return fail(Ydb.StatusIds_NOT_FOUND, "Transaction not found: %s", id)
}

// abandon ends the open transaction of a request that was refused.
func (c *call) abandon(s *session, control txControl) {
	if s == nil || control.kind != txOpen {
		return
	}
	if tx := s.forget(control.id); tx != nil {
		tx.Rollback()
	}
}

// refused plays the faults that end a statement before it is compiled.
func (c *call) refused(s *session) error {
	if s == nil {
		if err := c.noSession(); err != nil {
			return err
		}
	}
	return c.inSession(c.request)
}

// execute runs a request under the given control in s, or without a session if
// s is nil. Before the first part it tells meta the id of the transaction that
// stays open after it ("" if none does). An error ends the transaction: nothing
// of it is kept. Without one it is committed, if that was asked for, even if the
// call was cancelled meanwhile.
func (c *call) execute(
	s *session, control txControl, request engine.Request, meta func(id string), emit engine.Emit,
) (engine.Stats, error) {
	c.counters.statements.Add(1)
	if err := c.refused(s); err != nil {
		c.abandon(s, control)
		return engine.Stats{}, err
	}
	if control.noMode {
		return engine.Stats{}, errNoMode()
	}
	if len(c.outages.all()) > 0 {
		request.Touch = func(named, filled []string) error { return c.onTables(c.request, named, filled) }
	}
	part := func(set int, rs *Ydb.ResultSet) error {
		if c.ctx.Err() != nil { // its session ended, say, while the client was slow to read
			return context.Cause(c.ctx)
		}
		return emit(set, rs)
	}
	if control.kind == txImplicit {
		meta("")
		return c.db.Execute(c.ctx, request, part)
	}
	if s == nil && (control.kind == txOpen || !control.commit) {
		return engine.Stats{}, fail(Ydb.StatusIds_BAD_REQUEST, "a transaction that stays open needs a session")
	}
	tx, id, err := c.enlist(s, control)
	if err != nil {
		return engine.Stats{}, err
	}
	if control.commit {
		meta("")
	} else {
		meta(id)
	}
	stats, err := tx.Execute(c.ctx, request, part)
	if err == nil && control.commit {
		if id != "" {
			s.forget(id)
		}
		err = c.commitTx(c.ctx, tx)
	}
	if err != nil {
		if id != "" {
			s.forget(id)
		}
		tx.Rollback()
	}
	return stats, err
}

// enlist finds or begins the transaction of a statement; id is "" if the
// session does not keep it.
func (c *call) enlist(s *session, control txControl) (tx *engine.Tx, id string, err error) {
	switch {
	case control.kind == txOpen:
		tx, err = s.transaction(control.id)
		return tx, control.id, err
	case !control.commit:
		return c.begin(s, control.mode)
	}
	c.counters.transactions.Add(1)
	tx, err = c.db.Begin(c.ctx, control.mode)
	return tx, "", err
}
