package facade

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Turn is a call of one statement, or of one step of a transaction, that needs no goroutine while it waits for a session and while a node works
// on it. Service.Turns begins it; Resume does the rest once the answer is here, or whatever else has become of it. Both run what the call runs
// otherwise.
type Turn struct {
	s      *Service
	job    job
	c      call
	work   callctx.Context // ends when what the call waits for is no longer waited for
	ctx    context.Context // work, once it has a deadline
	atEnd  func()          // nil: nothing
	call   upstream.Call
	own    *room   // nil: the reply is small
	tx     *txTurn // of the transaction that the call begins, goes on with or ends; nil
	err    error   // of the beginning; nil: the first call is to be made
	values int     // of the parameters of a request that was read without a message
}

// job is what differs from one kind of call to another.
type job interface {
	// begin is what comes before the first call to a node. It sets the turn's context, call, room and transaction. False: something must be
	// waited for before that call.
	begin(t *Turn) (ready bool, err error)
	// first makes that call on the session. See upstream.FirstCall.
	first(ctx context.Context, t *Turn, session *upstream.Session) error
}

// execute sends a statement as the first call of a Turn.
func execute(ctx context.Context, session *upstream.Session, st upstream.Statement) error {
	_, err := session.Execute(ctx, st)
	return err
}

// GRPCTurn is a Turn of a call of gRPC.
type GRPCTurn struct {
	Turn
	api    *grpcAPI
	values int // of the parameters of a request that was read without a message
}

// answering is the job of a call of gRPC.
type answering interface {
	job
	// read reads the request. m is it as a message; nil: it was read without one. False: it is none for a Turn.
	read(t *GRPCTurn, request []byte) (m proto.Message, ok bool)
	// rest makes the first call, or waits for its answer, and what follows. It appends the encoded answer.
	rest(t *GRPCTurn, b []byte) ([]byte, error)
}

// jobs are the methods of gRPC whose calls may be Turns, by path.
var jobs = map[string]struct {
	name string
	make func(a *grpcAPI) answering
}{
	sidecarv1.Sidecar_Execute_FullMethodName:   {"Execute", func(a *grpcAPI) answering { return &executingGRPC{api: a} }},
	sidecarv1.Sidecar_Begin_FullMethodName:     {"Begin", func(*grpcAPI) answering { return new(beginningGRPC) }},
	sidecarv1.Sidecar_Commit_FullMethodName:    {"Commit", newCommitting},
	sidecarv1.Sidecar_Rollback_FullMethodName:  {"Rollback", newRollingBack},
	sidecarv1.KeyValue_Get_FullMethodName:      {callKVGet, func(a *grpcAPI) answering { return &kvGetting{api: a} }},
	sidecarv1.KeyValue_BatchGet_FullMethodName: {callKVBatchGet, func(a *grpcAPI) answering { return &kvBatchGetting{api: a} }},
	sidecarv1.KeyValue_Put_FullMethodName:      {callKVPut, func(a *grpcAPI) answering { return &kvPutting{api: a} }},
	sidecarv1.KeyValue_Delete_FullMethodName:   {callKVDelete, func(a *grpcAPI) answering { return &kvDeleting{api: a} }},
}

// Caller is what Turn wants to know of a call.
type Caller struct {
	Headers    func(each func(name, value []byte)) bool // but for gRPC's own; valid until Turn returns. False: there are some of which only a server of gRPC knows what to say
	Connection uint64                                   // a number that no other one of this process has
	User       uint32                                   // that its program runs as, if Local
	Local      bool                                     // it came over a Unix socket of this machine
}

// Begin begins a call, and does not wait. ctx ends with the call, or when its caller no longer waits for the answer. via carries the first call to
// a node. Nil: the call cannot be begun in a turn, and nothing has happened. Otherwise Resume must be called.
type Begin func(ctx *callctx.Context, caller Caller, request []byte, via upstream.Via) *GRPCTurn

