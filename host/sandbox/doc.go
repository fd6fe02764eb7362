// Package sandbox is the one place from which child processes of the host
// start. A child lives inside a tree that dies as a whole: with the call, with
// Kill, with the Launcher, and with the host, a SIGKILL of the host included.
//
//	host                          launcher (this binary again)        command
//	Command ── clone, exec ─────► pid 1 of its own PID namespace
//	        ── spec ────────────► own /proc, limits, umask,
//	                              no_new_privs, clean signals ─fork──► exec
//	        ◄─ started / failed ─ reaps what is orphaned
//	Signal  ── one byte ────────► kill(-pgid, signal)
//	        ◄─ wait status ────── exit: the kernel kills the namespace
//
// The launcher is the same executable under the name LauncherName; main and
// TestMain call MaybeRunLauncher first. It is killed by the kernel
// (PR_SET_PDEATHSIG) when the host dies, and by the end of its control pipe.
// Linux offers, strongest first, a PID namespace (as root, or inside a user
// namespace), else a child subreaper that hunts its descendants down. The first
// start finds out what the machine allows; Mechanism tells. The subreaper is
// the weaker one: a command may kill it, as both run under the same user.
//
// Elsewhere there is no launcher. macOS and the BSDs give each command a
// session of its own and kill its process group: what leaves the group, or
// outlives a SIGKILL of the host, is not reached. On Windows only the command
// itself is killed.
//
// A child gets the environment of Policy.Env on top of a short safe list,
// file descriptors 0, 1 and 2, and nothing else of the host.
package sandbox
