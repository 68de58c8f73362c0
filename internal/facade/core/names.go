package core

// The names of calls of other services than Sidecar: they begin with their service. A call of Sidecar is named as its method.
const (
	CallKVGet      = "KeyValue/Get"
	CallKVPut      = "KeyValue/Put"
	CallKVDelete   = "KeyValue/Delete"
	CallKVBatchGet = "KeyValue/BatchGet"
	CallIngest     = "Ingest/Ingest"
)

// The types of values and of bodies.
const (
	MediaJSON   = "application/json"
	MediaOctets = "application/octet-stream"
)
