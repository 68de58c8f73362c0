package protocol

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ydb-sidecar/sidecar/proof/stepcount"
)

// scanned is a scan of messages that come in pieces of that size; 0: at once.
func scanned(wants *Fields, piece int, messages ...[]byte) *Scan {
	s := new(Scan)
	s.Start(wants)
	for _, m := range messages {
		b := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
		for len(b) > 0 {
			n := len(b)
			if piece > 0 {
				n = min(n, piece)
			}
			s.Write(b[:n])
			b = b[n:]
		}
	}
	return s
}

func txID(id string) uint64 { return Hash([]byte(id)) }

func operationOf(t testing.TB, s Ydb.StatusIds_StatusCode, result proto.Message) *Ydb_Operations.Operation {
	op := &Ydb_Operations.Operation{Ready: true, Status: s}
	if result != nil {
		var err error
		if op.Result, err = anypb.New(result); err != nil {
			t.Fatal(err)
		}
	}
	return op
}

func TestScan(t *testing.T) {
	const session = "ydb://session/3?node_id=2&id=x"
	query := func(text string) *Ydb_Query.ExecuteQueryRequest {
		return &Ydb_Query.ExecuteQueryRequest{SessionId: session,
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Syntax: 1, Text: text}}}
	}
	with := func(r *Ydb_Query.ExecuteQueryRequest, c *Ydb_Query.TransactionControl) *Ydb_Query.ExecuteQueryRequest {
		r.TxControl = c
		return r
	}
	part := &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS,
		ResultSet: &Ydb.ResultSet{Rows: []*Ydb.Value{{Value: &Ydb.Value_TextValue{TextValue: strings.Repeat("x", 300)}}}}}
	last := proto.Clone(part).(*Ydb_Query.ExecuteQueryResponsePart)
	last.TxMeta = &Ydb_Query.TransactionMeta{Id: "tx1"}
	over := proto.Clone(part).(*Ydb_Query.ExecuteQueryResponsePart)
	over.TxMeta = &Ydb_Query.TransactionMeta{}
	failed := &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_ABORTED}
	begin := &Ydb_Query.TransactionControl{
		TxSelector: &Ydb_Query.TransactionControl_BeginTx{
			BeginTx: &Ydb_Query.TransactionSettings{
				TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}},
			},
		},
	}
	once := proto.Clone(begin).(*Ydb_Query.TransactionControl)
	once.CommitTx = true
	for name, c := range map[string]struct {
		wants    *Fields
		messages []proto.Message
		want     Found
	}{
		"statement":        {executeQuery, []proto.Message{query("SELECT temp FROM t")}, Found{Session: true}},
		"implicit session": {executeQuery, []proto.Message{&Ydb_Query.ExecuteQueryRequest{ExecMode: 50}}, Found{}},
		"begins":           {executeQuery, []proto.Message{with(query("SELECT 1"), begin)}, Found{Session: true, Begin: true}},
		"at once":          {executeQuery, []proto.Message{with(query("SELECT 1"), once)}, Found{Session: true, Begin: true, Commit: true}},
		"in a transaction": {executeQuery,
			[]proto.Message{
				with(query("SELECT 1"),
					&Ydb_Query.TransactionControl{CommitTx: true, TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: "tx1"}}),
			},
			Found{Session: true, HasTx: true, Tx: txID("tx1"), Commit: true}},
		"temporary table": {executeQuery, []proto.Message{query("-- c\nCREATE TEMPORARY /* x */ TABLE t (a Int32)")},
			Found{Session: true, Temporary: true}},
		"data query": {executeDataQuery, []proto.Message{&Ydb_Table.ExecuteDataQueryRequest{SessionId: session,
			TxControl: &Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: "tx2"}},
			Query:     &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "create temp table x"}}}},
			Found{Session: true, HasTx: true, Tx: txID("tx2"), Temporary: true}},
		"commit": {sessionAndTx,
			[]proto.Message{&Ydb_Query.CommitTransactionRequest{SessionId: session, TxId: "tx1"}},
			Found{Session: true, HasTx: true, Tx: txID("tx1")}},
		"parts": {plainMeta6, []proto.Message{last, part, part},
			Found{Messages: 3, Status: Ydb.StatusIds_SUCCESS, HasMeta: true, MetaTx: txID("tx1")}},
		"ended":      {plainMeta6, []proto.Message{last, over}, Found{Status: Ydb.StatusIds_SUCCESS, HasMeta: true}},
		"fails late": {plainMeta6, []proto.Message{part, failed, part}, Found{Status: Ydb.StatusIds_ABORTED}},
		"no status":  {plainMeta6, []proto.Message{part, &Ydb_Query.ExecuteQueryResponsePart{}}, Found{}},
		"begun": {plainMeta3,
			[]proto.Message{
				&Ydb_Query.BeginTransactionResponse{Status: Ydb.StatusIds_SUCCESS, TxMeta: &Ydb_Query.TransactionMeta{Id: "tx3"}},
			},
			Found{Status: Ydb.StatusIds_SUCCESS, HasMeta: true, MetaTx: txID("tx3")}},
		"result": {operationMeta2, []proto.Message{&Ydb_Table.ExecuteDataQueryResponse{Operation: operationOf(t, Ydb.StatusIds_SUCCESS,
			&Ydb_Table.ExecuteQueryResult{ResultSets: []*Ydb.ResultSet{part.ResultSet},
				TxMeta: &Ydb_Table.TransactionMeta{Id: "tx4"}})}}, Found{
			Status:  Ydb.StatusIds_SUCCESS,
			HasMeta: true, MetaTx: txID("tx4"),
		}},
		"begun, of the table service": {operationMeta1,
			[]proto.Message{&Ydb_Table.BeginTransactionResponse{Operation: operationOf(t, Ydb.StatusIds_SUCCESS,
				&Ydb_Table.BeginTransactionResult{TxMeta: &Ydb_Table.TransactionMeta{Id: "tx5"}})}}, Found{Status: Ydb.StatusIds_SUCCESS,
				HasMeta: true, MetaTx: txID("tx5")}},
		"operation fails": {operationMeta2,
			[]proto.Message{&Ydb_Table.ExecuteDataQueryResponse{Operation: operationOf(t, Ydb.StatusIds_NOT_FOUND, nil)}},
			Found{Status: Ydb.StatusIds_NOT_FOUND}},
	} {
		var messages [][]byte
		for _, m := range c.messages {
			messages = append(messages, bytesOf(t, m))
		}
		c.want.Messages = uint32(len(messages))
		for _, piece := range []int{0, 1, 2, 7, 64} {
			s := scanned(c.wants, piece, messages...)
			if s.Found != c.want || !s.Whole() {
				t.Errorf("%s, in pieces of %d: %+v, whole %v; want %+v", name, piece, s.Found, s.Whole(), c.want)
			}
		}
	}
}

