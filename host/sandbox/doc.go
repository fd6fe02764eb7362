// Package sandbox is the one place from which child processes of the host
// start. A child sees a small part of the machine, and lives inside a tree that
// dies as a whole: with the call, with Kill, with the Launcher, and with the
// host, a SIGKILL of the host included.
//
//	host                          launcher (this binary again)        command
//	Command ── clone, exec ─────► pid 1 of its own user and PID namespaces
//	        ── frame ───────────► network, IPC and host name of its own,
//	                              a root with nothing but what is granted
//	        ── spec, streams ───► no rights, Landlock, seccomp, limits ─fork──► exec
//	        ◄─ started / failed ─ reaps what is orphaned
//	Signal  ── one byte ────────► kill(-1, signal)
//	        ◄─ wait status ────── the tree is gone; exit
//
// The launcher is the same executable under the name LauncherName; main and
// TestMain call MaybeRunLauncher first. After each start a spare one is made,
// up to its frame, for the next. A launcher is killed by the kernel
// (PR_SET_PDEATHSIG) when the host dies, and by the end of its control socket.
//
//	policy.go, limits.go      what to start, and its bounds
//	home.go                   whose home and temporary folder a child has
//	kept.go                   homes that stay           netenv.go          certificates and proxies
//	path.go                   the folders of PATH that are shown to children
//	view_linux.go             what of the machine a child sees
//	walls_linux.go            what of that it is kept from all the same
//	start_linux.go            host: forks launchers     launched_linux.go  host: talks to one
//	launcher_linux.go         launcher: the steps       tree_linux.go      launcher: reaps, signals
//	root_linux.go             the root                  confine_linux.go   namespaces, rights, limits
//	landlock_linux.go         rules for files           seccomp_linux.go   the filter
//	setid_linux.go            no file that lends the host's rights
//	cgroup_linux.go           bounds of a whole tree    memory_linux.go    the same where there is no cgroup
//	hidden_linux.go           memory that no process shows
//	crowd_linux.go            bound of its processes where the kernel has none
//	seccomp_bare_linux.go     the filter without namespaces
//	warden_linux.go           changes of modes, owners and times without a mount namespace
//	findings.go               what works here
//
// Linux offers, strongest first, a PID namespace (inside a user namespace, or as
// root), else a child subreaper that hunts its descendants down. The first start
// finds out what the machine allows; Findings and Probe tell. In mode BestEffort
// the other walls stand without those that are missing, and where nothing would hold
// a command none starts; Required refuses. README.md says what holds when.
//
// Elsewhere there is no launcher. macOS and the BSDs give each command a
// session of its own and kill its process group: what leaves the group, or
// outlives a SIGKILL of the host, is not reached. On Windows only the command
// itself is killed. Files, network and resources are not confined there.
//
// A child gets the environment of Policy.Env on top of a short safe list,
// file descriptors 0, 1 and 2, and nothing else of the host.
package sandbox
