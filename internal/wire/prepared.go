package wire

import (
	"sync"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// Prepared queries of the table service are known to the node that prepared them. Their
// texts are kept here, and go to whatever session serves a call that names one.

const (
	maxText  = 64 << 10 // bytes of a text that is kept, and of the message that brings it
	maxTexts = 16 << 20 // bytes that all texts and ids take, unless Deps.Texts says otherwise
	perText  = 128      // bytes that the map takes for each, besides (measured)
)

// texts are those of prepared queries. When they become too many, any are forgotten.
type texts struct {
	most int // bytes

	mu   sync.Mutex // guards what follows
	byID map[string]string
	size int
}

func (t *texts) keep(id, text string) {
	if len(id) == 0 || len(id) > protocol.MaxQueryID || len(text) > maxText {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]string{}
	}
	if old, ok := t.byID[id]; ok {
		t.size -= perText + len(id) + len(old)
	}
	t.byID[id] = text
	t.size += perText + len(id) + len(text)
	for other, text := range t.byID {
		if t.size <= t.most {
			break
		}
		if other != id {
			delete(t.byID, other)
			t.size -= perText + len(other) + len(text)
		}
	}
}

func (t *texts) find(id []byte) (string, bool) {
	if len(id) > protocol.MaxQueryID {
		return "", false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	text, ok := t.byID[string(id)]
	return text, ok
}

var (
	prepareQuery = protocol.Named(protocol.TableService + "PrepareDataQuery")
	executeData  = protocol.Named(protocol.TableService + "ExecuteDataQuery")
	errForgotten = refusal{codes.NotFound, Ydb.StatusIds_NOT_FOUND,
		"ydb-sidecar: the prepared query is not known any more; prepare it again"}
)

// prepare looks for a prepared query in a call. enough is false if more of the message is
// needed to tell; known is false if the query that it names is forgotten.
func (ts *texts) prepare(l *use, message []byte, whole bool) (query preparedAt, enough, known bool) {
	switch l.method {
	case prepareQuery:
		if !whole && len(message) < maxText {
			return query, false, true
		}
		text, _, to := protocol.Field(message, protocol.TextOfPrepareDataQuery)
		if l.prepares = to > 0 && len(text) <= maxText; l.prepares {
			l.text = string(text)
		}
	case executeData:
		value, ok := protocol.FieldStart(message, protocol.QueryOfExecuteDataQuery)
		if !ok || len(value) == 0 {
			return query, whole || len(message) >= maxText, true
		}
		if value[0] != 2<<3|byte(protowire.BytesType) { // a text
			return query, true, true
		}
		inner, from, to := protocol.Field(message, protocol.QueryOfExecuteDataQuery)
		if to == 0 {
			return query, whole || len(message) >= maxText, true
		}
		id, _, _ := protocol.Field(inner, 2)
		text, known := ts.find(id)
		switch {
		case known:
			return preparedAt{text, from, to, protocol.TextLeavesSomething(text)}, true, true
		case !l.Bound:
			return query, true, false
		}
		return preparedAt{leaves: true}, true, true // the node may know a text that nobody here has seen
	}
	return query, true, true
}

// preparedAt is where a message names a prepared query, and its text. to 0: it does not, or the text is not known.
type preparedAt struct {
	text     string
	from, to int
	leaves   bool // something on the session: see protocol.LeavesSomething
}
