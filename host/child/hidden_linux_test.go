package child_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
)

// TestUnseen: the error names the folder that a program needs and the sandbox hides, with links followed. With the
// folders of the fix in read, nothing is hidden any more.
func TestUnseen(t *testing.T) {
	for name, c := range map[string]struct {
		// NAME, NAME = TEXT, or NAME -> TARGET for a link, separated by commas; below OUT unless they begin with WS
		files   string
		command string
		read    []string
		said    string
		hides   string // the folder that the error names; "" = nothing is hidden
		fix     string
	}{
		"all there": {files: "WS/a", command: "/usr/bin/env WS/a -x rel /none/b"},
		"a script":  {files: "srv/a.py", command: "/bin/sh OUT/srv/a.py", hides: "OUT/srv", fix: "OUT/srv"},
		"granted":   {files: "srv/a.py", command: "/bin/sh OUT/srv/a.py", read: []string{"OUT/srv"}},
		"a further folder": {
			files:   "a/x,b/y",
			command: "/bin/sh OUT/a/x OUT/b/y",
			read:    []string{"OUT/a"},
			hides:   "OUT/b", fix: "OUT/a, OUT/b",
		},
		"two folders": {
			files:   "a/x,b/y",
			command: "/bin/sh OUT/a/x --data=OUT/b",
			hides:   "OUT/a", fix: "OUT/a, OUT/b",
		},
		"a Python package": {
			files:   "p/pyproject.toml,p/srv/__init__.py,p/srv/a.py",
			command: "/bin/sh OUT/p/srv/a.py",
			hides:   "OUT/p", fix: "OUT/p",
		},
		"a Node.js package": {
			files:   "n/package.json,n/dist/a.js",
			command: "/bin/sh OUT/n/dist/a.js",
			hides:   "OUT/n", fix: "OUT/n",
		},
		"a Node.js workspace": {
			files:   "m/node_modules/x,m/packages/n/package.json,m/packages/n/a.js",
			command: "/bin/sh OUT/m/packages/n/a.js",
			hides:   "OUT/m", fix: "OUT/m",
		},
		"in node_modules": {
			files:   "n/node_modules/p/package.json,n/node_modules/p/a.js",
			command: "/bin/sh OUT/n/node_modules/p/a.js",
			hides:   "OUT/n/node_modules", fix: "OUT/n/node_modules",
		},
		"a linked bin": {
			files:   "n/node_modules/p/package.json,n/node_modules/p/a.js,n/node_modules/.bin/p -> ../p/a.js",
			command: "OUT/n/node_modules/.bin/p",
		},
		"a linked bin within": {
			files:   "n/package.json,n/a.js = #!/bin/sh,WS/node_modules/.bin/p -> ../p/a.js,WS/node_modules/p -> OUT/n",
			command: "WS/node_modules/.bin/p",
			hides:   "OUT/n", fix: "OUT/n",
		},
		"a Python of elsewhere": {
			files:   "py/3.1/bin/python,py/3 -> 3.1,WS/venv/bin/python -> OUT/py/3/bin/python",
			command: "WS/venv/bin/python -m x",
			hides:   "OUT/py/3", fix: "OUT/py/3",
		},
		"what a script runs": {
			files:   "py/bin/python,v/bin/python -> OUT/py/bin/python,WS/tool = #!OUT/v/bin/python",
			command: "WS/tool", hides: "OUT/v", fix: "OUT/v, OUT/py",
		},
		"what it says": {
			files:   "d/a",
			command: "/bin/true",
			said:    "FileNotFoundError: 'OUT/d/a', gone",
			hides:   "OUT/d", fix: "OUT/d",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, work := t.TempDir(), t.TempDir()
			fill := strings.NewReplacer("OUT", out, "WS", work).Replace
			for _, file := range strings.Split(fill(c.files), ",") {
				lay(t, out, file)
			}
			launcher := must.Get(sandbox.New(sandbox.Options{Workspace: work}))(t)
			defer launcher.Close()
			program := child.Program{
				Command: strings.Fields(fill(c.command)), Workspace: work,
				Launcher: func() (*sandbox.Launcher, error) { return launcher, nil },
			}
			for _, r := range c.read {
				program.Read = append(program.Read, fill(r))
			}
			err := program.ReportHidden(fill(c.said))
			if c.hides == "" {
				must.OK(t, err)
				return
			}
			lack := (*host.Lack)(nil)
			must.That(t, errors.As(err, &lack), "nothing is hidden: %v", err)
			assert.That(t, strings.HasSuffix(err.Error(), ": the sandbox hides "+fill(c.hides)), "%v", err)
			assert.Equal(t, lack.Fix, "read: ["+fill(c.fix)+"]")
			program.Read = slices.Clip(strings.Split(fill(c.fix), ", "))
			assert.OK(t, program.ReportHidden(fill(c.said)))
		})
	}
}

// lay makes a file or a link: NAME, NAME = TEXT or NAME -> TARGET.
func lay(t *testing.T, dir, file string) {
	t.Helper()
	name, target, link := strings.Cut(file, " -> ")
	name, text, _ := strings.Cut(name, " = ")
	path := child.Absolute(dir, name)
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	if link {
		must.OK(t, os.Symlink(target, path))
		return
	}
	must.OK(t, os.WriteFile(path, []byte(text), 0o755))
}
