package core

import (
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// apiVersion is the version of the plain API.
const apiVersion = "v1"

// Feature is something of the plain API that not every sidecar of the same version of the API has.
type Feature struct {
	Name    string // never another one, and never for something else
	Meaning string // as docs/reference/compatibility.md has it
}

// features lists them in the order in which they came. A later sidecar has all of them.
var features = []Feature{
	{"kv", "the key-value calls ([kv.md](kv.md)); which tables are open is up to `kv.tables`"},
	{"ingest", "streams of rows ([ingest.md](ingest.md))"},
	{"column_types", "integers without a type take that of the column that they are compared with or written to ([types.md](types.md))"},
	{"consumed_units", "`info.consumed_units`, the request units that a call cost"},
	{"rows_affected", "`rows_affected`, how many rows a statement wrote or deleted"},
	{"expect", "`expect` of the statements of a list: the number of rows that each must return"},
	{"lists_in_tx", "lists of statements inside an open transaction (`tx` of `POST /v1/tx`)"},
	{"operator_hint", "`operator_hint` of errors"},
	{"moving_streams", "a stream without a timeout lasts as long as it moves"},
}

// Features lists what a caller may ask for by name.
func Features() []Feature { return features }

// Version says what this sidecar serves.
func (s *Service) Version() *sidecarv1.VersionResponse {
	out := &sidecarv1.VersionResponse{Api: apiVersion}
	if s.Deps.Status != nil {
		out.Version = s.Deps.Status().GetVersion()
	}
	for _, f := range features {
		out.Features = append(out.Features, f.Name)
	}
	return out
}
