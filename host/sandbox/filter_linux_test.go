package sandbox

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// filtered returns what a filter answers to a call, as the kernel would run it.
func filtered(t *testing.T, w *walls, arch, call uint32, args ...uint64) uint32 {
	t.Helper()
	w.ask = denial()
	raw, err := w.program()
	must(t, err)
	program, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter cannot be read")
	}
	vm, err := bpf.NewVM(program)
	must(t, err)
	data := make([]byte, 64) // struct seccomp_data in the byte order of this machine for packets
	binary.BigEndian.PutUint32(data[offsetNumber:], call)
	binary.BigEndian.PutUint32(data[offsetArch:], arch)
	for i, arg := range args {
		binary.BigEndian.PutUint32(data[offsetArgs+argSize*i:], uint32(arg))
		binary.BigEndian.PutUint32(data[offsetArgs+argSize*i+halfSize:], uint32(arg>>32))
	}
	answer, err := vm.Run(data)
	must(t, err)
	return uint32(answer)
}

// TestWallUnknownCalls: a system call that a newer kernel brings is not there for a child,
// nor are those of another ABI, whose numbers mean something else.
func TestWallUnknownCalls(t *testing.T) {
	const absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	own := auditArch()
	for name, c := range map[string]struct{ arch, call uint32 }{
		"the next one": {own, newestCall + 1}, "a hundred later": {own, newestCall + 100}, "the last number": {own, ^uint32(0)},
		"x32": {own, 0x40000000 | unix.SYS_GETPID}, "another processor": {own ^ 1, unix.SYS_GETPID}, "io_uring": {own, unix.SYS_IO_URING_SETUP},
	} {
		t.Run(name, func(t *testing.T) {
			for _, w := range []*walls{{ownIPC: true}, {bare: true, among: true}, {network: NetworkHost, ownIPC: true}} {
				if got := filtered(t, w, c.arch, c.call); got != absent {
					t.Errorf("%+v answers %#x", w, got)
				}
			}
		})
	}
	if got := filtered(t, &walls{ownIPC: true}, own, unix.SYS_GETPID); got != unix.SECCOMP_RET_ALLOW {
		t.Errorf("getpid: %#x", got)
	}
}

// TestWallSocketKinds: of the kinds of sockets those alone are there that the policy means.
// The others reach the hypervisor, the kernel's ciphers, or buses, also with the network.
func TestWallSocketKinds(t *testing.T) {
	const denied = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	for _, network := range []Network{NetworkNone, NetworkHost} {
		for _, bare := range []bool{false, true} {
			t.Run(fmt.Sprintf("network %q, mount namespace %t", network, !bare), func(t *testing.T) {
				for family := range uint64(unix.AF_MAX) {
					want := family == unix.AF_UNIX && !bare || network == NetworkHost && (family == unix.AF_INET || family == unix.AF_INET6 || family == unix.AF_NETLINK)
					got := filtered(t, &walls{network: network, bare: bare, ownIPC: true}, auditArch(), unix.SYS_SOCKET, family, unix.SOCK_STREAM)
					if (got == unix.SECCOMP_RET_ALLOW) != want || !want && got != denied {
						t.Errorf("family %d: %#x, allowed should be %t", family, got, want)
					}
				}
			})
		}
	}
}
