package proc

import "syscall"

// signals are those that an agent may send. Windows knows no other way to end a
// process than to kill it, so each of those that ask for an end does.
func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"SIGTERM": syscall.SIGKILL, "SIGKILL": syscall.SIGKILL, "SIGINT": syscall.SIGKILL, "SIGHUP": syscall.SIGKILL, "SIGQUIT": syscall.SIGKILL,
	}
}
