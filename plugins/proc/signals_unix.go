//go:build !windows

package proc

import "syscall"

// signals are those that an agent may send.
func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL, "SIGINT": syscall.SIGINT, "SIGHUP": syscall.SIGHUP,
		"SIGQUIT": syscall.SIGQUIT, "SIGUSR1": syscall.SIGUSR1, "SIGUSR2": syscall.SIGUSR2,
	}
}
