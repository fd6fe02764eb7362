//go:build unix

package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// Texts of the stage. No answer may show secret or marker, which are outside the workspace.
const (
	secret = "SECRET-b2c6e1d4"
	marker = "marker-7c1f09" // the name of a file outside that no attempt names
	inside = "INSIDE-text"
)

// stage is a workspace, and beside it a folder that no tool may reach.
type stage struct {
	*workspace
	outside string // absolute path of the folder beside the workspace
}

func newStage(t testing.TB) *stage {
	t.Helper()
	top := t.TempDir()
	s := &stage{outside: filepath.Join(top, "outside")}
	for _, dir := range []string{"outside/sub", "ws/a/b", "ws/real"} {
		must.OK(t, os.MkdirAll(filepath.Join(top, dir), 0o777))
	}
	for name, text := range map[string]string{
		"outside/secret.txt": secret, "outside/" + marker: secret, "outside/sub/secret.txt": secret,
		"ws/ok.txt": inside, "ws/real/in.txt": inside, "ws/a/b/deep.txt": inside,
	} {
		must.OK(t, os.WriteFile(filepath.Join(top, name), []byte(text), 0o666))
	}
	s.workspace = openWorkspace(t, filepath.Join(top, "ws"), 0)
	return s
}

// link makes a symbolic link in the workspace.
func (s *stage) link(t testing.TB, target, name string) {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(s.dir, name)), 0o777))
	must.OK(t, os.Symlink(target, filepath.Join(s.dir, name)))
}

// picture describes every file below a folder: its name, type, permissions, number of hard links and content.
func picture(t testing.TB, dir string) string {
	t.Helper()
	var all strings.Builder
	must.OK(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
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
	}))
	return all.String()
}

// tries returns a call of every tool that takes a path, for one path.
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

// answer runs a tool and returns all that a client sees of the result. A tool that hangs fails the test.
func (s *stage) answer(t testing.TB, name string, a args) (text string, err error) {
	t.Helper()
	done := make(chan struct{})
	var out *Outcome
	go func() {
		defer close(done)
		out, err = s.call(t, t.Context(), name, a)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s %v hangs", name, a)
	}
	var e *protocol.Error
	switch {
	case errors.As(err, &e):
		return e.Message + fmt.Sprint(e.Detail), err
	case err != nil:
		t.Fatalf("%s %v: an error that is not an answer: %v", name, a, err)
	}
	raw := must.Get(json.Marshal(out.Data))(t)
	return out.Summary + string(raw), nil
}

// legitimate proves that each tool works on this stage: otherwise a refusal would prove nothing.
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
		text, err := s.answer(t, c.tool, c.args)
		must.That(t, err == nil && strings.Contains(text, c.want), "the legitimate %s %v: %q, %v", c.tool, c.args, text,
			err)
	}
}

// verdict is what must happen to an attempt, besides the rule that nothing leaks.
type verdict int

const (
	blocked  verdict = iota // every tool refuses, except glob, which may find nothing or the name itself
	noWrite                 // reads are allowed (the path stays inside), writes are refused
	harmless                // an ordinary name, or one that does not exist
)

// attempt is one way to try to get out of the workspace.
type attempt struct {
	name  string
	path  func(s *stage) string
	setup func(t *testing.T, s *stage)
	naive string // what a plain open of the path shows, which proves that the path leads there; "" = no proof
	want  verdict
}

func at(path string) func(*stage) string { return func(*stage) string { return path } }

// linked returns a setup that makes one link. %s in its target stands for the folder outside.
func linked(target, name string) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) { s.link(t, strings.ReplaceAll(target, "%s", s.outside), name) }
}

func TestEscapes(t *testing.T) {
	all := slices.Concat(dotAttempts(), absoluteAttempts(), linkAttempts(), specialAttempts(), oddNameAttempts())
	assert.That(t, len(all) >= 60, "only %d attempts", len(all))
	calls := 0
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) { calls += a.run(t) })
	}
	t.Logf("%d attempts, %d calls", len(all), calls)
}

// run tries one attempt with every tool, and returns the number of calls.
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
		assert.That(t, !strings.Contains(shown, secret) && !strings.Contains(shown, marker) &&
			!strings.Contains(shown, s.outside),
			"%s %q shows what is outside: %s", try.tool, try.args, text)
		writes := try.tool == "write_file" || try.tool == "edit_file"
		assert.That(t, err != nil || try.tool == "glob" || a.want != blocked && (a.want != noWrite || !writes),
			"%s %q is not blocked: %s", try.tool, try.args, text)
		must.Equal(t, picture(t, s.outside), before, "%s %q changed what is outside:\n…\nwas", try.tool, try.args)
	}
	left := leftOver(t, s.dir)
	assert.That(t, left == nil, "left behind: %v", left)
	if a.want == noWrite {
		text, err := s.answer(t, "grep", args{"pattern": inside, "path": path})
		assert.That(t, err == nil && strings.Contains(text, inside), "reading inside: %q, %v", text, err)
	}
	return calls
}