// Turns calls each with the path of every method whose calls may be Turns, and what begins one.
func (a *grpcAPI) Turns(each func(path string, begin Begin)) {
	if a.core.client == nil {
		return
	}
	for path, kind := range jobs {
		each(path, func(ctx *callctx.Context, caller Caller, request []byte, via upstream.Via) *GRPCTurn {
			if a.core.deps.Memory.Tight() {
				return nil
			}
			j := kind.make(a)
			t := &GRPCTurn{Turn: Turn{s: a.core, job: j}, api: a}
			t.c.name, t.c.from, t.c.begun = kind.name, caller.Connection, ctx
			m, ok := j.read(t, request)
			if !ok {
				return nil
			}
			in, headers, ok := greet(ctx, &t.c, caller)
			if !ok {
				return nil
			}
			t.begin(in, via, func() error {
				if m == nil {
					return a.weighRead(&t.c, headers, len(request), nil, func() int { return t.values })
				}
				return a.weigh(&t.c, headers, len(request), nil, m)
			})
			return t
		})
	}
}

// begin makes the first call, if nothing has to be waited for before.
func (t *Turn) begin(ctx context.Context, via upstream.Via, weigh func() error) {
	s, ready := t.s, false
	if t.ctx, t.err = s.enter(ctx, &t.c); t.err == nil {
		t.work.Values, t.c.work = t.ctx, &t.work
		t.work.Under(t.c.begun)
		t.err = t.c.run(func() (err error) {
			if err = weigh(); err == nil {
				ready, err = t.job.begin(t)
			}
			return err
		})
	}
	if t.err != nil && t.tx != nil { // a panic
		s.tx.giveUp(t.tx)
	}
	if t.err != nil || !ready {
		return
	}
	whole := false
	defer func() {
		if !whole { // a panic, which is for whoever's turn this is
			if t.tx != nil {
				s.tx.giveUp(t.tx)
			}
			s.end(t.ctx, &t.c, errUntold)
			t.close()
		}
	}()
	first := func(ctx context.Context, session *upstream.Session) error { return t.job.first(ctx, t, session) }
	if t.tx != nil && t.tx.Value() != nil {
		t.call.Ahead = t.tx.Value().session.(txSession).Ahead(t.ctx, &t.call, via, first)
	} else {
		t.call.Ahead = s.client.Ahead(t.ctx, &t.call, via, first)
	}
	whole = true
}

// greet notes what the headers of a call say, and returns their size.
func greet(in context.Context, c *call, caller Caller) (_ context.Context, size int, ok bool) {
	var h heard
	if !caller.Headers(h.header) {
		return in, 0, false
	}
	// The other process does not call over the data path.
	c.caller, c.priority = callerBy(h.app, h.application, h.tokens), priorityOfHeaders(h.ydbPriority, h.priority)
	c.caller.User, c.caller.Local = caller.User, caller.Local
	if h.trace != nil {
		in = extract(in, h.trace)
	}
	return in, h.size, true
}

// heard is what the headers of a call say.
type heard struct {
	app, application      string
	ydbPriority, priority string
	tokens                []string
	trace                 propagation.MapCarrier // nil: they name none
	size                  int
}

// header notes a header.
func (h *heard) header(name, value []byte) {
	h.size += len(name) + len(value)
	switch string(name) {
	case "x-sidecar-app":
		set(&h.app, value)
	case "x-ydb-application-name":
		set(&h.application, value)
	case "authorization":
		h.tokens = append(h.tokens, string(value))
	case "x-ydb-priority":
		set(&h.ydbPriority, value)
	case "priority":
		set(&h.priority, value)
	case "traceparent", "tracestate":
		if h.trace == nil {
			h.trace = propagation.MapCarrier{}
		}
		if h.trace[string(name)] == "" {
			h.trace[string(name)] = string(value)
		}
	}
}

// set keeps the first value of a header.
func set(s *string, value []byte) {
	if *s == "" {
		*s = string(value)
	}
}

// Context ends when the call does, or is to.
func (t *Turn) Context() *callctx.Context { return &t.work }

// Here reports whether Resume does not wait, given the messages of an answer with their prefixes, which has ended well. Then
// Resume is to be called at once.
func (t *Turn) Here(answer []byte) bool {
	if t.err != nil || t.call.Ahead == nil || !t.call.Ahead.Here(answer) {
		return false
	}
	if t.own != nil {
		t.own.here = true
	}
	return true
}

// close ends the contexts of the call that are its own.
func (t *Turn) close() {
	t.work.Cancel(nil)
	if t.atEnd != nil {
		t.atEnd()
	}
}

