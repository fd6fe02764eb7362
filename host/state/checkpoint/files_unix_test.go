//go:build unix

package checkpoint_test

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/checkpoint"
)

// changes returns the changes of a restore, each as "kind path".
func changes(r checkpoint.Restored) string {
	var all []string
	for _, c := range r.Changes {
		all = append(all, c.Kind+" "+c.Path)
	}
	return strings.Join(all, ", ")
}

func TestIgnored(t *testing.T) {
	s := newStage(t, nil)
	s.write(".gitignore", "# a comment\n*.log\nbuild/\n/top\n!keep.log\n*.{x}\n")
	s.write("sub/.gitignore", "local\n!deep.log\n")
	for _, name := range []string{
		"a.log", "keep.log", "build/out", "sub/build/out", "top", "sub/top", "sub/local",
		"sub/deep.log", "a.x", "a.{x}", ".git/HEAD", "sub/.git",
	} {
		s.write(name, "one")
	}
	first := s.take("")
	for _, name := range []string{
		"a.log", "keep.log", "build/out", "build/new", "top", "sub/top", "sub/local",
		"sub/deep.log", "a.x", "a.{x}", ".git/HEAD",
	} {
		s.write(name, "another")
	}
	s.write(".gitignore", "!a.log\n*.x\n") // files that were ignored are seen now; files that were kept stay kept
	done := s.restore(checkpoint.RestoreOptions{To: first.ID})
	assert.Equal(t, changes(done), "changed .gitignore, changed a.x, changed keep.log, changed sub/deep.log, "+
		"changed sub/top")
	for name, want := range map[string]string{
		"a.log": "another", "build/new": "another", ".git/HEAD": "another",
		"keep.log": "one", "a.x": "one", "a.{x}": "another",
	} {
		got, err := os.ReadFile(filepath.Join(s.dir, name))
		must.OK(t, err)
		assert.Equal(t, string(got), want, name)
	}
	s.opts.IncludeIgnored = true
	all := s.another()
	info, err := all.Take(context.Background(), "")
	must.OK(t, err)
	assert.That(t, info.Files > first.Files+4, "with what is ignored there are %d names, without %d", info.Files,
		first.Files)
}

// TestLeftAlone: pipes are not replaced or removed by a restore, and hidden files are neither kept nor changed.
func TestLeftAlone(t *testing.T) {
	s := newStage(t, func(o *checkpoint.Options) { o.Hidden = []string{"a2e.yaml", "own/state"} })
	must.OK(t, syscall.Mkfifo(filepath.Join(s.dir, "pipe"), 0o600))
	s.write("a2e.yaml", "one")
	s.write("own/state/db", "one")
	s.write("file", "one")
	first := s.take("")
	assert.Equal(t, first.Files, 1)
	must.OK(t, os.Remove(filepath.Join(s.dir, "file")))
	must.OK(t, syscall.Mkfifo(filepath.Join(s.dir, "file"), 0o600)) // the pipe takes the place of a file
	s.write("new/file", "one")
	must.OK(t, syscall.Mkfifo(filepath.Join(s.dir, "new", "pipe"), 0o600))
	s.write("a2e.yaml", "two")
	s.write("own/state/db", "two")
	done := s.restore(checkpoint.RestoreOptions{Steps: 1})
	assert.Equal(t, changes(done), "added file, removed new, removed new/file")
	must.That(t, len(done.Problems) == 2, "%v", done.Problems)
	assert.Contains(t, done.Problems[0].Why, "what is there now is not kept and would be lost")
	assert.Contains(t, done.Problems[1].Why, "it holds content that is not kept: pipe")
	text, err := os.ReadFile(filepath.Join(s.dir, "a2e.yaml"))
	assert.That(t, err == nil && string(text) == "two", "%q %v", text, err)
}

