package protocol

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

type edit struct {
	from, to int
	with     []byte
}

func (s *TopicScan) edits(all []edit, session string) []edit {
	s.Replace(session, func(from, to int, with []byte) { all = append(all, edit{from, to, with}) })
	return all
}

// topicScanned is a scan of a message that comes in pieces.
func topicScanned(message []byte, piece int) *TopicScan {
	s := new(TopicScan)
	for p := range slices.Chunk(message, piece) {
		s.Write(p)
	}
	return s
}

// replaced is a message with other parts.
func replaced(message []byte, edits []edit) (b []byte) {
	at := 0
	for _, e := range edits {
		b = append(append(b, message[at:e.from]...), e.with...)
		at = e.to
	}
	return append(b, message[at:]...)
}

// FuzzTopicSession: of any bytes either the id is found that a decoder of protobuf finds,
// and the message with another in its place decodes to the same except for that; or none is.
func FuzzTopicSession(f *testing.F) {
	f.Add(bytesOf(f, writeIn("session", "tx", 20)), "another", 3)
	f.Add(bytesOf(f, writeIn("s", "", 0)), strings.Repeat("long", 50), 1)
	f.Add([]byte{0x12, 2, 0x1a, 0, 0x12, 4, 0x1a, 2, 0x12, 0}, "x", 1)
	f.Add([]byte{0x12, 4, 0x1a, 2, 0x12, 0, 0x0a, 0}, "x", 100)
	f.Add([]byte{0x0d, 1, 2, 3, 4, 0x12, 5, 0x1a, 3, 0x12, 1, 'a', 0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x01, 0xff, 0xff, 3}, "x", 2)
	f.Fuzz(func(t *testing.T, message []byte, id string, piece int) {
		s := topicScanned(message, max(1, piece))
		var want Ydb_Topic.StreamWriteMessage_FromClient
		if proto.Unmarshal(message, &want) != nil || strings.ToValidUTF8(id, "") != id || id == "" {
			return
		}
		tx := want.GetWriteRequest().GetTx()
		if !s.OK() {
			if n := len(tx.GetSession()); n > 0 && n <= maxTopicID && plainTopicMessage(message) {
				t.Fatalf("%q is not found", tx.GetSession())
			}
			return
		}
		if got := string(s.ID); got != tx.GetSession() {
			t.Fatalf("%q; a decoder finds %q", got, tx.GetSession())
		}
		var got Ydb_Topic.StreamWriteMessage_FromClient
		if err := proto.Unmarshal(replaced(message, s.edits(nil, id)), &got); err != nil {
			t.Fatal(err)
		}
		tx.Session = id
		if !proto.Equal(&got, &want) {
			t.Fatalf("%v; want %v", &got, &want)
		}
	})
}

// plainTopicMessage reports whether each of the fields that lead to the session comes once, and
// there is no group beside them.
func plainTopicMessage(message []byte) bool {
	for _, other := range []protowire.Number{1, 3} {
		if all, ok := allBytes(message, other); !ok || len(all) > 0 {
			return false
		}
	}
	for _, number := range []protowire.Number{2, 3, 2} {
		for b := message; len(b) > 0; {
			_, kind, _ := protowire.ConsumeTag(b)
			if kind == protowire.StartGroupType {
				return false
			}
			_, _, n := protowire.ConsumeField(b)
			b = b[n:]
		}
		all, ok := allBytes(message, number)
		if !ok || len(all) != 1 {
			return false
		}
		message = all[0]
	}
	return true
}

// A scan makes one step for each field, and none for what a field holds, however a message comes.
func TestTopicScansAreLinear(t *testing.T) {
	small := bytes.Repeat([]byte{0x20, 1}, 10_000)
	for name, message := range map[string][]byte{
		"small fields":         small,
		"small in the request": appendField(nil, 2, small),
		"small beside the id":  appendField(nil, 2, appendField(nil, 3, append(appendField(nil, 2, []byte("session")), small...))),
	} {
		s := new(TopicScan)
		for p := range slices.Chunk(message, 1000) {
			before := s.at
			if s.Write(p); s.at-before != len(p) || s.Bad {
				t.Fatalf("%s: %d bytes are looked at of %d that came, bad %v", name, s.at-before, len(p), s.Bad)
			}
		}
		if cap(s.ID) > maxTopicID {
			t.Errorf("%s: %d bytes are kept", name, cap(s.ID))
		}
	}
}

func BenchmarkTopicMessage(b *testing.B) {
	message := bytesOf(b, writeIn("ydb://session/3?node_id=2147483641&id=MDEyMzQ1Njc4OWFiY2RlZg", "01jexample", 10_000))
	b.ReportAllocs()
	var s TopicScan
	var edits []edit
	for b.Loop() {
		s = TopicScan{ID: s.ID[:0]}
		if s.Write(message); !s.OK() {
			b.Fatal("not found")
		}
		edits = s.edits(edits[:0], "ydb://session/3?node_id=50001&id=ZjY0YzQ1")
	}
}

func allBytes(b []byte, number protowire.Number) (all [][]byte, ok bool) {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeField(b)
		if size < 0 {
			return nil, false
		}
		if n == number && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			value, _ := protowire.ConsumeBytes(b[tag:])
			all = append(all, value)
		}
		b = b[size:]
	}
	return all, true
}

// writeIn is a message of some size in a transaction; without a session, in none.
func writeIn(session, tx string, size int) *Ydb_Topic.StreamWriteMessage_FromClient {
	r := &Ydb_Topic.StreamWriteMessage_WriteRequest{Codec: 1,
		Messages: []*Ydb_Topic.StreamWriteMessage_WriteRequest_MessageData{{SeqNo: 7, Data: bytes.Repeat([]byte("d"), size)}}}
	if session != "" {
		r.Tx = &Ydb_Topic.TransactionIdentity{Id: tx, Session: session}
	}
	return &Ydb_Topic.StreamWriteMessage_FromClient{ClientMessage: &Ydb_Topic.StreamWriteMessage_FromClient_WriteRequest{WriteRequest: r}}
}
