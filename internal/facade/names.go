package facade

// The names of calls of other services than Sidecar: they begin with their service. A call of Sidecar is named as its method.
const (
	callKVGet      = "KeyValue/Get"
	callKVPut      = "KeyValue/Put"
	callKVDelete   = "KeyValue/Delete"
	callKVBatchGet = "KeyValue/BatchGet"
	callIngest     = "Ingest/Ingest"
)
