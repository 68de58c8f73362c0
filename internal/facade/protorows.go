package facade

import (
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// protoRows are the octets of rows that came over gRPC, each with its tag and length.
type protoRows []byte

func (r protoRows) each(f func(row []byte) error) error {
	for number, row := range yql.Fields(r) {
		switch {
		case number == 0, number == fieldBulkRows && row == nil:
			return badRequest("the message cannot be read: it is no BulkUpsertRequest")
		case number == fieldBulkRows:
			if err := f(row); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r protoRows) first([]byte) error { return errSome }

func (r protoRows) read(columns *yql.Rows, row []byte, into *yql.Cells) error {
	return columns.Named(row, into)
}
