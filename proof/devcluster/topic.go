package devcluster

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// topicPath resolves the path of a topic, which may be relative to the database.
func (c *call) topicPath(p string) string {
	if strings.HasPrefix(p, "/") {
		return path.Clean(p)
	}
	return path.Join(c.config.Database, p)
}

func (c *call) topic(p string) (*engine.Topic, error) { return c.db.Topic(c.ctx, c.topicPath(p)) }

func createTopic(c *call, r *Ydb_Topic.CreateTopicRequest) (proto.Message, error) {
	spec := proto.Clone(r).(*Ydb_Topic.CreateTopicRequest)
	spec.OperationParams, spec.Path = nil, ""
	if spec.RetentionPeriod == nil {
		spec.RetentionPeriod = durationpb.New(24 * time.Hour) // said, not done: nothing is removed
	}
	if spec.PartitionWriteSpeedBytesPerSecond == 0 {
		spec.PartitionWriteSpeedBytesPerSecond = 1 << 20 // said, not done
	}
	if spec.PartitionWriteBurstBytes == 0 {
		spec.PartitionWriteBurstBytes = spec.PartitionWriteSpeedBytesPerSecond
	}
	return nil, c.db.CreateTopic(c.ctx, c.topicPath(r.GetPath()), spec)
}

func dropTopic(c *call, r *Ydb_Topic.DropTopicRequest) (proto.Message, error) {
	return nil, c.db.DropTopic(c.ctx, c.topicPath(r.GetPath()))
}

func alterTopic(c *call, r *Ydb_Topic.AlterTopicRequest) (proto.Message, error) {
	return nil, c.db.AlterTopic(c.ctx, c.topicPath(r.GetPath()), func(spec *Ydb_Topic.CreateTopicRequest) error {
		if s := r.GetAlterPartitioningSettings(); s != nil {
			if spec.PartitioningSettings == nil {
				spec.PartitioningSettings = &Ydb_Topic.PartitioningSettings{}
			}
			set(&spec.PartitioningSettings.MinActivePartitions, s.SetMinActivePartitions)
			set(&spec.PartitioningSettings.MaxActivePartitions, s.SetMaxActivePartitions)
			//lint:ignore SA1019 older clients send it
			set(&spec.PartitioningSettings.PartitionCountLimit, s.SetPartitionCountLimit)
			alterAutoPartitioning(spec.PartitioningSettings, s.GetAlterAutoPartitioningSettings())
		}
		if r.GetSetRetentionPeriod() != nil {
			spec.RetentionPeriod = r.GetSetRetentionPeriod()
		}
		if r.GetSetSupportedCodecs() != nil {
			spec.SupportedCodecs = r.GetSetSupportedCodecs()
		}
		if r.GetSetMeteringMode() != 0 {
			spec.MeteringMode = r.GetSetMeteringMode()
		}
		set(&spec.RetentionStorageMb, r.SetRetentionStorageMb)
		set(&spec.PartitionWriteSpeedBytesPerSecond, r.SetPartitionWriteSpeedBytesPerSecond)
		set(&spec.PartitionWriteBurstBytes, r.SetPartitionWriteBurstBytes)
		spec.Attributes = altered(spec.Attributes, r.GetAlterAttributes())
		return alterConsumers(spec, r)
	})
}

