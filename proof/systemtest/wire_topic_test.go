package systemtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/config"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicoptions"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicreader"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topictypes"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicwriter"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
)

// Transactions that write to topics and tables and read from topics, by the official Go client
// on virtual sessions: what was committed is there, once and in order, and nothing else. The
// Python client does the same in its own tests: see TestOfficialClientsThroughTheSidecar.
func TestTopicTransactionsThroughTheSidecar(t *testing.T) {
	for _, mode := range []string{"transaction", "session"} {
		for name, options := range map[string][]ydbsdk.Option{
			"plain":      nil,
			"compressed": {ydbsdk.With(config.WithGrpcOptions(grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip"))))},
		} {
			t.Run(mode+"/"+name, func(t *testing.T) {
				c := startCluster(t, nil)
				through := inMode(mode)
				s := startSidecar(t, c, nil, through...)
				topicTransactions(t, openSDK(t, s.sdk(), options...))
				if n := c.sum(t, "forwarded"); n != 0 {
					t.Errorf("%d calls did not go to the owner of their session", n)
				}
				if mode == "transaction" {
					c.clean(t, through)
				}
			})
		}
	}
}

func topicTransactions(t *testing.T, db *ydbsdk.Driver) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must(t, db, "CREATE TABLE written (id Uint64, PRIMARY KEY (id))")
	if err := db.Topic().Create(ctx, "topic", topicoptions.CreateWithConsumer(topictypes.Consumer{Name: "c"})); err != nil {
		t.Fatal(err)
	}
	want := writeInTransactions(ctx, t, db)
	if n := count(t, db, "written"); int(n) != len(want) {
		t.Errorf("%d rows; want %d", n, len(want))
	}
	readInTransactions(ctx, t, db, want)
}

// writeInTransactions writes messages beside rows, gives every third transaction up, and returns the messages that are to be there.
func writeInTransactions(ctx context.Context, t *testing.T, db *ydbsdk.Driver) (want []string) {
	for i := range 9 {
		data := fmt.Sprint(i)
		if i == 4 {
			data += strings.Repeat(" long", 600_000) // more than the window of a stream
		}
		err := db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error {
			// In this order: the writer of ydb-go-sdk 3.156 reads the transaction's id while a statement may set it.
			if err := tx.Exec(ctx, fmt.Sprintf("UPSERT INTO written (id) VALUES (%dul)", i)); err != nil {
				return err
			}
			w, err := db.Topic().StartTransactionalWriter(tx, "topic", topicoptions.WithWriterWaitServerAck(true))
			if err != nil {
				return err
			}
			if err := w.Write(ctx, topicwriter.Message{Data: strings.NewReader(data)}); err != nil {
				return err
			}
			if i%3 == 2 {
				return errStop
			}
			return nil
		})
		if i%3 != 2 {
			want = append(want, data)
		} else if errors.Is(err, errStop) {
			err = nil
		}
		if err != nil {
			t.Fatalf("transaction %d: %v", i, err)
		}
	}
	return want
}

// readInTransactions reads the messages: a transaction that is given up leaves them, the others commit what they read.
func readInTransactions(ctx context.Context, t *testing.T, db *ydbsdk.Driver, want []string) {
	reader, err := db.Topic().StartReader("c", topicoptions.ReadTopic("topic"))
	if err != nil {
		t.Fatal(err)
	}
	pop := func(end error) (got []string, err error) {
		err = db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error {
			got = nil
			batch, err := reader.PopMessagesBatchTx(ctx, tx)
			if err != nil {
				return err
			}
			for _, m := range batch.Messages {
				data, err := io.ReadAll(m)
				if err != nil {
					return err
				}
				got = append(got, string(data))
			}
			return end
		})
		return got, err
	}
	committed := func() int64 {
		d, err := db.Topic().DescribeTopicConsumer(ctx, "topic", "c", topicoptions.IncludeConsumerStats())
		if err != nil {
			t.Fatal(err)
		}
		return d.Partitions[0].PartitionConsumerStats.CommittedOffset
	}
	if _, err := pop(errStop); !errors.Is(err, errStop) || committed() != 0 {
		t.Errorf("a transaction that is given up: %v; %d messages are committed", err, committed())
	}
	var got []string
	for len(got) < len(want) {
		more, err := pop(nil)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, more...)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || int(committed()) != len(want) {
		t.Errorf("read %d messages, %d are committed; want %d, as they were written", len(got), committed(), len(want))
	}
	if err := reader.Close(ctx); err != nil {
		t.Error(err)
	}
}

// A client that compresses its requests: its calls go to the owner of their session all the
// same, and what they do to the session is known.
func TestCompressingClient(t *testing.T) {
	everyMode(t, compressingClient)
	t.Run("session", func(t *testing.T) { compressingClient(t, inMode("session")) })
}

