package sandbox

import "golang.org/x/sys/unix"

// archDeniedCalls are those that only this machine has.
func archDeniedCalls() []uint32 {
	return []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS__SYSCTL, unix.SYS_KEXEC_FILE_LOAD}
}
