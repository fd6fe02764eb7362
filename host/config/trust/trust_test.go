package trust_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"a2e/host/config/trust"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

func TestTrustIsForOneContentAtOnePath(t *testing.T) {
	list := trust.List{Dir: filepath.Join(t.TempDir(), "config", "a2e")}
	entries, err := list.Files()
	must.That(t, err == nil && len(entries) == 0, "at first %v, %v", entries, err)
	for _, path := range []string{"/w/a2e.yaml", "/v/a2e.yaml"} {
		must.OK(t, list.Add(path, []byte(path)))
	}
	for _, tc := range []struct{ path, content, want string }{
		{"/w/a2e.yaml", "/w/a2e.yaml", ""},
		{"/w/a2e.yaml", "/w/a2e.yaml ", "has changed"},
		{"/w/a2e.yaml", "", "has changed"},
		{"/w/a2e.yaml", "/v/a2e.yaml", "has changed"},
		{"/u/a2e.yaml", "/w/a2e.yaml", "nobody has run"},
		{"/w/../w/a2e.yaml", "/w/a2e.yaml", "nobody has run"},
	} {
		err := list.Check(tc.path, []byte(tc.content))
		assert.That(t, (tc.want != "" || err == nil) && (tc.want == "" || err != nil &&
			strings.Contains(err.Error(), tc.want)),
			"%s with %q: %v, want %q", tc.path, tc.content, err, tc.want)
	}
	err = list.Add("/w/a2e.yaml", []byte("new"))
	assert.That(t, err == nil && list.Check("/w/a2e.yaml", []byte("new")) == nil, "trusted anew: %v", err)
	err = list.Remove("/w/a2e.yaml")
	assert.That(t, err == nil && list.Check("/w/a2e.yaml", []byte("new")) != nil, "removed: %v", err)
	err = list.Remove("/w/a2e.yaml")
	assert.That(t, err != nil && list.Check("/v/a2e.yaml", []byte("/v/a2e.yaml")) == nil, "removed again: %v", err)
}

// TestWallTrustListOfAnother: a trust list that another user could have written is neither used nor overwritten.
func TestWallTrustListOfAnother(t *testing.T) {
	type spoilt struct {
		spoil func(t *testing.T, dir, file string)
		want  string
	}
	cases := map[string]spoilt{
		"file for the group": {
			func(t *testing.T, _, file string) { chmod(t, file, 0o620) },
			"may be written by others",
		},
		"file for all": {
			func(t *testing.T, _, file string) { chmod(t, file, 0o602) },
			"may be written by others",
		},
		"folder for all":   {func(t *testing.T, dir, _ string) { chmod(t, dir, 0o707) }, "may be written by others"},
		"folder for group": {func(t *testing.T, dir, _ string) { chmod(t, dir, 0o770) }, "may be written by others"},
		"link": {func(t *testing.T, dir, file string) {
			other := filepath.Join(dir, "other")
			must.OK(t, os.Rename(file, other))
			must.OK(t, os.Symlink(other, file))
		}, "is a link"},
		"folder in its place": {func(t *testing.T, _, file string) {
			must.OK(t, os.Remove(file))
			must.OK(t, os.Mkdir(file, 0o700))
		}, "is a folder"},
		"second name": {
			func(t *testing.T, dir, file string) { must.OK(t, os.Link(file, filepath.Join(dir, "other"))) },
			"hard links",
		},
		"cut off": {func(t *testing.T, _, file string) { must.OK(t, os.Truncate(file, 20)) }, "damaged"},
		"empty":   {func(t *testing.T, _, file string) { must.OK(t, os.Truncate(file, 0)) }, "damaged"},
		"other shape": {func(t *testing.T, _, file string) {
			must.OK(t, os.WriteFile(file, []byte(`{"/w/a2e.yaml":true}`), 0o600))
		}, "damaged"},
		"further keys": {func(t *testing.T, _, file string) {
			must.OK(t, os.WriteFile(file, []byte(`[{"path":"/w/a2e.yaml","sha256":"","any":true}]`), 0o600))
		}, "damaged"},
		"file in place of its folder": {func(t *testing.T, dir, _ string) {
			must.OK(t, os.RemoveAll(dir))
			must.OK(t, os.WriteFile(dir, nil, 0o600))
		}, "cannot be read"},
	}
	if os.Geteuid() == 0 { // only root can give files to another user
		cases["file of another user"] = spoilt{func(t *testing.T, _, file string) {
			must.OK(t,
				os.Chown(file, 12345, -1))
		}, "belongs to the user 12345"}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a2e")
			list := trust.List{Dir: dir}
			must.OK(t, list.Add("/w/a2e.yaml", []byte("x")))
			must.OK(t, list.Check("/w/a2e.yaml", []byte("x")))
			c.spoil(t, dir, filepath.Join(dir, "trusted.json"))
			for what, err := range map[string]error{
				"check": list.Check("/w/a2e.yaml", []byte("x")), "add": list.Add("/w/a2e.yaml", []byte("x")),
				"remove": list.Remove("/w/a2e.yaml"),
			} {
				assert.Fails(t, err, c.want, "%s", what)
			}
		})
	}
}

// TestListIsChangedAtOnce: concurrent changes of the list are all kept.
func TestListIsChangedAtOnce(t *testing.T) {
	list := trust.List{Dir: filepath.Join(t.TempDir(), "a2e")}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { assert.OK(t, list.Add(fmt.Sprintf("/w%d/a2e.yaml", i), nil)) })
	}
	all.Wait()
	entries := must.Get(list.Files())(t)
	assert.Equal(t, len(entries), 20, "files that are trusted")
}

// TestListIsTheUsersOnly: the modes of the list and its folder do not depend on the umask, and no other file is left
// in the folder.
func TestListIsTheUsersOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a2e")
	for range 2 {
		must.OK(t, trust.List{Dir: dir}.Add("/w/a2e.yaml", nil))
	}
	found, err := os.ReadDir(dir)
	must.That(t, err == nil && len(found) == 1, "%v, %v", found, err)
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "trusted.json"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

func TestNoFolderForTheList(t *testing.T) {
	assert.Fails(t, (trust.List{}).Add("/w/a2e.yaml", nil), "set HOME", "not a folder")
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	err := (trust.List{Dir: filepath.Join(file, "a2e")}).Add("/w/a2e.yaml", nil)
	assert.That(t, err != nil && strings.Contains(err.Error(), "cannot be"), "a file in place of the config folder: %v",
		err)
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	must.OK(t, os.Chmod(path, mode))
}
