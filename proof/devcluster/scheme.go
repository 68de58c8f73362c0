package devcluster

import (
	"hash/crc32"
	"path"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Scheme"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// owner is who owns everything in the schema.
const owner = "root"

func makeDirectory(c *call, r *Ydb_Scheme.MakeDirectoryRequest) (proto.Message, error) {
	return nil, c.db.MakeDirectory(c.ctx, r.GetPath())
}

func removeDirectory(c *call, r *Ydb_Scheme.RemoveDirectoryRequest) (proto.Message, error) {
	return nil, c.db.RemoveDirectory(c.ctx, r.GetPath())
}

func listDirectory(c *call, r *Ydb_Scheme.ListDirectoryRequest) (proto.Message, error) {
	self, children, err := c.db.List(c.ctx, r.GetPath())
	if err != nil {
		return nil, err
	}
	result := &Ydb_Scheme.ListDirectoryResult{Self: c.entry(self)}
	for _, child := range children {
		result.Children = append(result.Children, c.entry(child))
	}
	return result, nil
}

func describePath(c *call, r *Ydb_Scheme.DescribePathRequest) (proto.Message, error) {
	self, err := c.db.Describe(c.ctx, r.GetPath())
	if err != nil {
		return nil, err
	}
	return &Ydb_Scheme.DescribePathResult{Self: c.entry(self)}, nil
}

func (c *call) entry(e engine.Entry) *Ydb_Scheme.Entry {
	out := &Ydb_Scheme.Entry{
		Name: path.Base(e.Path), Owner: owner, Type: Ydb_Scheme.Entry_DIRECTORY,
		CreatedAt: &Ydb.VirtualTimestamp{PlanStep: uint64(e.Created.UnixMilli())},
	}
	switch {
	case e.Kind == engine.Table:
		out.Type = Ydb_Scheme.Entry_TABLE
	case e.Kind == engine.TopicEntry:
		out.Type = Ydb_Scheme.Entry_TOPIC
	case e.Path == c.config.Database:
		out.Type = Ydb_Scheme.Entry_DATABASE
	}
	return out
}

func createTable(c *call, r *Ydb_Table.CreateTableRequest) (proto.Message, error) {
	spec := engine.TableSpec{Key: r.GetPrimaryKey(), KeyBloomFilter: r.GetKeyBloomFilter()}
	for _, column := range r.GetColumns() {
		if column.GetDefaultValue() != nil {
			return nil, fail(Ydb.StatusIds_UNSUPPORTED, "column %q: default values are not supported", column.GetName())
		}
		spec.Columns = append(spec.Columns, tableColumn(column))
	}
	var err error
	if spec.Indexes, err = tableIndexes(r.GetIndexes()); err != nil {
		return nil, err
	}
	return nil, c.db.CreateTable(c.ctx, r.GetPath(), spec)
}

func tableIndexes(in []*Ydb_Table.TableIndex) ([]engine.Index, error) {
	var out []engine.Index
	for _, index := range in {
		switch index.GetType().(type) {
		case nil, *Ydb_Table.TableIndex_GlobalIndex, *Ydb_Table.TableIndex_GlobalAsyncIndex:
		default:
			return nil, fail(Ydb.StatusIds_UNSUPPORTED, "index %q: indexes of type %T are not supported", index.GetName(), index.GetType())
		}
		out = append(out, engine.Index{
			Name: index.GetName(), Columns: index.GetIndexColumns(), Data: index.GetDataColumns(),
			Async: index.GetGlobalAsyncIndex() != nil,
		})
	}
	return out, nil
}

// alterTable adds and drops columns and indexes. Settings of storage and partitions have no effect here.
func alterTable(c *call, r *Ydb_Table.AlterTableRequest) (proto.Message, error) {
	switch {
	case len(r.GetAlterColumns()) > 0:
		return nil, fail(Ydb.StatusIds_UNSUPPORTED, "alter_columns is not supported")
	case len(r.GetAddChangefeeds())+len(r.GetDropChangefeeds()) > 0:
		return nil, fail(Ydb.StatusIds_UNSUPPORTED, "changefeeds are not supported")
	case len(r.GetRenameIndexes()) > 0:
		return nil, fail(Ydb.StatusIds_UNSUPPORTED, "rename_indexes is not supported")
	}
	a := engine.Alteration{Drop: r.GetDropColumns(), DropIndexes: r.GetDropIndexes(), KeyBloomFilter: r.GetSetKeyBloomFilter()}
	for _, column := range r.GetAddColumns() {
		if column.GetDefaultValue() != nil {
			return nil, fail(Ydb.StatusIds_UNSUPPORTED, "column %q: default values are not supported", column.GetName())
		}
		a.Add = append(a.Add, tableColumn(column))
	}
	var err error
	if a.AddIndexes, err = tableIndexes(r.GetAddIndexes()); err != nil {
		return nil, err
	}
	return nil, c.db.AlterTable(c.ctx, r.GetPath(), a)
}

func copyTable(c *call, r *Ydb_Table.CopyTableRequest) (proto.Message, error) {
	return nil, c.db.CopyTables(c.ctx, []engine.Move{{From: r.GetSourcePath(), To: r.GetDestinationPath()}})
}

func copyTables(c *call, r *Ydb_Table.CopyTablesRequest) (proto.Message, error) {
	var moves []engine.Move
	for _, t := range r.GetTables() {
		moves = append(moves, engine.Move{From: t.GetSourcePath(), To: t.GetDestinationPath(), OmitIndexes: t.GetOmitIndexes()})
	}
	return nil, c.db.CopyTables(c.ctx, moves)
}

func renameTables(c *call, r *Ydb_Table.RenameTablesRequest) (proto.Message, error) {
	var moves []engine.Move
	for _, t := range r.GetTables() {
		moves = append(moves, engine.Move{From: t.GetSourcePath(), To: t.GetDestinationPath(), Replace: t.GetReplaceDestination()})
	}
	return nil, c.db.RenameTables(c.ctx, moves)
}

// describeTableOptions lists what a table may be made of: one preset of each kind that clients look for.
func describeTableOptions(*call, *Ydb_Table.DescribeTableOptionsRequest) (proto.Message, error) {
	const preset = "default"
	return &Ydb_Table.DescribeTableOptionsResult{
		TableProfilePresets:       []*Ydb_Table.TableProfileDescription{{Name: preset}},
		StoragePolicyPresets:      []*Ydb_Table.StoragePolicyDescription{{Name: preset}},
		CompactionPolicyPresets:   []*Ydb_Table.CompactionPolicyDescription{{Name: preset}},
		PartitioningPolicyPresets: []*Ydb_Table.PartitioningPolicyDescription{{Name: preset}},
		ExecutionPolicyPresets:    []*Ydb_Table.ExecutionPolicyDescription{{Name: preset}},
		ReplicationPolicyPresets:  []*Ydb_Table.ReplicationPolicyDescription{{Name: preset}},
		CachingPolicyPresets:      []*Ydb_Table.CachingPolicyDescription{{Name: preset}},
	}, nil
}

// tableColumn reads a column whose nullability is in its type or in not_null.
func tableColumn(m *Ydb_Table.ColumnMeta) engine.Column {
	if optional := m.GetType().GetOptionalType(); optional != nil {
		return engine.Column{Name: m.GetName(), Type: optional.GetItem(), NotNull: m.GetNotNull()}
	}
	return engine.Column{Name: m.GetName(), Type: m.GetType(), NotNull: true}
}

func dropTable(c *call, r *Ydb_Table.DropTableRequest) (proto.Message, error) {
	return nil, c.db.DropTable(c.ctx, r.GetPath())
}

func describeTable(c *call, r *Ydb_Table.DescribeTableRequest) (proto.Message, error) {
	e, err := c.db.Describe(c.ctx, r.GetPath())
	if err != nil {
		return nil, err
	}
	if e.Table == nil {
		return nil, fail(Ydb.StatusIds_SCHEME_ERROR, "%s is not a table", r.GetPath())
	}
	result := &Ydb_Table.DescribeTableResult{
		Self: c.entry(e), PrimaryKey: e.Table.Key, StoreType: Ydb_Table.StoreType_STORE_TYPE_ROW,
		KeyBloomFilter: e.Table.KeyBloomFilter,
	}
	for _, column := range e.Table.Columns {
		m := &Ydb_Table.ColumnMeta{Name: column.Name, Type: column.Type}
		if column.NotNull {
			m.NotNull = proto.Bool(true)
		} else {
			m.Type = &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: column.Type}}}
		}
		result.Columns = append(result.Columns, m)
	}
	for _, index := range e.Table.Indexes {
		d := &Ydb_Table.TableIndexDescription{
			Name: index.Name, IndexColumns: index.Columns, DataColumns: index.Data,
			Status: Ydb_Table.TableIndexDescription_STATUS_READY,
			Type:   &Ydb_Table.TableIndexDescription_GlobalIndex{GlobalIndex: &Ydb_Table.GlobalIndex{}},
		}
		if index.Async {
			d.Type = &Ydb_Table.TableIndexDescription_GlobalAsyncIndex{GlobalAsyncIndex: &Ydb_Table.GlobalAsyncIndex{}}
		}
		result.Indexes = append(result.Indexes, d)
	}
	if r.GetIncludeTableStats() {
		rows, err := c.db.CountRows(c.ctx, e.Path)
		if err != nil {
			return nil, err
		}
		result.TableStats = &Ydb_Table.TableStats{
			RowsEstimate: rows, Partitions: 1, CreationTime: timestamppb.New(e.Created),
		}
		if r.GetIncludePartitionStats() {
			shard := &Ydb_Table.PartitionStats{RowsEstimate: rows}
			if r.GetIncludeShardNodesInfo() {
				shard.LeaderNodeId = uint32(c.home(int64(crc32.ChecksumIEEE([]byte(e.Path)))))
			}
			result.TableStats.PartitionStats = append(result.TableStats.PartitionStats, shard)
		}
	}
	if r.GetIncludeShardKeyBounds() {
		result.ShardKeyBounds = []*Ydb.TypedValue{} // one shard has no bounds
	}
	return result, nil
}
