package sandbox

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// archDeniedCalls returns the denied calls that only this architecture has.
func archDeniedCalls() []uint32 {
	return []uint32{
		unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS__SYSCTL,
		unix.SYS_KEXEC_FILE_LOAD,
	}
}

// archSetIDRules are setIDRules for calls that only this architecture has.
func archSetIDRules(bits, making func(arg uint32) argTest) [][]bpf.Instruction {
	return [][]bpf.Instruction{
		deniedIf(unix.SYS_CHMOD, bits(1)),
		deniedIf(unix.SYS_CREAT, bits(1)),
		deniedIf(unix.SYS_MKNOD, bits(1)),
		deniedIf(unix.SYS_OPEN, making(1), bits(2)),
	}
}

// archChangingCalls returns the old calls that correspond to changingCalls.
func archChangingCalls() []uint32 {
	return []uint32{
		unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES,
		unix.SYS_FUTIMESAT,
	}
}

// archModernCall replaces an old call by the call that every architecture has, and returns how the
// times of the old call lie in memory.
func archModernCall(q *notice) clock {
	here := int64(unix.AT_FDCWD)
	a := q.args
	switch q.call {
	case unix.SYS_CHMOD:
		q.call, q.args = unix.SYS_FCHMODAT, [6]uint64{uint64(here), a[0], a[1]}
	case unix.SYS_CHOWN:
		q.call, q.args = unix.SYS_FCHOWNAT, [6]uint64{uint64(here), a[0], a[1], a[2]}
	case unix.SYS_LCHOWN:
		q.call, q.args = unix.SYS_FCHOWNAT, [6]uint64{uint64(here), a[0], a[1], a[2], unix.AT_SYMLINK_NOFOLLOW}
	case unix.SYS_UTIME:
		q.call, q.args = unix.SYS_UTIMENSAT, [6]uint64{uint64(here), a[0], a[1]}
		return clock{}
	case unix.SYS_UTIMES:
		q.call, q.args = unix.SYS_UTIMENSAT, [6]uint64{uint64(here), a[0], a[1]}
		return clock{1000}
	case unix.SYS_FUTIMESAT:
		q.call, q.args = unix.SYS_UTIMENSAT, [6]uint64{a[0], a[1], a[2]}
		return clock{1000}
	}
	return clock{1}
}
