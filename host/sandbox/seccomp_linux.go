package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets into struct seccomp_data, for the machines in auditArch, which are little-endian.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16 // the low half of the first argument; each has 8 bytes
	argSize      = 8
	halfSize     = 4
)

// newestCall is the last system call in the list from which this filter was made, that of Linux 7.0.
// Later calls were not reviewed.
const newestCall = unix.SYS_RSEQ_SLICE_YIELD

// seccompFilter describes what the seccomp filter of one command must enforce.
type seccompFilter struct {
	network  Network
	launcher uint32 // its threads have numbers up to this one
	among    bool   // its numbers begin with its own pid, as other processes have numbers, too; else with 1
	bare     bool   // there is no mount namespace: the command can name all files of the machine
	ownIPC   bool   // there is an IPC namespace

	asked []uint32        // the calls that are passed to the warden
	ask   bpf.Instruction // passes a call to the warden, or refuses it if that is not possible
}

// namespaceFlags are the clone flags that create a namespace.
const namespaceFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// auditArch returns seccomp's number of this machine's architecture; 0 = unknown.
func auditArch() uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64
	case "riscv64":
		return unix.AUDIT_ARCH_RISCV64
	}
	return 0
}

// deniedCalls returns calls that change the machine, look into other processes, or reach parts of the
// kernel that no ordinary program needs. They fail with EPERM.
func deniedCalls() []uint32 {
	return append(archDeniedCalls(),
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP,
		unix.SYS_PIDFD_GETFD,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
		unix.SYS_OPEN_TREE_ATTR,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
		unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT, unix.SYS_LISTNS,
		unix.SYS_UNSHARE, unix.SYS_SETNS,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_FANOTIFY_INIT, unix.SYS_LOOKUP_DCOOKIE,
		unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD,
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
		unix.SYS_NFSSERVCTL,
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG,
		unix.SYS_VHANGUP,
		unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES,
		unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY,
	)
}

// absentCalls returns calls that fail with ENOSYS. Programs then assume an older kernel and use calls
// that the filter can check, and memory that the launcher can see.
func absentCalls() []uint32 {
	return []uint32{
		unix.SYS_MEMFD_SECRET, unix.SYS_CLONE3, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER,
		unix.SYS_IO_URING_REGISTER, unix.SYS_OPENAT2,
	}
}

// argTest is a test of one argument of a call. Half 1 is the upper half of its 64 bits. For process
// numbers and flags that half is 0 or the kernel ignores it; pointers need tests of both halves.
type argTest struct {
	arg, half uint32
	mask      uint32 // the bits that are tested; 0 = all
	cond      bpf.JumpTest
	val       uint32
}

// deniedIf refuses a call if its arguments pass all tests. Other calls go on to the next rule, so that
// several rules for one call can be combined.
func deniedIf(call uint32, tests ...argTest) []bpf.Instruction {
	var asked []bpf.Instruction
	for i := len(tests) - 1; i >= 0; i-- { // from the last one on, because each test skips all that follow
		t := tests[i]
		one := []bpf.Instruction{bpf.LoadAbsolute{Off: offsetArgs + t.arg*argSize + t.half*halfSize, Size: 4}}
		if t.mask != 0 {
			one = append(one, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask})
		}
		asked = append(append(one, bpf.JumpIf{Cond: t.cond, Val: t.val, SkipFalse: uint8(len(asked) + 1)}), asked...)
	}
	return append(append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: uint8(len(asked) + 1)},
	}, asked...), denial())
}

func denial() bpf.Instruction { return refusal(unix.EPERM) }