func TestScanRefuses(t *testing.T) {
	id := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "ydb://session/3?node_id=2&id=x")
	control := func(fields ...[]byte) []byte {
		var all []byte
		for _, f := range fields {
			all = append(all, f...)
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), all)
	}
	tx := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "tx")
	begin := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), nil)
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for name, message := range map[string][]byte{
		"two sessions":           join(id, id),
		"two controls":           join(id, control(tx), control(tx)),
		"both of a oneof":        join(id, control(tx, begin)),
		"a group":                {0x0b, 0x0c},
		"field 0":                {0x00, 0x00},
		"a length past its end":  {0x0a, 0x05, 'a'},
		"a varint without end":   {0x10, 0x80},
		"a varint that is large": {0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},
		"past the parent's end":  join(id, []byte{0x1a, 0x03, 0x0a, 0x05, 'a'}, []byte("more")),
	} {
		for _, piece := range []int{0, 1} {
			if s := scanned(executeQuery, piece, message); s.Whole() {
				t.Errorf("%s is taken: %+v", name, s.Found)
			}
		}
	}
	text := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "SELECT 1")
	prepared := protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "an id")
	for name, tt := range map[string]struct {
		query []byte
		whole bool
	}{"a text": {text, true}, "a prepared query": {prepared, true},
		"both, the text first": {join(text, prepared), false}, "both": {join(prepared, text), false}} {
		for _, piece := range []int{0, 1} {
			if s := scanned(executeDataQuery, piece, join(id, control(tt.query))); s.Whole() != tt.whole {
				t.Errorf("%s is taken: %t", name, s.Whole())
			}
		}
	}
	s := new(Scan)
	s.Start(executeQuery)
	if s.Write([]byte{1, 0, 0, 0, 0}) {
		t.Error("a compressed message is taken")
	}
	if s := scanned(executeQuery, 0, id); !s.Whole() {
		t.Error("the session alone is refused")
	}
	s.Start(executeQuery)
	s.Write(append([]byte{0, 0, 0, 0, 50}, id...))
	if s.Whole() {
		t.Error("a part is taken for the whole")
	}
}

