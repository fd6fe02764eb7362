package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"a2e/host/guard/wall"
)

// DefaultCommands returns the programs that may be started when the config names none; programs that
// the machine lacks are ignored.
func DefaultCommands() []string {
	return []string{
		"bash", "sh", "python3", "ls", "cat", "echo", "sleep", "git", "grep", "sed", "awk", "head", "tail", "wc",
		"sort", "find", "mkdir", "cp", "mv", "touch", "diff", "node", "go", "make",
	}
}

// ownFolder reports whether no other user can change the contents of a folder, or replace the folder
// by way of one above it.
func ownFolder(real string) bool {
	info, err := os.Stat(real)
	if err != nil || !info.IsDir() || writableByOthers(info) {
		return false
	}
	for parent := filepath.Dir(real); ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil || writableByOthers(info) && info.Mode()&os.ModeSticky == 0 {
			return false
		}
		if parent == filepath.Dir(parent) {
			return true
		}
	}
}

// AllowList is a fixed set of commands: bare program names, some with fixed first arguments. Each name
// is bound to one real file when the list is made; later changes of PATH, of links or of files with
// the same name have no effect. It is safe for concurrent use.
//
// It restricts only the first program, not the programs that an allowed interpreter or wrapper
// starts. A strict list contains interpreters and wrappers only with arguments.
type AllowList struct {
	workspace string // real path; "" = none
	commands  []command
	missing   []command // allowed, but not on this machine
}

// command is one entry of an AllowList.
type command struct {
	text string
	name string
	args []string // the arguments with which a start must begin
	path string   // real
}

// NewAllowList looks the commands up in dirs, as returned by SafePath. Without entries (nil) the list has
// DefaultCommands; a strict list leaves out those that start others. An entry is a bare name, or a name with fixed
// first arguments, separated by spaces. Names that are in no folder go to Missing. A name with other characters than
// letters, digits and "._+-" is an error, as it could be a path or a shell expression. In a strict list, an interpreter
// or wrapper without the program that it shall run is a *WrapperError; without dirs only the names are checked.
func NewAllowList(entries, dirs []string, workspace string, strict bool) (*AllowList, error) {
	a := &AllowList{workspace: realPath(workspace)}
	if entries == nil {
		entries = slices.DeleteFunc(DefaultCommands(), func(name string) bool { return strict && isWrapper(name) })
	}
	same := func(text string) func(command) bool { return func(c command) bool { return c.text == text } }
	for _, entry := range entries {
		words := strings.Fields(entry)
		if len(words) == 0 || !bareName(words[0]) || strings.ContainsFunc(entry, unicode.IsControl) {
			return nil, fmt.Errorf("allowed command %q is not a bare program name such as \"git\", alone or with "+
				"its first arguments", entry)
		}
		c := command{text: strings.Join(words, " "), name: words[0], args: words[1:]}
		if slices.ContainsFunc(a.commands, same(c.text)) || slices.ContainsFunc(a.missing, same(c.text)) {
			continue
		}
		path, err := LookPath(c.name, dirs, workspace)
		c.path = path
		if strict && open(c.name, path, c.args) {
			return nil, &WrapperError{Entry: c.text}
		}
		if err != nil {
			a.missing = append(a.missing, c)
			continue
		}
		a.commands = append(a.commands, c)
	}
	slices.SortFunc(a.commands, func(x, y command) int { return strings.Compare(x.text, y.text) })
	return a, nil
}

// Names returns the commands that may be started, sorted.
func (a *AllowList) Names() []string { return texts(a.commands) }

// Missing returns the allowed commands that this machine does not have.
func (a *AllowList) Missing() []string { return texts(a.missing) }

func texts(commands []command) []string {
	all := make([]string, len(commands))
	for i, c := range commands {
		all[i] = c.text
	}
	return all
}

// Wrappers returns the commands that can start any other program, sorted.
func (a *AllowList) Wrappers() []string {
	return texts(slices.DeleteFunc(slices.Clone(a.commands),
		func(c command) bool { return !open(c.name, c.path, c.args) }))
}

// DeniedError says why a program may not be started, and which programs may.
type DeniedError struct {
	Name    string
	Reason  string
	Allowed []string
}

// Error implements error.
func (e *DeniedError) Error() string {
	return fmt.Sprintf("command %q is refused: %s; allowed are: %s", e.Name, e.Reason, strings.Join(e.Allowed, ", "))
}