func refusal(errno unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

// argumentRules refuse calls because of their arguments.
func (w *seccompFilter) argumentRules() (p []bpf.Instruction) {
	for _, rule := range [][]bpf.Instruction{
		deniedIf(unix.SYS_CLONE, argTest{cond: bpf.JumpBitsSet, val: namespaceFlags}),
		deniedIf(unix.SYS_IOCTL, argTest{arg: 1, cond: bpf.JumpEqual, val: unix.TIOCSTI}),
		deniedIf(unix.SYS_IOCTL, argTest{arg: 1, cond: bpf.JumpEqual, val: tiocLinux}),
		limitRules(),
		w.schedulingRules(),
		w.socketRules(),
		setIDRules(),
	} {
		p = append(p, rule...)
	}
	if w.bare {
		p = append(p, bareRules()...)
	}
	if w.among {
		p = append(p, signalRules(uint32(os.Getpid()), w.launcher)...)
	}
	return p
}

// limitRules allow a process to set its own limits, as process 0, and to read the limits of any
// process. The command has the same user as the launcher, so without these rules it could take away
// the launcher's descriptors and thus blind it.
func limitRules() []bpf.Instruction {
	other := argTest{cond: bpf.JumpNotEqual, val: 0}
	return append(
		deniedIf(unix.SYS_PRLIMIT64, other, argTest{arg: 2, cond: bpf.JumpNotEqual, val: 0}),
		deniedIf(unix.SYS_PRLIMIT64, other, argTest{arg: 2, half: 1, cond: bpf.JumpNotEqual, val: 0})...)
}

// The values by which setpriority and ioprio_set mean all processes of a user.
const (
	prioUser   = 2
	ioprioUser = 3
)

// schedulingRules keep a command from slowing down its launcher, whose threads have numbers up to a limit. All other
// threads may be named, because C libraries name the threads of a process by their numbers. If other processes of the
// machine have numbers in the same range, a thread may change only itself, as 0.
func (w *seccompFilter) schedulingRules() (p []bpf.Instruction) {
	named := func(arg uint32) []argTest {
		tests := []argTest{{arg: arg, cond: bpf.JumpNotEqual, val: 0}}
		if !w.among {
			tests = append(tests, argTest{arg: arg, cond: bpf.JumpLessOrEqual, val: w.launcher})
		}
		return tests
	}
	for _, call := range []uint32{
		unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR,
		unix.SYS_SCHED_SETAFFINITY,
	} {
		p = append(p, deniedIf(call, named(0)...)...)
	}
	for _, priority := range []struct{ call, user uint32 }{
		{unix.SYS_SETPRIORITY, prioUser},
		{unix.SYS_IOPRIO_SET, ioprioUser},
	} {
		p = append(p, deniedIf(priority.call, named(1)...)...)
		p = append(p, deniedIf(priority.call, argTest{cond: bpf.JumpEqual, val: priority.user})...)
	}
	return p
}

// program builds the filter. The calls for the warden come last, after all calls that are refused anyway.
func (w *seccompFilter) program() ([]bpf.RawInstruction, error) {
	arch := auditArch()
	if arch == 0 {
		return nil, fmt.Errorf("there is no filter for %s", runtime.GOARCH)
	}
	absent := refusal(unix.ENOSYS)
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		absent, // 32-bit calls have other numbers
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: newestCall, SkipTrue: 1},
		absent, // later calls, and those of the x32 ABI on amd64
	}
	each := func(calls []uint32, answer bpf.Instruction) {
		for _, call := range calls {
			p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, answer)
		}
	}
	each(deniedCalls(), denial())
	each(absentCalls(), absent)
	if w.among {
		each([]uint32{unix.SYS_PIDFD_SEND_SIGNAL}, absent) // a folder of /proc would serve as a descriptor
	}
	if !w.ownIPC {
		each(ipcCalls(), absent)
	}
	if w.bare {
		each(attributeCalls(), refusal(unix.EOPNOTSUPP))
	}
	p = append(p, w.argumentRules()...)
	p = append(p, bpf.LoadAbsolute{Off: offsetNumber, Size: 4})
	each(w.asked, w.ask)
	return bpf.Assemble(append(p, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}))
}

// tiocLinux is an ioctl request that can paste into a virtual console.
const tiocLinux = 0x541C

// enforce applies the filter to this thread and to what it starts. It needs no_new_privs. The listener
// is the descriptor for the warden's questions, or -1 if there are none.
func (w *seccompFilter) enforce() (listener int, err error) {
	if len(w.asked) > 0 {
		w.ask = bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF}
		if listener, err = w.load(listen); err == nil {
			return listener, nil
		}
		w.ask = denial() // an outer filter may have a listener already
	}
	return w.load(func(prog *unix.SockFprog) (int, error) {
		_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(prog)))
		if errno != 0 {
			return -1, errno
		}
		return -1, nil
	})
}

