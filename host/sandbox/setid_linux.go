package sandbox

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// setIDBits let a file run as its owner or group.
const setIDBits = unix.S_ISUID | unix.S_ISGID

// makeFlags are those of open that use its mode: O_CREAT, and O_TMPFILE without the
// bit of O_DIRECTORY that is in it.
const makeFlags = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY

// setIDRules refuse set-user-ID and set-group-ID bits: a file with one in the workspace
// would lend the host's rights to whoever runs it, and the host may be root. A folder may
// still inherit its group's bit from the folder above, which gives nobody a right; that
// bit is refused for a folder as well, since a call does not tell what it is about. What
// openat2 wants lies in memory, where a filter cannot look: it is one of absentCalls.
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
