package pool

import (
	"fmt"
	"strings"
)

// Class is the priority of a caller in the line.
type Class uint8

// The classes, from first served to last.
const (
	System Class = iota
	Interactive
	Normal
	Batch

	// ClassSize is the number of classes, for arrays indexed by Class.
	ClassSize = int(Batch) + 1
)

var classNames = [ClassSize]string{"system", "interactive", "normal", "batch"}

// String returns the name that ParseClass reads.
func (c Class) String() string { return classNames[c.index()] }

// index makes a class safe to index with; an unknown one counts as Batch.
func (c Class) index() int { return min(int(c), ClassSize-1) }

// ParseClass reads the name of a class, in any case; "" is Normal.
func ParseClass(name string) (Class, error) {
	if name == "" {
		return Normal, nil
	}
	for i, n := range classNames {
		if strings.EqualFold(n, name) {
			return Class(i), nil
		}
	}
	return Normal, fmt.Errorf("priority %.40q; must be one of %s", name, strings.Join(classNames[:], ", "))
}
