package app

import "github.com/ydb-sidecar/sidecar/internal/snapshot"

// stage is how far the process is in its life.
type stage = snapshot.Stage

// The stages: see package snapshot.
const (
	starting  = snapshot.Starting
	serving   = snapshot.Serving
	lameDuck  = snapshot.LameDuck
	leaving   = snapshot.Leaving
	draining  = snapshot.Draining
	lettingGo = snapshot.LettingGo
	deleting  = snapshot.Deleting
)