// Resolve returns the real path of an allowed command. words are the program's name and its arguments. The file is
// checked again: it must still be the same regular executable file outside the workspace. A command with fixed
// arguments must start in the workspace itself, because they are relative to it. The error is a *DeniedError.
func (a *AllowList) Resolve(cwd string, words ...string) (string, error) {
	name := words[0]
	if inside, ok := Relative(a.workspace, cwd); ok && filepath.IsAbs(cwd) {
		cwd = inside
	}
	c, ok := a.find(words)
	if !ok {
		return "", a.denied(name, a.whyNot(name))
	}
	if len(c.args) > 0 && filepath.Clean(cwd) != "." {
		return "", a.denied(name, "it is allowed with arguments that count from the workspace; leave cwd out")
	}
	if err := checkProgram(c.path, a.workspace); err != nil {
		return "", a.denied(name, err.Error())
	}
	return c.path, nil
}

// whyNot says why no entry matches a name.
func (a *AllowList) whyNot(name string) string {
	named := func(c command) bool { return c.name == name }
	switch {
	case name == "":
		return "it is empty"
	case slices.ContainsFunc(a.commands, named):
		return "it may be started only with the first arguments that it is allowed with"
	case slices.ContainsFunc(a.missing, named) && a.workspace == filepath.Dir(a.workspace):
		return "every program lies inside the workspace, which is " + a.workspace + "; start the host in the folder " +
			"to work in, or set workspace in the config"
	case slices.ContainsFunc(a.missing, named):
		return "this machine does not have it"
	case strings.ContainsAny(name, `/\`):
		return "give a bare program name, not a path"
	}
	return "it is not on the allow list"
}

// find returns the entry that allows a command.
func (a *AllowList) find(words []string) (command, bool) {
	var found command
	ok := false
	for _, c := range a.commands {
		if c.name == words[0] && len(words) > len(c.args) && slices.Equal(words[1:1+len(c.args)], c.args) &&
			(!ok || len(c.args) == 0) {
			found, ok = c, true
		}
	}
	return found, ok
}

func (a *AllowList) denied(name, reason string) error {
	return &DeniedError{Name: name, Reason: reason, Allowed: a.Names()}
}

// LookPath returns the real path of a program: a bare name is looked up in dirs, an absolute path is used directly. The
// program must be an executable regular file outside the workspace, and so must the link that leads to it.
func LookPath(name string, dirs []string, workspace string) (string, error) {
	inside := realPath(workspace)
	if filepath.IsAbs(name) {
		return programAt(filepath.Clean(name), inside)
	}
	if !bareName(name) {
		return "", fmt.Errorf("%q is neither a bare program name nor an absolute path", name)
	}
	for _, dir := range dirs {
		for _, file := range programNames(name) {
			if path, err := programAt(filepath.Join(dir, file), inside); err == nil {
				return path, nil
			}
		}
	}
	return "", &NotFoundError{Name: name, Dirs: dirs, Workspace: inside}
}

// NotFoundError is the error for a program that is in none of the searched folders.
type NotFoundError struct {
	Name      string
	Dirs      []string
	Workspace string // programs inside it do not count
}

// Error implements error.
func (e *NotFoundError) Error() string {
	return fmt.Sprintf("program %q is in none of %s", e.Name, strings.Join(e.Dirs, ", "))
}

func programAt(path, workspace string) (string, error) {
	if within(workspace, path) {
		return "", fmt.Errorf("%s lies inside the workspace", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return real, checkProgram(real, workspace)
}

// checkProgram checks a path that was resolved before: no part of it may have become a link since.
func checkProgram(path, workspace string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return errors.New("its file is gone")
	}
	info, err := os.Lstat(real)
	switch {
	case err != nil:
		return errors.New("its file is gone")
	case real != path:
		return errors.New("its file was replaced by a link")
	case within(workspace, real):
		return errors.New("its file lies inside the workspace")
	case !executable(info):
		return errors.New("its file is not executable")
	}
	return nil
}

// bareName reports whether a name can only be the name of a program.
func bareName(name string) bool {
	if name == "" || name[0] == '-' || name[0] == '.' {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("._+-", c) >= 0) {
			return false
		}
	}
	return true
}

// realPath makes a path absolute and resolves links where it can; "" stays "".
func realPath(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// within reports whether path is dir or lies below it; an empty dir holds nothing.
func within(dir, path string) bool { return dir != "" && wall.Within(dir, path) }

// ExecStrict is the value of the config option exec that forbids commands which let a request choose what is run.
const ExecStrict = "strict"

// WrapperError says that a strict allow list contains an interpreter or wrapper without the program that it shall run.
type WrapperError struct{ Entry string }

// Error implements error.
func (e *WrapperError) Error() string {
	return fmt.Sprintf("%q starts any program or runs any code, which exec: strict does not allow; name it with the "+
		"script that it may run, such as \"python3 tools/run.py\", or leave it out", e.Entry)
}

// wrappers are programs that run code which they are given, or that start programs named by their
// arguments, their input or files of the workspace. The names have no version numbers.
const wrappers = " " +
	// shells, and what has many programs in one
	"sh bash dash ash ksh mksh zsh fish csh tcsh rbash busybox toybox pwsh powershell cmd " +
	// languages
	"python pypy perl ruby irb node nodejs deno bun php lua luajit tclsh wish expect awk gawk mawk nawk " +
	"original-awk sed gsed m4 dc guile racket sbcl clisp java jshell kotlin scala groovy " +
	"erl escript elixir iex ghc ghci runghc ocaml R Rscript julia octave swift go rustc gcc cc clang tcc ld " +
	"osascript " +
	// package runners and build tools
	"npx npm pnpm yarn bunx corepack pip pipx uv uvx poetry pipenv conda tox nox pytest make gmake cmake ninja " +
	"meson scons bazel cargo rustup mvn gradle ant rake bundle gem composer " +
	"docker podman kubectl helm terraform ansible ansible-playbook vagrant nix nix-shell guix " +
	// programs that start others
	"env xargs parallel find fd nice ionice nohup setsid timeout time stdbuf unbuffer script flock watch entr " +
	"chroot unshare nsenter setpriv capsh runuser su sudo doas pkexec systemd-run start-stop-daemon " +
	"at batch crontab run-parts screen tmux dtach ssh scp sftp rsync socat nc ncat netcat telnet ftp strace ltrace " +
	"gdb lldb perf valgrind bwrap firejail proot fakeroot ld.so ld-linux " +
	"git hg svn tar gtar bsdtar cpio zip sort split tcpdump wget man less more most pager vi vim nvim ex view ed " +
	"emacs nano mutt mail sqlite psql mysql mongosh redis-cli openssl "

// isWrapper reports whether a name is in wrappers, ignoring versions: python3.11 is python,
// x86_64-linux-gnu-gcc-12 is gcc.
func isWrapper(name string) bool {
	name = strings.TrimSuffix(strings.ToLower(filepath.Base(name)), ".exe")
	known := func(name string) bool {
		return name != "" && strings.Contains(strings.ToLower(wrappers), " "+name+" ")
	}
	if known(name) {
		return true
	}
	stem := strings.TrimRight(name, "0123456789.-")
	if known(stem) {
		return true
	}
	word, version, _ := strings.Cut(stem, ".") // vim.basic, ld.so.2
	return strings.HasPrefix(name, "ld-linux") || known(word) || known(word+"."+version) ||
		known(stem[strings.LastIndexByte(stem, '-')+1:])
}

// manyInOne reports whether a program acts as the program whose name its link has.
func manyInOne(name string) bool {
	return slices.Contains([]string{"busybox", "toybox", "coreutils"}, name)
}

// open reports whether a command lets a request choose what is run: it is an interpreter or wrapper,
// under any link name, or a script, and no argument fixes what it runs. An argument that is itself a
// wrapper needs such an argument in turn. path may be "".
func open(name, path string, args []string) bool {
	real := filepath.Base(path)
	starts := isWrapper(name) || path != "" && (isWrapper(real) && !manyInOne(real) || isScript(path))
	if !starts {
		return false
	}
	for i, arg := range args {
		switch {
		case strings.HasPrefix(arg, "-"), isEnvironment(arg):
		case isWrapper(arg) && !strings.Contains(arg, "."):
			return open(arg, "", args[i+1:])
		default:
			return false
		}
	}
	return true
}

// isEnvironment reports whether an argument is an assignment before a command, as env accepts it.
func isEnvironment(arg string) bool {
	name, _, ok := strings.Cut(arg, "=")
	return ok && !strings.ContainsAny(name, "/.")
}

// isScript reports whether a program is a script, whose first line names its interpreter.
func isScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false // it cannot be started either
	}
	defer f.Close()
	var first [2]byte
	_, err = io.ReadFull(f, first[:])
	return err == nil && bytes.Equal(first[:], []byte("#!"))
}
