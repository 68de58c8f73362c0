package protocol

import (
	"bytes"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Answers name the sidecar as the node of each partition, and a stream with the generation that they
// tell finds the node and the generation of before. Nothing else in them changes.
func TestPlacesOfPartitions(t *testing.T) {
	at := func(node int32, generation int64) *Ydb_Topic.PartitionLocation {
		return &Ydb_Topic.PartitionLocation{NodeId: node, Generation: generation}
	}
	info := func(id int64, at *Ydb_Topic.PartitionLocation) *Ydb_Topic.DescribeTopicResult_PartitionInfo {
		return &Ydb_Topic.DescribeTopicResult_PartitionInfo{PartitionId: id, Active: true,
			ChildPartitionIds: []int64{7, 8}, PartitionLocation: at}
	}
	const node, generation = 50_001, 17
	const sidecar = 1<<31 - 7
	ours := at(sidecar, node<<32|generation)
	for name, c := range map[string]struct {
		method    string
		was, want proto.Message
	}{
		"topic": {TopicService + "DescribeTopic",
			&Ydb_Topic.DescribeTopicResult{
				Partitions: []*Ydb_Topic.DescribeTopicResult_PartitionInfo{info(0, at(node, generation)), info(1, nil)},
				Attributes: map[string]string{"a": "b"},
			},
			&Ydb_Topic.DescribeTopicResult{Partitions: []*Ydb_Topic.DescribeTopicResult_PartitionInfo{info(0, ours), info(1, nil)},
				Attributes: map[string]string{"a": "b"}}},
		"partition": {TopicService + "DescribePartition",
			&Ydb_Topic.DescribePartitionResult{Partition: info(3, at(node, generation))},
			&Ydb_Topic.DescribePartitionResult{Partition: info(3, ours)}},
		"consumer": {TopicService + "DescribeConsumer",
			&Ydb_Topic.DescribeConsumerResult{
				Partitions: []*Ydb_Topic.DescribeConsumerResult_PartitionInfo{{PartitionId: 2, PartitionLocation: at(node, generation)}},
			},
			&Ydb_Topic.DescribeConsumerResult{
				Partitions: []*Ydb_Topic.DescribeConsumerResult_PartitionInfo{{PartitionId: 2, PartitionLocation: ours}},
			}},
		"a generation that is too large": {TopicService + "DescribePartition",
			&Ydb_Topic.DescribePartitionResult{Partition: info(3, at(node, 1<<32))},
			&Ydb_Topic.DescribePartitionResult{Partition: info(3, at(node, 1<<32))}},
		"table": {TableService + "DescribeTable",
			&Ydb_Table.DescribeTableResult{PrimaryKey: []string{"id"},
				TableStats: &Ydb_Table.TableStats{Partitions: 2,
					PartitionStats: []*Ydb_Table.PartitionStats{{RowsEstimate: 7, LeaderNodeId: node, StoreSize: 5}, {RowsEstimate: 8}}}},
			&Ydb_Table.DescribeTableResult{PrimaryKey: []string{"id"},
				TableStats: &Ydb_Table.TableStats{Partitions: 2,
					PartitionStats: []*Ydb_Table.PartitionStats{{RowsEstimate: 7, LeaderNodeId: sidecar, StoreSize: 5},
						{RowsEstimate: 8}}}}},
		"no node": {TopicService + "DescribePartition", &Ydb_Topic.DescribePartitionResult{Partition: info(3, at(0, 1))},
			&Ydb_Topic.DescribePartitionResult{Partition: info(3, at(0, 1))}},
	} {
		renamed := Named(c.method).Locations.Rename(bytesOf(t, c.was), sidecar)
		got := c.want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(renamed, got); err != nil || !proto.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	partition, pinned := own(bytesOf(t, &Ydb_Topic.PartitionWithGeneration{PartitionId: 3, Generation: ours.Generation}))
	var back Ydb_Topic.PartitionWithGeneration
	if err := proto.Unmarshal(partition, &back); err != nil || pinned != node || back.GetPartitionId() != 3 ||
		back.GetGeneration() != generation {
		t.Errorf("%v on node %d, %v; want generation %d on node %d", &back, pinned, err, generation, node)
	}
	plain := bytesOf(t, &Ydb_Topic.PartitionWithGeneration{PartitionId: 3, Generation: generation})
	if got, pinned := own(plain); pinned != 0 || !bytes.Equal(got, plain) {
		t.Errorf("a client's own generation names node %d, %x; want %x as it is", pinned, got, plain)
	}
}

func FuzzLocations(f *testing.F) {
	f.Add([]byte{0x1a, 4, 0x32, 2, 8, 1}, uint32(5))
	f.Add([]byte{0x0a, 3, 0x3a, 1, 0xff}, uint32(1<<31-1))
	f.Fuzz(func(t *testing.T, message []byte, node uint32) {
		for _, m := range All() {
			if m.Locations != nil {
				m.Locations.Rename(message, 5)
				m.Locations.Asked(message)
			}
		}
		Pin(message)
		if same := MapField(message, 1, func(b []byte) []byte { return b }); len(same) > len(message) {
			t.Errorf("%x became %x", message, same)
		}
		if node == 0 || node >= 1<<31 {
			return
		}
		location := protowire.AppendVarint(protowire.AppendTag(nil, locationNode, protowire.VarintType), uint64(node))
		location = renameLocation(protowire.AppendVarint(protowire.AppendTag(location, locationGeneration, protowire.VarintType), 9), 5)
		if _, got := own(location); got != node { // the generation has the same number in both
			t.Errorf("node %d became %d", node, got)
		}
	})
}
