package devcluster

import "syscall"

// childAttributes keep Ctrl-C, which is for the supervisor, from a node. When the
// supervisor dies, a node that is paused goes on, sees the end of its standard
// input, and ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGCONT}
}
