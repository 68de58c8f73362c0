package engine

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// reportCPU adds the processor time of an operation, which other work on the machine does
// not change much.
func reportCPU(b *testing.B) {
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.Cleanup(func() {
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		ns := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		b.ReportMetric(float64(ns)/float64(b.N), "cpu-ns/op")
	})
}

func nothing(int, *Ydb.ResultSet) error { return nil }

// oneShot executes and commits, as a call with begin and commit does.
func oneShot(b *testing.B, db *DB, req Request) {
	ctx := context.Background()
	tx, err := db.Begin(ctx, Serializable)
	if err == nil {
		_, err = tx.Execute(ctx, req, nothing)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkSelectOne(b *testing.B) {
	db := openDB(b, "")
	b.ReportAllocs()
	reportCPU(b)
	for b.Loop() {
		oneShot(b, db, Request{Text: "SELECT 1", Database: "/local", Inferred: true})
	}
}

func benchKV(b *testing.B, path string) *DB {
	db := openDB(b, path)
	mustRun(b, db, "CREATE TABLE kv (k Uint64 NOT NULL, v String, PRIMARY KEY (k))")
	for i := range 1000 {
		mustRun(b, db, fmt.Sprintf("UPSERT INTO kv (k, v) VALUES (%d, '%s')", i, strings.Repeat("x", 100)))
	}
	return db
}

func BenchmarkPointRead(b *testing.B) {
	for _, path := range []string{"", b.TempDir() + "/data"} {
		b.Run(map[bool]string{true: "memory", false: "file"}[path == ""], func(b *testing.B) {
			db := benchKV(b, path)
			p := params(b, "$k = 5ul")
			b.ReportAllocs()
			reportCPU(b)
			for i := uint64(0); b.Loop(); i++ {
				p["$k"].Value = &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: i % 1000}}
				oneShot(b, db, Request{Text: "DECLARE $k AS Uint64; SELECT v FROM kv WHERE k = $k", Database: "/local", Params: p})
			}
		})
	}
}

func BenchmarkUpsert(b *testing.B) {
	for _, path := range []string{"", b.TempDir() + "/data"} {
		b.Run(map[bool]string{true: "memory", false: "file"}[path == ""], func(b *testing.B) {
			db := benchKV(b, path)
			p := params(b, "$k = 5ul", "$v = '"+strings.Repeat("y", 100)+"'")
			b.ReportAllocs()
			reportCPU(b)
			for i := uint64(0); b.Loop(); i++ {
				p["$k"].Value = &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: i % 1000}}
				oneShot(b, db,
					Request{Text: "DECLARE $k AS Uint64; DECLARE $v AS String; UPSERT INTO kv (k, v) VALUES ($k, $v)",
						Database: "/local", Params: p})
			}
		})
	}
}

func BenchmarkScan1000(b *testing.B) {
	db := benchKV(b, "")
	b.ReportAllocs()
	reportCPU(b)
	for b.Loop() {
		oneShot(b, db, Request{Text: "SELECT * FROM kv", Database: "/local"})
	}
}

func BenchmarkCompile(b *testing.B) {
	db := sampleDB(b, "")
	b.ReportAllocs()
	reportCPU(b)
	for i := 0; b.Loop(); i++ {
		oneShot(b, db,
			Request{
				Text: fmt.Sprintf(
					"SELECT s.id, e.title AS n, %d FROM series AS s LEFT JOIN episodes AS e ON e.series = s.id WHERE s.id = 1",
					i,
				),
				Database: "/local",
			})
	}
}