// finish runs the rest of the call, and ends it.
func (t *Turn) finish(rest func() error) *fault {
	err := t.err
	if err == nil {
		err = t.c.run(rest)
	}
	fault := t.s.end(t.ctx, &t.c, err)
	t.close()
	return fault
}

// Resume ends the call, and appends the encoded answer. The trailer alternates names and values.
func (t *GRPCTurn) Resume(b []byte) (answer []byte, trailer []string, err error) {
	c := &t.c
	fault := t.finish(func() (err error) {
		if answer, err = t.job.(answering).rest(t, b); err == nil && c.app.Metered() {
			c.count(len(answer) - len(b))
		}
		return err
	})
	if timing := serverTiming(c.info); timing != "" {
		trailer = []string{keyServerTiming, timing}
	}
	if fault != nil {
		return nil, trailer, statusOf(fault, c.traceID)
	}
	return answer, trailer, nil
}

// readMessage reads a request as a message.
func readMessage(request []byte, m proto.Message) (proto.Message, bool) {
	return m, proto.Unmarshal(request, m) == nil
}

// encode appends an answer that is a message, if there was no error.
func encode(b []byte, m proto.Message, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if b, err = (proto.MarshalOptions{}).MarshalAppend(b, m); err != nil {
		return nil, faultf(codeInternal, "the answer cannot be encoded: %v", err)
	}
	return b, nil
}

// executing is a call of Execute, over either face.
type executing struct {
	in  executeRequest
	st  *statement
	m   *mode
	out sink
}

// begin begins a call whose request was read.
func (j *executing) begin(t *Turn) (ready bool, err error) {
	s, c := t.s, &t.c
	if j.st, j.m, err = s.compose(t.ctx, c, j.in); err != nil {
		return false, err
	}
	if err := t.prepare(j.in.timeout, j.in.priority); err != nil {
		return false, err
	}
	t.call.Idempotent = j.in.idempotent
	tx := j.in.tx
	if tx != nil {
		if j.m, err = txModeOf(tx, j.m); err != nil {
			return false, err
		}
	}
	switch {
	case j.in.alone():
		if err := s.fresh(c); err != nil {
			return false, err
		}
		s.classify(&t.call, j.st)
	case tx.begin:
		if t.tx, err = s.tx.letIn(c); err != nil {
			return false, err
		}
	default:
		if !t.takeStep(tx.id, stepOf(tx, j.st)) {
			return false, nil
		}
		s.tx.joins(t.tx.Value(), &t.call, j.st)
	}
	t.own = j.in.room(s, c)
	return true, nil
}

func (j *executing) first(ctx context.Context, t *Turn, session *upstream.Session) error {
	control := j.m.single()
	switch {
	case t.tx == nil:
	case j.in.tx.begin:
		control = j.m.begin(false)
	default:
		control = inside(session.TxID(), j.in.tx.commit)
	}
	return execute(ctx, session, j.st.request(control, t.own))
}

func (j *executing) run(t *Turn) (done outcome, err error) {
	s, c, tx := t.s, &t.c, j.in.tx
	switch {
	case j.in.alone():
		return s.executeAlone(t.ctx, c, t.call, j.in.spec, j.st, j.m, t.own, j.out)
	case t.tx == nil: // it has to wait for its turn, or gets none
		done, err = s.tx.continueWaiting(t.ctx, c, t.call, tx, j.st, j.in.room(s, c), j.out)
	case tx.begin:
		done, err = s.tx.open(t.ctx, c, t.call, t.tx, j.st, j.m, t.own, j.out)
	default:
		done, err = s.tx.goOn(t.ctx, c, t.call, t.tx, tx, j.st, t.own, j.out)
	}
	return done, hinted(err, j.st)
}

// executingGRPC is one over gRPC.
type executingGRPC struct {
	executing
	api  *grpcAPI
	req  readRequest
	rows protoSink
}

func (j *executingGRPC) read(t *GRPCTurn, request []byte) (m proto.Message, ok bool) {
	j.out, j.req.values.depth = &j.rows, t.s.cfg.API.MaxDepth
	if j.req.read(request) {
		j.in, t.values = j.req.executeRequest, j.req.values.count()
	} else {
		whole := new(sidecarv1.ExecuteRequest)
		if m, ok = readMessage(request, whole); !ok {
			return nil, false
		}
		j.in = j.api.executeOf(whole)
	}
	return m, j.in.tx == nil || t.s.other.owner(j.in.tx.id) == nil
}

