//go:build linux

// Package plain starts programs as in a plain container, whose seccomp profile
// refuses every new namespace and every mount, also for root.
package plain

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused returns the system calls that such a container does not allow.
func refused() []uint32 {
	return []uint32{
		unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_OPEN_TREE,
		unix.SYS_MOVE_MOUNT,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_CHROOT,
	}
}

// Exec replaces this process by the program, which cannot make namespaces, and neither can its children.
// It returns only if it fails. The absent calls fail as if the kernel did not have them.
func Exec(path string, argv, env []string, absent ...uint32) error {
	runtime.LockOSThread() // the filter belongs to this thread, and exec keeps it
	if err := enter(append(absent, unix.SYS_CLONE3)); err != nil {
		return fmt.Errorf("no plain container: %w", err)
	}
	return syscall.Exec(path, argv, env)
}

func enter(absent []uint32) error {
	const offsetNumber, offsetFirst = 0, 16
	errno := func(e unix.Errno) bpf.Instruction {
		return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(e)}
	}
	p := []bpf.Instruction{bpf.LoadAbsolute{Off: offsetNumber, Size: 4}}
	for _, call := range refused() {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, errno(unix.EPERM))
	}
	for _, call := range absent {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, errno(unix.ENOSYS))
	}
	p = append(p,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 3},
		bpf.LoadAbsolute{Off: offsetFirst, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: namespaces, SkipTrue: 1}, errno(unix.EPERM),
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
	raw, err := bpf.Assemble(p)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, failed := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if failed != 0 {
		return failed
	}
	return nil
}

// namespaces are the flags of clone that make a namespace.
const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
