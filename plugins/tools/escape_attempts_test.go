//go:build unix

package tools

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func dotAttempts() []attempt {
	up := func(s *stage) string {
		return strings.Repeat("../", 60) + strings.TrimPrefix(s.outside, "/") + "/secret.txt"
	}
	back := func(s *stage) string { return "../" + filepath.Base(s.dir) + "/../outside/secret.txt" }
	return []attempt{
		{name: "up", path: at("../outside/secret.txt"), naive: secret},
		{name: "up after dot", path: at("./../outside/secret.txt"), naive: secret},
		{name: "up to a folder", path: at("../outside"), naive: marker},
		{name: "up to a folder, slash", path: at("../outside/"), naive: marker},
		{name: "down and up", path: at("a/../../outside/secret.txt"), naive: secret},
		{name: "further down and up", path: at("a/b/../../../outside/secret.txt"), naive: secret},
		{name: "dots between", path: at("a/./../.././outside/./secret.txt"), naive: secret},
		{name: "doubled slashes", path: at("..//outside//secret.txt"), naive: secret},
		{name: "there and back", path: back, naive: secret},
		{name: "up to the root", path: up, naive: secret},
		{name: "only up", path: at(".."), naive: "outside"},
		{name: "up, slash", path: at("../"), naive: "outside"},
		{name: "up, dot", path: at("../."), naive: "outside"},
		{name: "up twice from below", path: at("a/../.."), naive: "outside"},
		{name: "up through a file", path: at("ok.txt/../../outside/secret.txt")},
		{name: "up through nothing", path: at("none/../../outside/secret.txt")},
	}
}

func absoluteAttempts() []attempt {
	plus := func(prefix, suffix string) func(*stage) string {
		return func(s *stage) string { return prefix + s.outside + suffix }
	}
	return []attempt{
		{name: "absolute", path: plus("", "/secret.txt"), naive: secret},
		{name: "absolute folder", path: plus("", ""), naive: marker},
		{name: "absolute, two slashes", path: plus("/", "/secret.txt"), naive: secret},
		{name: "absolute, dot", path: plus("/.", "/secret.txt"), naive: secret},
		{name: "absolute, up", path: plus("/..", "/secret.txt"), naive: secret},
		{name: "absolute and inside, up", path: func(s *stage) string { return s.dir + "/../outside/secret.txt" }, naive: secret},
		{name: "absolute and a name longer", path: func(s *stage) string { return s.dir + "2/secret.txt" }},
		{name: "the root", path: at("/"), naive: "etc"},
		{name: "passwd", path: at("/etc/passwd"), naive: "root"},
		{name: "null device", path: at("/dev/null")},
		{name: "environment", path: at("/proc/self/environ")},
		{name: "working folder", path: at("/proc/self/cwd/files.go")},
		{name: "file URL", path: at("file://../outside/secret.txt"), want: harmless},
		{name: "file URL, up", path: at("file://../../outside/secret.txt")},
	}
}