func (j *executingGRPC) rest(t *GRPCTurn, b []byte) ([]byte, error) {
	done, err := j.run(&t.Turn)
	if err != nil {
		return nil, err
	}
	return j.rows.appendResponse(b, &t.c, done)
}

// kvJob is what the calls of the key-value face have in common.
type kvJob struct {
	t  *kvTable
	st *statement // nil: it takes more than one
}

// begin lets a call in. Its statement can be sent if the table was looked at.
func (j *kvJob) begin(t *Turn, timeout, priority string) (ready bool, err error) {
	ctx, _, call, err := j.t.of.enter(t.ctx, &t.c, kvCall{j.t, timeout, priority})
	if err != nil {
		return false, err
	}
	t.ctx, t.call = ctx, call
	ready, _ = j.t.of.checked(j.t)
	return ready && j.st != nil, nil
}

// check looks at the table, if nobody had before the turn.
func (j *kvJob) check(t *Turn) error {
	if t.call.Ahead != nil {
		return nil
	}
	return j.t.of.check(t.ctx, &t.c, t.call, j.t)
}

// kvReading is a call that reads.
type kvReading struct{ kvJob }

// look is begin, with the statement.
func (j *kvReading) look(t *Turn, timeout, priority string) (ready bool, err error) {
	if ready, err = j.kvJob.begin(t, timeout, priority); err == nil {
		j.st.reads(&t.call)
		t.own = t.s.room(&t.c)
	}
	return ready, err
}

func (j *kvReading) first(ctx context.Context, t *Turn, session *upstream.Session) error {
	return execute(ctx, session, j.st.request(modeSnapshotRO.single(), t.own))
}

// get begins to read one row.
func (j *kvReading) get(t *Turn, key *upstream.Params, timeout, priority string) (ready bool, err error) {
	j.st = &statement{sql: j.t.get, params: key}
	return j.look(t, timeout, priority)
}

// row waits for the row of get.
func (j *kvReading) row(t *Turn, cond condition) (row kvRow, modified bool, err error) {
	if err := j.check(t); err != nil {
		return kvRow{}, false, err
	}
	return j.t.of.row(t.ctx, &t.c, t.call, j.t, j.st, t.own, cond)
}

// found waits for the rows of read.
func (j *kvReading) found(t *Turn, ids []kvID) ([]kvFound, error) {
	if err := j.check(t); err != nil {
		return nil, err
	}
	return j.t.of.rows(t.ctx, &t.c, t.call, j.t, j.st, t.own, ids)
}

// kvGetting is a call of Get.
type kvGetting struct {
	kvReading
	api *grpcAPI
	req kvRequest
}

func (j *kvGetting) read(_ *GRPCTurn, request []byte) (proto.Message, bool) {
	const table, id, cond, timeout, priority = 1, 2, 3, 4, 5
	if j.req.read(request, kvFields{table, id, cond, timeout, priority, 0}) {
		return nil, true
	}
	req := new(sidecarv1.KvGetRequest)
	return req, proto.Unmarshal(request, req) == nil && j.req.of(req.Table, req.Id, req.Condition, req.Timeout, req.Priority, nil)
}

func (j *kvGetting) begin(t *Turn) (ready bool, err error) {
	if j.t, err = j.api.core.kv.table(j.req.table); err != nil {
		return false, err
	}
	key, err := j.req.key(j.api, j.t)
	if err != nil {
		return false, err
	}
	return j.get(t, key, j.req.timeout, j.req.priority)
}

func (j *kvGetting) rest(t *GRPCTurn, b []byte) ([]byte, error) {
	row, modified, err := j.row(&t.Turn, j.req.cond)
	if err != nil {
		return nil, err
	}
	return appendGet(b, j.t, &t.c, row, modified)
}

// kvBatchGetting is a call of BatchGet.
type kvBatchGetting struct {
	kvReading
	api *grpcAPI
	req sidecarv1.KvBatchGetRequest
	ids []kvID
}

