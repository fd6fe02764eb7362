//go:build unix

package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

// What lies outside the workspace, and must show in no answer.
const (
	secret = "SECRET-b2c6e1d4"
	marker = "marker-7c1f09" // the name of a file that no attempt names
	inside = "INSIDE-text"
)

// stage is a workspace with a folder beside it that nothing may reach.
type stage struct {
	*workspace
	outside string // absolute
}

func newStage(t testing.TB) *stage {
	t.Helper()
	top := t.TempDir()
	s := &stage{outside: filepath.Join(top, "outside")}
	for _, dir := range []string{"outside/sub", "ws/a/b", "ws/real"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"outside/secret.txt": secret, "outside/" + marker: secret, "outside/sub/secret.txt": secret,
		"ws/ok.txt": inside, "ws/real/in.txt": inside, "ws/a/b/deep.txt": inside,
	} {
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	s.workspace = openWorkspace(t, filepath.Join(top, "ws"), 0)
	return s
}

// check fails the test unless err is nil.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// link makes a symbolic link in the workspace.
func (s *stage) link(t testing.TB, target, name string) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(filepath.Join(s.dir, name)), 0o777))
	check(t, os.Symlink(target, filepath.Join(s.dir, name)))
}

// picture describes every file below the folder: name, type, permissions,
// number of names and content.
func picture(t testing.TB, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&all, "%s %v %d", path, info.Mode(), info.Sys().(*syscall.Stat_t).Nlink)
		if d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&all, " %q", text)
		}
		all.WriteByte('\n')
		return nil
	})
	check(t, err)
	return all.String()
}

// tries is what one path is tried with: every tool that takes one.
func tries(path string) []struct {
	tool string
	args args
} {
	return []struct {
		tool string
		args args
	}{
		{"read_file", args{"path": path}},
		{"grep", args{"path": path, "pattern": "."}},
		{"list_dir", args{"path": path}},
		{"glob", args{"pattern": path}},
		{"glob", args{"pattern": path + "/*"}},
		{"glob", args{"pattern": path + "/**"}},
		{"write_file", args{"path": path, "content": "written"}},
		{"write_file", args{"path": path + "/new.txt", "content": "written"}},
		{"write_file", args{"path": path + "/new/new.txt", "content": "written"}},
		{"edit_file", args{"path": path, "old": secret, "new": "edited"}},
		{"edit_file", args{"path": path, "old": "INSIDE", "new": "edited"}},
	}
}

// answer runs a tool and gives all that a client sees of it. A tool that hangs
// fails the test.
func (s *stage) answer(t testing.TB, name string, a args) (text string, err error) {
	t.Helper()
	done := make(chan struct{})
	var out *outcome
	go func() {
		defer close(done)
		out, err = s.call(t, t.Context(), name, a)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s %v hangs", name, a)
	}
	var e *protocol.Error
	switch {
	case errors.As(err, &e):
		return e.Message + fmt.Sprint(e.Detail), err
	case err != nil:
		t.Fatalf("%s %v: an error that is no answer: %v", name, a, err)
	}
	raw, err := json.Marshal(out.data)
	check(t, err)
	return out.summary + string(raw), nil
}

// legitimate proves that each tool works on this stage, so that a refusal means
// something.
func (s *stage) legitimate(t testing.TB) {
	t.Helper()
	for _, c := range []struct {
		tool string
		args args
		want string
	}{
		{"write_file", args{"path": "probe/ok.txt", "content": inside}, "probe/ok.txt"},
		{"edit_file", args{"path": "probe/ok.txt", "old": inside, "new": "EDITED"}, "probe/ok.txt"},
		{"read_file", args{"path": "probe/ok.txt"}, "EDITED"},
		{"grep", args{"path": "probe", "pattern": "EDIT"}, "EDITED"},
		{"list_dir", args{"path": "probe"}, "ok.txt"},
		{"glob", args{"pattern": "probe/*"}, "probe/ok.txt"},
	} {
		if text, err := s.answer(t, c.tool, c.args); err != nil || !strings.Contains(text, c.want) {
			t.Fatalf("the legitimate %s %v: %q, %v", c.tool, c.args, text, err)
		}
	}
}

