package grpcapi

import (
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// protoRows are the bytes of rows that came over gRPC, each with its tag and length.
type protoRows []byte

func (r protoRows) Each(f func(row []byte) error) error {
	for number, row := range yql.Fields(r) {
		switch {
		case number == 0, number == core.FieldBulkRows && row == nil:
			return core.BadRequest("the message cannot be read: it is not a BulkUpsertRequest")
		case number == core.FieldBulkRows:
			if err := f(row); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r protoRows) First([]byte) error { return core.ErrSome }

func (r protoRows) Read(columns *yql.Rows, row []byte, into *yql.Cells) error {
	return columns.Named(row, into)
}
