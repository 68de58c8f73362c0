package peers

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// nodes is how many backends there are; their ids are 1, 2 ...
const nodes = 3

// What a request may ask for.
const (
	maxSize  = 1 << 20
	maxParts = 100
	maxRows  = 1000
)

// The parameters by which a request says what it wants to be answered.
const (
	sizeParameter  = "$size"
	partsParameter = "$parts"
	rowsParameter  = "$rows" // of each part; 0: one, of payload
)

const text = `DECLARE $size AS Uint64; DECLARE $parts AS Uint64; DECLARE $rows AS Uint64; SELECT payload FROM bench WHERE size = $size LIMIT $parts * $rows`

// wants are the parameters of a scenario.
func wants(s Scenario) map[string]int {
	return map[string]int{sizeParameter: s.Size, partsParameter: s.Parts, rowsParameter: s.Rows}
}

// sessionID has the shape of a node's own: it names the owner.
func sessionID(owner, n int) string {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:], uint64(owner))
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return fmt.Sprintf("ydb://session/3?node_id=%d&id=%s", owner, id)
}

func parameters(s Scenario) map[string]*Ydb.TypedValue {
	all := map[string]*Ydb.TypedValue{}
	for name, n := range wants(s) {
		all[name] = &Ydb.TypedValue{
			Type:  &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}},
			Value: &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: uint64(n)}},
		}
	}
	return all
}

// request returns the method of a scenario and the encoded request on a session.
func request(s Scenario, session string) (method string, message []byte, err error) {
	if s.Stream {
		message, err = proto.Marshal(&Ydb_Query.ExecuteQueryRequest{
			SessionId: session,
			ExecMode:  Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
			TxControl: &Ydb_Query.TransactionControl{CommitTx: true, TxSelector: &Ydb_Query.TransactionControl_BeginTx{
				BeginTx: &Ydb_Query.TransactionSettings{TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{}}}},
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{
				Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: text}},
			Parameters: parameters(s),
		})
		return Ydb_Query_V1.QueryService_ExecuteQuery_FullMethodName, message, err
	}
	message, err = proto.Marshal(&Ydb_Table.ExecuteDataQueryRequest{
		SessionId: session,
		TxControl: &Ydb_Table.TransactionControl{CommitTx: true, TxSelector: &Ydb_Table.TransactionControl_BeginTx{
			BeginTx: &Ydb_Table.TransactionSettings{TxMode: &Ydb_Table.TransactionSettings_SerializableReadWrite{}}}},
		Query:            &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: text}},
		QueryCachePolicy: &Ydb_Table.QueryCachePolicy{KeepInCache: true},
		Parameters:       parameters(s),
	})
	return Ydb_Table_V1.TableService_ExecuteDataQuery_FullMethodName, message, err
}

// payload is what a node answers: bytes that no other node and no other part has.
func payload(node, size, part int) []byte {
	payload := make([]byte, size)
	random := rand.NewChaCha8([32]byte{byte(node), byte(part)})
	_, _ = random.Read(payload) // it never fails
	return payload
}

// rows is the payload as a result.
func rows(node, size, part int) *Ydb.ResultSet {
	return &Ydb.ResultSet{
		Columns: []*Ydb.Column{column("payload", Ydb.Type_STRING)},
		Rows:    []*Ydb.Value{{Items: []*Ydb.Value{{Value: &Ydb.Value_BytesValue{BytesValue: payload(node, size, part)}}}}},
	}
}

func column(name string, id Ydb.Type_PrimitiveTypeId) *Ydb.Column {
	return &Ydb.Column{Name: name, Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}}}
}

// The rows of an answer of many have a number, a name, which begins with the number of
// the node and has the size that is asked for, and an amount.
const (
	rowWidth = 3
	nameAt   = 1
)

func amount(row int) float64 { return float64(row) / 4 }

// manyRows is a part of an answer of many rows.
func manyRows(node, size, part, n int) *Ydb.ResultSet {
	set := &Ydb.ResultSet{
		Columns: []*Ydb.Column{column("id", Ydb.Type_UINT64), column("name", Ydb.Type_UTF8), column("amount", Ydb.Type_DOUBLE)},
	}
	for i := part * n; i < (part+1)*n; i++ {
		set.Rows = append(set.Rows, &Ydb.Value{Items: []*Ydb.Value{
			{Value: &Ydb.Value_Uint64Value{Uint64Value: uint64(i)}},
			{Value: &Ydb.Value_TextValue{TextValue: fmt.Sprintf("%d%0*d", node, size-1, i)}},
			{Value: &Ydb.Value_DoubleValue{DoubleValue: amount(i)}},
		}})
	}
	return set
}

func dataQueryAnswer(node, size int) (*Ydb_Table.ExecuteDataQueryResponse, error) {
	result, err := anypb.New(
		&Ydb_Table.ExecuteQueryResult{ResultSets: []*Ydb.ResultSet{rows(node, size, 0)}, TxMeta: &Ydb_Table.TransactionMeta{}},
	)
	if err != nil {
		return nil, err
	}
	return &Ydb_Table.ExecuteDataQueryResponse{
		Operation: &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_SUCCESS, Result: result},
	}, nil
}

// queryAnswer is a part of an answer. The last one carries tx_meta, as YDB's does.
func queryAnswer(node, size, part, n int, last bool) *Ydb_Query.ExecuteQueryResponsePart {
	set := rows
	if n > 0 {
		set = func(node, size, part int) *Ydb.ResultSet { return manyRows(node, size, part, n) }
	}
	answer := &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ResultSet: set(node, size, part)}
	if last {
		answer.TxMeta = &Ydb_Query.TransactionMeta{} // nothing is open
	}
	return answer
}

// expected returns the encoded messages that each node must answer: [node-1][part]. They
// are nil in answers of many rows, which are counted.
// One program encodes here and in the backends, so the bytes are the same.
func expected(s Scenario) ([nodes][][]byte, error) {
	var all [nodes][][]byte
	for i := range all {
		if s.Rows > 0 {
			all[i] = make([][]byte, s.Parts)
			continue
		}
		for part := range s.Parts {
			var message proto.Message = queryAnswer(i+1, s.Size, part, 0, part == s.Parts-1)
			if !s.Stream {
				answer, err := dataQueryAnswer(i+1, s.Size)
				if err != nil {
					return all, err
				}
				message = answer
			}
			data, err := proto.Marshal(message)
			if err != nil {
				return all, err
			}
			all[i] = append(all[i], data)
		}
	}
	return all, nil
}
