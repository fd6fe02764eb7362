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

// Source says where Load looks and what this build can do.
type Source struct {
	// Path is the file of --config; "" looks further: $A2E_CONFIG, a2e.yaml in
	// Dir, a2e/config.yaml in UserConfigDir.
	Path string
	// Getenv returns a variable, "" when it is unset. nil is an empty environment.
	Getenv func(string) string
	// Dir is the current folder: workspace, state_dir and file names are relative to it.
	Dir string
	// UserConfigDir is what os.UserConfigDir gives; "" skips it.
	UserConfigDir string
	// Secrets gets the values that nothing may show; nil = a new one.
	Secrets *redact.Set
	// Available lists the plugin types of this build.
	Available []string
	// Trust tells why the content of a file in the current folder or the workspace is not trusted,
	// nil = it is. path is absolute. A nil func trusts none.
	Trust func(path string, content []byte) error
	// Server tells what is wrong with an entry of .mcp.json; nil takes all.
	Server func(id string, entry any) error
}

// Load finds and reads the configuration. Without any file it is Default(src)
// and no YAML is read. A file that --config or A2E_CONFIG names must exist. The
// error is an *Error with every problem when the content is wrong. Warnings
// tell what was accepted without effect, in the order of the file.
//
// a2e.yaml in Dir was perhaps written by the agent, or came with the folder, as .mcp.json in the
// workspace. Unless src.Trust knows the content, nothing in the file counts, and nothing in it is an
// error: one warning names what it asks for.
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

// read decodes the content of a file, or gives the defaults where there is none.
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

// config decodes the file's mapping into c.
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

// servers gives the MCP servers at the top of the file to the plugin for them. A list that does not name that plugin
// need not.
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

// file is a config that was found: its content is read once, so that what is looked at is
// what counts.
type file struct {
	name  string // for messages; "" = there is none
	path  string // absolute
	named bool   // by --config or A2E_CONFIG
	data  []byte
	err   error // of the folder's own file: why it does not count; nil = it is trusted
}

func (f *file) trusted() bool { return f.name != "" && f.err == nil }

// asked returns the file that --config or A2E_CONFIG names.
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

// ofUser returns a file of the user's own.
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

// cause drops the path that an *fs.PathError repeats.
func cause(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// ReadRegular reads a file that nobody has named: a pipe there would hang the start. It reads at
// most one byte more than a config may have.
func ReadRegular(path string) ([]byte, error) {
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	}
	return readFile(path, os.O_RDONLY|syscall.O_NONBLOCK) // it may be another one by now
}

// readFile reads at most one byte more than a config may have.
func readFile(path string, flags int) ([]byte, error) {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}