func linkAttempts() []attempt {
	chain := func(t *testing.T, s *stage) {
		s.link(t, "two", "one")
		s.link(t, "a/three", "two")
		s.link(t, "../../outside/secret.txt", "a/three")
	}
	long := func(t *testing.T, s *stage) {
		s.link(t, "../outside/secret.txt", "l0")
		for i := range 30 {
			s.link(t, fmt.Sprintf("l%d", i), fmt.Sprintf("l%d", i+1))
		}
	}
	loop := func(t *testing.T, s *stage) {
		s.link(t, "y", "x")
		s.link(t, "x", "y")
	}
	twoFolders := func(t *testing.T, s *stage) {
		s.link(t, "a", "in")
		s.link(t, "../../outside", "a/out")
	}
	return []attempt{
		{name: "link to a file", path: at("l"), setup: linked("../outside/secret.txt", "l"), naive: secret},
		{name: "absolute link to a file", path: at("l"), setup: linked("%s/secret.txt", "l"), naive: secret},
		{name: "link in a folder", path: at("a/b/l"), setup: linked("../../../outside/secret.txt", "a/b/l"), naive: secret},
		{name: "link to a folder", path: at("l"), setup: linked("../outside", "l"), naive: marker},
		{name: "link to a folder, slash", path: at("l/"), setup: linked("../outside", "l"), naive: marker},
		{name: "link to a folder, dot", path: at("l/."), setup: linked("../outside", "l"), naive: marker},
		{name: "absolute link to a folder", path: at("l"), setup: linked("%s", "l"), naive: marker},
		{name: "file in a linked folder", path: at("l/secret.txt"), setup: linked("../outside", "l"), naive: secret},
		{name: "folder in a linked folder", path: at("l/sub"), setup: linked("%s", "l"), naive: "secret.txt"},
		{name: "deep in a linked folder", path: at("l/./sub//secret.txt"), setup: linked("%s", "l"), naive: secret},
		{name: "new file in a linked folder", path: at("l/new.txt"), setup: linked("../outside", "l")},
		{name: "new file in a new folder in a linked one", path: at("l/new/new.txt"), setup: linked("../outside", "l")},
		{name: "link to the root", path: func(s *stage) string { return "l" + s.outside + "/secret.txt" }, setup: linked("/", "l"), naive: secret},
		{name: "link up", path: at("l/outside/secret.txt"), setup: linked("..", "l"), naive: secret},
		{name: "link up from below", path: at("a/l/outside"), setup: linked("../..", "a/l"), naive: marker},
		{name: "link there and back", path: at("l"), setup: linked("../ws/ok.txt", "l"), naive: inside},
		{name: "absolute link inside", path: at("l"), setup: func(t *testing.T, s *stage) { s.link(t, s.dir+"/ok.txt", "l") }, naive: inside},
		{name: "link with dots", path: at("l"), setup: linked("a/./b/../../../outside/secret.txt", "l"), naive: secret},
		{name: "chain", path: at("one"), setup: chain, naive: secret},
		{name: "long chain", path: at("l30"), setup: long, naive: secret},
		{name: "inner link, then outer", path: at("in/out/secret.txt"), setup: twoFolders, naive: secret},
		{name: "loop of one", path: at("l"), setup: linked("l", "l")},
		{name: "loop of two", path: at("x"), setup: loop},
		{name: "through a loop", path: at("x/secret.txt"), setup: loop},
		{name: "dangling outside", path: at("l"), setup: linked("../outside/new.txt", "l")},
		{name: "dangling outside, absolute", path: at("l"), setup: linked("%s/new.txt", "l")},
		{name: "dangling folder outside", path: at("l/new.txt"), setup: linked("../outside/new", "l")},
		{name: "dangling inside", path: at("l"), setup: linked("new.txt", "l")},
		{name: "link to the environment", path: at("l"), setup: linked("/proc/self/environ", "l")},
		{name: "link to the process's root", path: func(s *stage) string { return "l" + s.outside + "/secret.txt" }, setup: linked("/proc/self/root", "l")},
		{name: "link to the working folder", path: at("l/files.go"), setup: linked("/proc/self/cwd", "l")},
		{name: "link to the null device", path: at("l"), setup: linked("/dev/null", "l")},
		{name: "link to stdin", path: at("l"), setup: linked("/dev/stdin", "l")},
	}
}

func insideLinkAttempts() []attempt {
	return []attempt{
		{name: "inner link to a file", path: at("l"), setup: linked("ok.txt", "l"), naive: inside, want: noWrite},
		{name: "inner link up to a file", path: at("a/l"), setup: linked("../ok.txt", "a/l"), naive: inside, want: noWrite},
		{name: "inner link to a folder", path: at("l"), setup: linked("real", "l"), naive: "in.txt", want: noWrite},
		{name: "file in an inner link", path: at("l/in.txt"), setup: linked("real", "l"), naive: inside, want: noWrite},
		{name: "inner link to the workspace", path: at("l/ok.txt"), setup: linked(".", "l"), naive: inside, want: noWrite},
	}
}

// hardLinked gives a file of the workspace a second name.
func hardLinked(name string) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		check(t, os.Link(filepath.Join(s.outside, "secret.txt"), filepath.Join(s.dir, name)))
	}
}

