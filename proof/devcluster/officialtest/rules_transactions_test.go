package officialtest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/balancers"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicoptions"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topictypes"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicwriter"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// Rule 14: the client knows from tx_meta whether its transaction is open.
func TestRule14TransactionMeta(t *testing.T) {
	for name, lazy := range map[string]bool{"begin": false, "lazy": true} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			db := open(t, startCluster(t, nil).Endpoint(), ydb.WithLazyTx(lazy), r.option())
			execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
			write := func(sql string, end error, options ...query.ExecuteOption) error {
				return db.Query().DoTx(testContext(t), func(ctx context.Context, tx query.TxActor) error {
					if err := tx.Exec(ctx, sql, options...); err != nil {
						return err
					}
					return end
				})
			}
			stop := errors.New("stop")
			if err := write("UPSERT INTO t (id) VALUES (1ul)", nil); err != nil {
				t.Error(err)
			}
			if err := write("UPSERT INTO t (id) VALUES (2ul)", nil, query.WithCommit()); err != nil {
				t.Error(err)
			}
			if err := write("UPSERT INTO t (id) VALUES (3ul)", stop); !errors.Is(err, stop) {
				t.Error(err)
			}
			if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 2 {
				t.Errorf("%d rows; two transactions were committed", got)
			}
			if got := len(r.of("DeleteSession")); got != 0 {
				t.Errorf("the client gave up %d sessions: it did not understand its transactions", got)
			}
			var metas []string
			for _, e := range r.of("ExecuteQuery") {
				part, ok := e.message.(*Ydb_Query.ExecuteQueryResponsePart)
				if !ok || part.GetTxMeta() == nil {
					continue
				}
				metas = append(metas, strconv.FormatBool(part.GetTxMeta().GetId() != ""))
			}
			if got := strings.Join(metas, " "); got != "true false true" {
				t.Errorf("open transactions after each part: %s; want true false true", got)
			}
		})
	}
}

// Rule 14, of an answer of many parts: only the last one has the id of the transaction.
func TestRule14LargeAnswers(t *testing.T) {
	for name, lazy := range map[string]bool{"begin": false, "lazy": true} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			db := open(t, startCluster(t, nil).Endpoint(), ydb.WithLazyTx(lazy), r.option())
			execute(t, db, "CREATE TABLE t (id Uint64, v String, PRIMARY KEY (id))")
			execute(t, db, "DECLARE $v AS String; UPSERT INTO t (id, v) VALUES (1ul, $v), (2ul, $v), (3ul, $v)",
				query.WithParameters(ydb.ParamsBuilder().Param("$v").Bytes(make([]byte, 10_000)).Build()))
			err := db.Query().DoTx(testContext(t), func(ctx context.Context, tx query.TxActor) error {
				result, err := tx.Query(ctx, "SELECT id, v FROM t", query.WithResponsePartLimitSizeBytes(10_000))
				if err != nil {
					return err
				}
				rows := 0
				for set, err := range result.ResultSets(ctx) {
					if err != nil {
						return err
					}
					for _, err := range set.Rows(ctx) {
						if err != nil {
							return err
						}
						rows++
					}
				}
				if rows != 3 {
					t.Errorf("%d rows; want 3", rows)
				}
				if err := result.Close(ctx); err != nil {
					return err
				}
				return tx.Exec(ctx, "UPSERT INTO t (id) VALUES (4ul)")
			})
			if err != nil {
				t.Error(err)
			}
			if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 4 {
				t.Errorf("%d rows; want the three and the one of the transaction", got)
			}
			if got := len(r.of("DeleteSession")); got != 0 {
				t.Errorf("the client gave up %d sessions: it did not understand its transactions", got)
			}
			var metas []string // of the parts of the answers in the transaction
			for _, e := range r.of("ExecuteQuery") {
				if part, ok := e.message.(*Ydb_Query.ExecuteQueryResponsePart); ok {
					metas = append(metas, strconv.FormatBool(part.GetTxMeta().GetId() != ""))
				}
			}
			if got := strings.Join(metas, " "); !strings.Contains(got, "false false true true") {
				t.Errorf("parts with the id of an open transaction: %s; want it in the last of the three", got)
			}
		})
	}
}

