package protocol

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Locations are where answers of a method name nodes on which partitions are.
type Locations struct {
	asks   protowire.Number                        // the request's field that asks for them
	path   [2]protowire.Number                     // of the result's fields that lead to them
	rename func(location []byte, as uint64) []byte // has one of them name a node
	Pins   bool                                    // streams may be bound to them; else they are hints for calls on sessions
}

var (
	locationsOfTopic     = &Locations{4, [2]protowire.Number{3, 6}, renameLocation, true}
	locationsOfPartition = &Locations{5, [2]protowire.Number{1, 6}, renameLocation, true}
	locationsOfConsumer  = &Locations{5, [2]protowire.Number{3, 7}, renameLocation, true}
	locationsOfTable     = &Locations{9, [2]protowire.Number{6, 1}, renameLeader, false}
)

// Asked reports whether a request asks for locations.
func (p *Locations) Asked(request []byte) (asked bool) {
	EachField(request, func(number protowire.Number, value []byte) {
		if number == p.asks {
			v, _ := protowire.ConsumeVarint(value)
			asked = v != 0
		}
	})
	return asked
}

// Rename has all locations of a result name one node, and the generations of topics' partitions name in their upper
// half the node that was there: see Pin. What cannot be read stays as it is.
func (p *Locations) Rename(result []byte, as uint64) []byte {
	return MapField(result, p.path[0], func(outer []byte) []byte {
		return MapField(outer, p.path[1], func(location []byte) []byte { return p.rename(location, as) })
	})
}

// The fields of a location, and of a partition with a generation in the first message of a stream.
const (
	locationNode       = 1
	locationGeneration = 2

	leaderNode = 3 // of the statistics of a table's partition

	initRequest      = 1
	initPartition    = 7 // partition_with_generation of the init request
	expectGeneration = 2 // of partition_with_generation
)

func renameLocation(location []byte, as uint64) []byte {
	node, generation := uint64(0), uint64(0)
	EachField(location, func(number protowire.Number, value []byte) {
		switch number {
		case locationNode:
			node, _ = protowire.ConsumeVarint(value)
		case locationGeneration:
			generation, _ = protowire.ConsumeVarint(value)
		}
	})
	if node == 0 || node >= 1<<31 || generation == 0 || generation >= 1<<32 {
		return location
	}
	location = protowire.AppendVarint(protowire.AppendTag(nil, locationNode, protowire.VarintType), as)
	return protowire.AppendVarint(protowire.AppendTag(location, locationGeneration, protowire.VarintType), node<<32|generation)
}

// renameLeader names the node of a table's partition, if one is named: a field that comes
// again counts instead of the first.
func renameLeader(shard []byte, as uint64) []byte {
	named := false
	EachField(shard, func(number protowire.Number, _ []byte) { named = named || number == leaderNode })
	if !named {
		return shard
	}
	shard = protowire.AppendTag(slices.Clip(shard), leaderNode, protowire.VarintType)
	return protowire.AppendVarint(shard, as)
}

// Pin finds the node that the first message of a stream to a topic is for, by a generation that Rename made,
// and has it name the node's own generation; 0: any node.
func Pin(message []byte) (renamed []byte, node uint32) {
	renamed = MapField(message, initRequest, func(init []byte) []byte {
		return MapField(init, initPartition, func(partition []byte) []byte {
			out, pinned := own(partition)
			if pinned != 0 {
				node = pinned
			}
			return out
		})
	})
	return renamed, node
}

// own takes the node out of a partition's generation.
func own(partition []byte) (out []byte, node uint32) {
	for rest := partition; len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n < 0 {
			return partition, 0
		}
		field := rest[:n]
		if number == expectGeneration && kind == protowire.VarintType {
			_, _, head := protowire.ConsumeTag(field)
			if v, _ := protowire.ConsumeVarint(field[head:]); v>>32 != 0 && v < 1<<63 {
				node = uint32(v >> 32)
				field = protowire.AppendVarint(protowire.AppendTag(nil, number, kind), v&(1<<32-1))
			}
		}
		out, rest = append(out, field...), rest[n:]
	}
	return out, node
}