// verdict is what is expected of an attempt, beyond that nothing leaks.
type verdict int

const (
	blocked  verdict = iota // by every tool but glob, which may find nothing or the name itself
	noWrite                 // reads are fine (it stays inside), writing is blocked
	harmless                // a name like others, or one that does not exist
)

// attempt is one way to get out.
type attempt struct {
	name  string
	path  func(s *stage) string
	setup func(t *testing.T, s *stage)
	naive string // what a plain open of the path gives: proves that the way leads there
	want  verdict
}

func at(path string) func(*stage) string { return func(*stage) string { return path } }

// linked is the setup that makes one link, %s in its target being the folder outside.
func linked(target, name string) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) { s.link(t, strings.ReplaceAll(target, "%s", s.outside), name) }
}

func TestEscapes(t *testing.T) {
	var all []attempt
	all = append(all, dotAttempts()...)
	all = append(all, absoluteAttempts()...)
	all = append(all, linkAttempts()...)
	all = append(all, insideLinkAttempts()...)
	all = append(all, specialAttempts()...)
	all = append(all, oddNameAttempts()...)
	if len(all) < 60 {
		t.Errorf("only %d attempts", len(all))
	}
	calls := 0
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) { calls += a.run(t) })
	}
	t.Logf("%d attempts, %d calls", len(all), calls)
}

// run tries one way with every tool.
func (a *attempt) run(t *testing.T) (calls int) {
	s := newStage(t)
	s.legitimate(t)
	if a.setup != nil {
		a.setup(t, s)
	}
	path := a.path(s)
	a.proveNaive(t, s, path)
	before := picture(t, s.outside)
	for _, try := range tries(path) {
		text, err := s.answer(t, try.tool, try.args)
		calls++
		shown := strings.ReplaceAll(text, path, "")
		if strings.Contains(shown, secret) || strings.Contains(shown, marker) || strings.Contains(shown, s.outside) {
			t.Errorf("%s %q shows what is outside: %s", try.tool, try.args, text)
		}
		writes := try.tool == "write_file" || try.tool == "edit_file"
		if err == nil && try.tool != "glob" && (a.want == blocked || a.want == noWrite && writes) {
			t.Errorf("%s %q is not blocked: %s", try.tool, try.args, text)
		}
		if after := picture(t, s.outside); after != before {
			t.Fatalf("%s %q changed what is outside:\n%s\nwas:\n%s", try.tool, try.args, after, before)
		}
	}
	if left := leftOver(t, s.dir); left != nil {
		t.Errorf("left behind: %v", left)
	}
	if a.want == noWrite {
		if text, err := s.answer(t, "grep", args{"pattern": inside, "path": path}); err != nil || !strings.Contains(text, inside) {
			t.Errorf("reading inside: %q, %v", text, err)
		}
	}
	return calls
}

// proveNaive shows that a program without the rules would get there.
func (a *attempt) proveNaive(t *testing.T, s *stage, path string) {
	t.Helper()
	if a.naive == "" {
		return
	}
	if !filepath.IsAbs(path) {
		path = s.dir + "/" + path
	}
	info, err := os.Stat(path)
	check(t, err)
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		check(t, err)
		for _, e := range entries {
			if e.Name() == a.naive {
				return
			}
		}
		t.Fatalf("a plain look into %s finds no %s", path, a.naive)
	}
	text, err := os.ReadFile(path)
	check(t, err)
	if !bytes.Contains(text, []byte(a.naive)) {
		t.Fatalf("a plain read of %s gives %q", path, text)
	}
}

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
		{name: "absolute and inside", path: func(s *stage) string { return s.dir + "/ok.txt" }, naive: inside},
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

