package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Files that a folder may contain for a2e.
const (
	FolderFile  = "a2e.yaml"
	ServersFile = ".mcp.json" // lists MCP servers, in the format of other MCP clients
)

// maxNamed is the maximum number of keys that a warning names.
const maxNamed = 12

// inFolder reads a file in a folder and checks whether it is trusted. The file is identified by its
// name and the real path of its folder. If the file itself is a link, the content of its target is
// read and checked.
func inFolder(src Source, dir, name string) *file {
	f := &file{name: filepath.Join(dir, name)}
	var err error
	if f.data, err = ReadRegular(f.name); errors.Is(err, fs.ErrNotExist) {
		if _, link := os.Lstat(f.name); link != nil {
			return &file{}
		}
		err = errors.New("it is a dangling link")
	}
	if err == nil {
		f.path, err = FolderPath(f.name)
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

// FolderPath returns the path that identifies a file in a folder: absolute, with the links in the
// folder's path resolved.
func FolderPath(name string) (string, error) {
	dir, err := filepath.Abs(filepath.Dir(name))
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	return filepath.Join(dir, filepath.Base(name)), err
}

// unused returns the warning that the file is not used, with what it would set; nil if the file sets
// nothing.
func (f *file) unused() []Warning {
	w := Warning{Position: position{File: f.name}, Message: "not trusted (" + f.err.Error() + "), so it is not used"}
	root, err := asking(f.name, f.data)
	switch {
	case f.data == nil:
	case err != nil:
		line, _, _ := strings.Cut(err.Error(), "\n")
		w.Message += "; it also has mistakes: " + line
	case root.Kind != mapping:
		w.Message += "; it asks for " + top
	case len(root.Members) == 0:
		return nil
	default:
		w.Message += "; it asks for " + some(keysOf(root))
	}
	command := "a2e trust"
	if dir := filepath.Dir(f.name); dir != "." {
		command += " " + dir
	}
	w.Message += ": `" + command + "` shows all of it and accepts it"
	return []Warning{w}
}

// asking returns the parts of a folder's own file that would be used.
func asking(name string, content []byte) (*node, error) {
	servers, read := filepath.Base(name) == ServersFile, parse
	if servers {
		read = parseJSON
	}
	root, problems := read(name, content)
	if len(problems) > 0 { // a repeated key, for example: its meaning is not clear
		return nil, problemsError(problems)
	}
	if servers {
		root.Members = slices.DeleteFunc(root.Members, func(m member) bool { return m.Key != "mcpServers" })
	}
	return root, nil
}

// keysOf returns the keys of a file; for plugins and mcpServers it returns the keys inside them.
func keysOf(root *node) (names []string) {
	for _, m := range root.Members {
		if m.Key != "plugins" && m.Key != "mcpServers" || len(m.Value.Members)+len(m.Value.Items) == 0 {
			names = append(names, shortKey(m.Key))
			continue
		}
		for _, part := range m.Value.Members {
			names = append(names, joined(m.Key, shortKey(part.Key)))
		}
		for i := range m.Value.Items {
			names = append(names, fmt.Sprintf("%s[%d]", m.Key, i))
		}
	}
	return names
}

// Asks returns what the content of a config sets, and which environment variables it uses. name is the
// name for messages.
func Asks(name string, content []byte) (all []Setting, variables []string, err error) {
	root, err := asking(name, content)
	if err != nil || root.Kind == mapping && len(root.Members) == 0 {
		return nil, nil, err
	}
	eachVariable(root, func(name string) { variables = append(variables, name) })
	slices.Sort(variables)
	return settings(root, top, nil), slices.Compact(variables), nil
}

// eachVariable calls do with the name of each variable in n.
func eachVariable(n *node, do func(name string)) {
	_, _, _ = expand(n.Text, func(name string) string {
		do(name)
		return "x" // so that expand continues
	})
	for _, m := range n.Members {
		eachVariable(m.Value, do)
	}
	for _, item := range n.Items {
		eachVariable(item, do)
	}
}

// some returns the names as a text, but not too many.
func some(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

// Setting is one value in a file.
type Setting struct {
	Path  string // its place in the file, such as plugins[0].metadata.command
	Value string // in one line, without replaced variables
}

// settings appends the values in n to all: the values in a mapping, and in a list of mappings or
// lists, one by one, any other list as a whole.
func settings(n *node, path string, all []Setting) []Setting {
	deep := slices.ContainsFunc(n.Items, func(item *node) bool { return item.Kind != scalar })
	switch {
	case n.Kind == mapping && len(n.Members) > 0:
		for _, m := range n.Members {
			all = settings(m.Value, joined(path, m.Key), all)
		}
		return all
	case deep:
		for i, item := range n.Items {
			all = settings(item, fmt.Sprintf("%s[%d]", path, i), all)
		}
		return all
	}
	return append(all, Setting{path, shown(n)})
}

// shown returns a text, a list of texts or an empty value in YAML's notation with brackets.
func shown(n *node) string {
	var parts []string
	switch {
	case n.Kind == mapping:
		return "{}"
	case n.Kind == list:
		for _, item := range n.Items {
			parts = append(parts, shown(item))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case n.Text == "" || strings.ContainsAny(n.Text, ",[]{}\"'\n") || strings.TrimSpace(n.Text) != n.Text:
		return strconv.Quote(n.Text)
	}
	return n.Text
}