func inPieces(text []byte, piece int) bool {
	var s temporary
	for len(text) > 0 {
		n := min(piece, len(text))
		if s.see(text[:n], n == len(text)) {
			return true
		}
		text = text[n:]
	}
	return false
}

// A scan of a whole request gives up such a text, on the safe side, whatever the method.
func TestScanGivesUpTextsThatTakeTooLong(t *testing.T) {
	for name, text := range stepcount.Temps(64 << 10) {
		for wants, message := range map[*Fields]proto.Message{
			executeQuery: &Ydb_Query.ExecuteQueryRequest{SessionId: "s",
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: text}}},
			executeDataQuery: &Ydb_Table.ExecuteDataQueryRequest{SessionId: "s",
				Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: text}}},
			sessionAndText: &Ydb_Table.ExecuteSchemeQueryRequest{SessionId: "s", YqlText: text},
		} {
			for _, piece := range []int{0, 16 << 10} {
				if s := scanned(wants, piece, bytesOf(t, message)); !s.Whole() || !s.Temporary {
					t.Errorf("%s, %T in pieces of %d: whole %v, temporary %v", name, message, piece, s.Whole(), s.Temporary)
				}
			}
		}
	}
	// Texts that people write are not given up.
	for _, text := range []string{
		strings.Repeat("SELECT temp -- the temperature, "+strings.Repeat("in degrees ", 100)+"\nFROM weather; ", 100),
		strings.Repeat("SELECT temp /* the temp of temp */ FROM weather; ", 1000),
		"SELECT temp " + strings.Repeat("-- temp is a temperature\n", 1000) + "FROM weather",
		"SELECT 1 AS temp -- temp",
	} {
		if makesTemporary([]byte(text), true) {
			t.Errorf("%.80q makes a temporary table", text)
		}
	}
}

// sameAgain holds scans of messages whose start is known to those of others.
func sameAgain(t *testing.T, wants *Fields, message []byte) {
	known := new([16]Learned)
	_, from, to := Field(message, 1)
	behind := message
	if from == 0 {
		behind = message[to:]
	}
	other := bytes.Clone(message) // equal at first
	if len(other) > 0 {
		other[len(other)-1] ^= 1
	}
	middle := bytes.Clone(message)
	if at := from + to + leastBehind + 1; at < len(middle) {
		middle[at] ^= 1
	}
	for _, m := range [][]byte{message, message, other, middle, append(bytes.Clone(message), 6<<3|typeBytes, 1, 'x'),
		append(bytes.Clone(message), 3<<3|typeBytes, 0), append(bytes.Clone(message), 1<<3|typeBytes, 0),
		append(appendField(nil, 1, []byte("another session")), behind...), message[:len(message)/2]} {
		plain, s := new(Scan), new(Scan)
		plain.Start(wants)
		s.Start(wants)
		if got, want := s.Again(m, known), plain.Message(m); got != want || got && (s.Found != plain.Found || s.At != plain.At) {
			t.Fatalf("%x: %v, %+v; without a known start %v, %+v", m, got, s, want, plain)
		}
	}
}

