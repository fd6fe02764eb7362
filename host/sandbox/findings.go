package sandbox

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// Finding says whether the machine offers one mechanism.
type Finding struct {
	OK       bool   `json:"ok"`
	Optional bool   `json:"optional"` // used if the machine has it; Required does not insist on it
	Name     string `json:"name"`     // such as "landlock"
	Effect   string `json:"effect"`   // what it does for the user, as one sentence
	Reason   string `json:"reason"`   // why it does not work; "" if it works
}

// The values of Finding.Name.
const (
	findUser        = "user_namespace"
	findPID         = "pid_namespace"
	findMount       = "mount_namespace"
	findNetwork     = "network_namespace"
	findIPC         = "ipc_namespace"
	findUTS         = "uts_namespace"
	findPrivateProc = "private_proc"
	findDeath       = "parent_death"
	findPrivileges  = "no_new_privs"
	findCaps        = "no_capabilities"
	findLandlock    = "landlock"
	findSeccomp     = "seccomp"
	findLimits      = "rlimits"
	findProcesses   = "process_limit"
	findCgroup      = "cgroup"
)

// mechanisms returns all mechanisms, strongest first, each marked as working.
func mechanisms() []Finding {
	return []Finding{
		{
			Name: findUser, OK: true,
			Effect: "A child is an unprivileged user of its own, also when the host runs as root.",
		},
		{
			Name: findPID, OK: true,
			Effect: "A child sees and signals only its own tree, and the kernel ends that tree as a whole.",
		},
		{
			Name: findMount, OK: true,
			Effect: "Files that were not granted do not exist for a child (of /etc it sees the names); programs and " +
				"libraries are read-only.",
		},
		{
			Name: findNetwork, OK: true,
			Effect: "A child has no network interface and cannot reach abstract sockets of the machine.",
		},
		{Name: findIPC, OK: true, Effect: "Shared memory and message queues of other programs are out of reach."},
		{Name: findUTS, OK: true, Effect: "A child neither sees nor changes the machine's name."},
		{Name: findPrivateProc, OK: true, Effect: "/proc shows a child its own processes only."},
		{Name: findDeath, OK: true, Effect: "Children end at once when the host is killed."},
		{Name: findPrivileges, OK: true, Effect: "Set-user-id programs such as sudo give a child no rights."},
		{Name: findCaps, OK: true, Effect: "A child holds none of root's rights."},
		{
			Name: findLandlock, OK: true,
			Effect: "The kernel checks each opened file against what was granted, and keeps children from tracing " +
				"others.",
		},
		{
			Name: findSeccomp, OK: true,
			Effect: "Dangerous system calls fail: ptrace, mount, io_uring, bpf, keyrings, and sockets without network.",
		},
		{
			Name: findLimits, OK: true,
			Effect: "Address space, file size, open files and CPU time of a child can be bounded.",
		},
		{Name: findProcesses, OK: true, Effect: "A fork bomb ends at the bound of its tree."},
		{
			Name: findCgroup, OK: true, Optional: true,
			Effect: "The kernel bounds the memory of a tree; otherwise the launcher looks at it several times a " +
				"second.",
		},
	}
}

// lacking returns all mechanisms and marks those in missing as not working, with the reason.
func lacking(missing map[string]string) []Finding {
	all := mechanisms()
	for i := range all {
		if reason, ok := missing[all[i].Name]; ok {
			all[i].OK, all[i].Reason = false, reason
		}
	}
	return all
}

// MissingError is Command's error when the machine lacks mechanisms on which mode Required insists, or
// so many that nothing would confine a child in mode BestEffort.
type MissingError struct {
	Missing []Finding
	Mode    Mode // "" is Required
}

// Error implements error.
func (e *MissingError) Error() string {
	missing := e.Missing
	if e.Mode == BestEffort {
		missing = Unheld(missing)
	}
	texts := make([]string, len(missing))
	for i, f := range missing {
		texts[i] = fmt.Sprintf("%s (%s)", f.Name, f.Reason)
	}
	if e.Mode == BestEffort {
		return "nothing would keep a child from the files of this machine, which lacks: " + strings.Join(texts, "; ") +
			"; `a2e doctor` tells more, and `sandbox: off` in the config starts children anyway"
	}
	return "the sandbox is required, but this machine lacks: " + strings.Join(texts, "; ") +
		"; `a2e doctor` tells more, and `sandbox: best_effort` in the config starts children without them"
}

// Unheld returns the missing mechanisms because of which mode BestEffort starts no child: without a
// mount namespace a child needs both Landlock and seccomp. It returns nil where children start.
// Systems other than Linux have none of the mechanisms, and start children.
func Unheld(all []Finding) (missing []Finding) {
	var bare, open bool
	for _, f := range all {
		if f.OK {
			continue
		}
		switch f.Name {
		case findMount:
			bare = true
		case findLandlock, findSeccomp:
			open = true
		default:
			continue
		}
		missing = append(missing, f)
	}
	if !bare || !open || runtime.GOOS != "linux" {
		return nil
	}
	return missing
}

// missingRequired returns the missing mechanisms on which mode Required insists.
func missingRequired(all []Finding) []Finding {
	var missing []Finding
	for _, f := range all {
		if !f.OK && !f.Optional {
			missing = append(missing, f)
		}
	}
	return missing
}

// Quick returns the mechanisms for a mode that the machine certainly lacks. It starts nothing and
// takes microseconds. Further mechanisms may turn out to be missing; Probe and Findings report them.
func Quick(mode Mode) []Finding {
	if mode == Off {
		return nil
	}
	return quick()
}

var quick = sync.OnceValue(func() []Finding { return missingRequired(lacking(surelyMissing())) })

// Findings returns the mechanisms that the last started child had; nil before the first start.
func (l *Launcher) Findings() []Finding { return l.start.findings() }
