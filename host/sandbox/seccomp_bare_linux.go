package sandbox

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// What a namespace keeps out of reach has to be refused by the filter where there is none.

// ipcCalls reach System V IPC and message queues by numbers and names that are not those
// of files.
func ipcCalls() []uint32 {
	return []uint32{
		unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL,
		unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
	}
}

// attributeCalls change attributes of files that Landlock does not know. Programs take the
// answer as a file system without them.
func attributeCalls() []uint32 {
	return []uint32{
		unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_SETXATTRAT,
		unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR,
	}
}

// The requests of ioctl that change a file which is open for reading only; x/sys has two.
const (
	fsIocSetVersion   = 0x40087602
	fsIocFSSetXattr   = 0x401c5820
	fsIocEnableVerity = 0x40806685
)

// bareRules are those for a command that could name every file of the machine.
func bareRules() (p []bpf.Instruction) {
	for _, request := range []uint32{unix.FS_IOC_SETFLAGS, unix.FS_IOC_SET_ENCRYPTION_POLICY, fsIocSetVersion, fsIocFSSetXattr, fsIocEnableVerity} {
		p = append(p, deniedIf(unix.SYS_IOCTL, argTest{arg: 1, cond: bpf.JumpEqual, val: request})...)
	}
	return p
}

// socketRules keep a command from the network, or let it have the usual kinds of it. A
// socket that can be sent to a path reaches every such file, which Landlock learns with
// Linux 7.1 only: without a mount namespace a command has pairs alone, and of those that
// stay connected to each other.
func (w *walls) socketRules() (p []bpf.Instruction) {
	family := argTest{cond: bpf.JumpNotEqual, val: unix.AF_UNIX}
	tests := []argTest{family}
	if w.network != NetworkNone {
		for _, other := range []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} {
			tests = append(tests, argTest{cond: bpf.JumpNotEqual, val: other})
		}
	}
	p = append(deniedIf(unix.SYS_SOCKET, tests...), deniedIf(unix.SYS_SOCKETPAIR, family)...)
	if !w.bare {
		return p
	}
	p = append(p, deniedIf(unix.SYS_SOCKET, argTest{cond: bpf.JumpEqual, val: unix.AF_UNIX})...)
	const kinds = 0xf // of the type; above are flags
	return append(p, deniedIf(unix.SYS_SOCKETPAIR,
		argTest{arg: 1, mask: kinds, cond: bpf.JumpNotEqual, val: unix.SOCK_STREAM},
		argTest{arg: 1, mask: kinds, cond: bpf.JumpNotEqual, val: unix.SOCK_SEQPACKET})...)
}

// The ways to have signals sent that only name whom by a structure in memory, and the one
// that names it. x/sys has none of them.
const (
	fSetOwn    = 8
	fSetOwnEx  = 15
	fioSetOwn  = 0x8901
	siocSetPgr = 0x8902
)

// signalRules keep a command from the threads of its launcher, from self to last, where no
// PID namespace does: it is under the same Landlock rules as they. As all processes are
// called -1, that is refused as well.
func signalRules(self, last uint32) (p []bpf.Instruction) {
	equal := func(arg, val uint32) argTest { return argTest{arg: arg, cond: bpf.JumpEqual, val: val} }
	for _, call := range []uint32{unix.SYS_KILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_TGKILL, unix.SYS_RT_TGSIGQUEUEINFO} {
		p = append(p, deniedIf(call, equal(0, self))...)
	}
	for _, to := range []uint32{-self, ^uint32(0)} {
		p = append(p, deniedIf(unix.SYS_KILL, equal(0, to))...)
	}
	p = append(p, deniedIf(unix.SYS_TKILL,
		argTest{cond: bpf.JumpGreaterOrEqual, val: self}, argTest{cond: bpf.JumpLessOrEqual, val: last})...)
	for _, to := range []uint32{self, -self} {
		p = append(p, deniedIf(unix.SYS_FCNTL, equal(1, fSetOwn), equal(2, to))...)
	}
	p = append(p, deniedIf(unix.SYS_FCNTL, equal(1, fSetOwnEx))...)
	for _, request := range []uint32{fioSetOwn, siocSetPgr} {
		p = append(p, deniedIf(unix.SYS_IOCTL, equal(1, request))...)
	}
	return p
}
