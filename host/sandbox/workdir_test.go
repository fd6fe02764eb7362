package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenWorkdir(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "sub", "deep"), 0o755),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		os.Symlink("sub/deep", filepath.Join(dir, "in")),
		os.Symlink(outside, filepath.Join(dir, "out")),
		os.Symlink("../"+filepath.Base(outside), filepath.Join(dir, "rel")),
	} {
		must(t, err)
	}
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	for _, tc := range []struct {
		name string
		real string // "" = refused
		abs  string
		says string
		deny bool
	}{
		{name: "", real: ".", abs: "."},
		{name: ".", real: ".", abs: "."},
		{name: "sub", real: "sub", abs: "sub"},
		{name: "sub/../sub/deep/", real: "sub/deep", abs: "sub/deep"},
		{name: "in", real: "sub/deep", abs: "in"},
		{name: "..", says: "leads out", deny: true},
		{name: "sub/../..", says: "leads out", deny: true},
		{name: dir, real: ".", abs: "."},
		{name: dir + "/sub/./deep/", real: "sub/deep", abs: "sub/deep"},
		{name: dir + "/in", real: "sub/deep", abs: "in"},
		{name: dir + "/out", says: "leads out", deny: true},
		{name: dir + "/../x", says: "outside", deny: true},
		{name: dir + "2", says: "outside", deny: true},
		{name: "/", says: "outside", deny: true},
		{name: "out", says: "leads out", deny: true},
		{name: "rel", says: "leads out", deny: true},
		{name: "missing", says: "does not exist"},
		{name: "file", says: "no folder"},
		{name: "file/x", says: "no folder"},
		{name: "a\x00b", says: "NUL"},
		{name: strings.Repeat("x", 5000), says: "more than 4096 bytes"},
	} {
		file, abs, err := OpenWorkdir(root, dir, tc.name)
		if tc.real == "" {
			var refused *WorkdirError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), tc.says) || refused.Denied != tc.deny || len(err.Error()) > 400 {
				t.Errorf("%.40q: %v, want %q, denied %v", tc.name, err, tc.says, tc.deny)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tc.name, err)
			continue
		}
		got, err1 := file.Stat()
		want, err2 := os.Stat(filepath.Join(dir, tc.real))
		if err := errors.Join(err1, err2, file.Close()); err != nil || !os.SameFile(got, want) || abs != filepath.Join(dir, tc.abs) {
			t.Errorf("%q opened another folder, or is called %q; %v", tc.name, abs, err)
		}
	}
}
