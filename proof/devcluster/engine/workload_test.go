package engine

import (
	"context"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// The statements of the stock workload: orders with lines, processed against a stock.
const (
	stockTables = `CREATE TABLE stock (product Utf8, quantity Int64, PRIMARY KEY (product)) WITH (AUTO_PARTITIONING_BY_LOAD = ENABLED, AUTO_PARTITIONING_MIN_PARTITIONS_COUNT = 40);
CREATE TABLE orders (id Uint64, customer Utf8, created Datetime, processed Datetime, PRIMARY KEY (id), INDEX ix_cust GLOBAL ON (customer, created) COVER (processed)) WITH (READ_REPLICAS_SETTINGS = "per_az:1");
CREATE TABLE orderLines (id_order Uint64, product Utf8, quantity Int64, PRIMARY KEY (id_order, product))`

	stockFill = `--!syntax_v1
DECLARE $stocks AS List<Struct<product: Utf8, quantity: Int64>>;
INSERT INTO stock (product, quantity) SELECT product, quantity FROM AS_TABLE($stocks);`

	addOrder = `--!syntax_v1
DECLARE $ido AS UInt64;
DECLARE $cust AS Utf8;
DECLARE $lines AS List<Struct<product: Utf8, quantity: Int64>>;
DECLARE $time AS DateTime;
INSERT INTO orders (id, customer, created) VALUES ($ido, $cust, $time);
UPSERT INTO orderLines (id_order, product, quantity) SELECT $ido, product, quantity FROM AS_TABLE($lines);`

	processOrder = `--!syntax_v1
DECLARE $ido AS UINT64;
DECLARE $time AS DateTime;
$prods = SELECT * FROM orderLines AS p WHERE p.id_order = $ido;
$cnt = SELECT COUNT(*) FROM $prods;
$newq = SELECT p.product AS product, COALESCE(s.quantity, 0) - p.quantity AS quantity
	FROM $prods AS p LEFT JOIN stock AS s ON s.product = p.product;
$check = SELECT COUNT(*) AS cntd FROM $newq AS q WHERE q.quantity >= 0;
UPSERT INTO stock SELECT product, quantity FROM $newq WHERE $check = $cnt;
$upo = SELECT id, $time AS tm FROM orders WHERE id = $ido AND $check = $cnt;
UPSERT INTO orders SELECT id, tm AS processed FROM $upo;
SELECT * FROM $newq AS q WHERE q.quantity < 0;`

	history = `--!syntax_v1
DECLARE $cust AS Utf8;
DECLARE $limit AS UInt32;
SELECT id, customer, created FROM orders VIEW ix_cust WHERE customer = $cust ORDER BY customer DESC, created DESC LIMIT $limit;`
)

// declared executes as the table service does: what is not DECLAREd is unknown.
func declared(t *testing.T, db *DB, text string, p ...string) string {
	t.Helper()
	out, err := run(db, Request{Text: text, Params: params(t, p...)})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

func TestStockWorkload(t *testing.T) {
	db := openDB(t, "")
	mustRun(t, db, stockTables)
	declared(t, db, stockFill,
		"$stocks = [<|product: 'p1'u, quantity: 10l|>, <|product: 'p2'u, quantity: 10l|>, <|product: 'p3'u, quantity: 10l|>]")
	add := func(id, cust, lines, at string) {
		t.Helper()
		declared(t, db, addOrder, "$ido = "+id, "$cust = '"+cust+"'u", "$lines = "+lines, "$time = Datetime('2026-01-01T00:00:"+at+"Z')")
	}
	add("1ul", "Name1", "[<|product: 'p1'u, quantity: 4l|>, <|product: 'p2'u, quantity: 1l|>]", "01")
	add("2ul", "Name1", "[<|product: 'p1'u, quantity: 7l|>, <|product: 'p3'u, quantity: 1l|>]", "02")
	add("3ul", "Name2", "[<|product: 'p3'u, quantity: 2l|>]", "03")
	_, err := run(
		db,
		Request{Text: addOrder,
			Params: params(t, "$ido = 1ul", "$cust = 'x'u",
				"$lines = CAST([] AS List<Struct<product:Utf8,quantity:Int64>>)",
				"$time = Datetime('2026-01-01T00:00:00Z')")},
	)
	wantStatus(t, err, Ydb.StatusIds_PRECONDITION_FAILED, "Conflict with existing key.")

	const none = "product Optional<Utf8>, quantity Optional<Int64>:"
	process := func(id string) string {
		return declared(t, db, processOrder, "$ido = "+id, "$time = Datetime('2026-01-02T00:00:00Z')")
	}
	if got := process("1ul"); got != none {
		t.Errorf("the first order: %s", got)
	}
	if got := process("2ul"); got != none+` ("p1", -1)` {
		t.Errorf("an order beyond the stock: %s", got)
	}
	want := `product Optional<Utf8>, quantity Optional<Int64>: ("p1", 6) ("p2", 9) ("p3", 10) | id Optional<Uint64>, processed Optional<Datetime>: (1, 2026-01-02T00:00:00Z) (2, NULL) (3, NULL)`
	if got := mustRun(t, db, "SELECT * FROM stock; SELECT id, processed FROM orders"); got != want {
		t.Errorf("books: %s", got)
	}
	want = `id Optional<Uint64>, customer Optional<Utf8>, created Optional<Datetime>: (2, "Name1", 2026-01-01T00:00:02Z) (1, "Name1", 2026-01-01T00:00:01Z)`
	if got := declared(t, db, history, "$cust = 'Name1'u", "$limit = 10u"); got != want {
		t.Errorf("history: %s", got)
	}
	if got := declared(
		t, db, history, "$cust = 'Name1'u", "$limit = 1u",
	); got != want[:len(want)-len(` (1, "Name1", 2026-01-01T00:00:01Z)`)] {
		t.Errorf("history of one: %s", got)
	}
}

// Orders of different products do not disturb each other; orders of one product do.
func TestStockOrdersConflictByProduct(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *DB) {
		mustRun(t, a, stockTables)
		declared(t, a, stockFill, "$stocks = [<|product: 'p1'u, quantity: 10l|>, <|product: 'p2'u, quantity: 10l|>]")
		for id, product := range map[string]string{"1ul": "p1", "2ul": "p2", "3ul": "p1"} {
			declared(t, a, addOrder, "$ido = "+id, "$cust = 'n'u",
				"$lines = [<|product: '"+product+"'u, quantity: 1l|>]", "$time = Datetime('2026-01-01T00:00:00Z')")
		}
		open := func(db *DB, id string) *Tx {
			tx := begin(t, db, Serializable)
			in(t, tx, processOrder, "$ido = "+id, "$time = Datetime('2026-01-02T00:00:00Z')")
			return tx
		}
		first, second, third := open(a, "1ul"), open(b, "2ul"), open(b, "3ul")
		commit(t, first)
		commit(t, second)
		wantStatus(t, third.Commit(context.Background()), Ydb.StatusIds_ABORTED, "/local/stock")
		if got := mustRun(t, b, "SELECT quantity FROM stock"); got != "quantity Optional<Int64>: (9) (9)" {
			t.Error(got)
		}
	})
}

