package child

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
)

// Program is a program as a config names it.
type Program struct {
	// Command is the program and its arguments. A bare name is looked up in Dirs; a name with a slash is relative
	// to the workspace.
	Command   []string
	Dirs      []string          // nil = what sandbox.SafePath keeps of PATH
	Self      string            // the name that means this executable if Dirs do not have it
	Workspace string            // absolute
	Cwd       string            // the folder it runs in, relative to the workspace or absolute; "" = the workspace
	Env       map[string]string // further variables
	Read      []string          // further files and folders that it may read, relative to the workspace or absolute
	Write     []string          // further folders that it may change, relative to the workspace or absolute
	Network   bool              // let it use the network

	// Launcher returns what starts the program. Look asks it what the sandbox hides; nil = the sandbox hides nothing.
	Launcher func() (*sandbox.Launcher, error)
}

// CheckCommand returns what is wrong with the command of a config. wanted says what the command should be, such as
// "the program that serves the environment, such as [python3, env.py]".
func CheckCommand(command []string, wanted string) error {
	switch {
	case len(command) == 0 || command[0] == "":
		return errors.New("command is missing; name " + wanted)
	case slices.ContainsFunc(command, func(word string) bool { return strings.ContainsRune(word, 0) }):
		return errors.New("command: a word has a NUL character in it")
	}
	return nil
}

// Policy returns what to start. The caller closes its DirFile, if there is one; Process.Start does so.
func (p *Program) Policy() (sandbox.Policy, error) {
	path, read, err := p.find()
	if err != nil {
		return sandbox.Policy{}, err
	}
	policy := sandbox.Policy{
		Path: path, Args: slices.Clone(p.Command), HostEnv: p.Env, Read: read,
		Home: sandbox.HomeOwn,
	}
	for _, name := range p.Read {
		policy.Read = append(policy.Read, Absolute(p.Workspace, name))
	}
	for _, name := range p.Write {
		policy.Write = append(policy.Write, Absolute(p.Workspace, name))
	}
	if !p.bare() {
		policy.Args[0] = path // an interpreter looks for its own folder by this name
	}
	if dirs := p.searched(path); len(dirs) > len(p.dirs()) && p.Env["PATH"] == "" {
		policy.HostEnv = maps.Clone(p.Env)
		if policy.HostEnv == nil {
			policy.HostEnv = map[string]string{}
		}
		policy.HostEnv["PATH"] = strings.Join(dirs, string(filepath.ListSeparator))
	}
	if p.Network {
		policy.Network = sandbox.NetworkHost
	}
	if filepath.IsAbs(p.Cwd) {
		policy.Dir = filepath.Clean(p.Cwd)
		if !slices.ContainsFunc(append(policy.Write, p.Workspace),
			func(dir string) bool { return wall.Within(dir, policy.Dir) }) {
			policy.Read = append(policy.Read, policy.Dir)
		}
		return policy, nil
	}
	root, err := os.OpenRoot(p.Workspace)
	if err != nil {
		return policy, fmt.Errorf("workspace: %w", err)
	}
	defer root.Close()
	if policy.DirFile, policy.Dir, err = sandbox.OpenWorkdir(root, p.Workspace, p.Cwd); err != nil {
		return policy, fmt.Errorf("cwd: %w", err)
	}
	return policy, nil
}

// bare reports whether the program is a name to be looked up.
func (p *Program) bare() bool { return filepath.Base(p.Command[0]) == p.Command[0] }

// find returns the path of the program, and what it needs to read beyond what the sandbox finds out. The
// interpreter of a virtual environment is a link, and finds its libraries by pyvenv.cfg above its folder. A script
// of Node.js loads files of its package.
func (p *Program) find() (path string, read []string, err error) {
	if p.bare() {
		if path, err = sandbox.LookPath(p.Command[0], p.dirs(), p.Workspace); err != nil && p.Command[0] == p.Self {
			path, err = os.Executable()
		}
		return path, nil, err
	}
	path = Absolute(p.Workspace, p.Command[0])
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("program %q does not exist", p.Command[0])
	}
	if wall.Within(p.Workspace, path) {
		return path, nil, nil // the program sees all of the workspace; what the agent puts there must not open more
	}
	home := filepath.Dir(filepath.Dir(path))
	if _, err := os.Stat(filepath.Join(home, "pyvenv.cfg")); err == nil {
		read = append(read, home)
	}
	if real, err := filepath.EvalSymlinks(path); err == nil && !wall.Within(p.Workspace, real) {
		if at := nodePackage(real); at != "" {
			read = append(read, at)
		}
	}
	return path, read, nil
}

// Look returns the path of the program if it can be started, as far as this can be told without starting it. The
// error may be a *host.Lack.
func (p *Program) Look() (string, error) {
	policy, err := p.Policy()
	if policy.DirFile != nil {
		policy.DirFile.Close()
	}
	if err != nil {
		return "", p.elsewhere(err)
	}
	if err := runnable(policy.Path, p.searched(policy.Path), p.Workspace); err != nil {
		return "", err
	}
	for _, name := range append(policy.Read, policy.Write...) {
		if _, err := os.Stat(name); err != nil {
			return "", fmt.Errorf("read or write names %s, which does not exist: create it, or remove it there", name)
		}
	}
	if script := p.script(); script != "" {
		if _, err := os.Stat(script); err != nil {
			return "", fmt.Errorf("%s, which it runs, does not exist", script)
		}
	}
	if err := p.ReportHidden(""); err != nil {
		return "", err
	}
	return policy.Path, nil
}

