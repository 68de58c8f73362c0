package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"path"
	"slices"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/store"
)

// A topic is two tables of the store that no statement names: its messages by partition and
// offset, and its numbers: the end of every partition, the last sequence number of every
// producer, the committed offset of every consumer.

// Batch is one stored message with what it shares with others of its producer.
type Batch = Ydb_Topic.StreamReadMessage_ReadResponse_Batch

// Topic is a topic as of one version of the schema.
type Topic struct {
	Path       string
	Spec       *Ydb_Topic.CreateTopicRequest // must not be changed
	Partitions int64
	db         *DB
	messages   uint64
	numbers    uint64
}

// storedTopic is the stored form; Spec is a CreateTopicRequest.
type storedTopic struct {
	Messages uint64 `json:"messages"`
	Numbers  uint64 `json:"numbers"`
	Spec     []byte `json:"spec"`
}

func (s *storedTopic) topic(p string) (*Topic, error) {
	t := &Topic{Path: p, Spec: &Ydb_Topic.CreateTopicRequest{}, messages: s.Messages, numbers: s.Numbers}
	if err := proto.Unmarshal(s.Spec, t.Spec); err != nil {
		return nil, fmt.Errorf("read the definition of topic %s: %w", p, err)
	}
	t.Partitions = max(1, t.Spec.GetPartitioningSettings().GetMinActivePartitions())
	return t, nil
}

// maxPartitions bounds a topic.
const maxPartitions = 1000

func checkTopic(spec *Ydb_Topic.CreateTopicRequest) error {
	if n := spec.GetPartitioningSettings().GetMinActivePartitions(); n < 0 || n > maxPartitions {
		return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "min_active_partitions = %d; must be 0 to %d", n, maxPartitions)
	}
	seen := map[string]bool{}
	for _, c := range spec.GetConsumers() {
		if c.GetName() == "" || seen[c.GetName()] {
			return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "duplicated or empty name of a consumer: %q", c.GetName())
		}
		seen[c.GetName()] = true
	}
	return nil
}

// CreateTopic makes a topic and its missing parent directories. One that is there already is
// left as it is and counts as success.
func (db *DB) CreateTopic(ctx context.Context, p string, spec *Ydb_Topic.CreateTopicRequest) error {
	p = absolute("", p)
	if err := checkTopic(spec); err != nil {
		return err
	}
	raw, err := proto.Marshal(spec)
	if err != nil {
		return err
	}
	if err := checkPath(p); err != nil {
		return err
	}
	return db.change(ctx, func(w *store.Writer, c *catalog) error {
		switch e := c.entries[p]; {
		case e != nil && e.topic != nil:
			return nil
		case e != nil:
			return pathExists(p)
		}
		if err := makeDirs(w, c, path.Dir(p)); err != nil {
			return err
		}
		return putEntry(w, p, storedEntry{Topic: &storedTopic{Messages: w.NewTable(), Numbers: w.NewTable(), Spec: raw}})
	})
}

// AlterTopic replaces the description of a topic by what f makes of a copy. The number of
// partitions may grow only.
func (db *DB) AlterTopic(ctx context.Context, p string, f func(*Ydb_Topic.CreateTopicRequest) error) error {
	p = absolute("", p)
	return db.change(ctx, func(w *store.Writer, c *catalog) error {
		t, err := c.topic(p)
		if err != nil {
			return err
		}
		spec := proto.Clone(t.Spec).(*Ydb_Topic.CreateTopicRequest)
		if err := f(spec); err != nil {
			return err
		}
		if err := checkTopic(spec); err != nil {
			return err
		}
		if max(1, spec.GetPartitioningSettings().GetMinActivePartitions()) < t.Partitions {
			return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "topic %s: partitions cannot be removed", p)
		}
		raw, err := proto.Marshal(spec)
		if err != nil {
			return err
		}
		return putEntry(w, p,
			storedEntry{Created: c.entries[p].created, Topic: &storedTopic{Messages: t.messages, Numbers: t.numbers, Spec: raw}})
	})
}

// DropTopic removes a topic with its messages, or fails with SCHEME_ERROR.
func (db *DB) DropTopic(ctx context.Context, p string) error {
	p = absolute("", p)
	err := db.change(ctx, func(w *store.Writer, c *catalog) error {
		t, err := c.topic(p)
		if err != nil {
			return err
		}
		if err := w.DropRows(t.messages); err != nil {
			return err
		}
		if err := w.DropRows(t.numbers); err != nil {
			return err
		}
		return w.DeleteEntry(p)
	})
	db.topics.tell()
	return err
}