func TestOtherWorkloads(t *testing.T) {
	db := openDB(t, "")
	mustRun(t, db,
		`CREATE TABLE kv_test (c0 Uint64, c1 String, PRIMARY KEY (c0)) WITH (AUTO_PARTITIONING_PARTITION_SIZE_MB = 2000, AUTO_PARTITIONING_MIN_PARTITIONS_COUNT = 40);
CREATE TABLE app_record (uuid Utf8, payload String, PRIMARY KEY (uuid));
CREATE TABLE slo (hash Uint64, id Uint64, payload_str Text, payload_double Double, payload_timestamp Timestamp, payload_hash Uint64, PRIMARY KEY (hash, id)) WITH (UNIFORM_PARTITIONS = 6)`)
	for _, verb := range []string{"UPSERT", "INSERT"} {
		declared(t, db,
			"DECLARE $c0_0 AS Uint64; DECLARE $c0_1 AS String; DECLARE $c1_0 AS Uint64; DECLARE $c1_1 AS String; "+verb+
				" INTO `kv_test` (c0, c1) VALUES ($c0_0, $c0_1), ($c1_0, $c1_1)",
			"$c0_0 = "+map[string]string{"UPSERT": "1ul", "INSERT": "3ul"}[verb], "$c0_1 = 'a'",
			"$c1_0 = "+map[string]string{"UPSERT": "2ul", "INSERT": "4ul"}[verb], "$c1_1 = 'b'")
	}
	tx := begin(t, db, Serializable)
	var out []string
	st, err := tx.Execute(context.Background(), Request{Database: "/local", Params: params(t, "$r0_0 = 4ul", "$r1_0 = 1ul"),
		Text: "DECLARE $r0_0 AS Uint64; DECLARE $r1_0 AS Uint64; SELECT c0, c1 FROM `kv_test` WHERE c0 = $r0_0 OR c0 = $r1_0"}, gather(
		&out,
	))
	if err != nil || out[0] != `c0 Optional<Uint64>, c1 Optional<String>: (1, "a") (4, "b")` || st.Tables[0].Reads != 2 {
		t.Errorf("kv select: %v, %+v, %v", out, st.Tables, err)
	}
	if err := db.BulkUpsert(context.Background(), "/local/app_record",
		typed(t, "[<|uuid: 'u1'u, payload: 'p1'|>, <|uuid: 'u2'u, payload: 'p2'|>]"), nil); err != nil {
		t.Error(err)
	}
	if got := declared(t, db, "DECLARE $id AS Text; SELECT uuid, payload FROM app_record WHERE uuid = $id",
		"$id = 'u2'u"); got != `uuid Optional<Utf8>, payload Optional<String>: ("u2", "p2")` {
		t.Errorf("app_record: %s", got)
	}
	declared(t, db,
		`DECLARE $id AS Uint64; DECLARE $payload_str AS Utf8; DECLARE $payload_double AS Double; DECLARE $payload_timestamp AS Timestamp;
UPSERT INTO `+"`slo`"+
			` (id, hash, payload_str, payload_double, payload_timestamp) VALUES ($id, Digest::NumericHash($id), $payload_str, $payload_double, $payload_timestamp)`,
		"$id = 7ul", "$payload_str = 'x'u", "$payload_double = 0.5", "$payload_timestamp = Timestamp('2026-01-01T00:00:00Z')")
	if got := declared(t, db,
		"DECLARE $id AS Uint64; SELECT id, payload_str, payload_double FROM slo WHERE id = $id AND hash = Digest::NumericHash($id)",
		"$id = 7ul"); got != `id Optional<Uint64>, payload_str Optional<Utf8>, payload_double Optional<Double>: (7, "x", 0.5)` {
		t.Errorf("slo: %s", got)
	}
}