// script returns the path of the script that a known interpreter is to run, or "" if there is none or it is not known.
func (p *Program) script() string {
	name := strings.TrimRight(filepath.Base(p.Command[0]), "0123456789.")
	known := slices.Contains([]string{"python", "node", "ruby", "perl", "sh", "bash"}, name)
	if !known || len(p.Command) < 2 || strings.HasPrefix(p.Command[1], "-") || filepath.Ext(p.Command[1]) == "" {
		return ""
	}
	return Absolute(Absolute(p.Workspace, p.Cwd), p.Command[1])
}

// dirs returns the folders in which programs are looked up.
func (p *Program) dirs() []string {
	if p.Dirs != nil {
		return p.Dirs
	}
	return sandbox.SafePath(os.Getenv("PATH"), p.Workspace)
}

// runnable returns why a file cannot be run: it is no regular file, it is not executable, or the interpreter that
// its first line names does not exist.
func runnable(path string, dirs []string, workspace string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a program", path)
	case info.Mode().Perm()&0o111 == 0 && runtime.GOOS != "windows":
		return &host.Lack{Err: fmt.Errorf("%s is not executable", path), Fix: "chmod +x " + path}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil // programs of the system may be executable but not readable
	}
	defer f.Close()
	begin := make([]byte, MaxShebang)
	n, _ := io.ReadFull(f, begin)
	words, err := Shebang(begin[:n])
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case words == nil:
		return nil
	case filepath.Base(words[0]) == words[0]:
		_, err = sandbox.LookPath(words[0], dirs, workspace)
	default:
		_, err = os.Stat(words[0])
	}
	if err != nil {
		return fmt.Errorf("%s is run by %s, which its first line names: %w", path, words[0], err)
	}
	return nil
}

// MaxShebang is the longest first line that names an interpreter, as in the kernel.
const MaxShebang = 256

// Shebang parses the line at the beginning of a file that names an interpreter. It returns the interpreter, as a
// path, or as a bare name if env looks for it, and its arguments. It returns nil if there is no such line.
func Shebang(begin []byte) ([]string, error) {
	rest, ok := bytes.CutPrefix(begin, []byte("#!"))
	if !ok {
		return nil, nil
	}
	line, _, ended := bytes.Cut(rest, []byte("\n"))
	if !ended && len(begin) == MaxShebang {
		return nil, fmt.Errorf("its first line is longer than %d bytes", MaxShebang)
	}
	words := strings.Fields(string(line))
	if len(words) > 0 && path.Base(words[0]) == "env" {
		if words = words[1:]; len(words) > 0 && words[0] == "-S" {
			words = words[1:]
		}
	}
	if len(words) == 0 || strings.HasPrefix(words[0], "-") || strings.Contains(words[0], "=") {
		return nil, errors.New("its first line names no interpreter; it should be such as #!/usr/bin/env python3")
	}
	return words, nil
}

// Absolute returns the path of a name that may be relative to the workspace.
func Absolute(workspace, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(workspace, name)
}

// Backoff says when a program that ended may be started again. The owner guards it.
type Backoff struct {
	First, Most time.Duration // the first wait, and the longest: each is twice as long as the one before
	Free        int           // failures in a row without a wait: an end may be an accident
	Enough      time.Duration // a process that lived this long is no failure

	// After Limit failures in a row the wait is Pause, then each is twice as long as the one before, up to
	// PauseMost; 0 = there is no such limit.
	Limit            int
	Pause, PauseMost time.Duration
	Jitter           float64 // the part of each wait by which it may be longer or shorter, such as 0.5

	Failures int       // in a row
	Last     error     // how the program ended last, or why it did not start; nil = it runs
	Ready    time.Time // when it may start again
}

// Up notes that the program runs and works.
func (b *Backoff) Up() { b.Failures, b.Last = 0, nil }

// Down notes how the program ended after it had lived for a while. good says that it was of use meanwhile.
func (b *Backoff) Down(now time.Time, err error, lived time.Duration, good bool) {
	b.Last = err
	if b.Failures++; good || b.Enough > 0 && lived >= b.Enough {
		b.Failures = 0
	}
	doubled := b.Failures - 1 - b.Free
	wait := time.Duration(0)
	switch {
	case b.Paused():
		wait = min(b.Pause<<min(b.Failures-b.Limit, 10), max(b.Pause, b.PauseMost))
	case b.Failures > 0 && doubled >= 0:
		wait = min(b.First<<min(doubled, 16), b.Most)
	}
	if b.Jitter > 0 {
		wait += time.Duration(float64(wait) * b.Jitter * (2*rand.Float64() - 1))
	}
	b.Ready = now.Add(wait)
}

// Paused reports whether there were too many failures.
func (b *Backoff) Paused() bool { return b.Limit > 0 && b.Failures >= b.Limit }

// Wait returns for how long the program must not be started yet; 0 = it may.
func (b *Backoff) Wait(now time.Time) time.Duration {
	if b.Last == nil {
		return 0
	}
	return max(b.Ready.Sub(now), 0)
}

// Reason returns why the program may not be started, and when it may; "" = it may now.
func (b *Backoff) Reason(now time.Time) string {
	if wait := b.Wait(now); wait > 0 {
		return fmt.Sprintf("%v; it is tried again in %s", b.Last, wait.Round(time.Millisecond))
	}
	return ""
}
