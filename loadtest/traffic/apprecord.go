package traffic

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The table of the application that YDB's Java SDK was measured with (alex268's
// performance application, 2023). Who reads a row knows what must be in it.
const (
	recordsCreate = `CREATE TABLE IF NOT EXISTS app_record (uuid Utf8, payload String, PRIMARY KEY (uuid))`
	recordsRead   = `DECLARE $uuid AS Utf8; SELECT uuid, payload FROM app_record WHERE uuid = $uuid`
	recordsBatch  = 500
)

// AppRecord is one row.
type AppRecord struct {
	UUID    string
	Payload []byte
}

// MakeRecord makes record i with a payload of size bytes: those that Java's Random gives from
// the seed 31i+21. Its key is the name-based UUID (version 3) of the payload.
func MakeRecord(i int64, size int) AppRecord {
	payload := make([]byte, size)
	random := newJavaRandom(i*31 + 21)
	random.read(payload)
	id := md5.Sum(payload)
	id[6], id[8] = id[6]&0x0f|0x30, id[8]&0x3f|0x80 // version and variant: RFC 9562, 5.3
	return AppRecord{fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]), payload}
}

// verify tells what is wrong with a row that was read.
func (r AppRecord) verify(uuid string, payload []byte) error {
	if uuid != r.UUID || !bytes.Equal(payload, r.Payload) {
		return fmt.Errorf("row %s with %d bytes was read for %s, or its %d bytes are not those written", uuid,
			len(payload), r.UUID, len(r.Payload))
	}
	return nil
}

// javaRandom is java.util.Random, whose documentation gives its algorithm.
type javaRandom struct{ seed uint64 }

const (
	javaFactor = 0x5DEECE66D
	javaMask   = 1<<48 - 1
)

func newJavaRandom(seed int64) *javaRandom {
	return &javaRandom{(uint64(seed) ^ javaFactor) & javaMask}
}

// next is nextInt.
func (r *javaRandom) next() uint32 {
	r.seed = (r.seed*javaFactor + 0xB) & javaMask
	return uint32(r.seed >> 16)
}

// read is nextBytes.
func (r *javaRandom) read(b []byte) {
	for i := 0; i < len(b); {
		for word, n := r.next(), 4; n > 0 && i < len(b); word, n, i = word>>8, n-1, i+1 {
			b[i] = byte(word)
		}
	}
}

// FillRecords creates the table and writes records 0 to count-1 of each size through a sidecar.
func FillRecords(ctx context.Context, client sidecarv1.SidecarClient, count int, sizes ...int) error {
	if _, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: recordsCreate, Timeout: "20s"}); err != nil {
		return fmt.Errorf("create app_record: %w", err)
	}
	for _, size := range sizes {
		for begin := 0; begin < count; begin += recordsBatch {
			request := &sidecarv1.BulkUpsertRequest{Table: "app_record", Timeout: "20s"}
			for i := begin; i < min(begin+recordsBatch, count); i++ {
				r := MakeRecord(int64(i), size)
				request.Rows = append(request.Rows, &sidecarv1.BulkRow{Columns: map[string]*sidecarv1.Value{
					"uuid":    {Kind: &sidecarv1.Value_TextValue{TextValue: r.UUID}},
					"payload": {Kind: &sidecarv1.Value_BytesValue{BytesValue: r.Payload}},
				}})
			}
			if _, err := client.BulkUpsert(ctx, request); err != nil {
				return fmt.Errorf("fill app_record: %w", err)
			}
		}
	}
	return nil
}

// RandomRecord is one of those that fillRecords wrote.
func RandomRecord(count, size int) AppRecord { return MakeRecord(rand.Int64N(int64(count)), size) }

