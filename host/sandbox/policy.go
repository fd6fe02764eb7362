package sandbox

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Policy describes one child: the program, its environment, its streams, and what it may reach. Options.Mode says
// whether it starts on a machine that cannot enforce a field.
type Policy struct {
	Path string   // absolute path of the program
	Args []string // the whole argv, the program's name first; empty = the base name of Path
	Dir  string   // absolute working directory; also the child's PWD

	// DirFile is the working directory as an open folder. It takes precedence over Dir, so that a folder
	// that is swapped for a link after the check is never entered. Only Linux enters it by its descriptor.
	// The caller closes it after Command.
	DirFile *os.File

	// Env are variables that come from a request: names that change which code
	// a program loads are refused (see CheckEnv).
	Env map[string]string
	// HostEnv are variables that the host or its config sets. Only their syntax is checked. They win over Env.
	HostEnv map[string]string

	// Read lists further absolute paths that this child may read, on top of Options.Read. Only Linux needs it.
	Read []string
	// Write lists further absolute folders that this child may change.
	Write []string
	// ReadOnly lists absolute paths that this child may not change, although other children may, such as
	// the workspace. A path inside a folder that the child may change can be protected only with a mount
	// namespace. A path inside a read-only one stays changeable if it is granted separately.
	ReadOnly []string
	// Home says whose home and temporary folder the child has.
	Home Home
	// Scratch, if set, is the absolute folder that is both home and temporary folder of this child. The caller makes it
	// and may use it for further children; see MakeScratch. After Wait the caller passes it to Discard.
	Scratch string
	// HomeDir, if set, is the absolute folder that is the home of this child. The caller keeps it, so that the child
	// finds its files again at the next start. The temporary folder is removed after the child. See KeepHome.
	HomeDir string

	// Stdin is read until its end; nil = an empty input. Wait waits for a pending Read, so pass an
	// *os.File for a stream that may stay silent: the child gets such a file directly.
	Stdin io.Reader
	// Stdout and Stderr receive what the whole tree writes, each from one goroutine at a time; nil drops
	// the output. Equal values share one pipe. An *os.File is handed to the child directly.
	Stdout, Stderr io.Writer
	// Silent, if set, is called when no process of the tree can write to Stdout any more, which may be
	// long before the end of the tree. It is not called if Stdout is an *os.File.
	Silent func()
	// Idle, if set, reports whether nobody waits for an answer on Stdout, and enables ReadSoon. Output
	// that nobody waits for may then be read 10 ms later.
	Idle func() bool
	// Terminal says that Stdin, Stdout and Stderr are the same terminal (the child's side of a pty), which
	// becomes the command's controlling terminal.
	Terminal bool

	Network Network // zero is none
	Limits  Limits  // a zero field is taken from Options.Limits
}

// Network says what a child can reach.
type Network string

// The values of Network.
const (
	NetworkNone Network = ""     // only pipes, and unix sockets of its own
	NetworkHost Network = "host" // everything that the host reaches
)

// Mode says what a Launcher does when the machine does not offer a mechanism.
type Mode string

// The values of Mode. All of them kill whole trees and clean the environment.
const (
	BestEffort Mode = "best_effort" // start with the mechanisms that the machine has; the default
	Required   Mode = "required"    // refuse to start, with the reason
	Off        Mode = "off"         // do not confine files, network and resources
)

// Limits bound what a tree may use. Zero is the default, see DefaultLimits; a negative value keeps the limit of the
// host. Core dumps are always off, and the umask always contains at least 022. Limits are enforced on Linux.
type Limits struct {
	// MemoryBytes bounds the memory of all processes of the tree together. The kernel enforces it where cgroup v2 is
	// writable; elsewhere the launcher looks several times a second and kills the tree, with ErrMemory. It counts the
	// resident memory of the processes and their page tables, System V IPC, and files without a name (memfd_create,
	// shared mappings), even if no process has them mapped. The kernel does not say who owns some of these files: a
	// tree that holds such a file is charged with the growth of all of them on the whole machine. The launcher does not
	// see other kernel memory, above all the buffers of pipes and sockets, which only OpenFiles and Processes bound. It
	// does not see files either: /dev/shm holds up to 64 MB, and if the children's temporary folder is a tmpfs, its
	// files use memory too.
	MemoryBytes int64
	// AddressBytes bounds the address space of each process (RLIMIT_AS). By default there is no bound,
	// because sanitizers, Node.js with WebAssembly and others reserve a thousand times what they use. The
	// bound is set right after the start; address space that a process took before that stays.
	AddressBytes int64
	FileBytes    int64 // largest file a process may write, in bytes (RLIMIT_FSIZE)
	OpenFiles    int64 // file descriptors per process (RLIMIT_NOFILE)
	Processes    int64 // processes and threads of the tree
	CPUSeconds   int64 // CPU time per process, in seconds (RLIMIT_CPU); no bound by default
}

// check returns an error for a policy that can never be started.
func (p *Policy) check() error {
	given := func(path string) []string {
		return slices.DeleteFunc([]string{path}, func(p string) bool { return p == "" })
	}
	for what, paths := range map[string][]string{
		"program path": {p.Path}, "working directory": given(p.Dir), "path to read": p.Read, "folder to write": p.Write,
		"read-only path": p.ReadOnly, "scratch folder": given(p.Scratch), "home": given(p.HomeDir),
	} {
		for _, path := range paths {
			if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
				return fmt.Errorf("sandbox: %s %q is not an absolute path", what, path)
			}
		}
	}
	if i := slices.IndexFunc(p.Args, func(arg string) bool { return strings.IndexByte(arg, 0) >= 0 }); i >= 0 {
		return fmt.Errorf("sandbox: argument %d holds a NUL byte", i)
	}
	return p.checkHome()
}

// argv returns the argument vector of the command.
func (p *Policy) argv() []string {
	if len(p.Args) > 0 {
		return p.Args
	}
	return []string{filepath.Base(p.Path)}
}

// The limits of a tree for which neither its policy nor Options set one.
const (
	defaultFileBytes = 2 << 30
	defaultOpenFiles = 16384
	defaultProcesses = 1024
	leastMemoryBytes = 4 << 30
)

// DefaultLimits returns the default limits of a tree: half of the machine's memory, but at least 4 GiB; 2 GiB per file,
// 16,384 open files and 1,024 processes. Address space and CPU time have no bound: a timeout limits CPU time.
func DefaultLimits() Limits {
	return Limits{
		MemoryBytes: max(machineMemory()/2, leastMemoryBytes), FileBytes: defaultFileBytes,
		OpenFiles: defaultOpenFiles, Processes: defaultProcesses,
	}
}

// or returns l with its zero fields taken from other.
func (l Limits) or(other Limits) Limits {
	for _, f := range []struct{ mine, others *int64 }{
		{&l.MemoryBytes, &other.MemoryBytes},
		{&l.AddressBytes, &other.AddressBytes},
		{&l.FileBytes, &other.FileBytes},
		{&l.OpenFiles, &other.OpenFiles},
		{&l.Processes, &other.Processes},
		{&l.CPUSeconds, &other.CPUSeconds},
	} {
		if *f.mine == 0 {
			*f.mine = *f.others
		}
	}
	return l
}
