package wire

import (
	"sync"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// Prepared queries of the table service are known to the node that prepared them. Their
// texts are kept here, and go to whatever session serves a call that names one.

const (
	maxText     = 64 << 10 // octets of a text that is kept, and of the message that brings it
	maxTexts    = 16 << 20 // octets of all texts and ids
	maxQueryID  = 1024     // octets
	queryOfData = 3        // ExecuteDataQueryRequest.query
)

// texts are those of prepared queries. When they become too many, any are forgotten.
type texts struct {
	mu   sync.Mutex // guards what follows
	byID map[string]string
	size int
}

func (t *texts) keep(id, text string) {
	if len(id) == 0 || len(id) > maxQueryID || len(text) > maxText {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]string{}
	}
	if old, ok := t.byID[id]; ok {
		t.size -= len(id) + len(old)
	}
	t.byID[id] = text
	t.size += len(id) + len(text)
	for other, text := range t.byID {
		if t.size <= maxTexts {
			break
		}
		if other != id {
			delete(t.byID, other)
			t.size -= len(other) + len(text)
		}
	}
}

func (t *texts) find(id []byte) (string, bool) {
	if len(id) > maxQueryID {
		return "", false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	text, ok := t.byID[string(id)]
	return text, ok
}

var (
	prepareQuery = methods[tableService+"PrepareDataQuery"]
	executeData  = methods[tableService+"ExecuteDataQuery"]
	errForgotten = refusal{codes.NotFound, Ydb.StatusIds_NOT_FOUND, "ydb-sidecar: the prepared query is not known any more; prepare it again"}
)

// prepare looks for a prepared query in a call. enough is false if more of the message is
// needed to tell; known is false if the query that it names is forgotten.
func (f *frames) prepare(l *loan, message []byte, whole bool) (query preparedAt, enough, known bool) {
	switch l.method {
	case prepareQuery:
		if !whole && len(message) < maxText {
			return query, false, true
		}
		text, _, to := h2.Field(message, 2)
		if l.prepares = to > 0 && len(text) <= maxText; l.prepares {
			l.text = string(text)
		}
	case executeData:
		value, ok := fieldStart(message, queryOfData)
		if !ok || len(value) == 0 {
			return query, whole || len(message) >= maxText, true
		}
		if value[0] != 2<<3|typeBytes { // a text
			return query, true, true
		}
		inner, from, to := h2.Field(message, queryOfData)
		if to == 0 {
			return query, whole || len(message) >= maxText, true
		}
		id, _, _ := h2.Field(inner, 2)
		text, known := f.server.virtual.texts.find(id)
		switch {
		case known:
			return preparedAt{text, from, to}, true, true
		case !l.bound:
			return query, true, false
		}
	}
	return query, true, true
}

// preparedAt is where a message names a prepared query, and its text. to 0: it does not.
type preparedAt struct {
	text     string
	from, to int
}

// fieldStart returns what is here of a length-delimited field at the top of a message.
func fieldStart(message []byte, number int) (value []byte, ok bool) {
	s := fieldScan{rest: message}
	for {
		tag, ok := s.varint()
		if !ok {
			return nil, false
		}
		size := uint64(0)
		switch tag & 7 {
		case typeVarint:
			if _, ok = s.varint(); !ok {
				return nil, false
			}
		case typeFixed64:
			size = 8
		case typeFixed32:
			size = 4
		case typeBytes:
			if size, ok = s.varint(); !ok {
				return nil, false
			}
			if tag>>3 == uint64(number) {
				return s.rest[:min(size, uint64(len(s.rest)))], true
			}
		default:
			return nil, false
		}
		if size > uint64(len(s.rest)) {
			return nil, false
		}
		s.rest = s.rest[size:]
	}
}

type fieldScan struct{ rest []byte }

func (s *fieldScan) varint() (v uint64, ok bool) {
	for i := 0; i < len(s.rest) && i < 10; i++ {
		c := s.rest[i]
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			s.rest = s.rest[i+1:]
			return v, true
		}
	}
	return 0, false
}