// A statement without text does not reach the session: the client's transaction goes on.
func TestRefusedRequestsLeaveTheTransactionOpen(t *testing.T) {
	var r recorder
	db := open(t, startCluster(t, nil).Endpoint(), r.option())
	execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
	err := db.Query().DoTx(testContext(t), func(ctx context.Context, tx query.TxActor) error {
		if err := tx.Exec(ctx, "UPSERT INTO t (id) VALUES (1ul)"); err != nil {
			return err
		}
		wantStatus(t, "an empty text", tx.Exec(ctx, ""), Ydb.StatusIds_BAD_REQUEST)
		return tx.Exec(ctx, "UPSERT INTO t (id) VALUES (2ul)")
	})
	if err != nil {
		t.Error(err)
	}
	if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 2 {
		t.Errorf("%d rows; want both of the transaction", got)
	}
	if got := len(r.of("BeginTransaction")); got > 3 { // request, answer, end
		t.Errorf("%d events of BeginTransaction: the client began again", got)
	}
}

// readInTransactions reads messages until the wanted number is there, and returns how many came.
func readInTransactions(t *testing.T, db *ydb.Driver, wanted int) (read int) {
	t.Helper()
	ctx := testContext(t)
	reader, err := db.Topic().StartReader("c", topicoptions.ReadTopic("topic"))
	if err != nil {
		t.Fatal(err)
	}
	for read < wanted {
		more := 0
		err := db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error {
			batch, err := reader.PopMessagesBatchTx(ctx, tx)
			if more = 0; err == nil { // the client may repeat it
				more = len(batch.Messages)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		read += more
	}
	if err := reader.Close(ctx); err != nil {
		t.Error(err)
	}
	return read
}

// Rule 17: session ids travel inside Topic messages as well. Whatever node takes the stream, messages
// and offsets join the transaction, which lives on the node of its session.
func TestRule17TransactionsWithTopics(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) { c.Balance = true })
	db := open(t, cluster.Endpoint(), ydb.WithBalancer(balancers.SingleConn())) // always node 1, with sessions everywhere
	ctx := testContext(t)
	execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
	if err := db.Topic().Create(ctx, "topic", topicoptions.CreateWithConsumer(topictypes.Consumer{Name: "c"})); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	for i := range 9 {
		err := db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error {
			// In this order: the writer of ydb-go-sdk 3.156 reads the transaction's id while a statement may set it.
			if err := tx.Exec(ctx, "UPSERT INTO t (id) VALUES ("+strconv.Itoa(i)+"ul)"); err != nil {
				return err
			}
			w, err := db.Topic().StartTransactionalWriter(tx, "topic", topicoptions.WithWriterWaitServerAck(true))
			if err != nil {
				return err
			}
			if err := w.Write(ctx, topicwriter.Message{Data: strings.NewReader(strconv.Itoa(i))}); err != nil {
				return err
			}
			if i%3 == 2 {
				return stop
			}
			return nil
		})
		if err != nil && !errors.Is(err, stop) {
			t.Fatal(err)
		}
	}
	if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 6 {
		t.Errorf("%d rows", got)
	}
	read := readInTransactions(t, db, 6)
	d, err := db.Topic().DescribeTopicConsumer(ctx, "topic", "c", topicoptions.IncludeConsumerStats())
	if err != nil || read != 6 || d.Partitions[0].PartitionConsumerStats.CommittedOffset != 6 {
		t.Errorf("%d messages, %+v, %v", read, d, err)
	}
	if c := cluster.Node(1).Counters(); c.Relayed == 0 {
		t.Errorf("nothing was relayed: %+v", c)
	}
}