// TestBounds: files that are too large are left out, and the oldest checkpoints are removed when there are too many
// or when they take too much room.
func TestBounds(t *testing.T) {
	s := newStage(t, func(o *checkpoint.Options) { o.MaxFileBytes, o.MaxBytes, o.MaxCount = 100<<10, 1<<20, 8 })
	s.write("large", strings.Repeat("x", 200<<10))
	s.write("small", "x")
	first := s.take("")
	assert.Equal(t, first.LeftOut, 1)
	s.write("large", strings.Repeat("y", 200<<10))
	s.write("small", "y")
	done := s.restore(checkpoint.RestoreOptions{To: first.ID})
	must.That(t, len(done.Problems) == 1 && done.Problems[0].Path == "large", "%v", done.Problems)
	assert.Contains(t, done.Problems[0].Why, "max_file_bytes")
	for i := range 40 {
		s.write(fmt.Sprint("f", i%4), noise(45<<10))
		s.take("")
	}
	s.take("")
	all, err := s.List(context.Background())
	must.OK(t, err)
	assert.That(t, len(all) <= 9 && len(all) > 2, "there are %d checkpoints", len(all))
	var bytes int64
	must.OK(t, filepath.Walk(s.opts.StateDir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return err
	}))
	assert.That(t, bytes < 1200<<10, "they take up %d bytes", bytes)
	_, err = s.Restore(context.Background(), checkpoint.RestoreOptions{To: 1})
	assert.Is(t, err, checkpoint.ErrUnknown)
	s.opts.MaxFiles = 3
	_, err = s.another().Take(context.Background(), "")
	assert.Fails(t, err, "more than 3 files")
}

// noise returns text that cannot be compressed well.
func noise(size int) string {
	var b strings.Builder
	for b.Len() < size {
		b.WriteString(rand.Text())
	}
	return b.String()
}

// TestBusy: several keepers and a restore work at the same time while files change all the time.
func TestBusy(t *testing.T) {
	s := newStage(t, nil)
	for i := range 30 {
		s.write(fmt.Sprint("still/", i), fmt.Sprint(i))
	}
	s.write("busy", "")
	first, want := s.take(""), pictureOf(t, filepath.Join(s.dir, "still"))
	stop := make(chan struct{})
	var writer, takers sync.WaitGroup
	writer.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
				_ = os.WriteFile(filepath.Join(s.dir, "busy"), bytes.Repeat([]byte{byte(n)}, 100_000), 0o644)
			}
		}
	})
	for n := range 3 {
		takers.Go(func() {
			k := s.another()
			for i := range 5 {
				_ = os.WriteFile(filepath.Join(s.dir, "still", fmt.Sprint(n)), fmt.Append(nil, n, i), 0o644)
				_, err := k.Take(context.Background(), "busy")
				assert.OK(t, err)
			}
		})
	}
	takers.Wait()
	s.restore(checkpoint.RestoreOptions{To: first.ID, Paths: []string{"./still/"}})
	want.want(t, filepath.Join(s.dir, "still"), "after the busy time")
	close(stop)
	writer.Wait()
	all, err := s.List(context.Background())
	must.OK(t, err)
	for i, c := range all {
		assert.Equal(t, c.ID, all[0].ID+uint64(i), "ids of all keepers are in a row")
	}
}

// TestFolderForALink: a folder that takes the place of a hard-linked file is read once and restored, although each
// name of the file may be looked at.
func TestFolderForALink(t *testing.T) {
	s := newStage(t, func(o *checkpoint.Options) { o.MaxFiles = 8 })
	s.write("x", "one")
	first, want := s.take(""), pictureOf(t, s.dir)
	x := filepath.Join(s.dir, "x")
	must.OK(t, os.Link(x, filepath.Join(s.dir, "y")), os.Link(x, filepath.Join(s.dir, "z")), os.Remove(x))
	for i := range 6 {
		s.write(fmt.Sprint("x/", i), "new")
	}
	assert.Equal(t, s.take("").Files, 8)
	s.restore(checkpoint.RestoreOptions{To: first.ID})
	want.want(t, s.dir, "before the folder")
}

// TestGivenUp: if a context ends at any moment of Take, the caller gets only the error of the context, and the next
// caller gets a checkpoint.
func TestGivenUp(t *testing.T) {
	s := newStage(t, nil)
	s.write("a", "")
	s.take("")
	for i := range 60 {
		s.write("a", fmt.Sprint(i))
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%20)*500*time.Microsecond)
		made, err := s.Take(ctx, "")
		assert.That(t, err == nil && made.ID > 0 || errors.Is(err, context.DeadlineExceeded) &&
			made == checkpoint.Info{}, "%+v, %v", made, err)
		_, _ = s.Diff(ctx, checkpoint.DiffOptions{From: 1}) // most of these are given up as well
		cancel()
	}
	s.write("a", "last")
	last := s.take("")
	s.write("a", "more")
	s.restore(checkpoint.RestoreOptions{To: last.ID})
	s.want("a", "last")
}

