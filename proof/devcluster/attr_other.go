//go:build unix && !linux

package devcluster

import "syscall"

// childAttributes keep Ctrl-C, which is for the supervisor, from a node.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
