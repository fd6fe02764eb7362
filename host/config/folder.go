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
	w := Warning{File: f.name, Message: "not trusted (" + f.err.Error() + "), so it is not used"}
	switch asked, _, err := Asks(f.name, f.data); {
	case f.data == nil:
	case err != nil:
		w.Message += "; it also has mistakes: " + firstLine(err)
	case len(asked) == 0:
		return nil
	default:
		var names []string
		for _, a := range asked {
			names = append(names, a.Path)
		}
		w.Message += "; it asks for " + some(names)
	}
	command := "a2e trust"
	if dir := filepath.Dir(f.name); dir != "." {
		command += " " + dir
	}
	w.Message += ": `" + command + "` shows all of it and accepts it"
	return []Warning{w}
}

// Asks tells what the content of a config sets, and which environment variables it puts in.
// name is for messages.
func Asks(name string, content []byte) (asked []Asked, variables []string, err error) {
	read := parse
	if filepath.Base(name) == ServersFile {
		read = parseJSON
	}
	root, problems := read(name, content)
	if len(problems) > 0 { // such as a key that appears twice: then nobody knows what was meant
		return nil, nil, problemsError(problems)
	}
	if root.Kind != mapping && !root.Null() {
		return []Asked{{top, settings(root, top, nil)}}, nil, nil
	}
	for _, m := range root.Members {
		if filepath.Base(name) == ServersFile && m.Key != "mcpServers" {
			continue // it counts for nothing
		}
		if m.Key != "plugins" && m.Key != "mcpServers" || len(m.Value.Members)+len(m.Value.Items) == 0 {
			asked = append(asked, Asked{shortKey(m.Key), settings(m.Value, m.Key, nil)})
			continue
		}
		for _, part := range m.Value.Members {
			asked = append(asked, Asked{joined(m.Key, shortKey(part.Key)), settings(part.Value, joined(m.Key,
				part.Key), nil)})
		}
		for i, item := range m.Value.Items {
			at := fmt.Sprintf("%s[%d]", m.Key, i)
			asked = append(asked, Asked{at, settings(item, at, nil)})
		}
	}
	eachVariable(root, func(name string) { variables = append(variables, name) })
	slices.Sort(variables)
	return asked, slices.Compact(variables), nil
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

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Asked is one key at the top of a file.
type Asked struct {
	Path     string    // such as limits; what does not look like a key is hidden
	Settings []Setting // all that stands there
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
