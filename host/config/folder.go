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

// Files that a folder may have for itself.
const (
	FolderFile  = "a2e.yaml"
	ServersFile = ".mcp.json" // of MCP servers, as other MCP clients have it
)

// maxNamed bounds how many keys a warning names.
const maxNamed = 12

// inFolder returns a file of a folder, and whether it is trusted. It is known by the real path of
// the folder that it lies in; should it be a link itself, what that leads to is what is read and
// trusted.
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

// FolderPath returns the path by which a file of a folder is known: absolute, without links on the
// way to it.
func FolderPath(name string) (string, error) {
	dir, err := filepath.Abs(filepath.Dir(name))
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	return filepath.Join(dir, filepath.Base(name)), err
}

// unused tells that nothing in the file counts, and what it asks for; nothing of a file that
// says nothing.
func (f *file) unused() []Warning {
	w := Warning{Place: position{File: f.name}, Message: "not trusted (" + f.err.Error() + "), so it is not used"}
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

// asking reads a file that a folder has for itself: what would count of it.
func asking(name string, content []byte) (*node, error) {
	servers, read := filepath.Base(name) == ServersFile, parse
	if servers {
		read = parseJSON
	}
	root, problems := read(name, content)
	if len(problems) > 0 { // such as a key that appears twice: then nobody knows what was meant
		return nil, problemsError(problems)
	}
	if servers {
		root.Members = slices.DeleteFunc(root.Members, func(m member) bool { return m.Key != "mcpServers" })
	}
	return root, nil
}

// keysOf returns the keys of a file, and in the place of plugins and mcpServers what is in them.
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

// Asks tells what the content of a config sets, and which environment variables it puts in.
// name is for messages.
func Asks(name string, content []byte) (all []Setting, variables []string, err error) {
	root, err := asking(name, content)
	if err != nil || root.Kind == mapping && len(root.Members) == 0 {
		return nil, nil, err
	}
	eachVariable(root, func(name string) { variables = append(variables, name) })
	slices.Sort(variables)
	return settings(root, top, nil), slices.Compact(variables), nil
}

// eachVariable returns the names of the variables in n.
func eachVariable(n *node, do func(name string)) {
	_, _, _ = expand(n.Text, func(name string) string {
		do(name)
		return "x" // goes on with the next
	})
	for _, m := range n.Members {
		eachVariable(m.Value, do)
	}
	for _, item := range n.Items {
		eachVariable(item, do)
	}
}

// some lists names, but not too many.
func some(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

// Setting is one value of a file.
type Setting struct {
	Path  string // such as plugins[0].metadata.command, as it stands in the file
	Value string // in one line, variables not put in
}

// settings adds the values in n to all: mappings and lists of them one by one, another list
// as a whole.
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

// shown returns a text, a list of texts or what is empty as YAML has it in brackets.
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