// A scan says what a decoder says, or it refuses; and the pieces do not matter.
func FuzzScan(f *testing.F) {
	add := func(kind uint8, m proto.Message) { f.Add(kind, uint8(1), bytesOf(f, m)) }
	add(0,
		&Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=2&id=x",
			TxControl:  &Ydb_Query.TransactionControl{CommitTx: true, TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: "tx"}},
			Query:      &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "create temp table t"}},
			Parameters: map[string]*Ydb.TypedValue{"$id": {}}})
	add(0,
		&Ydb_Query.ExecuteQueryRequest{SessionId: "s",
			TxControl: &Ydb_Query.TransactionControl{CommitTx: true, TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: "tx"}},
			Query:     &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "create temp table t"}}})
	add(0,
		&Ydb_Query.ExecuteQueryRequest{SessionId: "s",
			TxControl: &Ydb_Query.TransactionControl{
				TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: &Ydb_Query.TransactionSettings{}},
			}})
	add(1,
		&Ydb_Table.ExecuteDataQueryRequest{SessionId: "s",
			TxControl: &Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: "tx"}},
			Query:     &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "select"}}})
	add(2,
		&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, TxMeta: &Ydb_Query.TransactionMeta{Id: "tx"},
			ResultSet: &Ydb.ResultSet{Columns: []*Ydb.Column{{Name: "c"}}}})
	add(3,
		&Ydb_Table.ExecuteDataQueryResponse{
			Operation: operationOf(f, Ydb.StatusIds_SUCCESS, &Ydb_Table.ExecuteQueryResult{TxMeta: &Ydb_Table.TransactionMeta{Id: "tx"}}),
		})
	add(4, &Ydb_Query.CommitTransactionRequest{SessionId: "s", TxId: "tx"})
	f.Fuzz(func(t *testing.T, kind, piece uint8, message []byte) {
		decoders := []struct {
			wants  *Fields
			decode func() (Found, bool)
		}{
			{executeQuery, func() (Found, bool) { return decodedQuery(message) }},
			{executeDataQuery, func() (Found, bool) { return decodedDataQuery(message) }},
			{plainMeta6, func() (Found, bool) { return decodedPart(message) }},
			{operationMeta2, func() (Found, bool) { return decodedResult(message) }},
			{sessionAndTx, func() (Found, bool) { return decodedCommit(message) }},
		}
		d := decoders[int(kind)%len(decoders)]
		s := scanned(d.wants, 0, message)
		sameAgain(t, d.wants, message)
		pieces := scanned(d.wants, int(piece)+1, message)
		if s.Whole() != pieces.Whole() {
			t.Fatalf("whole: at once %v, in pieces %v", s.Whole(), pieces.Whole())
		}
		if !s.Whole() {
			return
		}
		pieces.Temporary = s.Temporary // it may see more at the seams
		if s.Found != pieces.Found {
			t.Fatalf("at once %+v, in pieces %+v", s.Found, pieces.Found)
		}
		want, ok := d.decode()
		if !ok {
			return
		}
		// its first field is theirs
		if m := new(Ydb_Query.CommitTransactionRequest); d.wants.all[0].what == wantSession && proto.Unmarshal(message, m) == nil {
			if x := s.At; string(message[x.Value:x.To]) != m.SessionId {
				t.Errorf("a session at %+v; decoded %q", x, m.SessionId)
			}
		}
		got := s.Found
		got.Session, got.Temporary, got.Messages = want.Session, want.Temporary, 0 // an empty one is there and is not
		if int(kind)%len(decoders) == 4 {
			got.HasTx = got.Tx != 0
		}
		if got != want {
			t.Errorf("scanned %+v, decoded %+v", got, want)
		}
	})
}

