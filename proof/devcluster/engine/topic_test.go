package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
)

func topicOf(t *testing.T, db *DB, p string, partitions int64) *Topic {
	t.Helper()
	err := db.CreateTopic(context.Background(), p, &Ydb_Topic.CreateTopicRequest{
		PartitioningSettings: &Ydb_Topic.PartitioningSettings{MinActivePartitions: partitions},
		Consumers:            []*Ydb_Topic.Consumer{{Name: "c"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	topic, err := db.Topic(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// messages makes "seqno:data" into messages of a producer.
func messages(producer string, specs ...string) (out []*Batch) {
	for _, s := range specs {
		m := &Ydb_Topic.StreamReadMessage_ReadResponse_MessageData{}
		var data string
		if _, err := fmt.Sscanf(s, "%d:%s", &m.SeqNo, &data); err != nil {
			panic(err)
		}
		m.Data = []byte(data)
		out = append(out, &Batch{ProducerId: producer, MessageData: []*Ydb_Topic.StreamReadMessage_ReadResponse_MessageData{m}})
	}
	return out
}

// log is a partition's messages as "offset:data".
func topicLog(t *testing.T, topic *Topic, partition, from int64) string {
	t.Helper()
	batches, err := topic.Read(context.Background(), partition, from, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, b := range batches {
		m := b.GetMessageData()[0]
		out = append(out, fmt.Sprintf("%d:%s", m.GetOffset(), m.GetData()))
	}
	return strings.Join(out, " ")
}

func wantLog(t *testing.T, topic *Topic, partition, from int64, want string) {
	t.Helper()
	if got := topicLog(t, topic, partition, from); got != want {
		t.Errorf("partition %d from %d: %q; want %q", partition, from, got, want)
	}
}

func TestTopicTakesMessagesOfAProducerOnce(t *testing.T) {
	db, ctx := openDB(t, ""), context.Background()
	topic := topicOf(t, db, "/local/topic", 2)
	acks, err := topic.Write(ctx, nil, 0, messages("p", "1:a", "2:b"))
	if err != nil || fmt.Sprint(acks) != "[{1 0 false} {2 1 false}]" {
		t.Errorf("acks %v, %v", acks, err)
	}
	acks, err = topic.Write(ctx, nil, 0, messages("p", "2:b", "3:c"))
	if err != nil || fmt.Sprint(acks) != "[{2 2 true} {3 2 false}]" {
		t.Errorf("acks %v, %v", acks, err)
	}
	for range 2 { // without a name a writer is no producer
		if _, err := topic.Write(ctx, nil, 1, messages("", "1:x")); err != nil {
			t.Error(err)
		}
	}
	wantLog(t, topic, 0, 0, "0:a 1:b 2:c")
	wantLog(t, topic, 0, 2, "2:c")
	wantLog(t, topic, 1, 0, "0:x 1:x")
	if last, err := topic.LastSeqNo(ctx, 0, "p"); last != 3 || err != nil {
		t.Errorf("last number %d, %v", last, err)
	}
	_, err = topic.Write(ctx, nil, 2, messages("p", "1:a"))
	wantStatus(t, err, Ydb.StatusIds_BAD_REQUEST, "no partition 2")
}

func TestTopicsInTransactions(t *testing.T) {
	db, ctx := sampleDB(t, ""), context.Background()
	topic := topicOf(t, db, "/local/topic", 1)
	tx := begin(t, db, Serializable)
	if _, err := topic.Write(ctx, tx, 0, messages("p", "1:a", "2:b")); err != nil {
		t.Fatal(err)
	}
	in(t, tx, "UPSERT INTO series (id) VALUES (50ul)")
	if _, err := topic.Write(ctx, nil, 0, messages("q", "1:first")); err != nil {
		t.Fatal(err)
	}
	wantLog(t, topic, 0, 0, "0:first")
	changed := db.TopicsChanged()
	commit(t, tx)
	wantLog(t, topic, 0, 0, "0:first 1:a 2:b")
	select {
	case <-changed:
	default:
		t.Error("readers are not told of the commit")
	}
	// Offsets move from where they stand, or the transaction is aborted with all of it.
	move := func(from, to int64, id string) error {
		tx := begin(t, db, Serializable)
		in(t, tx, "UPSERT INTO series (id) VALUES ("+id+"ul)")
		if err := topic.CommitIn(tx, 0, "c", from, to); err != nil {
			t.Fatal(err)
		}
		return tx.Commit(ctx)
	}
	if err := move(0, 2, "51"); err != nil {
		t.Error(err)
	}
	wantStatus(t, move(0, 2, "52"), Ydb.StatusIds_ABORTED, "stands at offset 2")
	wantRun(t, db, "SELECT id FROM series WHERE id >= 50", "id Uint64: (50) (51)")
	if now, err := topic.Committed(ctx, 0, "c"); now != 2 || err != nil {
		t.Errorf("committed %d, %v", now, err)
	}
	// What is rolled back leaves nothing; read-only transactions take nothing.
	tx = begin(t, db, Serializable)
	if _, err := topic.Write(ctx, tx, 0, messages("p", "9:z")); err != nil {
		t.Fatal(err)
	}
	tx.Rollback()
	_, err := topic.Write(ctx, tx, 0, messages("p", "9:z"))
	wantStatus(t, err, Ydb.StatusIds_NOT_FOUND, "Transaction not found")
	_, err = topic.Write(ctx, begin(t, db, SnapshotRO), 0, messages("p", "9:z"))
	wantStatus(t, err, Ydb.StatusIds_BAD_REQUEST, "read only")
	wantLog(t, topic, 0, 0, "0:first 1:a 2:b")
}

func TestTopicsAreEntries(t *testing.T) {
	db, ctx := sampleDB(t, ""), context.Background()
	topic := topicOf(t, db, "/local/dir/topic", 1)
	if err := db.CreateTopic(ctx, "/local/dir/topic", &Ydb_Topic.CreateTopicRequest{}); err != nil {
		t.Errorf("created again: %v", err)
	}
	wantStatus(t, db.CreateTopic(ctx, "/local/series", &Ydb_Topic.CreateTopicRequest{}), Ydb.StatusIds_SCHEME_ERROR, "path exist")
	wantStatus(t, db.DropTopic(ctx, "/local/series"), Ydb.StatusIds_SCHEME_ERROR, "not a topic")
	wantStatus(t, db.DropTable(ctx, "/local/dir/topic"), Ydb.StatusIds_SCHEME_ERROR, "")
	wantStatus(t, db.RemoveDirectory(ctx, "/local/dir/topic"), Ydb.StatusIds_SCHEME_ERROR, "not a directory")
	wantStatus(t, db.MakeDirectory(ctx, "/local/dir/topic/x"), Ydb.StatusIds_SCHEME_ERROR, "not a directory")
	if e, err := db.Describe(ctx, "/local/dir/topic"); err != nil || e.Kind != TopicEntry {
		t.Errorf("%+v, %v", e, err)
	}
	grow := func(n int64) error {
		return db.AlterTopic(ctx, "/local/dir/topic", func(s *Ydb_Topic.CreateTopicRequest) error {
			s.PartitioningSettings.MinActivePartitions = n
			return nil
		})
	}
	if err := grow(3); err != nil {
		t.Error(err)
	}
	wantStatus(t, grow(2), Ydb.StatusIds_BAD_REQUEST, "cannot be removed")
	if _, err := topic.Write(ctx, nil, 0, messages("", "1:a")); err != nil {
		t.Fatal(err)
	}
	if err := db.DropTopic(ctx, "/local/dir/topic"); err != nil {
		t.Error(err)
	}
	again := topicOf(t, db, "/local/dir/topic", 1)
	wantLog(t, again, 0, 0, "")
	_, err := topic.Write(ctx, nil, 0, messages("", "1:a")) // the one that is gone
	wantStatus(t, err, Ydb.StatusIds_SCHEME_ERROR, "")
}
