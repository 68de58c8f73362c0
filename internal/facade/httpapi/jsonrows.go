package httpapi

import (
	"bytes"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// jsonRows are rows as JSON: the items of a list, or lines.
type jsonRows struct {
	raw   []byte
	lines bool
	depth int              // how deep a line may nest
	take  func(int) string // see checkShape
}

func (r jsonRows) Each(f func(row []byte) error) error {
	if !r.lines {
		if len(r.raw) == 0 {
			return nil
		}
		return yql.Items(r.raw, f)
	}
	for line := range bytes.Lines(r.raw) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if err := f(line); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r jsonRows) First(row []byte) error {
	switch {
	case row[0] != '{':
		return core.BadRequest("rows[0] is not a JSON object")
	case bytes.HasPrefix(bytes.TrimSpace(row[1:]), []byte("}")):
		return core.AtRow(core.ErrNoColumns, 0)
	}
	return core.ErrSome
}

func (r jsonRows) Read(columns *yql.Rows, row []byte, into *yql.Cells) error {
	if r.lines {
		if _, err := checkShape(row, r.depth, r.take); err != nil {
			return err
		}
	}
	return columns.JSON(row, into)
}
