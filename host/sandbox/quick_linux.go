package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// surelyMissing finds out by a few cheap questions what cannot be had here.
func surelyMissing() map[string]string {
	missing := make(map[string]string)
	if _, err := landlockABI(); err != nil {
		missing[findLandlock] = err.Error()
	}
	if _, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		missing[findSeccomp] = "the kernel has no seccomp"
	} else if auditArch() == 0 {
		missing[findSeccomp] = "there is no filter for this processor"
	}
	if err := userNamespacesOff(); err != nil {
		missing[findUser] = err.Error()
	}
	return missing
}

// userNamespacesOff tells which switch of the system keeps user namespaces from
// this user.
func userNamespacesOff() error {
	if _, err := os.Stat("/proc/self/ns/user"); errors.Is(err, fs.ErrNotExist) {
		return errors.New("the kernel has no user namespaces")
	}
	for _, sw := range []struct{ name, off string }{
		{"user/max_user_namespaces", "0"},
		{"kernel/unprivileged_userns_clone", "0"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1"},
	} {
		if os.Geteuid() == 0 && strings.HasPrefix(sw.name, "kernel/") {
			continue // root may
		}
		text, err := os.ReadFile("/proc/sys/" + sw.name)
		if err == nil && strings.TrimSpace(string(text)) == sw.off {
			return fmt.Errorf("sysctl %s is %s", strings.ReplaceAll(sw.name, "/", "."), sw.off)
		}
	}
	return nil
}
