package pool

import "github.com/ydb-sidecar/sidecar/internal/pool/queue"

// Class is the priority of a caller in the queue.
type Class = queue.Class

// The classes. The zero value is that of a caller that names none.
const (
	Normal      = queue.Normal
	System      = queue.System
	Interactive = queue.Interactive
	Batch       = queue.Batch

	// ClassSize is the number of classes, for arrays indexed by Class.
	ClassSize = queue.ClassSize
)

// ParseClass reads the name of a class, in any case; "" is Normal.
func ParseClass(name string) (Class, error) { return queue.ParseClass(name) }