// proveNaive checks that a program without the rules of the workspace would get to the secret.
func (a *attempt) proveNaive(t *testing.T, s *stage, path string) {
	t.Helper()
	if a.naive == "" {
		return
	}
	if !filepath.IsAbs(path) {
		path = s.dir + "/" + path
	}
	info := must.Get(os.Stat(path))(t)
	if info.IsDir() {
		entries := must.Get(os.ReadDir(path))(t)
		for _, e := range entries {
			if e.Name() == a.naive {
				return
			}
		}
		t.Fatalf("a plain look into %s finds no %s", path, a.naive)
	}
	text := must.Get(os.ReadFile(path))(t)
	must.That(t, bytes.Contains(text, []byte(a.naive)), "a plain read of %s gives %q", path, text)
}

// TestRefusalsSayWhy: each refusal has the code tool_denied and says why.
func TestRefusalsSayWhy(t *testing.T) {
	s := newStage(t)
	s.legitimate(t)
	s.link(t, "../outside", "out")
	s.link(t, "real", "in")
	s.link(t, "ok.txt", "file")
	hardLinked("hard")(t, s)
	must.OK(t, syscall.Mkfifo(filepath.Join(s.dir, "fifo"), 0o666))
	for _, c := range []struct{ path, reading, writing string }{
		{"../x", "leads out of the workspace", "leads out of the workspace"},
		{"/x", "is absolute", "is absolute"},
		{"out/secret.txt", "leads out of the workspace", "goes through"},
		{"in/in.txt", "", "goes through"},
		{"file", "", "is a link"},
		{"hard", "a hard link", "a hard link"},
		{"fifo", "not a regular file", "not a regular file"},
	} {
		for tool, a := range map[string]args{"read_file": {"path": c.path}, "grep": {"path": c.path, "pattern": "x"}} {
			if c.reading != "" {
				s.fails(t, tool, a, protocol.CodeToolDenied, c.reading)
			} else if _, err := s.answer(t, tool, a); err != nil {
				t.Errorf("%s %s: %v", tool, c.path, err)
			}
		}
		s.fails(t, "write_file", args{"path": c.path, "content": "x"}, protocol.CodeToolDenied, c.writing)
		s.fails(t, "edit_file", args{"path": c.path, "old": "I", "new": "x"}, protocol.CodeToolDenied, c.writing)
	}
	s.fails(t, "list_dir", args{"path": "out"}, protocol.CodeToolDenied, "leads out of the workspace")
	s.fails(t, "glob", args{"pattern": "out/*"}, protocol.CodeToolDenied, "leads out of the workspace")
}

// FuzzPath tries paths with all tools, in a workspace with many links that lead out.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{
		"ok.txt", "../outside/secret.txt", "link/secret.txt", "abs/secret.txt", "hard", "a/../..", "in/in.txt",
		"new/folder/file",
		"up/outside/secret.txt", "/etc/passwd", "ok.txt/", ".", "..", "a/b/c/", "\x00", `..\x`, "{..,a}/*",
		"[.][.]/outside/*", "*/secret.txt", "**/../x",
	} {
		f.Add(seed)
	}
	s := newStage(f)
	s.link(f, "../outside", "link")
	s.link(f, s.outside, "abs")
	s.link(f, "real", "in")
	s.link(f, "..", "up")
	must.OK(f, os.Link(filepath.Join(s.outside, "secret.txt"), filepath.Join(s.dir, "hard")))
	s.legitimate(f)
	before := picture(f, s.outside)
	f.Fuzz(func(t *testing.T, path string) {
		path = strings.ToValidUTF8(path, "?") // as for all text that comes over the wire
		for _, try := range tries(path) {
			text, err := s.answer(t, try.tool, try.args)
			if strings.Contains(strings.ReplaceAll(text, path, ""), secret) || !strings.Contains(path, marker) &&
				strings.Contains(text, marker) {
				t.Fatalf("%s %q shows what is outside: %s", try.tool, try.args, text)
			}
			if try.tool != "write_file" || err != nil {
				continue
			}
			name := filepath.Join(s.dir, filepath.Clean(try.args["path"].(string)))
			if got, err := os.ReadFile(name); err != nil || string(got) != "written" {
				t.Fatalf("write_file %q: the file holds %q, %v", try.args, got, err)
			}
			dir := must.Get(filepath.EvalSymlinks(filepath.Dir(name)))(t)
			must.OK(t, os.Remove(name))
			for ; len(dir) > len(s.dir) && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
			} // removes the folders that were made for it: otherwise each walk would take longer than the one before
		}
		must.Equal(t, picture(t, s.outside), before, "%q changed what is outside:\n…\nwas", path)
	})
}

// TestWallSwappedFolders: a folder that is swapped for a link, again and again while the tools work in it, lets none of
// them out. If the link stays inside the workspace, reads that name it may follow it, but walks and writes may not.
func TestWallSwappedFolders(t *testing.T) {
	for _, target := range []string{"../../outside", "other"} {
		t.Run(target, func(t *testing.T) {
			s := newStage(t)
			s.legitimate(t)
			s.put(t, "box/sub/in.txt", inside)
			s.put(t, "box/sub/secret.txt", inside)
			if target == "other" {
				for _, name := range []string{"in.txt", "secret.txt", marker} {
					s.put(t, "box/other/"+name, secret+inside)
				}
			}
			s.link(t, target, "box/link")
			s.tryWhileSwapping(t, target == "other")
		})
	}
}

