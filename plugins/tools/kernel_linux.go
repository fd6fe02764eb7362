package tools

import (
	"os"

	"golang.org/x/sys/unix"
)

// kernelFile refuses a file or folder on a file system that shows the state of the
// kernel or of other processes: reads and writes there are not plain file access.
func kernelFile(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if failed = unix.Fstatfs(int(fd), &st); failed != unix.EINTR {
				return
			}
		}
	})
	switch {
	case err != nil:
		return err
	case failed != nil:
		return failed
	}
	switch uint32(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
		unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC,
		unix.SELINUX_MAGIC, unix.SMACK_MAGIC, unix.AAFS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.BINFMTFS_MAGIC,
		unix.NSFS_MAGIC, unix.RDTGROUP_SUPER_MAGIC, configfsMagic, fusectlMagic, mqueueMagic:
		return errKernel
	}
	return nil
}

// Magic numbers that x/sys does not name.
const (
	configfsMagic = 0x62656570
	fusectlMagic  = 0x65735543
	mqueueMagic   = 0x19800202
)