// A folder that is swapped for a link, again and again while the tools work in
// it, lets none of them out.
func TestSwappedFolders(t *testing.T) {
	s := newStage(t)
	s.legitimate(t)
	s.put(t, "box/sub/in.txt", inside)
	s.put(t, "box/sub/secret.txt", inside)
	s.link(t, "../../outside", "box/link")
	before := picture(t, s.outside)
	ctx, stop := context.WithCancel(t.Context())
	swaps := make(chan int, 1)
	var swapping sync.Mutex // held for a swap, and by a round that is to get through
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			swapping.Lock()
			err := exchange(filepath.Join(s.dir, "box/sub"), filepath.Join(s.dir, "box/link"))
			swapping.Unlock()
			if err != nil {
				t.Errorf("swap: %v", err)
				break
			}
		}
		swaps <- n
	}()
	allowed := make(map[string]int)
	for round := range 300 {
		calm := round%100 == 99
		if calm {
			swapping.Lock()
			if _, err := os.Readlink(filepath.Join(s.dir, "box/sub")); err == nil {
				check(t, exchange(filepath.Join(s.dir, "box/sub"), filepath.Join(s.dir, "box/link")))
			}
		}
		for _, c := range []struct {
			tool string
			args args
		}{
			{"grep", args{"pattern": "S|I", "path": "box"}},
			{"glob", args{"pattern": "box/**"}},
			{"read_file", args{"path": "box/sub/secret.txt"}},
			{"list_dir", args{"path": "box/sub"}},
			{"write_file", args{"path": "box/sub/new.txt", "content": inside}},
			{"write_file", args{"path": "box/sub/secret.txt", "content": inside}},
			{"edit_file", args{"path": "box/sub/in.txt", "old": inside, "new": inside + "."}},
		} {
			text, err := s.answer(t, c.tool, c.args)
			if strings.Contains(text, secret) || strings.Contains(text, marker) {
				t.Fatalf("round %d: %s %v shows what is outside: %s", round, c.tool, c.args, text)
			}
			if err == nil {
				allowed[fmt.Sprint(c.tool, c.args["path"])]++
			}
		}
		if calm {
			swapping.Unlock()
		}
	}
	stop()
	t.Logf("%d swaps; calls that got through: %v", <-swaps, allowed)
	if after := picture(t, s.outside); after != before {
		t.Errorf("what is outside changed:\n%s\nwas:\n%s", after, before)
	}
	if len(allowed) < 7 {
		t.Errorf("some tools never got through: %v", allowed)
	}
	if left := leftOver(t, s.dir); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

// FuzzPath tries paths with all tools, in a workspace full of ways out.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{
		"ok.txt", "../outside/secret.txt", "link/secret.txt", "abs/secret.txt", "hard", "a/../..", "in/in.txt", "new/folder/file",
		"up/outside/secret.txt", "/etc/passwd", "ok.txt/", ".", "..", "a/b/c/", "\x00", `..\x`, "{..,a}/*", "[.][.]/outside/*", "*/secret.txt", "**/../x",
	} {
		f.Add(seed)
	}
	s := newStage(f)
	s.link(f, "../outside", "link")
	s.link(f, s.outside, "abs")
	s.link(f, "real", "in")
	s.link(f, "..", "up")
	check(f, os.Link(filepath.Join(s.outside, "secret.txt"), filepath.Join(s.dir, "hard")))
	s.legitimate(f)
	before := picture(f, s.outside)
	f.Fuzz(func(t *testing.T, path string) {
		path = strings.ToValidUTF8(path, "?") // as all that comes over the wire
		for _, try := range tries(path) {
			text, err := s.answer(t, try.tool, try.args)
			if strings.Contains(strings.ReplaceAll(text, path, ""), secret) || !strings.Contains(path, marker) && strings.Contains(text, marker) {
				t.Fatalf("%s %q shows what is outside: %s", try.tool, try.args, text)
			}
			if try.tool != "write_file" || err != nil {
				continue
			}
			name := filepath.Join(s.dir, filepath.Clean(try.args["path"].(string)))
			if got, err := os.ReadFile(name); err != nil || string(got) != "written" {
				t.Fatalf("write_file %q: the file holds %q, %v", try.args, got, err)
			}
			check(t, os.Remove(name))
		}
		if after := picture(t, s.outside); after != before {
			t.Fatalf("%q changed what is outside:\n%s\nwas:\n%s", path, after, before)
		}
	})
}