func (c *catalog) topic(p string) (*Topic, error) {
	e := c.entries[p]
	switch {
	case e == nil:
		return nil, noPath(p)
	case e.topic == nil:
		return nil, errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Path is not a topic: %s", p)
	}
	return e.topic, nil
}

// Topic returns the topic at the absolute path, or fails with SCHEME_ERROR.
func (db *DB) Topic(ctx context.Context, p string) (*Topic, error) {
	c, err := db.current(ctx)
	if err != nil {
		return nil, err
	}
	t, err := c.topic(absolute("", p))
	if err != nil {
		return nil, err
	}
	out := *t
	out.db = db
	return &out, nil
}

// TopicsChanged returns a channel that is closed when a message or an offset of any topic may
// have been written by this process since the call.
func (db *DB) TopicsChanged() <-chan struct{} { return db.topics.wait() }

// HasConsumer reports whether the topic knows the consumer.
func (t *Topic) HasConsumer(name string) bool {
	return slices.ContainsFunc(t.Spec.GetConsumers(), func(c *Ydb_Topic.Consumer) bool { return c.GetName() == name })
}

// CheckPartition fails unless the topic has the partition.
func (t *Topic) CheckPartition(n int64) error {
	if n < 0 || n >= t.Partitions {
		return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "topic %s has no partition %d", t.Path, n)
	}
	return nil
}

// The keys of the two tables.
func messageKey(partition, offset int64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(partition)), uint64(offset))
}

func numberKey(kind byte, partition int64, name string) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{kind}, uint64(partition)), name...)
}

// The kinds of numbers.
const (
	endOffset = 'e' // of a partition
	lastSeqNo = 's' // of a producer in a partition
	committed = 'c' // of a consumer in a partition
)

func numberOf(raw []byte) int64 {
	if len(raw) != 8 {
		return 0 // none yet
	}
	return int64(binary.BigEndian.Uint64(raw))
}

// number reads a number of the newest version.
func (t *Topic) number(ctx context.Context, kind byte, partition int64, name string) (int64, error) {
	sn, err := t.db.store.Snapshot(ctx)
	if err != nil {
		return 0, storeError(err)
	}
	defer sn.Release()
	raw, err := sn.Get(ctx, t.numbers, numberKey(kind, partition, name))
	return numberOf(raw), storeError(err)
}

// End is the offset that the partition's next message gets.
func (t *Topic) End(ctx context.Context, partition int64) (int64, error) {
	return t.number(ctx, endOffset, partition, "")
}

// LastSeqNo is the number of the producer's last message in the partition, 0 if there is none.
func (t *Topic) LastSeqNo(ctx context.Context, partition int64, producer string) (int64, error) {
	return t.number(ctx, lastSeqNo, partition, producer)
}

// Committed is the first offset that the consumer has not committed.
func (t *Topic) Committed(ctx context.Context, partition int64, consumer string) (int64, error) {
	return t.number(ctx, committed, partition, consumer)
}

// Read returns stored messages of the partition from the offset on: at least one if there is
// one, and no more than about the given bytes.
func (t *Topic) Read(ctx context.Context, partition, offset int64, bytes int) ([]*Batch, error) {
	sn, err := t.db.store.Snapshot(ctx)
	if err != nil {
		return nil, storeError(err)
	}
	defer sn.Release()
	rows, _, err := sn.Scan(
		ctx,
		store.Range{Table: t.messages, From: messageKey(partition, offset), To: messageKey(partition+1, 0), Rows: 1000,
			Bytes: max(1, min(bytes, 1<<20))},
	)
	if err != nil {
		return nil, storeError(err)
	}
	out := make([]*Batch, len(rows))
	for i, r := range rows {
		out[i] = &Batch{}
		if err := proto.Unmarshal(r.Val, out[i]); err != nil {
			return nil, errorf(Ydb.StatusIds_INTERNAL_ERROR, 0, "read topic %s: %v", t.Path, err)
		}
	}
	return out, nil
}

// topicOp is what a transaction does to a topic when it commits.
type topicOp func(w *store.Writer) error

// Ack says what became of a message.
type Ack struct {
	SeqNo, Offset int64
	Skipped       bool // the producer had written it already
}

