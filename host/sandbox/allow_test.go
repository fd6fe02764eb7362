package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// script writes an executable file.
func script(t *testing.T, elem ...string) string {
	t.Helper()
	path := filepath.Join(elem...)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o755))
	return path
}

// realTemp is a temporary folder without a link on the way.
func realTemp(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

func TestAllowList(t *testing.T) {
	base := realTemp(t)
	bin, work := filepath.Join(base, "bin"), filepath.Join(base, "work")
	tool := script(t, bin, "tool")
	script(t, work, "inside")
	script(t, bin, "other")
	must(t, errors.Join(
		os.Symlink(tool, filepath.Join(bin, "linked")),
		os.Symlink(filepath.Join(work, "inside"), filepath.Join(bin, "into")),
		os.WriteFile(filepath.Join(bin, "plain"), nil, 0o644),
		os.Mkdir(filepath.Join(bin, "folder"), 0o755),
	))
	names := []string{"tool", "linked", "inside", "into", "plain", "folder", "nowhere", "tool"}
	a, err := NewAllowList(names, []string{work, bin}, work, false)
	must(t, err)
	if got := a.Names(); !slices.Equal(got, []string{"linked", "tool"}) {
		t.Errorf("names %v", got)
	}
	if got := a.Missing(); !slices.Equal(got, []string{"inside", "into", "plain", "folder", "nowhere"}) {
		t.Errorf("missing %v", got)
	}
	for _, name := range []string{"tool", "linked"} {
		if path, err := a.Resolve("", name); path != tool || err != nil {
			t.Errorf("control: %q, %v", path, err)
		}
	}
	for _, name := range []string{
		"", " ", "other", "nowhere", "inside", "into", "plain", tool, "./tool", "../bin/tool", "tool ", " tool", "tool\n", "tool\x00", "TOOL", "Tool",
		"tool;id", "$(tool)", "`tool`", "tool|id", "tool&", "tооl", "ｔool", "tool\u200b", "tool/", "/tool", "bin/tool", `bin\tool`, "tool*", "~/tool", "-tool", ".",
	} {
		var denied *DeniedError
		if path, err := a.Resolve("", name); !errors.As(err, &denied) || path != "" || !strings.Contains(err.Error(), "linked, tool") {
			t.Errorf("%q: %q, %v", name, path, err)
		}
	}
	for _, name := range []string{"", "a/b", "a/b c", " ", "a\tb", "/bin/sh", "../x", "a;b", "a\x00", "ä", "-x", ".x", "$x", "x\n"} {
		if _, err := NewAllowList([]string{name}, []string{bin}, work, false); err == nil {
			t.Errorf("%q may stand on a list", name)
		}
	}
}

// TestWallAllowListSwapped changes the file after the list was made.
func TestWallAllowListSwapped(t *testing.T) {
	for name, swap := range map[string]func(tool, inside string) error{
		"gone":                 func(tool, _ string) error { return os.Remove(tool) },
		"a link":               func(tool, inside string) error { return errors.Join(os.Remove(tool), os.Symlink(inside, tool)) },
		"a folder":             func(tool, _ string) error { return errors.Join(os.Remove(tool), os.Mkdir(tool, 0o755)) },
		"no longer executable": func(tool, _ string) error { return os.Chmod(tool, 0o644) },
		"its folder now a link": func(tool, inside string) error {
			dir := filepath.Dir(tool)
			return errors.Join(os.Rename(dir, dir+".old"), os.Symlink(filepath.Dir(inside), dir))
		},
	} {
		base := realTemp(t)
		tool, work := script(t, base, "bin", "tool"), filepath.Join(base, "work")
		inside := script(t, work, "tool")
		a, err := NewAllowList([]string{"tool"}, []string{filepath.Dir(tool)}, work, false)
		must(t, err)
		if _, err := a.Resolve("", "tool"); err != nil { // the control
			t.Fatal(err)
		}
		must(t, swap(tool, inside))
		if path, err := a.Resolve("", "tool"); err == nil {
			t.Errorf("%s: %s", name, path)
		}
	}
}

func TestSafePath(t *testing.T) {
	base := realTemp(t)
	work := filepath.Join(base, "work")
	good, open, inside := filepath.Join(base, "good"), filepath.Join(base, "open"), filepath.Join(work, "bin")
	below := filepath.Join(open, "bin")
	for _, dir := range []string{good, below, inside} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	file := script(t, base, "file")
	link := filepath.Join(base, "link")
	must(t, errors.Join(os.Chmod(open, 0o777), os.Symlink(inside, link)))
	list := []string{"", ".", "bin", "./x", good, good + "/", open, below, inside, work, link, file, filepath.Join(base, "none"), filepath.Join(work, "../work/bin")}
	got := SafePath(strings.Join(list, string(filepath.ListSeparator)), work)
	system := SafePath("", "")
	if len(system) == 0 {
		t.Error("no system folders")
	}
	if want := append(system, good); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := SafePath(inside, ""); !slices.Contains(got, inside) { // the control of the workspace's exclusion
		t.Errorf("control: %v", got)
	}
}

func TestLookPath(t *testing.T) {
	base := realTemp(t)
	bin, work := filepath.Join(base, "bin"), filepath.Join(base, "work")
	tool, inside := script(t, bin, "tool"), script(t, work, "inside")
	into, out := filepath.Join(bin, "into"), filepath.Join(work, "out")
	must(t, errors.Join(os.Symlink(inside, into), os.Symlink(tool, out)))
	for _, name := range []string{"tool", tool, bin + "/../bin/tool"} {
		if got, err := LookPath(name, []string{bin}, work); got != tool || err != nil {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{inside, into, "into", out, "./tool", "bin/tool", "", "tool\x00", bin, filepath.Join(bin, "none")} {
		if got, err := LookPath(name, []string{bin}, work); err == nil {
			t.Errorf("%q: %q", name, got)
		}
	}
}

// TestAllowListOfTheWholeMachine tells a user who started the host in the root
// folder what is wrong.
func TestAllowListOfTheWholeMachine(t *testing.T) {
	list, err := NewAllowList([]string{"sh"}, SafePath(os.Getenv("PATH"), ""), "/", false)
	must(t, err)
	if _, err := list.Resolve("", "sh"); err == nil || !strings.Contains(err.Error(), "set workspace") {
		t.Errorf("%v", err)
	}
}