// alterAutoPartitioning changes what is said of splitting partitions; none is ever split.
func alterAutoPartitioning(to *Ydb_Topic.PartitioningSettings, a *Ydb_Topic.AlterAutoPartitioningSettings) {
	if a == nil {
		return
	}
	if to.AutoPartitioningSettings == nil {
		to.AutoPartitioningSettings = &Ydb_Topic.AutoPartitioningSettings{}
	}
	auto := to.AutoPartitioningSettings
	set(&auto.Strategy, a.SetStrategy)
	if speed := a.GetSetPartitionWriteSpeed(); speed != nil {
		if auto.PartitionWriteSpeed == nil {
			auto.PartitionWriteSpeed = &Ydb_Topic.AutoPartitioningWriteSpeedStrategy{}
		}
		if speed.GetSetStabilizationWindow() != nil {
			auto.PartitionWriteSpeed.StabilizationWindow = speed.GetSetStabilizationWindow()
		}
		set(&auto.PartitionWriteSpeed.UpUtilizationPercent, speed.SetUpUtilizationPercent)
		set(&auto.PartitionWriteSpeed.DownUtilizationPercent, speed.SetDownUtilizationPercent)
	}
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// altered changes attributes; an empty value removes one.
func altered(attributes, changes map[string]string) map[string]string {
	out := maps.Clone(attributes)
	for k, v := range changes {
		if out == nil {
			out = map[string]string{}
		}
		if out[k] = v; v == "" {
			delete(out, k)
		}
	}
	return out
}

func alterConsumers(spec *Ydb_Topic.CreateTopicRequest, r *Ydb_Topic.AlterTopicRequest) error {
	find := func(name string) (int, error) {
		i := slices.IndexFunc(spec.Consumers, func(c *Ydb_Topic.Consumer) bool { return c.GetName() == name })
		if i < 0 {
			return 0, fail(Ydb.StatusIds_NOT_FOUND, "no consumer %q", name)
		}
		return i, nil
	}
	for _, name := range r.GetDropConsumers() {
		i, err := find(name)
		if err != nil {
			return err
		}
		spec.Consumers = slices.Delete(spec.Consumers, i, i+1)
	}
	spec.Consumers = append(spec.Consumers, r.GetAddConsumers()...)
	for _, a := range r.GetAlterConsumers() {
		i, err := find(a.GetName())
		if err != nil {
			return err
		}
		c := spec.Consumers[i]
		set(&c.Important, a.SetImportant)
		if a.GetSetReadFrom() != nil {
			c.ReadFrom = a.GetSetReadFrom()
		}
		if a.GetSetSupportedCodecs() != nil {
			c.SupportedCodecs = a.GetSetSupportedCodecs()
		}
		c.Attributes = altered(c.Attributes, a.GetAlterAttributes())
	}
	return nil
}

func describeTopic(c *call, r *Ydb_Topic.DescribeTopicRequest) (proto.Message, error) {
	t, err := c.topic(r.GetPath())
	if err != nil {
		return nil, err
	}
	e, err := c.db.Describe(c.ctx, t.Path)
	if err != nil {
		return nil, err
	}
	s := t.Spec
	result := &Ydb_Topic.DescribeTopicResult{
		Self: c.entry(e), PartitioningSettings: s.GetPartitioningSettings(), RetentionPeriod: s.GetRetentionPeriod(),
		RetentionStorageMb: s.GetRetentionStorageMb(), SupportedCodecs: s.GetSupportedCodecs(), Attributes: s.GetAttributes(),
		PartitionWriteSpeedBytesPerSecond: s.GetPartitionWriteSpeedBytesPerSecond(),
		PartitionWriteBurstBytes:          s.GetPartitionWriteBurstBytes(),
		Consumers:                         s.GetConsumers(), MeteringMode: s.GetMeteringMode(),
	}
	if result.PartitioningSettings == nil {
		result.PartitioningSettings = &Ydb_Topic.PartitioningSettings{MinActivePartitions: t.Partitions}
	}
	for p := range t.Partitions {
		info, err := c.partition(t, p, r.GetIncludeStats(), r.GetIncludeLocation())
		if err != nil {
			return nil, err
		}
		result.Partitions = append(result.Partitions, info)
	}
	if r.GetIncludeStats() {
		result.TopicStats = &Ydb_Topic.DescribeTopicResult_TopicStats{}
	}
	return result, nil
}

// generation is that of every partition: none moves but with its node.
const generation = 1

// home is the node that a partition of a topic or a table is said to live on. Any node serves it, but to streams that
// name a generation.
func (c *call) home(partition int64) int32 {
	var up []uint32
	for _, m := range c.topology.members() {
		if m.Alive && m.Listed {
			up = append(up, m.ID)
		}
	}
	if len(up) == 0 {
		return int32(c.id)
	}
	return int32(up[partition%int64(len(up))])
}

// partition describes a partition.
func (c *call) partition(t *engine.Topic, n int64, stats, location bool) (*Ydb_Topic.DescribeTopicResult_PartitionInfo, error) {
	info := &Ydb_Topic.DescribeTopicResult_PartitionInfo{PartitionId: n, Active: true}
	if stats {
		end, err := t.End(c.ctx, n)
		if err != nil {
			return nil, err
		}
		//lint:ignore SA1019 older clients read the node here
		info.PartitionStats = &Ydb_Topic.PartitionStats{PartitionOffsets: &Ydb_Topic.OffsetsRange{End: end}, PartitionNodeId: c.home(n)}
	}
	if location {
		info.PartitionLocation = &Ydb_Topic.PartitionLocation{NodeId: c.home(n), Generation: generation}
	}
	return info, nil
}

func describeConsumer(c *call, r *Ydb_Topic.DescribeConsumerRequest) (proto.Message, error) {
	t, err := c.topic(r.GetPath())
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(t.Spec.GetConsumers(), func(have *Ydb_Topic.Consumer) bool { return have.GetName() == r.GetConsumer() })
	if i < 0 {
		return nil, fail(Ydb.StatusIds_SCHEME_ERROR, "topic %s has no consumer %q", t.Path, r.GetConsumer())
	}
	e, err := c.db.Describe(c.ctx, t.Path)
	if err != nil {
		return nil, err
	}
	result := &Ydb_Topic.DescribeConsumerResult{Self: c.entry(e), Consumer: t.Spec.GetConsumers()[i]}
	result.Self.Name = path.Join(result.Self.Name, r.GetConsumer())
	for p := range t.Partitions {
		info, err := c.partition(t, p, r.GetIncludeStats(), r.GetIncludeLocation())
		if err != nil {
			return nil, err
		}
		out := &Ydb_Topic.DescribeConsumerResult_PartitionInfo{
			PartitionId: p, Active: true, PartitionStats: info.PartitionStats, PartitionLocation: info.PartitionLocation,
		}
		if r.GetIncludeStats() {
			offset, err := t.Committed(c.ctx, p, r.GetConsumer())
			if err != nil {
				return nil, err
			}
			out.PartitionConsumerStats = &Ydb_Topic.DescribeConsumerResult_PartitionConsumerStats{CommittedOffset: offset}
		}
		result.Partitions = append(result.Partitions, out)
	}
	return result, nil
}

func commitOffset(c *call, r *Ydb_Topic.CommitOffsetRequest) (proto.Message, error) {
	t, err := c.topic(r.GetPath())
	if err != nil {
		return nil, err
	}
	return nil, t.Commit(c.ctx, r.GetPartitionId(), r.GetConsumer(), r.GetOffset())
}

// topicTx finds the open transaction that a message about topics belongs to. Its session is
// on this node.
func (c *call) topicTx(id *Ydb_Topic.TransactionIdentity) (*engine.Tx, error) {
	s, err := c.sessions.find(id.GetSession())
	if err != nil {
		return nil, err
	}
	return s.transaction(id.GetId())
}

func updateOffsets(c *call, r *Ydb_Topic.UpdateOffsetsInTransactionRequest) (proto.Message, error) {
	if r.GetTx().GetSession() == "" {
		return nil, fail(Ydb.StatusIds_BAD_REQUEST, "tx is empty")
	}
	tx, err := c.topicTx(r.GetTx())
	if err != nil {
		return nil, err
	}
	for _, topic := range r.GetTopics() {
		t, err := c.topic(topic.GetPath())
		if err != nil {
			return nil, err
		}
		for _, p := range topic.GetPartitions() {
			for _, offsets := range p.GetPartitionOffsets() {
				if err := t.CommitIn(tx, p.GetPartitionId(), r.GetConsumer(), offsets.GetStart(), offsets.GetEnd()); err != nil {
					return nil, err
				}
			}
		}
	}
	return nil, nil
}
