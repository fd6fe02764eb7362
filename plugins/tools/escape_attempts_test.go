//go:build unix

package tools

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"a2e/host/hosttest/must"
)

// paths returns an attempt for each path. No attempt needs a setup; naive is what a plain open of each path shows.
func paths(naive string, want verdict, all ...string) (out []attempt) {
	for _, path := range all {
		out = append(out, attempt{name: fmt.Sprintf("%.40q", path), path: at(path), naive: naive, want: want})
	}
	return out
}

// outside returns an attempt whose path is made from the stage, to name its folder outside.
func outside(name, naive string, path func(s *stage) string) attempt {
	return attempt{name: name, path: path, naive: naive}
}

func dotAttempts() []attempt {
	return slices.Concat(
		paths(secret, blocked, "../outside/secret.txt", "./../outside/secret.txt", "a/../../outside/secret.txt",
			"a/b/../../../outside/secret.txt",
			"a/./../.././outside/./secret.txt", "..//outside//secret.txt"),
		paths(marker, blocked, "../outside", "../outside/"), paths("outside", blocked, "..", "../", "../.", "a/../.."),
		paths("", blocked, "ok.txt/../../outside/secret.txt", "none/../../outside/secret.txt"), []attempt{
			outside("there and back", secret, func(s *stage) string {
				return "../" + filepath.Base(s.dir) + "/../outside/secret.txt"
			}),
			outside("up to the root", secret, func(s *stage) string {
				return strings.Repeat("../", 60) + strings.TrimPrefix(s.outside, "/") + "/secret.txt"
			}),
		})
}

func absoluteAttempts() []attempt {
	all := slices.Concat(paths("etc", blocked, "/"), paths("root", blocked, "/etc/passwd"),
		paths("", harmless, "file://../outside/secret.txt"),
		paths("", blocked, "/dev/null", "/proc/self/environ", "/proc/self/cwd/files.go",
			"file://../../outside/secret.txt"), []attempt{
			outside("absolute folder", marker, func(s *stage) string { return s.outside }),
			outside("absolute and inside, up", secret,
				func(s *stage) string { return s.dir + "/../outside/secret.txt" }),
			outside("absolute and a name longer", "", func(s *stage) string { return s.dir + "2/secret.txt" }),
		})
	for _, prefix := range []string{"", "/", "/.", "/.."} {
		all = append(all, outside("absolute "+prefix, secret,
			func(s *stage) string { return prefix + s.outside + "/secret.txt" }))
	}
	return all
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
	all := []attempt{
		{name: "absolute link inside", path: at("l"), setup: func(t *testing.T,
			s *stage,
		) {
			s.link(t, s.dir+"/ok.txt", "l")
		}, naive: inside},
		{
			name: "link to the root", path: func(s *stage) string { return "l" + s.outside + "/secret.txt" },
			setup: linked("/", "l"), naive: secret,
		},
		{
			name: "link to the process's root", path: func(s *stage) string { return "l" + s.outside + "/secret.txt" },
			setup: linked("/proc/self/root", "l"),
		},
		{name: "chain", path: at("one"), setup: chain, naive: secret},
		{name: "long chain", path: at("l30"), setup: long, naive: secret},
		{name: "inner link, then outer", path: at("in/out/secret.txt"), setup: twoFolders, naive: secret},
		{name: "loop of two", path: at("x"), setup: loop},
		{name: "through a loop", path: at("x/secret.txt"), setup: loop},
	}
	for _, c := range []struct{ target, name, path, naive string }{ // paths through one link
		{"../outside/secret.txt", "l", "l", secret},
		{"%s/secret.txt", "l", "l", secret},
		{"../../../outside/secret.txt", "a/b/l", "a/b/l", secret},
		{"../outside", "l", "l", marker},
		{"../outside", "l", "l/", marker},
		{"../outside", "l", "l/.", marker},
		{"%s", "l", "l", marker},
		{"../outside", "l", "l/secret.txt", secret},
		{"%s", "l", "l/sub", "secret.txt"},
		{"%s", "l", "l/./sub//secret.txt", secret},
		{"../outside", "l", "l/new.txt", ""},
		{"../outside", "l", "l/new/new.txt", ""},
		{"..", "l", "l/outside/secret.txt", secret},
		{"../..", "a/l", "a/l/outside", marker},
		{"../ws/ok.txt", "l", "l", inside},
		{"a/./b/../../../outside/secret.txt", "l", "l", secret},
		{"l", "l", "l", ""},
		{"../outside/new.txt", "l", "l", ""},
		{"%s/new.txt", "l", "l", ""},
		{"../outside/new", "l", "l/new.txt", ""},
		{"new.txt", "l", "l", ""},
		{"/proc/self/environ", "l", "l", ""},
		{"/proc/self/cwd", "l", "l/files.go", ""},
		{"/dev/null", "l", "l", ""},
		{"/dev/stdin", "l", "l", ""},
	} {
		all = append(all, attempt{
			name: c.path + " by " + c.target, path: at(c.path), setup: linked(c.target, c.name),
			naive: c.naive,
		})
	}
	for _, c := range []struct{ target, name, path, naive string }{ // paths that stay inside and may be read
		{"ok.txt", "l", "l", inside},
		{"../ok.txt", "a/l", "a/l", inside},
		{"real", "l", "l", "in.txt"},
		{"real", "l", "l/in.txt", inside},
		{".", "l", "l/ok.txt", inside},
	} {
		all = append(all, attempt{
			name: c.path + " inside by " + c.target, path: at(c.path),
			setup: linked(c.target, c.name), naive: c.naive, want: noWrite,
		})
	}
	return all
}