func decodedQuery(b []byte) (out Found, ok bool) {
	m := new(Ydb_Query.ExecuteQueryRequest)
	if proto.Unmarshal(b, m) != nil {
		return out, false
	}
	out.Commit = m.GetTxControl().GetCommitTx()
	switch x := m.GetTxControl().GetTxSelector().(type) {
	case *Ydb_Query.TransactionControl_TxId:
		out.HasTx, out.Tx = true, txID(x.TxId)
	case *Ydb_Query.TransactionControl_BeginTx:
		out.Begin = true
	}
	return out, true
}

func decodedDataQuery(b []byte) (out Found, ok bool) {
	m := new(Ydb_Table.ExecuteDataQueryRequest)
	if proto.Unmarshal(b, m) != nil {
		return out, false
	}
	out.Commit = m.GetTxControl().GetCommitTx()
	switch x := m.GetTxControl().GetTxSelector().(type) {
	case *Ydb_Table.TransactionControl_TxId:
		out.HasTx, out.Tx = true, txID(x.TxId)
	case *Ydb_Table.TransactionControl_BeginTx:
		out.Begin = true
	}
	return out, true
}

func decodedPart(b []byte) (out Found, ok bool) {
	m := new(Ydb_Query.ExecuteQueryResponsePart)
	if proto.Unmarshal(b, m) != nil {
		return out, false
	}
	out.Status, out.HasMeta, out.MetaTx = m.GetStatus(), m.TxMeta != nil, txID(m.GetTxMeta().GetId())
	return out, true
}

func decodedResult(b []byte) (out Found, ok bool) {
	m := new(Ydb_Table.ExecuteDataQueryResponse)
	if proto.Unmarshal(b, m) != nil {
		return out, false
	}
	r := new(Ydb_Table.ExecuteQueryResult)
	if proto.Unmarshal(m.GetOperation().GetResult().GetValue(), r) != nil {
		return out, false
	}
	out.Status, out.HasMeta, out.MetaTx = m.GetOperation().GetStatus(), r.TxMeta != nil, txID(r.GetTxMeta().GetId())
	return out, true
}

func decodedCommit(b []byte) (out Found, ok bool) {
	m := new(Ydb_Query.CommitTransactionRequest)
	if proto.Unmarshal(b, m) != nil {
		return out, false
	}
	if out.Tx = txID(m.GetTxId()); out.Tx != 0 {
		out.HasTx = true
	}
	return out, true
}

func TestScanAllocatesNothing(t *testing.T) {
	request := framedMessage(
		bytesOf(t,
			&Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=2&id=x",
				Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
					QueryContent: &Ydb_Query.QueryContent{Text: strings.Repeat("SELECT temp ", 50)},
				}}),
	)
	s := new(Scan)
	if n := testing.AllocsPerRun(100, func() {
		s.Start(executeQuery)
		s.Write(request)
	}); n != 0 || !s.Whole() {
		t.Errorf("%v allocations, whole %v", n, s.Whole())
	}
}

func framedMessage(m []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

func BenchmarkScan(b *testing.B) {
	text := "DECLARE $id AS Uint64; SELECT id, name, price, amount FROM products WHERE id = $id AND amount > 5 ORDER BY name LIMIT 100;"
	for name, c := range map[string]struct {
		wants   *Fields
		message proto.Message
	}{
		"request": {executeQuery,
			&Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=2&id=MDEyMzQ1Njc4OWFiY2RlZg==", ExecMode: 50,
				Query:      &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Syntax: 1, Text: text}},
				Parameters: map[string]*Ydb.TypedValue{"$id": {}}}},
		"answer": {plainMeta6,
			&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS,
				ResultSet: &Ydb.ResultSet{Rows: []*Ydb.Value{{Value: &Ydb.Value_TextValue{TextValue: text}}}},
				TxMeta:    &Ydb_Query.TransactionMeta{}}},
	} {
		b.Run(name, func(b *testing.B) {
			m := framedMessage(bytesOf(b, c.message))
			s := new(Scan)
			b.ReportAllocs()
			for b.Loop() {
				s.Start(c.wants)
				s.Write(m)
			}
		})
	}
}
