package chains

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"a2e/host"
	"a2e/host/config/yamltree"
	"a2e/protocol"
)

// maxFileBytes bounds a file with a chain.
const maxFileBytes = 1 << 20

// maxSavedBytes bounds the saved chains of one request together, as JSON.
const maxSavedBytes = 64 << 20

// maxScanned is how many entries of the folder of saved chains are read to list their names.
const maxScanned = 1000

// fileTypes lists the extensions of files with a chain; earlier ones win.
func fileTypes() []string { return []string{".yaml", ".yml", ".json"} }

// load returns the plan of a saved chain; at is the JSON Pointer of its name, for errors.
func (l *planner) load(name, at string) (*plan, error) {
	if pl := l.saved[name]; pl != nil {
		return pl, nil
	}
	if i := slices.Index(l.stack, name); i >= 0 {
		return nil, circleError(append(slices.Clone(l.stack[i:]), name))
	}
	if len(l.stack) >= l.plugin.opts.MaxDepth {
		return nil, protocol.Wrong(at, "saved chains run each other more than %d deep: %s", l.plugin.opts.MaxDepth,
			strings.Join(l.stack, " → "))
	}
	file, err := l.plugin.openSaved(name)
	if err != nil {
		return nil, protocol.Wrong(at, "%v", err)
	}
	if l.room -= file.size(); l.room < 0 {
		return nil, protocol.Wrong(at, "the saved chains that run here have more than %d bytes together", maxSavedBytes)
	}
	l.stack = append(l.stack, name)
	pl, err := l.plan(source{name: name, base: "/nodes", nodes: file.Request.Nodes, entry: file.Request.EntryNode})
	l.stack = l.stack[:len(l.stack)-1]
	if known, ok := errors.AsType[*protocol.Error](err); ok && known.Code == protocol.CodeSchemaViolation {
		return nil, protocol.Wrong(at, "the saved chain %q is wrong: %v", name, file.Explain(err))
	}
	if err != nil {
		return nil, err
	}
	pl.preset = file.Request.InitialInput
	if file.HasTimeout {
		pl.timeout = time.Duration(file.Request.Timeout) * time.Second
	}
	l.saved[name] = pl
	return pl, nil
}

// openSaved reads a saved chain. The error continues a sentence about the name.
func (p *Plugin) openSaved(name string) (*File, error) {
	path, text, err := p.ReadSaved(name)
	if err != nil {
		return nil, err
	}
	file, err := ParseFile(path, text)
	if err != nil {
		return nil, fmt.Errorf("is %q: %w", name, err)
	}
	return file, nil
}

// ReadSaved returns the file of a saved chain, relative to the workspace, and its text. The error continues a
// sentence about the name.
func (p *Plugin) ReadSaved(name string) (path string, text []byte, err error) {
	if !validName(name) {
		return "", nil, fmt.Errorf("is %.64q, which no saved chain may be called; a name has letters, digits, - and "+
			"_, and dots within", name)
	}
	root, err := os.OpenRoot(p.env.Workspace)
	if err != nil {
		return "", nil, fmt.Errorf("is %q, but the workspace cannot be read: %w", name, pathless(err))
	}
	defer root.Close()
	for _, ext := range fileTypes() {
		path := filepath.Join(p.opts.ChainsPath, name+ext)
		text, err := p.env.Wall.ReadFile(root, path, maxFileBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", nil, fmt.Errorf("is %q, but %s cannot be read: %w", name, path, pathless(err))
		}
		return path, text, nil
	}
	return "", nil, fmt.Errorf("is %q, but there is no such chain in %s; there are: %s", name, p.opts.ChainsPath,
		listed(p.savedNames(root)))
}

// Saved lists the names of the saved chains.
func (p *Plugin) Saved() []string {
	root, err := os.OpenRoot(p.env.Workspace)
	if err != nil {
		return nil
	}
	defer root.Close()
	return p.savedNames(root)
}