// tryWhileSwapping runs the tools in a folder that changes places with a link. readable says that the link stays inside
// the workspace.
func (s *stage) tryWhileSwapping(t *testing.T, readable bool) {
	sub, link := filepath.Join(s.dir, "box/sub"), filepath.Join(s.dir, "box/link")
	look := func() string {
		if readable {
			return picture(t, filepath.Join(s.dir, "box/other"))
		}
		return picture(t, s.outside)
	}
	before := look()
	var swapping sync.Mutex // held for each swap, and by a round in which the tools must succeed
	stop := swapOften(t, &swapping, sub, link)
	allowed := make(map[string]int)
	for round := range 100 {
		calm := round%50 == 49
		if calm {
			swapping.Lock()
			if _, err := os.Readlink(sub); err == nil {
				must.OK(t, exchange(sub, link))
			}
		}
		s.tryInBox(t, allowed, readable)
		if calm {
			swapping.Unlock()
		}
	}
	t.Logf("%d swaps; calls that got through: %v", stop(), allowed)
	assert.Equal(t, look(), before, "what the link leads to changed:\n…\nwas")
	assert.That(t, len(allowed) >= 7, "some tools never got through: %v", allowed)
	left := leftOver(t, s.dir)
	assert.That(t, left == nil, "left behind: %v", left)
}

// swapOften makes two names change places until stop is called, which returns the number of swaps.
func swapOften(t *testing.T, swapping *sync.Mutex, a, b string) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	swaps := make(chan int, 1)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			swapping.Lock()
			err := exchange(a, b)
			swapping.Unlock()
			if err != nil {
				t.Errorf("swap: %v", err)
				break
			}
		}
		swaps <- n
	}()
	return func() int {
		cancel()
		return <-swaps
	}
}

// tryInBox tries all tools once and counts the calls that succeed.
func (s *stage) tryInBox(t *testing.T, allowed map[string]int, readable bool) {
	t.Helper()
	for _, c := range []struct {
		tool  string
		args  args
		named bool // the call names the swapped path itself, and only reads
	}{
		{"grep", args{"pattern": "S|I", "path": "box"}, false},
		{"glob", args{"pattern": "box/**"}, false},
		{"read_file", args{"path": "box/sub/secret.txt"}, true},
		{"list_dir", args{"path": "box/sub"}, true},
		{"write_file", args{"path": "box/sub/new.txt", "content": inside}, false},
		{"write_file", args{"path": "box/sub/secret.txt", "content": inside}, false},
		{"edit_file", args{"path": "box/sub/in.txt", "old": inside, "new": inside + "."}, false},
	} {
		text, err := s.answer(t, c.tool, c.args)
		leaks := strings.Contains(text, secret) || strings.Contains(text, marker)
		// A read that names the link may show the file, but a walk may not show it under the name that is swapped.
		if readable {
			leaks = !c.named && strings.Contains(text, "box/sub/"+marker)
		}
		must.That(t, !leaks, "%s %v shows what the link leads to: %s", c.tool, c.args, text)
		if err == nil {
			allowed[fmt.Sprint(c.tool, c.args["path"])]++
		}
	}
}

// TestEscapesByURI: a path that leads out of the workspace does not lead out of the folder behind a URI either.
func TestEscapesByURI(t *testing.T) {
	all := slices.Concat(dotAttempts(), absoluteAttempts(), linkAttempts(), specialAttempts())
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			s := newStage(t)
			if a.setup != nil {
				a.setup(t, s)
			}
			r := newReader(t, t.TempDir(), &library{
				name: "skills", scheme: "skill",
				folders: map[string]string{"s": s.dir},
			})
			got := data(r.call(t, "read_file", args{"path": "skill://s/a/b/deep.txt"}))
			must.That(t, strings.Contains(got, inside), "a file that may be read: %s", got)
			path, before := "skill://s/"+a.path(s), picture(t, s.outside)
			for _, try := range tries(path) {
				m := r.call(t, try.tool, try.args)
				shown := strings.ReplaceAll(data(m), path, "")
				assert.That(t, !strings.Contains(shown, secret) && !strings.Contains(shown, marker) &&
					!strings.Contains(shown, s.outside),
					"%s %q shows what is outside: %s", try.tool, try.args, m.Line)
				writes := try.tool == "write_file" || try.tool == "edit_file"
				assert.That(t, (!writes || m.Code == protocol.CodeToolDenied) &&
					(m.Code != "" || try.tool == "glob" || a.want != blocked),
					"%s %q is not blocked: %s", try.tool, try.args, m.Line)
			}
			assert.Equal(t, picture(t, s.outside), before, "what is outside has changed:\n…\nwas")
		})
	}
}
