package contract

// TurnTables is the setting that opens to the key-value API the tables of TurnSQL,
// one of them read-only under a second name, and one that there is not.
const TurnTables = "kv.tables=rows=kv key=id:Int64 value=body:Utf8,seen=kv key=id:Int64 value=body:Utf8 read_only," +
	"versions=versions key=id:Int64 value=body:Utf8 version=v:Uint64,none=none key=id:Int64 value=body:Utf8"

// TurnSQL creates these tables, and their rows.
var TurnSQL = []string{
	"CREATE TABLE kv (id Int64, body Utf8, PRIMARY KEY (id))",
	"CREATE TABLE versions (id Int64, body Utf8, v Uint64, PRIMARY KEY (id))",
	"UPSERT INTO kv (id, body) VALUES (1, 'one'), (2, NULL)",
	"UPSERT INTO versions (id, body, v) VALUES (1, 'one', 5)",
}
