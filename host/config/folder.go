package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host/wall"
)

// FolderFile is the config that a folder may have for itself.
const FolderFile = "a2e.yaml"

// maxNamed bounds how many keys a warning names.
const maxNamed = 12

// inFolder returns the config of the current folder, and whether it is trusted. It is known by
// the real path of the folder that it lies in; should it be a link itself, what that leads
// to is what is read and trusted.
func inFolder(src Source) *file {
	f := &file{name: filepath.Join(src.Dir, FolderFile)}
	var err error
	if f.data, err = ReadRegular(f.name); errors.Is(err, fs.ErrNotExist) {
		return &file{}
	}
	if err == nil {
		f.path, err = FolderPath(src.Dir)
	}
	switch {
	case err != nil:
		f.err = fmt.Errorf("it cannot be read: %w", cause(err))
	case src.Trust == nil:
		f.err = errors.New("this host keeps no list of trusted files")
	default:
		f.err = src.Trust(f.path, f.data)
	}
	return f
}

// ReadFolder returns the content of the config of a folder.
func ReadFolder(dir string) ([]byte, error) {
	data, err := ReadRegular(filepath.Join(dir, FolderFile))
	return data, cause(err)
}

// FolderPath returns the path by which the config in a folder is known: absolute, without
// links on the way to it.
func FolderPath(dir string) (string, error) {
	path, err := filepath.Abs(dir)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	return filepath.Join(path, FolderFile), err
}

// tighten puts what only tightens of the file into c, and tells what became of it: nothing
// of a file that says nothing.
func (f *file) tighten(c *Config, src Source) []Warning {
	w := Warning{File: f.name, Message: "not trusted (" + f.err.Error() + "), so that "}
	if c.Untrusted = f.path; c.Wall != nil && f.path != "" {
		c.Wall.Fixed = append(c.Wall.Fixed, wall.Real(f.path)) // what it tightens is in force
	}
	taken, left, err := tightenBy(c, f.name, f.data, src)
	switch {
	case err != nil:
		w.Message += "nothing in it counts; it is wrong besides: " + firstLine(err)
	case f.data == nil:
		w.Message += "nothing in it counts"
	case len(left) == 0 && len(taken) == 0:
		return nil
	case len(left) == 0:
		w.Message += "it only tightens: " + some(taken)
	case len(taken) == 0:
		w.Message += "nothing in it counts; left out: " + some(paths(left))
	default:
		w.Message += "it only tightens: " + some(taken) + "; left out: " + some(paths(left))
	}
	w.Message += ". Look at it, then run `a2e trust`; or name it with --config or A2E_CONFIG"
	return []Warning{w}
}

func tightenBy(c *Config, name string, data []byte, src Source) (taken []string, left []LeftOut, err error) {
	root, problems := parse(name, data)
	if len(problems) > 0 { // such as a key that appears twice: then nobody knows what was meant
		return nil, nil, problemsError(problems)
	}
	t := tightener{base: c}
	if src.Tighten != nil {
		t.types = src.Tighten()
	}
	t.file(root)
	slices.Sort(t.taken)
	return slices.Compact(t.taken), slices.CompactFunc(t.left, func(a, b LeftOut) bool { return a.Path == b.Path }), nil
}

// Beyond tells what of the content of a config would be left out, were it not trusted, and
// which environment variables it puts in. name is for messages.
func Beyond(src Source, name string, content []byte) (left []LeftOut, variables []string, err error) {
	if _, left, err = tightenBy(Default(src), name, content, src); err != nil {
		return nil, nil, err
	}
	root, _ := parse(name, content)
	root.eachVariable(func(name string) { variables = append(variables, name) })
	slices.Sort(variables)
	return left, slices.Compact(variables), nil
}

// eachVariable returns the names of the variables in n.
func (n *node) eachVariable(do func(name string)) {
	_, _, _ = expand(n.text, func(name string) string {
		do(name)
		return "x" // goes on with the next
	})
	for _, m := range n.members {
		m.value.eachVariable(do)
	}
	for _, item := range n.items {
		item.eachVariable(do)
	}
}

func paths(left []LeftOut) []string {
	var all []string
	for _, l := range left {
		all = append(all, l.Path)
	}
	return all
}

// some lists names, but not too many.
func some(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