// Write appends messages (each in a batch of its own, whose offset is set here) to a
// partition: at once, or, if tx is not nil, when that commits; then nothing is known yet of
// offsets and repetitions. Messages of a producer with a name are taken once.
func (t *Topic) Write(ctx context.Context, tx *Tx, partition int64, batches []*Batch) ([]Ack, error) {
	if err := t.CheckPartition(partition); err != nil {
		return nil, err
	}
	var acks []Ack
	put := func(w *store.Writer) error {
		acks = acks[:0]
		if err := t.exists(w); err != nil {
			return err
		}
		raw, err := w.Get(t.numbers, numberKey(endOffset, partition, ""))
		if err != nil {
			return err
		}
		end := numberOf(raw)
		for _, b := range batches {
			ack, err := t.put(w, partition, end, b)
			if err != nil {
				return err
			}
			acks = append(acks, ack)
			if !ack.Skipped {
				end++
			}
		}
		return w.Put(t.numbers, numberKey(endOffset, partition, ""), binary.BigEndian.AppendUint64(nil, uint64(end)))
	}
	if tx != nil {
		size := 0
		for _, b := range batches {
			size += proto.Size(b)
		}
		return nil, tx.topicOp(put, size)
	}
	if err := t.db.store.Write(ctx, put); err != nil {
		return nil, storeError(err)
	}
	t.db.topics.tell()
	return acks, nil
}

// put appends one message unless its producer has written it already.
func (t *Topic) put(w *store.Writer, partition, end int64, b *Batch) (Ack, error) {
	m := b.GetMessageData()[0]
	ack := Ack{SeqNo: m.GetSeqNo(), Offset: end}
	if b.GetProducerId() != "" {
		key := numberKey(lastSeqNo, partition, b.GetProducerId())
		raw, err := w.Get(t.numbers, key)
		if err != nil {
			return ack, err
		}
		if raw != nil && m.GetSeqNo() <= numberOf(raw) {
			ack.Skipped = true
			return ack, nil
		}
		if err := w.Put(t.numbers, key, binary.BigEndian.AppendUint64(nil, uint64(m.GetSeqNo()))); err != nil {
			return ack, err
		}
	}
	m.Offset, b.WrittenAt = end, timestamppb.Now()
	raw, err := proto.Marshal(b)
	if err != nil {
		return ack, err
	}
	return ack, w.Put(t.messages, messageKey(partition, end), raw)
}

// exists fails if the topic was dropped meanwhile.
func (t *Topic) exists(w *store.Writer) error {
	c := t.db.catalog.Load()
	if c.schema != w.Schema() {
		var err error
		if c, err = catalogOf(w, c); err != nil {
			return err
		}
	}
	now, err := c.topic(t.Path)
	if err == nil && now.messages != t.messages {
		return noPath(t.Path)
	}
	return err
}

// Commit sets the consumer's committed offset.
func (t *Topic) Commit(ctx context.Context, partition int64, consumer string, offset int64) error {
	if err := t.consumes(partition, consumer); err != nil {
		return err
	}
	err := t.db.store.Write(ctx, func(w *store.Writer) error {
		if err := t.exists(w); err != nil {
			return err
		}
		return w.Put(t.numbers, numberKey(committed, partition, consumer), binary.BigEndian.AppendUint64(nil, uint64(offset)))
	})
	t.db.topics.tell()
	return storeError(err)
}

func (t *Topic) consumes(partition int64, consumer string) error {
	if err := t.CheckPartition(partition); err != nil {
		return err
	}
	if !t.HasConsumer(consumer) {
		return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "topic %s has no consumer %q", t.Path, consumer)
	}
	return nil
}

// CommitIn moves the consumer's committed offset from one to another when tx commits. If it
// stands elsewhere then, the transaction is ABORTED.
func (t *Topic) CommitIn(tx *Tx, partition int64, consumer string, from, to int64) error {
	if err := t.consumes(partition, consumer); err != nil {
		return err
	}
	if from < 0 || to < from {
		return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "offsets %d to %d are no range", from, to)
	}
	return tx.topicOp(func(w *store.Writer) error {
		if err := t.exists(w); err != nil {
			return err
		}
		key := numberKey(committed, partition, consumer)
		raw, err := w.Get(t.numbers, key)
		if err != nil {
			return err
		}
		if now := numberOf(raw); now != from {
			return errorf(Ydb.StatusIds_ABORTED, issueLocksInvalidated,
				"topic %s, partition %d: consumer %s stands at offset %d and not at %d", t.Path, partition, consumer,
				now, from)
		}
		return w.Put(t.numbers, key, binary.BigEndian.AppendUint64(nil, uint64(to)))
	}, 0)
}
