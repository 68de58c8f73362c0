package engine

import (
	"context"
	"encoding/base64"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// What Arrow's Python library makes of two schemas and a batch of each:
// (id uint64, title string, rating float64, released date32) with a row of values and one of NULLs, and
// (id timestamp[us], b bool, i int8, s large_binary, f float32) with one row.
const (
	seriesSchema = "/////xABAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAQAAACwAAAAcAAAADgAAAAEAAAAcP///wAAAQgQAAAAHAAAAAQAAAAAAAAACAAAAHJlbGVhc2VkAAAAANL///8AAAAAoP///wAAAQMQAAAAIAAAAAQAAAAAAAAABgAAAHJhdGluZwAAAAAGAAgABgAGAAAAAAACANT///8AAAEFEAAAABwAAAAEAAAAAAAAAAUAAAB0aXRsZQAAAAQABAAEAAAAEAAUAAgABgAHAAwAAAAQABAAAAAAAAECEAAAABwAAAAEAAAAAAAAAAIAAABpZAAAAAAGAAgABAAGAAAAQAAAAA=="
	seriesBatch  = "/////ygBAAAUAAAAAAAAAAwAFgAGAAUACAAMAAwAAAAAAwQAGAAAAFgAAAAAAAAAAAAKABgADAAEAAgACgAAAKwAAAAQAAAAAgAAAAAAAAAAAAAACQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAEAAAAAAAAAABAAAAAAAAABgAAAAAAAAADAAAAAAAAAAoAAAAAAAAAAEAAAAAAAAAMAAAAAAAAAABAAAAAAAAADgAAAAAAAAAEAAAAAAAAABIAAAAAAAAAAEAAAAAAAAAUAAAAAAAAAAIAAAAAAAAAAAAAAAEAAAAAgAAAAAAAAAAAAAAAAAAAAIAAAAAAAAAAQAAAAAAAAACAAAAAAAAAAEAAAAAAAAAAgAAAAAAAAABAAAAAAAAAAoAAAAAAAAACwAAAAAAAAABAAAAAAAAAAAAAAABAAAAAQAAAAAAAABhAAAAAAAAAAEAAAAAAAAAAAAAAAAA+D8AAAAAAAAAAAEAAAAAAAAAVkcAAAAAAAA="
	typesSchema  = "/////zABAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAUAAADMAAAAkAAAAFgAAAAwAAAABAAAAFj///8AAAEDEAAAABQAAAAEAAAAAAAAAAEAAABmAAAARv///wAAAQCA////AAABExAAAAAUAAAABAAAAAAAAAABAAAAcwAAAKj///+k////AAABAhAAAAAcAAAABAAAAAAAAAABAAAAaQAAAAgADAAIAAcACAAAAAAAAAEIAAAA2P///wAAAQYQAAAAGAAAAAQAAAAAAAAAAQAAAGIAAAAEAAQABAAAABAAFAAIAAYABwAMAAAAEAAQAAAAAAABChAAAAAcAAAABAAAAAAAAAACAAAAaWQAAAAABgAIAAYABgAAAAAAAgAAAAAA"
	typesBatch   = "/////1gBAAAUAAAAAAAAAAwAFgAGAAUACAAMAAwAAAAAAwQAGAAAADgAAAAAAAAAAAAKABgADAAEAAgACgAAAMwAAAAQAAAAAQAAAAAAAAAAAAAACwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAgAAAAAAAAACAAAAAAAAAAAAAAAAAAAAAgAAAAAAAAAAQAAAAAAAAAQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAABAAAAAAAAABgAAAAAAAAAAAAAAAAAAAAYAAAAAAAAABAAAAAAAAAAKAAAAAAAAAADAAAAAAAAADAAAAAAAAAAAAAAAAAAAAAwAAAAAAAAAAQAAAAAAAAAAAAAAAUAAAABAAAAAAAAAAAAAAAAAAAAAQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAQAAAAAAAAAAAAAAAAAAACBJxiMRmwUAAQAAAAAAAAD9AAAAAAAAAAAAAAAAAAAAAwAAAAAAAAB4eXoAAAAAAAAAIEAAAAAA"
)

func unbase64(t testing.TB, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBulkUpsertArrow(t *testing.T) {
	db, ctx := sampleDB(t, ""), context.Background()
	schema, batch := unbase64(t, seriesSchema), unbase64(t, seriesBatch)
	if err := db.BulkUpsertArrow(ctx, "/local/series", schema, batch, nil); err != nil {
		t.Fatal(err)
	}
	wantRun(t, db, "SELECT id, title, rating, released FROM series WHERE id >= 10",
		`id Uint64, title Optional<Utf8>, rating Optional<Double>, released Optional<Date>: (10, "a", 1.5, 2020-01-01) (11, NULL, NULL, NULL)`)
	mustRun(t, db, "CREATE TABLE types (id Timestamp, b Bool, i Int64, s String, f Double, PRIMARY KEY (id))")
	if err := db.BulkUpsertArrow(ctx, "/local/types", unbase64(t, typesSchema), unbase64(t, typesBatch), nil); err != nil {
		t.Fatal(err)
	}
	wantRun(t, db, "SELECT id, b, i, s, f FROM types",
		`id Optional<Timestamp>, b Optional<Bool>, i Optional<Int64>, s Optional<String>, f Optional<Double>: (2020-01-01T10:00:00.500000Z, true, -3, "xyz", 2.5)`)
	mustRun(t, db, "CREATE TABLE narrow (id Timestamp, b Bool, i Uint8, s String, f Double, PRIMARY KEY (id))")
	wantStatus(t, db.BulkUpsertArrow(ctx, "/local/narrow", unbase64(t, typesSchema), unbase64(t, typesBatch), nil), Ydb.StatusIds_BAD_REQUEST, "-3 is out of the range of Uint8")
	wantStatus(t, db.BulkUpsertArrow(ctx, "/local/episodes", schema, batch, nil), Ydb.StatusIds_SCHEME_ERROR, "Unknown or repeated column: id")
	mustRun(t, db, "CREATE TABLE other (id Uint64, title Int32, rating Double, released Date, PRIMARY KEY (id))")
	wantStatus(t, db.BulkUpsertArrow(ctx, "/local/other", schema, batch, nil), Ydb.StatusIds_SCHEME_ERROR, "Type mismatch")
	wantStatus(t, db.BulkUpsertArrow(ctx, "/local/series", batch, schema, nil), Ydb.StatusIds_BAD_REQUEST, "Arrow")
	// Whatever is cut off or changed, the answer is an error or other rows, and no panic.
	for i := range batch {
		_ = db.BulkUpsertArrow(ctx, "/local/series", schema, batch[:i], nil)
		for _, c := range []byte{0, 1, 0x7f, 0xff} {
			changed := append([]byte(nil), batch...)
			changed[i] = c
			_ = db.BulkUpsertArrow(ctx, "/local/series", schema, changed, nil)
		}
	}
	for i := range schema {
		_ = db.BulkUpsertArrow(ctx, "/local/series", schema[:i], batch, nil)
		for _, c := range []byte{0, 1, 0x7f, 0xff} {
			changed := append([]byte(nil), schema...)
			changed[i] = c
			_ = db.BulkUpsertArrow(ctx, "/local/series", changed, batch, nil)
		}
	}
}