func specialAttempts() []attempt {
	fifo := func(t *testing.T, s *stage) { check(t, syscall.Mkfifo(filepath.Join(s.dir, "fifo"), 0o666)) }
	fifoLink := func(t *testing.T, s *stage) {
		fifo(t, s)
		s.link(t, "fifo", "l")
	}
	fifoRead := func(t *testing.T, s *stage) { // with a process at the other end
		fifo(t, s)
		end, err := os.OpenFile(filepath.Join(s.dir, "fifo"), os.O_RDWR, 0)
		check(t, err)
		t.Cleanup(func() { check(t, end.Close()) })
	}
	socket := func(t *testing.T, s *stage) {
		t.Chdir(s.dir) // the name of a socket may only be short
		l, err := net.Listen("unix", "sock")
		check(t, err)
		t.Cleanup(func() { check(t, l.Close()) })
	}
	hardLink := func(t *testing.T, s *stage) {
		hardLinked("h")(t, s)
		s.link(t, "h", "l")
	}
	twins := func(t *testing.T, s *stage) {
		check(t, os.Link(filepath.Join(s.dir, "ok.txt"), filepath.Join(s.dir, "twin.txt")))
	}
	return []attempt{
		{name: "hard link", path: at("h"), setup: hardLinked("h"), naive: secret},
		{name: "hard link in a folder", path: at("a/b/h"), setup: hardLinked("a/b/h"), naive: secret},
		{name: "link to a hard link", path: at("l"), setup: hardLink, naive: secret},
		{name: "hard link inside", path: at("twin.txt"), setup: twins, naive: inside},
		{name: "pipe", path: at("fifo"), setup: fifo},
		{name: "pipe with a reader", path: at("fifo"), setup: fifoRead},
		{name: "link to a pipe", path: at("l"), setup: fifoLink},
		{name: "through a pipe", path: at("fifo/x"), setup: fifo},
		{name: "socket", path: at("sock"), setup: socket},
	}
}

func oddNameAttempts() []attempt {
	odd := func(name, path string) attempt { return attempt{name: name, path: at(path), want: harmless} }
	return []attempt{
		{name: "NUL after a good name", path: at("ok.txt\x00/../../outside/secret.txt")},
		{name: "NUL after a bad name", path: at("../outside/secret.txt\x00.txt")},
		{name: "only NUL", path: at("\x00")},
		{name: "empty", path: at(""), want: harmless},
		{name: "space before", path: at(" ../outside/secret.txt"), want: harmless},
		{name: "far too long", path: at(strings.Repeat("../", 2000) + "outside/secret.txt")},
		{name: "long name", path: at(strings.Repeat("x", 300))},
		odd("percent", "%2e%2e/outside/secret.txt"),
		odd("percent slash", "..%2foutside%2fsecret.txt"),
		odd("percent twice", "%252e%252e%252foutside"),
		odd("backslash", `..\outside\secret.txt`),
		odd("mixed slashes", `a\..\../../ws/ok.txt`),
		odd("three dots", ".../outside/secret.txt"),
		odd("four dots", "....//....//outside/secret.txt"),
		odd("wide dots", "\uff0e\uff0e/outside/secret.txt"),
		odd("dot leaders", "\u2025/outside/secret.txt"),
		odd("division slash", "..\u2215outside\u2215secret.txt"),
		odd("semicolon", "..;/outside/secret.txt"),
		odd("space after", "..  /outside/secret.txt"),
		odd("newline", "..\n/outside/secret.txt"),
		odd("home", "~/secret.txt"),
		odd("variable", "$HOME/../outside/secret.txt"),
		odd("command", "$(cat ../outside/secret.txt)"),
		odd("drive", `C:\outside\secret.txt`),
		odd("share", `\\?\C:\outside`),
		odd("stream", "ok.txt::$DATA"),
		odd("temporary name", ".a2e-X.tmp/../ok.txt"),
		{name: "other case of a link", path: at("LINK"), setup: linked("../outside/secret.txt", "link"), want: harmless},
		{name: "file, slash", path: at("ok.txt/")},
		{name: "file, dot", path: at("ok.txt/./x")},
	}
}
