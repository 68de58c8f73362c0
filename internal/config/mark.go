package config

import (
	"os"
	"time"
)

// FileMark tells whether a file has changed: marks of one path that are equal say that
// it has not. It is taken before the file is read, so that a later change shows. The zero
// mark is that of no file.
type FileMark struct {
	changed time.Time
	size    int64
	fault   string // it cannot be looked at
}

// MarkOf is the mark of what a path leads to now, links followed; "" is no file.
func MarkOf(path string) FileMark {
	if path == "" {
		return FileMark{}
	}
	info, err := os.Stat(path)
	if err != nil {
		return FileMark{fault: err.Error()}
	}
	return FileMark{changed: info.ModTime(), size: info.Size()}
}

// Empty reports whether the file is there with nothing in it.
func (m FileMark) Empty() bool { return m != FileMark{} && m.fault == "" && m.size == 0 }