// hardLinked returns a setup that makes a hard link in the workspace to the secret file outside.
func hardLinked(name string) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		must.OK(t, os.Link(filepath.Join(s.outside, "secret.txt"), filepath.Join(s.dir, name)))
	}
}

func specialAttempts() []attempt {
	fifo := func(t *testing.T, s *stage) { must.OK(t, syscall.Mkfifo(filepath.Join(s.dir, "fifo"), 0o666)) }
	fifoLink := func(t *testing.T, s *stage) {
		fifo(t, s)
		s.link(t, "fifo", "l")
	}
	fifoRead := func(t *testing.T, s *stage) { // a pipe with a process at its other end
		fifo(t, s)
		end := must.Get(os.OpenFile(filepath.Join(s.dir, "fifo"), os.O_RDWR, 0))(t)
		t.Cleanup(func() { must.OK(t, end.Close()) })
	}
	socket := func(t *testing.T, s *stage) {
		t.Chdir(s.dir) // the name of a socket must be short, so it is relative
		l := must.Get(net.Listen("unix", "sock"))(t)
		t.Cleanup(func() { must.OK(t, l.Close()) })
	}
	hardLink := func(t *testing.T, s *stage) {
		hardLinked("h")(t, s)
		s.link(t, "h", "l")
	}
	twins := func(t *testing.T, s *stage) {
		must.OK(t, os.Link(filepath.Join(s.dir, "ok.txt"), filepath.Join(s.dir, "twin.txt")))
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
	return slices.Concat(
		paths("", blocked, "ok.txt\x00/../../outside/secret.txt", "../outside/secret.txt\x00.txt", "\x00",
			strings.Repeat("../", 2000)+"outside/secret.txt",
			strings.Repeat("x", 300), "ok.txt/", "ok.txt/./x"),
		paths("", harmless, "", " ../outside/secret.txt", "%2e%2e/outside/secret.txt", "..%2foutside%2fsecret.txt",
			"%252e%252e%252foutside", `..\outside\secret.txt`,
			`a\..\../../ws/ok.txt`, ".../outside/secret.txt", "....//....//outside/secret.txt",
			"\uff0e\uff0e/outside/secret.txt", "\u2025/outside/secret.txt",
			"..\u2215outside\u2215secret.txt", "..;/outside/secret.txt", "..  /outside/secret.txt",
			"..\n/outside/secret.txt", "~/secret.txt",
			"$HOME/../outside/secret.txt", "$(cat ../outside/secret.txt)", `C:\outside\secret.txt`, `\\?\C:\outside`,
			"ok.txt::$DATA", ".a2e-X.tmp/../ok.txt"),
		[]attempt{{
			name: "other case of a link", path: at("LINK"), setup: linked("../outside/secret.txt", "link"),
			want: harmless,
		}})
}
