// Package queue is the bounded queue of callers that wait for a session. It knows nothing of sessions: the
// pool takes waiters out and hands something over to them. It takes no lock: what guards the pool guards it.
package queue

import (
	"fmt"
	"strings"
)

// Class is the priority of a caller in the queue.
type Class uint8

// The classes. The zero value is that of a caller that names none; order says who is served first.
const (
	Normal Class = iota
	System
	Interactive
	Batch

	// ClassSize is the number of classes, for arrays indexed by Class.
	ClassSize = int(Batch) + 1
)

var (
	// order has the classes from the first served to the last, rank where each is in it.
	order = [ClassSize]Class{System, Interactive, Normal, Batch}
	rank  = [ClassSize]int{System: 0, Interactive: 1, Normal: 2, Batch: 3}

	classNames = [ClassSize]string{System: "system", Interactive: "interactive", Normal: "normal", Batch: "batch"}
)

// String returns the name that ParseClass reads.
func (c Class) String() string { return classNames[c.index()] }

// index makes a class safe to index with; an unknown one counts as Batch.
func (c Class) index() int { return min(int(c), ClassSize-1) }

// ParseClass reads the name of a class, in any case; "" is Normal.
func ParseClass(name string) (Class, error) {
	if name == "" {
		return Normal, nil
	}
	var names []string
	for _, c := range order {
		if strings.EqualFold(c.String(), name) {
			return c, nil
		}
		names = append(names, c.String())
	}
	return Normal, fmt.Errorf("priority %.40q; must be one of %s", name, strings.Join(names, ", "))
}
