package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets into struct seccomp_data. The machines of this list are little-endian.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16 // the low half of the first; 8 bytes each
	argSize      = 8
	halfSize     = 4
)

// newestCall is the last system call of the list that this filter was made from, that of
// Linux 7.0: nobody has looked at what comes after it.
const newestCall = unix.SYS_RSEQ_SLICE_YIELD

// walls is what the filter of one command must hold.
type walls struct {
	network  Network
	launcher uint32 // its threads have the numbers up to this
	among    bool   // and they begin with its own, as those of others are beside them; else with 1
	bare     bool   // there is no mount namespace: all files of the machine have names here
	ownIPC   bool   // there is an IPC namespace

	asked []uint32        // the calls that the warden is asked about
	ask   bpf.Instruction // what asks it, or refuses them where it cannot be asked
}

// namespaceFlags are the clone flags that make a namespace.
const namespaceFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// auditArch is what seccomp calls this machine; 0 is unknown.
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

// deniedCalls change the machine, look into other processes, or open parts of
// the kernel that no ordinary program needs. They fail with EPERM.
func deniedCalls() []uint32 {
	return append(archDeniedCalls(),
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT, unix.SYS_LISTNS,
		unix.SYS_UNSHARE, unix.SYS_SETNS,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_FANOTIFY_INIT, unix.SYS_LOOKUP_DCOOKIE,
		unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD,
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_NFSSERVCTL,
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
		unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY,
	)
}

// absentCalls fail with ENOSYS: programs take that as an older kernel and use
// what the filter can look into, and what the launcher sees the memory of.
func absentCalls() []uint32 {
	return []uint32{unix.SYS_MEMFD_SECRET, unix.SYS_CLONE3, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_OPENAT2}
}

// argTest is a question to one argument of a call. Half 1 is the upper one of its
// 64 bits: numbers of processes and flags have it at 0, or the kernel ignores it;
// pointers need both.
type argTest struct {
	arg, half uint32
	mask      uint32 // the bits that are looked at; 0 = all
	cond      bpf.JumpTest
	val       uint32
}

// deniedIf refuses a call whose arguments pass all tests. Any other call goes on
// to the next rule, so that several rules for one call add up.
func deniedIf(call uint32, tests ...argTest) []bpf.Instruction {
	var asked []bpf.Instruction
	for i := len(tests) - 1; i >= 0; i-- { // from the last one on: each skips all that follows
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

// argumentRules refuse calls by what they are asked for.
func (w *walls) argumentRules() (p []bpf.Instruction) {
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

// limitRules let a process set its own limits, as process 0, and read those of
// any. A launcher without descriptors would see nothing any more; it belongs to
// the same user, so only this keeps the command from it.
func limitRules() []bpf.Instruction {
	other := argTest{cond: bpf.JumpNotEqual, val: 0}
	return append(
		deniedIf(unix.SYS_PRLIMIT64, other, argTest{arg: 2, cond: bpf.JumpNotEqual, val: 0}),
		deniedIf(unix.SYS_PRLIMIT64, other, argTest{arg: 2, half: 1, cond: bpf.JumpNotEqual, val: 0})...)
}

// What setpriority and ioprio_set call all processes of a user.
const (
	prioUser   = 2
	ioprioUser = 3
)

// schedulingRules keep a command from slowing its launcher down, whose threads are those
// up to a number. All others may be named: C libraries name the threads of a process by
// their numbers. Where those of the machine's other processes are among them, a thread may
// set its own alone, as 0.
func (w *walls) schedulingRules() (p []bpf.Instruction) {
	named := func(arg uint32) []argTest {
		tests := []argTest{{arg: arg, cond: bpf.JumpNotEqual, val: 0}}
		if !w.among {
			tests = append(tests, argTest{arg: arg, cond: bpf.JumpLessOrEqual, val: w.launcher})
		}
		return tests
	}
	for _, call := range []uint32{unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETAFFINITY} {
		p = append(p, deniedIf(call, named(0)...)...)
	}
	for _, priority := range []struct{ call, user uint32 }{{unix.SYS_SETPRIORITY, prioUser}, {unix.SYS_IOPRIO_SET, ioprioUser}} {
		p = append(p, deniedIf(priority.call, named(1)...)...)
		p = append(p, deniedIf(priority.call, argTest{cond: bpf.JumpEqual, val: priority.user})...)
	}
	return p
}

// program puts the filter together. What the warden is asked about comes last, after all
// that is refused anyway.
func (w *walls) program() ([]bpf.RawInstruction, error) {
	arch := auditArch()
	if arch == 0 {
		return nil, fmt.Errorf("there is no filter for %s", runtime.GOARCH)
	}
	absent := refusal(unix.ENOSYS)
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1}, absent, // 32-bit calls have other numbers
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: newestCall, SkipTrue: 1}, absent, // and so has the x32 ABI on amd64
	}
	each := func(calls []uint32, answer bpf.Instruction) {
		for _, call := range calls {
			p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, answer)
		}
	}
	each(deniedCalls(), denial())
	each(absentCalls(), absent)
	if w.among {
		each([]uint32{unix.SYS_PIDFD_SEND_SIGNAL}, absent) // a folder of /proc will do for a descriptor
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

// tiocLinux pastes into a virtual console.
const tiocLinux = 0x541C

// enforce puts this thread, and what it starts, under the filter. It needs no_new_privs.
// The listener is where the questions for the warden come, -1 where there are none.
func (w *walls) enforce() (listener int, err error) {
	if len(w.asked) > 0 {
		w.ask = bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF}
		if listener, err = w.load(listen); err == nil {
			return listener, nil
		}
		w.ask = denial() // a filter around this one may have a listener already
	}
	return w.load(func(prog *unix.SockFprog) (int, error) {
		_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(prog)))
		if errno != 0 {
			return -1, errno
		}
		return -1, nil
	})
}

func (w *walls) load(install func(*unix.SockFprog) (int, error)) (int, error) {
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