// pathless returns the reason of an error without paths of this machine.
func pathless(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// validName reports whether a saved chain may have this name. Such a name cannot leave the folder.
func validName(name string) bool {
	if name == "" || len(name) > maxID || name[0] == '.' || name[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r != '.' && !wordRune(r) })
}

// savedNames lists the names of the saved chains of a workspace.
func (p *Plugin) savedNames(root *os.Root) []string {
	if guard := p.env.Wall.In(root); guard.Holds() {
		own, _, err := guard.OpenDir(filepath.ToSlash(p.opts.ChainsPath))
		if err != nil {
			return nil
		}
		defer own.Close()
		return namesIn(own, ".")
	}
	return namesIn(root, p.opts.ChainsPath)
}

func namesIn(root *os.Root, folder string) []string {
	dir, err := root.OpenFile(folder, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer dir.Close()
	entries, _ := dir.ReadDir(maxScanned) // after an error, what was read so far is used
	var names []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if name := strings.TrimSuffix(e.Name(), ext); slices.Contains(fileTypes(), ext) && validName(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// File is a chain in a file: the fields of a chain/req as YAML or JSON.
type File struct {
	Path       string
	Request    *protocol.ChainRequest
	HasTimeout bool // the file sets a timeout

	lines map[string]int // of values, by JSON Pointer; nil for JSON
}

// ReadFile reads a chain from a file in any folder, or from stdin if path is "-".
func ReadFile(path string, stdin io.Reader) (*File, error) {
	name, from := "stdin", stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		name, from = path, file
	}
	text, err := io.ReadAll(io.LimitReader(from, maxFileBytes+1))
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("it is larger than %d bytes", maxFileBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return ParseFile(name, text)
}

// ParseFile reads a chain from text; path is for messages. The error names the line.
func ParseFile(path string, text []byte) (*File, error) {
	f := &File{Path: path, Request: &protocol.ChainRequest{}}
	raw := bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff")))
	if !isJSON(path, raw) {
		var err error
		if raw, f.lines, err = yamltree.ToJSON(text); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	obj, err := protocol.ParseObject(raw)
	if err == nil {
		err = host.KnownFields(obj, chainFields())
	}
	if err == nil {
		err = protocol.Decode(obj, []string{"nodes"}, f.Request)
	}
	if err != nil {
		return nil, f.Explain(err)
	}
	_, f.HasTimeout = obj.Get("timeout")
	return f, nil
}

// isJSON reports whether a file is read as JSON.
func isJSON(path string, raw []byte) bool {
	if strings.EqualFold(filepath.Ext(path), ".json") {
		return true
	}
	_, err := protocol.ParseObject(raw)
	return err == nil
}

// chainFields lists the fields of a chain, in a request and in a file.
func chainFields() []string {
	return []string{
		"nodes", "entry_node", "initial_input", "timeout", "description", "chain_id", "correlation_id", "session_id",
		"streaming", "journal", "resume", "resolve",
	}
}

// knownOnly refuses a request with a field that no chain has. It is most likely misspelt, and without it
// the chain would do something else.
func knownOnly(_ context.Context, obj protocol.Object, next func() (any, error)) (any, error) {
	if err := host.KnownFields(obj, chainFields()); err != nil {
		return nil, err
	}
	return next()
}

// size returns how long the chain is as JSON, in bytes.
func (f *File) size() int {
	n := len(f.Request.InitialInput.Raw())
	for _, node := range f.Request.Nodes {
		n += len(node.Raw())
	}
	return n
}

// Explain returns an error that says at which lines of the file the problems are.
func (f *File) Explain(err error) error {
	known, ok := errors.AsType[*protocol.Error](err)
	if !ok {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	all, _ := known.Detail["errors"].([]protocol.FieldError)
	if len(all) == 0 {
		return fmt.Errorf("%s: %s", f.Path, known.Message)
	}
	var texts []string
	for _, one := range all {
		place := f.Path
		if line := yamltree.Line(f.lines, one.Path); line > 0 {
			place += ":" + strconv.Itoa(line)
		}
		texts = append(texts, place+": "+one.Path+": "+one.Message)
	}
	return errors.New(strings.Join(texts, "\n"))
}