func (w *seccompFilter) load(install func(*unix.SockFprog) (int, error)) (int, error) {
	raw, err := w.program()
	if err != nil {
		return -1, err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	fd, err := install(&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	runtime.KeepAlive(filter)
	return fd, err
}

// Without a namespace the filter has to refuse what the namespace would keep out of reach.

// ipcCalls returns the calls that reach System V IPC and message queues, which have numbers and names
// outside the file system.
func ipcCalls() []uint32 {
	return []uint32{
		unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP,
		unix.SYS_SEMCTL,
		unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
	}
}

// attributeCalls returns the calls that change file attributes which Landlock does not know. To a
// program the error looks like a file system without such attributes.
func attributeCalls() []uint32 {
	return []uint32{
		unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_SETXATTRAT,
		unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_REMOVEXATTRAT,
		unix.SYS_FILE_SETATTR,
	}
}

// ioctl requests that change a file that is open only for reading; x/sys defines the two others.
const (
	fsIocSetVersion   = 0x40087602
	fsIocFSSetXattr   = 0x401c5820
	fsIocEnableVerity = 0x40806685
)

// bareRules refuse ioctl requests of a command that could name every file of the machine.
func bareRules() (p []bpf.Instruction) {
	for _, request := range []uint32{
		unix.FS_IOC_SETFLAGS, unix.FS_IOC_SET_ENCRYPTION_POLICY, fsIocSetVersion,
		fsIocFSSetXattr, fsIocEnableVerity,
	} {
		p = append(p, deniedIf(unix.SYS_IOCTL, argTest{arg: 1, cond: bpf.JumpEqual, val: request})...)
	}
	return p
}

// socketRules keep a command from the network, or restrict it to the usual kinds of sockets. A socket that can send to
// a path reaches all socket files, and Landlock can restrict that only from Linux 7.1 on. So without a mount namespace
// a command may only create socket pairs, and only those that stay connected to each other.
func (w *seccompFilter) socketRules() (p []bpf.Instruction) {
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
	const kinds = 0xf // bits of the type; the bits above are flags
	return append(p, deniedIf(unix.SYS_SOCKETPAIR,
		argTest{arg: 1, mask: kinds, cond: bpf.JumpNotEqual, val: unix.SOCK_STREAM},
		argTest{arg: 1, mask: kinds, cond: bpf.JumpNotEqual, val: unix.SOCK_SEQPACKET})...)
}

// The requests to send signals whose receiver is named only by a structure in memory, and the one that
// names it directly. x/sys has none of them.
const (
	fSetOwn    = 8
	fSetOwnEx  = 15
	fioSetOwn  = 0x8901
	siocSetPgr = 0x8902
)

// signalRules keep a command from sending signals to its launcher's threads, from self to last, where
// there is no PID namespace: the launcher is under the same Landlock rules as the command. -1 means
// all processes, so it is refused as well.
func signalRules(self, last uint32) (p []bpf.Instruction) {
	equal := func(arg, val uint32) argTest { return argTest{arg: arg, cond: bpf.JumpEqual, val: val} }
	for _, call := range []uint32{
		unix.SYS_KILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_TGKILL,
		unix.SYS_RT_TGSIGQUEUEINFO,
	} {
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

// setIDBits make a file run as its owner or group.
const setIDBits = unix.S_ISUID | unix.S_ISGID

// makeFlags are the flags of open that use its mode: O_CREAT, and O_TMPFILE without the O_DIRECTORY
// bit that it contains.
const makeFlags = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY

// setIDRules refuse set-user-ID and set-group-ID bits. A file in the workspace with such a bit would give the host's
// rights to any user who runs it, and the host may be root. A new folder may still inherit the group bit of the folder
// above, which gives no rights; setting it is refused for folders as well, because a call does not tell files from
// folders. The arguments of openat2 lie in memory, where a filter cannot look, so it is in absentCalls.
func setIDRules() (p []bpf.Instruction) {
	bits := func(arg uint32) argTest { return argTest{arg: arg, cond: bpf.JumpBitsSet, val: setIDBits} }
	making := func(arg uint32) argTest { return argTest{arg: arg, cond: bpf.JumpBitsSet, val: makeFlags} }
	for _, rule := range append(archSetIDRules(bits, making),
		deniedIf(unix.SYS_FCHMOD, bits(1)),
		deniedIf(unix.SYS_FCHMODAT, bits(2)),
		deniedIf(unix.SYS_FCHMODAT2, bits(2)),
		deniedIf(unix.SYS_MKNODAT, bits(2)),
		deniedIf(unix.SYS_OPENAT, making(2), bits(3)),
	) {
		p = append(p, rule...)
	}
	return p
}
