package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"

	"a2e/host/guard/redact"
	"a2e/protocol"
)

// Source says where Load looks for files, and which plugins this build has.
type Source struct {
	// Path is the file of --config. "" = Load looks for $A2E_CONFIG, then a2e.yaml in Dir, then
	// a2e/config.yaml in UserConfigDir.
	Path string
	// Getenv returns the value of a variable, or "" if it is unset. nil = an empty environment.
	Getenv func(string) string
	// Dir is the current folder. The workspace, state_dir and file names are relative to it.
	Dir string
	// UserConfigDir is the result of os.UserConfigDir; "" = there is none.
	UserConfigDir string
	// Secrets receives the values that must not be shown; nil = a new Set.
	Secrets *redact.Set
	// Available lists the plugin types of this build.
	Available []string
	// Trust returns the reason why the content of a file in the current folder or the workspace is not
	// trusted, or nil if it is trusted. path is absolute. A nil func trusts no file.
	Trust func(path string, content []byte) error
	// Server returns an error for an invalid entry of .mcp.json; nil = all entries are accepted.
	Server func(id string, entry any) error
}

// Load finds and reads the configuration. Without a file it returns Default(src). A file that --config
// or A2E_CONFIG names must exist. If the content is wrong, the error is an *Error with every problem.
// The warnings report what was accepted without effect, in the order of the file.
//
// An agent may have written a2e.yaml in Dir or .mcp.json in the workspace, or the file came with the
// folder. Unless src.Trust accepts the content, the file is not used and its mistakes are no errors:
// one warning says what it would set.
func Load(src Source) (*Config, []Warning, error) {
	src.Getenv = envOr(src.Getenv)
	f, err := asked(src)
	if err != nil {
		return nil, nil, err
	}
	folder := &file{}
	if f.name == "" {
		if folder = inFolder(src, src.Dir, FolderFile); folder.trusted() {
			f = folder
		} else if f, err = ofUser(src, "config.yaml"); err != nil {
			return nil, nil, err
		}
	}
	c, warnings, err := read(src, f)
	if err != nil {
		return nil, nil, err
	}
	if folder.name != "" && !folder.trusted() {
		c.Untrusted = append(c.Untrusted, folder.path)
		warnings = append(warnings, folder.unused()...)
	}
	return c, append(warnings, c.addServers(src)...), nil
}

// read decodes the content of a file, or returns the defaults if there is no file.
func read(src Source, f *file) (*Config, []Warning, error) {
	c := Default(src)
	d := decoder{getenv: src.Getenv, secrets: c.Secrets, types: knownTypes(src.Available)}
	if f.name == "" {
		d.check(c, src)
		if len(d.problems) > 0 {
			return nil, nil, fmt.Errorf("without a config file: %s", d.problems[0].Message)
		}
		return c, nil, nil
	}
	root, problems := parse(f.name, f.data)
	if root == nil {
		return nil, nil, problemsError(problems)
	}
	d.problems, d.root = problems, root
	c.File, c.Named = f.path, f.named
	d.config(c, src)
	d.check(c, src)
	sortProblems(d.warnings)
	if err := problemsError(d.problems); err != nil {
		return nil, nil, err
	}
	return c, d.warnings, nil
}

// config decodes the mapping of the file into c.
func (d *decoder) config(c *Config, src Source) {
	d.adapt()
	plugins, servers := take(d.root, "plugins").Value, take(d.root, "mcpServers").Value
	c.Audit.Enabled = d.root.At("audit") != nil
	d.value(d.root, reflect.ValueOf(c).Elem(), top, "")
	if plugins != nil && !plugins.Null() {
		c.Plugins, c.Off = d.plugins(plugins, src.Available)
	}
	if servers != nil && !servers.Null() {
		d.servers(servers, c, src.Available)
	}
}

// servers adds the MCP servers at the top of the file to the options of the plugin mcp. A list of
// plugins need not contain that plugin.
func (d *decoder) servers(n *node, c *Config, available []string) {
	const typ = string(protocol.CapMCP)
	to := c.mcp()
	switch off := slices.ContainsFunc(c.Plugins, func(p Plugin) bool { return p.Type == typ }); {
	case to == nil && (off || !slices.Contains(available, typ)):
		d.warn(n, "mcpServers has no effect, as the plugin mcp is switched off")
		return
	case to == nil:
		name := typ
		for slices.ContainsFunc(c.Plugins, func(p Plugin) bool { return p.Name == name }) {
			name += "Servers"
		}
		c.Plugins = append(c.Plugins, Plugin{Name: name, Type: typ, Enabled: true})
		c.Off = slices.DeleteFunc(c.Off, func(off string) bool { return off == typ })
		to = c.mcp()
	case to.Options.node.At("mcpServers") != nil:
		d.fail(n, "mcpServers stands here and in the options of the plugin %s: keep one", named(to.Name))
		return
	}
	to.Options = d.options(to.Options.set("mcpServers", n).node, "plugins."+typ)
}

// file is a config file that was found. Its content is read only once, so that the checked content is
// the one that is used.
type file struct {
	name  string // for messages; "" = there is no file
	path  string // absolute
	named bool   // named by --config or A2E_CONFIG
	data  []byte
	err   error // why a folder's own file is not used; nil = it is trusted
}

func (f *file) trusted() bool { return f.name != "" && f.err == nil }

// asked returns the file that --config or A2E_CONFIG names, or an empty one.
func asked(src Source) (*file, error) {
	name, by := src.Path, "--config"
	if name == "" {
		name, by = src.Getenv("A2E_CONFIG"), "A2E_CONFIG"
	}
	if name == "" {
		return &file{}, nil
	}
	path, err := filepath.Abs(resolve(src.Dir, name))
	f := &file{name: name, path: path, named: true}
	if err == nil {
		f.data, err = readFile(f.path, os.O_RDONLY)
	}
	if err != nil {
		return nil, fmt.Errorf("the config file %s, named by %s, cannot be read: %w", name, by, cause(err))
	}
	return f, nil
}

// ofUser returns a file in the user's config folder of a2e, or an empty one.
func ofUser(src Source, name string) (*file, error) {
	if src.UserConfigDir == "" {
		return &file{}, nil
	}
	path := filepath.Join(src.UserConfigDir, "a2e", name)
	data, err := ReadRegular(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &file{}, nil
	case err == nil:
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fmt.Errorf("the config file %s cannot be read: %w", path, cause(err))
	}
	return &file{name: path, path: path, data: data}, nil
}

// cause removes the path from an *fs.PathError, because messages contain it already.
func cause(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// ReadRegular reads a file that the user did not name: if it were a pipe, the start would block. It
// reads at most one byte more than the maximum size of a config.
func ReadRegular(path string) ([]byte, error) {
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	}
	return readFile(path, os.O_RDONLY|syscall.O_NONBLOCK) // it may have been replaced since
}

// readFile reads at most one byte more than the maximum size of a config.
func readFile(path string, flags int) ([]byte, error) {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}
