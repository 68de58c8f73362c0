//go:build !linux

package driver

import "time"

// poller is for Linux; here each connection has a goroutine that reads.
type poller struct{}

func (*Shard) join(*link) bool           { return false }
func (*poller) watch(*link) bool         { return false }
func (*poller) leave(*link)              {}
func (*poller) forget(*link)             {}
func (*poller) closeAt(*link, time.Time) {}
func (*poller) look(time.Time)           {}