// RecordsOverGRPC reads a record through the plain gRPC API, in the serializable autocommit of the
// application, and tells how long the sidecar says that it took to get a session.
func RecordsOverGRPC(ctx context.Context, client sidecarv1.SidecarClient, r AppRecord) (time.Duration, error) {
	answer, err := client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: recordsRead, Mode: "serializable_rw",
		Params: map[string]*sidecarv1.Value{"uuid": {Kind: &sidecarv1.Value_TextValue{TextValue: r.UUID}}}})
	if err != nil {
		return 0, err
	}
	if len(answer.Rows) != 1 || len(answer.Rows[0].Values) != 2 {
		return 0, fmt.Errorf("got %d rows of %s; want 1 of 2 columns", len(answer.Rows), r.UUID)
	}
	row := answer.Rows[0].Values
	return millis(answer.Info.GetAcquireMs()), r.verify(row[0].GetTextValue(), row[1].GetBytesValue())
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// RecordsOverHTTP is recordsOverGRPC by POST /v1/query.
func RecordsOverHTTP(ctx context.Context, client *http.Client, address string, r AppRecord) (time.Duration, error) {
	body := fmt.Appendf(nil, `{"sql":%q,"mode":"serializable_rw","params":{"uuid":%q}}`, recordsRead, r.UUID)
	text, err := Post(ctx, client, "http://"+address+"/v1/query", body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Rows []struct {
			UUID    string
			Payload []byte // base64
		}
		Info struct {
			Acquire float64 `json:"acquire_ms"`
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Rows) != 1 {
		return 0, fmt.Errorf("%d rows, %v: %.200s", len(answer.Rows), err, text)
	}
	return millis(answer.Info.Acquire), r.verify(answer.Rows[0].UUID, answer.Rows[0].Payload)
}

// RecordSession is a session of the table service, which the application's SDK used.
type RecordSession struct {
	Client Ydb_Table_V1.TableServiceClient
	ID     string
}

// OpenRecordSession opens a session of the table service.
func OpenRecordSession(ctx context.Context, conn grpc.ClientConnInterface) (RecordSession, error) {
	s := RecordSession{Client: Ydb_Table_V1.NewTableServiceClient(conn)}
	answer, err := s.Client.CreateSession(WithDatabase(ctx), &Ydb_Table.CreateSessionRequest{})
	var made Ydb_Table.CreateSessionResult
	if err := operationResult(answer, err, &made); err != nil {
		return s, fmt.Errorf("create a session: %w", err)
	}
	s.ID = made.SessionId
	return s, nil
}

// operation is an answer of the table service.
type operation interface {
	GetOperation() *Ydb_Operations.Operation
}

func operationResult(answer operation, err error, into proto.Message) error {
	if err != nil {
		return err
	}
	o := answer.GetOperation()
	if o.GetStatus() != Ydb.StatusIds_SUCCESS {
		return fmt.Errorf("%v: %v", o.GetStatus(), o.GetIssues())
	}
	return o.GetResult().UnmarshalTo(into)
}

// Read reads a record as the application did: by ExecuteDataQuery with one parameter, in serializable autocommit.
func (s RecordSession) Read(ctx context.Context, r AppRecord) error {
	answer, err := s.Client.ExecuteDataQuery(WithDatabase(ctx), &Ydb_Table.ExecuteDataQueryRequest{
		SessionId: s.ID,
		TxControl: &Ydb_Table.TransactionControl{CommitTx: true,
			TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{
				TxMode: &Ydb_Table.TransactionSettings_SerializableReadWrite{
					SerializableReadWrite: &Ydb_Table.SerializableModeSettings{},
				}}}},
		Query:            &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: recordsRead}},
		QueryCachePolicy: &Ydb_Table.QueryCachePolicy{KeepInCache: true},
		Parameters: map[string]*Ydb.TypedValue{"$uuid": {
			Type:  &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UTF8}},
			Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: r.UUID}},
		}},
	})
	var found Ydb_Table.ExecuteQueryResult
	if err := operationResult(answer, err, &found); err != nil {
		return err
	}
	if len(found.ResultSets) != 1 || len(found.ResultSets[0].Rows) != 1 || len(found.ResultSets[0].Rows[0].Items) != 2 {
		return fmt.Errorf("no row of two columns for %s: %d result sets", r.UUID, len(found.ResultSets))
	}
	row := found.ResultSets[0].Rows[0].Items
	return r.verify(row[0].GetTextValue(), row[1].GetBytesValue())
}

// RecordSessions is an SDK's pool, made small: sessions that are there before the load begins.
type RecordSessions struct{ Idle chan RecordSession }

// OpenRecordSessions opens n sessions, on the connections in turn.
func OpenRecordSessions(ctx context.Context, n int, conns ...*grpc.ClientConn) (*RecordSessions, error) {
	p := &RecordSessions{make(chan RecordSession, n)}
	for i := range n {
		s, err := OpenRecordSession(ctx, conns[i%len(conns)])
		if err != nil {
			return nil, errors.Join(err, p.Close(ctx))
		}
		p.Idle <- s
	}
	return p, nil
}

// Acquire waits for a session, at most five seconds, as the application does.
func (p *RecordSessions) Acquire(ctx context.Context) (RecordSession, error) {
	select {
	case s := <-p.Idle:
		return s, nil
	default:
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("no session came free in 5 s"))
	defer cancel()
	select {
	case s := <-p.Idle:
		return s, nil
	case <-ctx.Done():
		return RecordSession{}, context.Cause(ctx)
	}
}

// Release gives a session back.
func (p *RecordSessions) Release(s RecordSession) { p.Idle <- s }

// Close deletes the sessions, none of which may be in use.
func (p *RecordSessions) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	close(p.Idle)
	var errs []error
	for s := range p.Idle {
		_, err := s.Client.DeleteSession(WithDatabase(ctx), &Ydb_Table.DeleteSessionRequest{SessionId: s.ID})
		if err != nil {
			err = fmt.Errorf("delete session %s: %w", s.ID, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// By is the session, called by way of another connection.
func (s RecordSession) By(conn grpc.ClientConnInterface) RecordSession {
	return RecordSession{Ydb_Table_V1.NewTableServiceClient(conn), s.ID}
}