func (j *kvBatchGetting) read(_ *GRPCTurn, request []byte) (proto.Message, bool) {
	return readMessage(request, &j.req)
}

func (j *kvBatchGetting) begin(t *Turn) (ready bool, err error) {
	if j.t, j.ids, err = j.api.batchOf(&j.req); err != nil {
		return false, err
	}
	j.st = j.t.batch(j.ids)
	return j.look(t, j.req.Timeout, j.req.Priority)
}

func (j *kvBatchGetting) rest(t *GRPCTurn, b []byte) ([]byte, error) {
	found, err := j.found(&t.Turn, j.ids)
	if err != nil {
		return nil, err
	}
	res, err := batchResponse(j.t, &t.c, j.ids, found)
	return encode(b, res, err)
}

// kvWriting is a call that writes. It has a statement of its own, unless a row has to be looked at before.
type kvWriting struct {
	kvJob
	w *kvWrite
}

func (j *kvWriting) begin(t *Turn, w *kvWrite, timeout, priority string) (ready bool, err error) {
	if err := tooMuch(t.c.reserved.Take(w.params.Size())); err != nil {
		return false, err
	}
	j.t, j.w, j.st = w.t, w, w.statement()
	if ready, err = j.kvJob.begin(t, timeout, priority); err == nil {
		t.call.Idempotent = w.again
	}
	return ready, err
}

func (j *kvWriting) first(ctx context.Context, _ *Turn, session *upstream.Session) error {
	return execute(ctx, session, j.st.request(modeSerializable.single(), nil))
}

func (j *kvWriting) run(t *Turn) (kvWritten, error) {
	if err := j.check(t); err != nil {
		return kvWritten{}, err
	}
	return j.t.of.write(t.ctx, &t.c, t.call, j.w, j.st)
}

// kvPutting is a call of Put.
type kvPutting struct {
	kvWriting
	api *grpcAPI
	req kvRequest
}

func (j *kvPutting) read(_ *GRPCTurn, request []byte) (proto.Message, bool) {
	const table, id, value, cond, timeout, priority = 1, 2, 3, 4, 5, 6
	if j.req.read(request, kvFields{table, id, cond, timeout, priority, value}) {
		return nil, true
	}
	req := new(sidecarv1.KvPutRequest)
	return req, proto.Unmarshal(request, req) == nil && j.req.of(req.Table, req.Id, req.Condition, req.Timeout, req.Priority, req.Value)
}

func (j *kvPutting) begin(t *Turn) (bool, error) {
	table, key, err := j.req.toWrite(j.api)
	if err != nil {
		return false, err
	}
	w, err := j.api.core.kv.put(table, key, j.req.value, j.req.cond)
	if err != nil {
		return false, err
	}
	return j.kvWriting.begin(t, w, j.req.timeout, j.req.priority)
}

func (j *kvPutting) rest(t *GRPCTurn, b []byte) ([]byte, error) {
	done, err := j.run(&t.Turn)
	if err != nil {
		return nil, err
	}
	return appendPut(b, done, &t.c), nil
}

// kvDeleting is a call of Delete.
type kvDeleting struct {
	kvWriting
	api *grpcAPI
	req kvRequest
}

func (j *kvDeleting) read(_ *GRPCTurn, request []byte) (proto.Message, bool) {
	const table, id, cond, timeout, priority = 1, 2, 3, 4, 5
	if j.req.read(request, kvFields{table, id, cond, timeout, priority, 0}) {
		return nil, true
	}
	req := new(sidecarv1.KvDeleteRequest)
	return req, proto.Unmarshal(request, req) == nil && j.req.of(req.Table, req.Id, req.Condition, req.Timeout, req.Priority, nil)
}

func (j *kvDeleting) begin(t *Turn) (bool, error) {
	table, key, err := j.req.toWrite(j.api)
	if err != nil {
		return false, err
	}
	return j.kvWriting.begin(t, table.kvDelete(key, j.req.cond), j.req.timeout, j.req.priority)
}

func (j *kvDeleting) rest(t *GRPCTurn, b []byte) ([]byte, error) {
	if _, err := j.run(&t.Turn); err != nil {
		return nil, err
	}
	return appendInfoAlone(b, t.c.info), nil
}
