package devcluster

import (
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// headerUnits is the trailer that reports what a call cost.
const headerUnits = "x-ydb-consumed-units"

// consumed reports the request units of a call in its trailer. It is called once in a call.
func (c *call) consumed(units uint64) {
	if c.config.ConsumedUnits {
		c.stream.SetTrailer(metadata.Pairs(headerUnits, strconv.FormatUint(units, 10)))
	}
}

// consumedIn is consumed for a call whose operation reports the units as well, if that is asked for.
func (c *call) consumedIn(params *Ydb_Operations.OperationParams, units uint64) {
	c.consumed(units)
	if c.config.ConsumedUnits && params.GetReportCostInfo() == Ydb.FeatureFlag_ENABLED {
		c.cost = &Ydb.CostInfo{ConsumedUnits: float64(units)}
	}
}

// Bytes of one request unit.
const (
	unitRead  = 4 << 10
	unitWrite = 1 << 10
)

// times is how many parts of a size bytes make, the last one counted whole.
func times(bytes, size uint64) uint64 { return (bytes + size - 1) / size }

// unitsOf is what a statement costs: 1 for each row read, 2 for each row written or each 1 KiB of
// them, and 1 at the least, but nothing if it is only explained. Bytes read and CPU time cost nothing here.
func unitsOf(request *engine.Request, stats engine.Stats) uint64 {
	if request.Explain {
		return 0
	}
	var reads, writes, bytes uint64
	for _, t := range stats.Tables {
		reads += t.Reads
		writes += t.Updates + t.Deletes
		bytes += t.UpdateBytes
	}
	return max(1, reads+2*max(writes, times(bytes, unitWrite)))
}

// unitsOfRows is what it costs to read rows by their keys: 1 for each, or for each 4 KiB.
func unitsOfRows(set *Ydb.ResultSet) uint64 {
	bytes := uint64(0)
	for _, row := range set.GetRows() {
		bytes += uint64(proto.Size(row))
	}
	return max(1, uint64(len(set.GetRows())), times(bytes, unitRead))
}

// unitsOfBulk is what a bulk upsert costs: half a unit for each 1 KiB of each row, of CSV for
// each 1 KiB of all.
func unitsOfBulk(r *Ydb_Table.BulkUpsertRequest) uint64 {
	parts := times(uint64(len(r.GetData())), unitWrite)
	for _, row := range r.GetRows().GetValue().GetItems() {
		parts += times(uint64(proto.Size(row)), unitWrite)
	}
	return (parts + 1) / 2
}
