package upstream

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/protobuf/proto"
)

// What is left to do after an answer waits for nothing only if the answer is what its statement leads to, transaction included.
func TestAnswersThatLeaveNothingToWaitFor(t *testing.T) {
	begin, alone := Statement{Begin: serializable}, Statement{Begin: serializable, Commit: true}
	within, commit := Statement{Within: true, TxID: "tx"}, Statement{Within: true, TxID: "tx", Commit: true}
	good := func(meta *Ydb_Query.TransactionMeta) *Ydb_Query.ExecuteQueryResponsePart {
		return &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, TxMeta: meta}
	}
	none, empty, open := good(nil), good(new(Ydb_Query.TransactionMeta)), good(&Ydb_Query.TransactionMeta{Id: "tx"})
	failed := &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_ABORTED}
	type parts = []*Ydb_Query.ExecuteQueryResponsePart
	for _, tc := range []struct {
		name   string
		st     Statement
		answer parts
		here   bool
	}{
		{"without_control", Statement{}, parts{none}, true},
		{"alone", alone, parts{none}, true},
		{"alone_and_says_so", alone, parts{empty}, true},
		{"alone_and_left_open", alone, parts{open}, false},
		{"begins", begin, parts{open}, true},
		{"begins_and_goes_on", begin, parts{open, none}, true},
		{"begins_nothing", begin, parts{none}, false},
		{"begins_nothing_and_says_so", begin, parts{empty}, false},
		{"within", within, parts{open}, true},
		{"within_and_over", within, parts{empty}, false},
		{"commits", commit, parts{empty}, true},
		{"commits_in_silence", commit, parts{none}, true},
		{"commits_nothing", commit, parts{open}, false},
		{"fails", within, parts{failed}, false},
		{"fails_late", within, parts{open, failed}, false},
		{"says_nothing", Statement{}, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var raw []byte
			for _, part := range tc.answer {
				message, err := proto.Marshal(part)
				if err != nil {
					t.Fatal(err)
				}
				raw = append(binary.BigEndian.AppendUint32(append(raw, 0), uint32(len(message))), message...)
			}
			a := &Ahead{out: &Stream{sent: sending{Statement: tc.st}, part: Part{known: new(knownSets)}}}
			if got := a.Here(raw); got != tc.here {
				t.Errorf("%v; want %v", got, tc.here)
			}
		})
	}
	// Bytes that are unusual, or wrong, are read outside the turn.
	for name, message := range map[string][]byte{
		"a transaction said twice": {0x08, 0x80, 0xb5, 0x18, 0x32, 0x03, 0x0a, 0x01, 'a', 0x32, 0x00},
		"an unknown field":         {0x08, 0x80, 0xb5, 0x18, 0x32, 0x02, 0x10, 0x01},
		"an id that is no text":    {0x08, 0x80, 0xb5, 0x18, 0x32, 0x03, 0x0a, 0x01, 0xff},
		"an id that is too long":   {0x08, 0x80, 0xb5, 0x18, 0x32, 0x03, 0x0a, 0x02, 'a'},
		"half of a tag in its end": {0x08, 0x80, 0xb5, 0x18, 0x32, 0x01, 0x80},
	} {
		if ok, _ := new(Part).succeeds(message); ok {
			t.Errorf("%s is a success", name)
		}
	}
}

// Of an answer of one message, nothing is left to wait for if it says that all is well, and is all there is.
func TestAnswersOfOneMessageThatLeaveNothingToWaitFor(t *testing.T) {
	framed := func(message []byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	}
	good := framed([]byte{0x08, 0x80, 0xb5, 0x18, 0x1a, 0x03, 0x0a, 0x01, 'a'})
	for name, tc := range map[string]struct {
		raw  []byte
		here bool
	}{
		"a success":                 {good, true},
		"a success with issues":     {framed([]byte{0x08, 0x80, 0xb5, 0x18, 0x12, 0x00}), true},
		"a failure":                 {framed([]byte{0x08, 0xc8, 0xb6, 0x18}), false},
		"nothing":                   {nil, false},
		"no status":                 {framed(nil), false},
		"a status that is cut":      {framed([]byte{0x08, 0x80}), false},
		"an id that is no text":     {framed([]byte{0x08, 0x80, 0xb5, 0x18, 0x1a, 0x03, 0x0a, 0x01, 0xff}), false},
		"half a prefix":             {good[:3], false},
		"less than the prefix says": {good[:len(good)-1], false},
		"two messages":              {append(bytes.Clone(good), good...), false},
		"compressed":                {append([]byte{1}, good[1:]...), false},
	} {
		a := &Ahead{out: new(Stream), reply: new(Ydb_Query.BeginTransactionResponse)}
		if got := a.Here(tc.raw); got != tc.here {
			t.Errorf("%s: %v; want %v", name, got, tc.here)
		}
	}
}
