// Package sandbox starts all child processes of the host. A child sees a small part of the machine and
// lives inside a tree of processes that dies as a whole: when the call ends, at Kill, when the
// Launcher closes and when the host dies, even by SIGKILL.
//
//	host                          launcher (this binary again)        command
//	Command ── clone, exec ─────► pid 1 of its own user and PID namespaces
//	        ── frame ───────────► network, IPC and host name of its own,
//	                              a root with nothing but what is granted
//	                              no rights, Landlock, seccomp
//	        ── spec, streams ───► limits ─fork──► exec
//	        ◄─ started / failed ─ reaps what is orphaned
//	Signal  ── one byte ────────► kill(-1, signal)
//	        ◄─ wait status ────── the tree is gone; exit
//
// The launcher is the same executable under the name LauncherName; main and TestMain call
// MaybeRunLauncher first. After each start, and in Prepare, the host makes a spare launcher for the
// next command and sets it up as far as that is possible without the command. A launcher dies when the
// host dies: the kernel kills it (PR_SET_PDEATHSIG), or it sees the end of its control socket.
//
//	sandbox.go  policy.go     the Launcher           what to start, and its bounds
//	findings.go               what a machine offers of the mechanisms, and what a mode insists on
//	process.go                one command, streams
//	home.go     env.go        homes, also kept ones  variables, certificates, proxies
//	allow.go    path.go       which programs         folders of PATH, working directories
//	disk.go                   what children leave, and how it is removed
//	start_linux.go            host: makes launchers  launched_linux.go  host: talks to one
//	spec_linux.go             what they say to each other, as JSON
//	launcher_linux.go         launcher: the steps    tree_linux.go      launcher: reaps, signals, /proc
//	view_linux.go             what a child sees      root_linux.go      the root made of it
//	confine_linux.go          namespaces, rights, Landlock
//	seccomp_linux.go          the filter             warden_linux.go    modes and owners without mounts
//	cgroup_linux.go           bounds of a tree       memory_linux.go    the same where there is no cgroup
//	platform_*.go             what systems differ in
//
// Linux offers, strongest first, a PID namespace (inside a user namespace, or as root), or else a child subreaper that
// hunts its descendants down. The first start finds out what the machine allows; Findings and Probe report it. In mode
// BestEffort a command starts without the mechanisms that are missing, unless so many are missing that nothing would
// confine it. Mode Required refuses to start it. README.md says what is enforced in which case.
//
// Other systems have no launcher. macOS and the BSDs start each command in its own session and kill its process group;
// a process that leaves the group, or outlives a SIGKILL of the host, is not killed. On Windows only the command itself
// is killed. Files, network and resources are not confined there.
//
// A child gets the variables of Policy.Env on top of a short safe list, file descriptors 0, 1 and 2,
// and nothing else of the host.
package sandbox