// TestNothingThere: without an earlier checkpoint, or with a damaged one, an undo returns an error and changes no file.
func TestNothingThere(t *testing.T) {
	s := newStage(t, nil)
	_, err := s.Restore(context.Background(), checkpoint.RestoreOptions{Steps: 1})
	assert.Is(t, err, checkpoint.ErrNone)
	s.write("a", "one")
	s.take("")
	_, err = s.Restore(context.Background(), checkpoint.RestoreOptions{Steps: 1})
	assert.Fails(t, err, "there is nothing to undo")
	same := must.Get(s.Diff(context.Background(), checkpoint.DiffOptions{}))(t)
	assert.That(t, same != nil && len(same) == 0, "differs from the only state: %v", same)
	s.write("a", "two")
	s.take("")
	objects := must.Get(filepath.Glob(filepath.Join(s.opts.StateDir, "checkpoints", "*", "objects", "??", "*")))(t)
	for _, o := range objects {
		if raw := must.Get(zlib.NewReader(bytes.NewReader(must.Get(os.ReadFile(o))(t))))(t); strings.HasPrefix(string(must.Get(io.ReadAll(raw))(t)), "blob") {
			must.OK(t, os.Remove(o), os.WriteFile(o, []byte("0ne"), 0o600))
		}
	}
	done := s.restore(checkpoint.RestoreOptions{Steps: 1})
	must.That(t, len(done.Problems) == 1, "%v", done.Problems)
	assert.Contains(t, done.Problems[0].Why, "damaged")
	text, _ := os.ReadFile(filepath.Join(s.dir, "a"))
	assert.Equal(t, string(text), "two", "a damaged copy changed the file")
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("too late"))
	_, err = s.Take(ended, "")
	assert.Fails(t, err, "too late")
}

// TestWorkspaceMadeAgain: changes in a workspace that was deleted and made again are noticed, even while something
// holds the old folders open, and the old files can be restored.
func TestWorkspaceMadeAgain(t *testing.T) {
	s := newStage(t, func(o *checkpoint.Options) { o.Workspace += "/work" })
	top := s.dir
	s.dir = filepath.Join(top, "work")
	s.write("dir/a", "one")
	s.take("")
	s.write("dir/a", "two")
	old := s.take("") // from here on the keeper looks only at what the kernel reports
	was := pictureOf(t, s.dir)
	for _, name := range []string{"", "dir"} {
		held := must.Get(os.Open(filepath.Join(s.dir, name)))(t)
		defer held.Close()
	}
	must.OK(t, os.RemoveAll(s.dir), os.Mkdir(s.dir, 0o755))
	for i, content := range []string{"", "three", "four", "five"} {
		if content != "" {
			s.write("dir/a", content)
			s.write("new", content)
		}
		assert.Equal(t, s.take("").ID, old.ID+1+uint64(i), "checkpoint of %q", content)
	}
	s.restore(checkpoint.RestoreOptions{Steps: 1})
	text := must.Get(os.ReadFile(filepath.Join(s.dir, "dir", "a")))(t)
	assert.Equal(t, string(text), "four", "undone")
	s.restore(checkpoint.RestoreOptions{To: old.ID})
	was.want(t, s.dir, "after a restore of what the old folder held")
}

// TestPathsInNoUTF8: a file whose name is not UTF-8 can be restored by its name, and by the name that is shown for it.
func TestPathsInNoUTF8(t *testing.T) {
	const raw, shown = "d\xff/a\xfe", "d\uFFFD/a\uFFFD"
	for _, name := range []string{raw, shown, "d\uFFFD", "d\xff"} {
		s := newStage(t, nil)
		s.write(raw, "one")
		first := s.take("it changes").ID
		s.write(raw, "two")
		s.write("other", "x")
		all, err := s.Diff(t.Context(), checkpoint.DiffOptions{From: first, Paths: []string{name}})
		must.That(t, err == nil && len(all) == 1 && all[0].Path == shown, "%q: %v, %v", name, all, err)
		done := s.restore(checkpoint.RestoreOptions{To: first, Paths: []string{name}})
		text := must.Get(os.ReadFile(filepath.Join(s.dir, raw)))(t)
		assert.That(t, string(text) == "one" && len(done.Changes) == 1, "%q: %q, %v", name, text, done)
	}
}