func compressingClient(t *testing.T, through []string) {
	c := startCluster(t, nil, "-nodes", "5")
	s := startSidecar(t, c, nil, append(through, "pool.min=0")...)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-ydb-database", "/local")
	client := Ydb_Query_V1.NewQueryServiceClient(s.Conn)
	packed := grpc.UseCompressor("gzip")
	s.knowsANode(t) // a virtual session is created without one, a statement needs one
	for range 10 {
		created, err := client.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{}, packed)
		if err != nil || created.GetStatus() != Ydb.StatusIds_SUCCESS {
			t.Fatal(created, err)
		}
		attached, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := client.AttachSession(attached, &Ydb_Query.AttachSessionRequest{SessionId: created.GetSessionId()}, packed)
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		run := func(text string, control *Ydb_Query.TransactionControl) (tx string) {
			t.Helper()
			return packedStatement(ctx, t, client, created.GetSessionId(), text, control)
		}
		begin := &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: &Ydb_Query.TransactionSettings{
			TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}}}}}
		run("SELECT 1"+strings.Repeat(" ", 300_000), nil)
		tx := run("SELECT 1", begin)
		if tx == "" {
			t.Fatal("no transaction was begun")
		}
		run("SELECT 2", &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: tx}, CommitTx: true})
		if deleted, err := client.DeleteSession(
			ctx, &Ydb_Query.DeleteSessionRequest{SessionId: created.GetSessionId()}, packed,
		); err != nil || deleted.GetStatus() != Ydb.StatusIds_SUCCESS {
			t.Fatal(deleted, err)
		}
	}
	if owned, forwarded := c.sum(t, "owned"), c.sum(t, "forwarded"); forwarded != 0 || owned < 30 {
		t.Errorf("%d calls went to the owner of their session and %d did not", owned, forwarded)
	}
	c.clean(t, through)
}

// packedStatement runs a statement whose request is compressed. It returns the id of the transaction that is open afterwards, if one is.
func packedStatement(ctx context.Context, t *testing.T, client Ydb_Query_V1.QueryServiceClient, session, text string,
	control *Ydb_Query.TransactionControl) (tx string) {
	t.Helper()
	out, err := client.ExecuteQuery(
		ctx,
		&Ydb_Query.ExecuteQueryRequest{SessionId: session,
			ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, TxControl: control,
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
				QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: text},
			}},
		grpc.UseCompressor("gzip"),
	)
	for err == nil {
		var part *Ydb_Query.ExecuteQueryResponsePart
		if part, err = out.Recv(); err == nil && part.GetStatus() != Ydb.StatusIds_SUCCESS {
			t.Fatalf("%.40s: %v", text, part)
		}
		if part.GetTxMeta() != nil {
			tx = part.GetTxMeta().GetId()
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatalf("%.40s: %v", text, err)
	}
	return tx
}

// Topic streams last as long as their clients: no stop waits for them, and their clients go on in the process that
// has taken over.
func TestTopicStreamsHoldUpNoStop(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) {
		c := startCluster(t, nil)
		settings := append(through, "takeover.socket="+filepath.Join(t.TempDir(), "takeover.sock"), "drain.grace=1h")
		s := startSidecar(t, c, nil, settings...)
		db := openSDK(t, s.sdk())
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := db.Topic().Create(ctx, "topic", topicoptions.CreateWithConsumer(topictypes.Consumer{Name: "c"})); err != nil {
			t.Fatal(err)
		}
		reader, err := db.Topic().StartReader("c", topicoptions.ReadTopic("topic"))
		if err != nil {
			t.Fatal(err)
		}
		writer, err := db.Topic().StartWriter("topic", topicoptions.WithWriterWaitServerAck(true))
		if err != nil {
			t.Fatal(err)
		}
		pass := func(text string) {
			t.Helper()
			if err := writer.Write(ctx, topicwriter.Message{Data: strings.NewReader(text)}); err != nil {
				t.Fatalf("write %s: %v", text, err)
			}
			for { // what was not committed may come again
				m, err := reader.ReadMessage(ctx)
				if err != nil {
					t.Fatalf("read %s: %v", text, err)
				}
				got, err := io.ReadAll(m)
				if err != nil {
					t.Fatal(err)
				}
				if err := reader.Commit(ctx, m); err != nil && !errors.Is(err, topicreader.ErrCommitToExpiredSession) {
					t.Fatal(err)
				}
				if string(got) == text {
					return
				}
			}
		}
		defer func() { // there is no sidecar any more: an error says so
			end, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, _ = reader.Close(end), writer.Close(end)
		}()
		pass("first")
		exited(t, s.replace(t, c, settings...))
		pass("second")
		s.endsWell(t)
		c.noSessions(t)
	})
}
