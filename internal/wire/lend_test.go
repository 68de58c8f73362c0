package wire

import (
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// What a client sends behind a message that was scanned when its call was placed is scanned as it comes.
func TestScanGoesOnBehindTheFirstMessage(t *testing.T) {
	first := framedMessage(bytesOf(t, &Ydb_Query.ExecuteQueryRequest{ExecMode: 50, TxControl: &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: &Ydb_Query.TransactionSettings{}}}}))
	answer := framedMessage(bytesOf(t, &Ydb_Query.ExecuteQueryResponsePart{Status: success}))
	same := append(bytesOf(t, &Ydb_Query.ExecuteQueryRequest{TxControl: &Ydb_Query.TransactionControl{CommitTx: true}}), 2<<3, 50)
	for len(same) < len(first)-prefix { // as long as the first
		same = append(same, 15<<3, 1)
	}
	second := framedMessage(same[:len(first)-prefix])
	for end, clean := range map[int]bool{len(second): true, len(second) - 1: false, 0: true} {
		k := new(call)
		k.method = methods[queryService+"ExecuteQuery"]
		l := k.lend()
		l.request, l.skip = request{Begin: true}, len(first)
		l.answer.begin(l.method.answer)
		for _, err := range []error{l.Observe(true, first[:7]), l.Observe(true, first[7:]), l.Observe(true, second[:end]), l.Observe(false, answer)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if l.request != (request{Begin: true, Commit: end > 0}) {
			t.Errorf("%d octets of the second message: %+v", end, l.request)
		}
		o := &h2.Outcome{Began: time.Second, Forwarded: time.Second, Node: new(h2.Conn)}
		if got, _ := l.verdict(o, ydbstatus.Signs{}); got != clean {
			t.Errorf("%d octets of the second message, %d of it: clean %v; want %v", end, len(second), got, clean)
		}
		if l.forget(); l.scanning || l.request != (request{}) || l.skip != 0 {
			t.Errorf("forgotten: %+v", l)
		}
	}
}

// The next statement of a session asks for a server session where the last one was.
func TestNextStatementGoesWhereTheLastWent(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	s := g.session()
	s.must(success, "SELECT 1", nil)
	h.resting()
	id, _ := parseVirtual([]byte(s.id))
	of := h.server.virtual.of(id)
	of.mu.Lock()
	defer of.mu.Unlock()
	if v := of.byID.get(id); v == nil || v.near == (pool.Place{}) {
		t.Error("it does not know where that was")
	}
}