func (s *stage) want(name, content string) {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	assert.That(s, err == nil && string(text) == content, "%s is %.20q (%v), not %q", name, text, err, content)
}

// TestNothingLost: a restore keeps current files that are in no checkpoint, because an undo could not bring them back.
func TestNothingLost(t *testing.T) {
	s := newStage(t, func(o *checkpoint.Options) { o.MaxFileBytes = 100 })
	long := strings.Repeat("x", 200)
	s.write("grows", "small")
	s.write("env", "one")
	s.write("host.yaml", "one")
	first := s.take("")
	must.OK(t, os.Remove(filepath.Join(s.dir, "env")))
	s.write(".gitignore", "env\n")
	s.take("")
	s.write("env", "two") // env is ignored by now
	s.write("grows", long)
	s.write("video", long)
	s.write("host.yaml", "two")
	s.opts.Hidden = []string{"host.yaml"}
	done, err := s.another().Restore(context.Background(), checkpoint.RestoreOptions{To: first.ID})
	must.OK(t, err)
	for name, content := range map[string]string{"grows": long, "video": long, "env": "two", "host.yaml": "two"} {
		s.want(name, content)
	}
	must.That(t, len(done.Problems) == 3, "%v", done.Problems)
	assert.Contains(t, done.Problems[0].Why, "is not kept and would be lost")
	assert.Contains(t, done.Problems[1].Why, "larger than max_file_bytes")
}

// TestSwapped: a program that replaces the folder under restore by a link to a hidden folder does not make the host
// write there.
func TestSwapped(t *testing.T) {
	s := newStage(t, func(o *checkpoint.Options) { o.Hidden = []string{"own"} })
	s.write("own/f", "the host's")
	at := func(name string) string { return filepath.Join(s.dir, name) }
	must.OK(t, os.Symlink("own", at("link")))
	s.write("d/f", "one")
	first := s.take("")
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Rename(at("d"), at("e"))
				_ = os.Rename(at("link"), at("d"))
				_ = os.Rename(at("d"), at("link"))
				_ = os.Rename(at("e"), at("d"))
			}
		}
	})
	for range 40 {
		_ = os.Remove(at("d/new"))
		_ = os.WriteFile(at("e/f"), []byte("two"), 0o600)
		_, err := s.Restore(context.Background(), checkpoint.RestoreOptions{To: first.ID})
		must.OK(t, err)
		s.want("own/f", "the host's")
		names, err := os.ReadDir(at("own"))
		must.That(t, err == nil && len(names) == 1, "%v %v", names, err)
	}
	close(stop)
	swaps.Wait()
}

// TestDamaged: a restore never leads to a wrong state if the name of the last commit is wrong, or if the index is
// damaged or missing.
func TestDamaged(t *testing.T) {
	s := newStage(t, nil)
	for _, content := range []string{"one", "two", "three"} {
		s.write("a", content)
		s.take(content)
	}
	repository := must.Get(filepath.Glob(filepath.Join(s.opts.StateDir, "checkpoints", "*.git")))(t)[0]
	branch, index := filepath.Join(repository, "refs", "heads", "checkpoints"), filepath.Join(repository, "index")
	good := must.Get(os.ReadFile(branch))(t)
	for _, bad := range []string{"", "nonsense", strings.Repeat("1", 40) + "\n"} {
		must.OK(t, os.WriteFile(branch, []byte(bad), 0o600))
		_, err := s.another().List(context.Background())
		assert.Fails(t, err, "move the folder away to start over")
		assert.Equal(t, string(must.Get(os.ReadFile(branch))(t)), bad, "what is damaged was changed")
	}
	must.OK(t, os.WriteFile(branch, good, 0o600))
	for _, wrong := range []func() error{
		func() error { return os.Remove(index) },
		func() error { return os.WriteFile(index, []byte("nonsense"), 0o600) },
	} {
		must.OK(t, wrong())
		all, err := s.another().List(context.Background())
		must.That(t, err == nil && len(all) >= 3, "%v %v", all, err)
		must.Get(s.another().Restore(context.Background(), checkpoint.RestoreOptions{To: 1}))(t)
		s.want("a", "one")
	}
}

