package sandbox

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Policy says what to start and under which bounds. Every field is enforced.
type Policy struct {
	Path string   // absolute path of the program
	Args []string // the whole argv, the program's name first; empty = the base name of Path
	Dir  string   // absolute working directory; also the child's PWD

	// DirFile is the working directory as an open folder. It wins over Dir, so
	// that a folder swapped for a link after it was checked is never entered.
	// Only Linux enters it by its descriptor. The caller closes it after Command.
	DirFile *os.File

	// Env are variables that come from a request: names that change which code
	// a program loads are refused (see CheckEnv).
	Env map[string]string
	// HostEnv are variables that the host or its config sets. Only their syntax
	// is checked. They win over Env.
	HostEnv map[string]string

	// Read lists further absolute paths that this child may read, on top of
	// Options.Read. Only Linux needs it.
	Read []string
	// Write lists further absolute folders that this child may change.
	Write []string
	// ReadOnly lists absolute paths that this child may not change, although
	// children may, such as the workspace. One that is a part of what the child
	// may change needs the mount namespace to be held. What lies in one and was
	// granted by itself stays open.
	ReadOnly []string
	// Home says whose home and temporary folder the child has.
	Home Home
	// Scratch, if set, is the absolute folder that this child has as both, and that the
	// caller made and may keep for another one; see MakeScratch. The caller gives it to
	// Discard after Wait.
	Scratch string
	// HomeDir, if set, is the absolute folder that this child has as its home, and that the
	// caller keeps for it: what it leaves there it finds at its next start. Its temporary
	// folder goes with it. See KeepHome.
	HomeDir string

	// Stdin is read until its end; nil is an empty input. Wait waits for a Read
	// under way, so pass an *os.File, which the child gets as it is, for a
	// stream that may stay silent.
	Stdin io.Reader
	// Stdout and Stderr each get what the whole tree writes, from one goroutine
	// at a time; nil drops it. Equal values share one pipe. An *os.File is
	// handed to the child as it is.
	Stdout, Stderr io.Writer
	// Silent, if set, is called when nobody in the tree can write to Stdout any more, which
	// may be long before its end. An *os.File tells nothing of it.
	Silent func()
	// Idle, if set, reports whether nobody waits for an answer on Stdout, and allows ReadSoon. Then what
	// comes unasked may be read 10 ms later.
	Idle func() bool
	// Terminal says that Stdin, Stdout and Stderr are the same terminal (the
	// child's side of a pty): it becomes the command's controlling terminal.
	Terminal bool

	Network Network // zero is none
	Limits  Limits  // a zero field is that of Options.Limits
}

// Network says what a child reaches.
type Network string

// The values of Network.
const (
	NetworkNone Network = ""     // nothing but pipes, and unix sockets of its own
	NetworkHost Network = "host" // what the host reaches
)

// Mode says how a Launcher takes a mechanism that the machine does not offer.
type Mode string

// The values of Mode. Trees die and environments are scrubbed in each of them.
const (
	BestEffort Mode = "best_effort" // start with what there is; the default
	Required   Mode = "required"    // refuse to start, with the reason
	Off        Mode = "off"         // do not confine files, network and resources
)

// Limits bound what a tree may use. Zero is the default, see DefaultLimits; a
// negative value leaves what the host has. Core dumps are always off, and the
// umask always holds at least 022. They are enforced on Linux.
type Limits struct {
	// MemoryBytes bounds the memory of all processes of the tree together. Where
	// cgroup v2 is writable the kernel holds to it; elsewhere the launcher looks
	// several times a second and ends the tree, with ErrMemory. It counts what the
	// processes have in memory and their page tables, System V IPC, and files
	// without a name (memfd_create, shared mappings) also where no process has them
	// mapped. The kernel does not tell whose some of the latter are: a tree that
	// holds such a one is charged with what they have grown by on the whole machine.
	// The launcher does not see what else the kernel keeps for a tree, the buffers
	// of pipes and sockets above all, which only OpenFiles and Processes bound. Nor
	// does it see files: /dev/shm holds up to 64 MB, and where the children's
	// temporary folder is a tmpfs, what lies in it is memory too.
	MemoryBytes int64
	// AddressBytes bounds the address space of each process (RLIMIT_AS). There is
	// no bound by default: sanitizers, Node.js with WebAssembly and others reserve
	// a thousand times what they use. It is set right after the start: what a process
	// took before that stays.
	AddressBytes int64
	FileBytes    int64 // largest file a process may write, in bytes (RLIMIT_FSIZE)
	OpenFiles    int64 // file descriptors per process (RLIMIT_NOFILE)
	Processes    int64 // processes and threads of the tree
	CPUSeconds   int64 // CPU time per process, in seconds (RLIMIT_CPU); no bound by default
}

// check says what in the policy cannot be started at all.
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

// argv is the argument vector to start with.
func (p *Policy) argv() []string {
	if len(p.Args) > 0 {
		return p.Args
	}
	return []string{filepath.Base(p.Path)}
}

// The bounds of a tree where neither its policy nor Options say otherwise.
const (
	defaultFileBytes = 2 << 30
	defaultOpenFiles = 16384
	defaultProcesses = 1024
	leastMemoryBytes = 4 << 30
)

// DefaultLimits are the bounds of a tree where nothing else is said: half of the
// machine's memory, but at least 4 GiB; 2 GiB for a file, 16,384 open files and
// 1,024 processes. Address space and CPU time have no bound: a timeout is the
// means for the latter.
func DefaultLimits() Limits {
	return Limits{
		MemoryBytes: max(machineMemory()/2, leastMemoryBytes), FileBytes: defaultFileBytes,
		OpenFiles: defaultOpenFiles, Processes: defaultProcesses,
	}
}

// or takes the fields that l leaves open from other.
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
