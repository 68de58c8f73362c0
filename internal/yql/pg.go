package yql

import (
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// pgTypes are PostgreSQL's built-in types by name: the object ID of the type
// and of arrays of it. The server finds a parameter's type by the ID.
var pgTypes = map[string][2]uint32{
	"bool": {16, 1000}, "bytea": {17, 1001}, "char": {18, 1002}, "name": {19, 1003},
	"int8": {20, 1016}, "int2": {21, 1005}, "int4": {23, 1007}, "text": {25, 1009},
	"oid": {26, 1028}, "json": {114, 199}, "xml": {142, 143}, "point": {600, 1017},
	"lseg": {601, 1018}, "path": {602, 1019}, "box": {603, 1020}, "polygon": {604, 1027},
	"line": {628, 629}, "cidr": {650, 651}, "float4": {700, 1021}, "float8": {701, 1022},
	"unknown": {705, 0}, "circle": {718, 719}, "macaddr8": {774, 775}, "money": {790, 791},
	"macaddr": {829, 1040}, "inet": {869, 1041}, "bpchar": {1042, 1014}, "varchar": {1043, 1015},
	"date": {1082, 1182}, "time": {1083, 1183}, "timestamp": {1114, 1115},
	"timestamptz": {1184, 1185}, "interval": {1186, 1187}, "timetz": {1266, 1270},
	"bit": {1560, 1561}, "varbit": {1562, 1563}, "numeric": {1700, 1231},
	"uuid": {2950, 2951}, "jsonb": {3802, 3807}, "jsonpath": {4072, 4073},
}

// pgNames has the written names of pgTypes by object ID.
var pgNames = func() map[uint32]string {
	names := make(map[uint32]string, 2*len(pgTypes))
	for name, ids := range pgTypes {
		names[ids[0]] = "pg" + name
		if ids[1] != 0 {
			names[ids[1]] = "_pg" + name
		}
	}
	return names
}()

// pgType finds a PostgreSQL type: pgint4, and _pgint4 for arrays. The name is
// in lower case.
func pgType(name string) (*Ydb.Type, bool) {
	bare, array := strings.CutPrefix(name, "_")
	bare, isPg := strings.CutPrefix(bare, "pg")
	ids, ok := pgTypes[bare]
	oid := ids[0]
	if array {
		oid = ids[1]
	}
	if !isPg || !ok || oid == 0 {
		return nil, false
	}
	return pgByID(oid), true
}

func pgByID(oid uint32) *Ydb.Type {
	return &Ydb.Type{Type: &Ydb.Type_PgType{PgType: &Ydb.PgType{Oid: oid, TypeName: pgNames[oid]}}}
}

// pgID returns the object ID of a type that the server may have sent by name
// only; 0 if nobody knows it.
func pgID(t *Ydb.PgType) uint32 {
	if t.GetOid() != 0 {
		return t.GetOid()
	}
	if known, ok := pgType(strings.ToLower(t.GetTypeName())); ok {
		return known.GetPgType().GetOid()
	}
	return 0
}

// appendPg writes a built-in type by its name and any other as Pg(object ID).
func appendPg(dst []byte, t *Ydb.PgType) []byte {
	oid := pgID(t)
	if name, ok := pgNames[oid]; ok {
		return append(dst, name...)
	}
	if oid == 0 {
		return append(dst, t.GetTypeName()...)
	}
	dst = append(dst, "Pg("...)
	dst = strconv.AppendUint(dst, uint64(oid), 10)
	return append(dst, ')')
}

func equalPg(a, b *Ydb.PgType) bool {
	if id := pgID(a); id != 0 {
		return id == pgID(b)
	}
	return pgID(b) == 0 && a.GetTypeName() == b.GetTypeName()
}