// TestStateInside: a restore does not change the host's own state if that lies in the workspace.
func TestStateInside(t *testing.T) {
	s := newStage(t, nil)
	s.opts.StateDir = filepath.Join(s.dir, "state")
	k := s.another()
	for _, content := range []string{"one", "two"} {
		s.write("a", content)
		must.Get(k.Take(context.Background(), ""))(t)
	}
	done := must.Get(s.another().Restore(context.Background(), checkpoint.RestoreOptions{Steps: 1}))(t)
	assert.Equal(t, changes(done), "changed a")
	s.want("a", "one")
}

// TestRepositories: the contents of version control folders, and of the file .git of a submodule or worktree, are not
// kept. An undo reports where such a repository was removed.
func TestRepositories(t *testing.T) {
	s := newStage(t, nil)
	for _, dir := range []string{"nested", "hg", "plain", "sub"} {
		s.write(dir+"/code", "one")
	}
	for _, name := range []string{".git/HEAD", "nested/.git/HEAD", "hg/.hg/store"} {
		s.write(name, "one")
	}
	s.write("sub/.git", "gitdir: ../.git/modules/sub\n")
	s.take("")
	s.write(".git/HEAD", "two") // changes in .git do not count as changes
	s.write("nested/.git/index", "new")
	same := s.take("")
	assert.Equal(t, same.ID, uint64(1), "a change in a repository")
	for _, dir := range []string{"nested", "hg", "sub", "plain"} {
		must.OK(t, os.RemoveAll(filepath.Join(s.dir, dir)))
	}
	done := must.Get(s.Restore(t.Context(), checkpoint.RestoreOptions{Steps: 1}))(t)
	var problems []string
	for _, p := range done.Problems {
		assert.Contains(t, p.Why, "checkpoints do not keep nested repositories")
		problems = append(problems, p.Path)
	}
	assert.Equal(t, strings.Join(problems, " "), "hg/.hg nested/.git sub/.git")
	for name, want := range map[string]string{
		".git/HEAD": "two", "nested/code": "one", "hg/code": "one", "plain/code": "one", "sub/code": "one",
	} {
		s.want(name, want)
	}
}

// TestBytes: contents stay byte for byte the same, whatever .gitattributes says. No program that it names runs, and
// git itself can show the contents.
func TestBytes(t *testing.T) {
	s := newStage(t, nil)
	s.write(".gitattributes", "* text=auto eol=crlf ident filter=evil diff=evil\n*.u working-tree-encoding=UTF-16\n")
	contents := map[string]string{"a": "one\r\ntwo\n", "b.u": "\xff\xfeo\x00", "c": "$Id$ \x00\n", ":(top)d": "odd\r"}
	for name, content := range contents {
		s.write(name, content)
	}
	first := s.take("tool \x1b[31m\nred")
	for name := range contents {
		must.OK(t, os.Remove(filepath.Join(s.dir, name)))
	}
	done := s.restore(checkpoint.RestoreOptions{To: first.ID})
	assert.Equal(t, len(done.Problems), 0)
	for name, content := range contents {
		s.want(name, content)
	}
	repository := must.Get(filepath.Glob(filepath.Join(s.opts.StateDir, "checkpoints", "*.git")))(t)[0]
	out, err := exec.Command("git", "--git-dir="+repository, "show", "checkpoints~2:a").CombinedOutput()
	assert.Equal(t, string(out), contents["a"], fmt.Sprint("git shows ", err))
}

// TestUnreadable: a file that git cannot read is left out, and the others are kept.
func TestUnreadable(t *testing.T) {
	s := newStage(t, nil)
	s.write("a", "one")
	s.write("closed", "one")
	first := s.take("")
	must.OK(t, os.Chmod(filepath.Join(s.dir, "closed"), 0))
	s.write("a", "two")
	second := s.take("")
	assert.That(t, first.LeftOut == 0 && second.LeftOut == 1 && second.Files == 1, "%+v, %+v", first, second)
	s.write("a", "three")
	done := s.restore(checkpoint.RestoreOptions{To: first.ID})
	must.That(t, len(done.Problems) == 1 && done.Problems[0].Path == "closed", "%v", done.Problems)
	assert.Contains(t, done.Problems[0].Why, "could not be read")
	s.want("a", "one")
}
