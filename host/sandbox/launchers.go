package sandbox

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ExecStrict is the option exec of a config that allows no command which lets a request
// choose what is run.
const ExecStrict = "strict"

// LauncherError says that a strict allow list has an interpreter or launcher which is named
// without what it shall run.
type LauncherError struct{ Entry string }

// Error implements error.
func (e *LauncherError) Error() string {
	return fmt.Sprintf("%q starts any program or runs any code, which exec: strict does not allow; name it with what it shall run, such as \"python3 tools/run.py\", or leave it out", e.Entry)
}

// StrictCommands are DefaultCommands without those that start others.
func StrictCommands() []string {
	return slices.DeleteFunc(DefaultCommands(), func(name string) bool { return isLauncher(name) })
}

// launchers are programs that run code they are given, or start programs that their
// arguments, their input or files of the workspace name. Version numbers are left out.
const launchers = " " +
	// shells, and what has many programs in one
	"sh bash dash ash ksh mksh zsh fish csh tcsh rbash busybox toybox pwsh powershell cmd " +
	// languages
	"python pypy perl ruby irb node nodejs deno bun php lua luajit tclsh wish expect awk gawk mawk nawk original-awk sed gsed m4 dc guile racket sbcl clisp java jshell kotlin scala groovy " +
	"erl escript elixir iex ghc ghci runghc ocaml R Rscript julia octave swift go rustc gcc cc clang tcc ld osascript " +
	// package runners and build tools
	"npx npm pnpm yarn bunx corepack pip pipx uv uvx poetry pipenv conda tox nox pytest make gmake cmake ninja meson scons bazel cargo rustup mvn gradle ant rake bundle gem composer " +
	"docker podman kubectl helm terraform ansible ansible-playbook vagrant nix nix-shell guix " +
	// programs that start others
	"env xargs parallel find fd nice ionice nohup setsid timeout time stdbuf unbuffer script flock watch entr chroot unshare nsenter setpriv capsh runuser su sudo doas pkexec systemd-run start-stop-daemon " +
	"at batch crontab run-parts screen tmux dtach ssh scp sftp rsync socat nc ncat netcat telnet ftp strace ltrace gdb lldb perf valgrind bwrap firejail proot fakeroot ld.so ld-linux " +
	"git hg svn tar gtar bsdtar cpio zip sort split tcpdump wget man less more most pager vi vim nvim ex view ed emacs nano mutt mail sqlite psql mysql mongosh redis-cli openssl "

// isLauncher tells it by the name: python3.11 is python, x86_64-linux-gnu-gcc-12 is gcc.
func isLauncher(name string) bool {
	name = strings.TrimSuffix(strings.ToLower(filepath.Base(name)), ".exe")
	known := func(name string) bool {
		return name != "" && strings.Contains(strings.ToLower(launchers), " "+name+" ")
	}
	if known(name) {
		return true
	}
	stem := strings.TrimRight(name, "0123456789.-")
	if known(stem) {
		return true
	}
	word, version, _ := strings.Cut(stem, ".") // vim.basic, ld.so.2
	return strings.HasPrefix(name, "ld-linux") || known(word) || known(word+"."+version) || known(stem[strings.LastIndexByte(stem, '-')+1:])
}

// manyInOne are programs that are what their link is called.
func manyInOne(name string) bool {
	return slices.Contains([]string{"busybox", "toybox", "coreutils"}, name)
}

// open tells whether a command lets a request choose what is run: an interpreter or
// launcher, under whatever link, or a script, without an argument that says what it runs. An
// argument that is a launcher itself must say it in turn. path may be "".
func open(name, path string, args []string) bool {
	real := filepath.Base(path)
	starts := isLauncher(name) || path != "" && (isLauncher(real) && !manyInOne(real) || isScript(path))
	if !starts {
		return false
	}
	for i, arg := range args {
		switch {
		case strings.HasPrefix(arg, "-"), isEnvironment(arg):
		case isLauncher(arg) && !strings.Contains(arg, "."):
			return open(arg, "", args[i+1:])
		default:
			return false
		}
	}
	return true
}

// isEnvironment tells an assignment before a command, as env takes it.
func isEnvironment(arg string) bool {
	name, _, ok := strings.Cut(arg, "=")
	return ok && !strings.ContainsAny(name, "/.")
}

// isScript tells whether a program is run by another one, which its first line names.
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
