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
)

// Source says where Load looks and what this build can do.
type Source struct {
	// Path is the file of --config; "" looks further: $A2E_CONFIG, a2e.yaml in
	// Dir, a2e/config.yaml in UserConfigDir.
	Path string
	// Getenv gives a variable, "" when it is unset. nil is an empty environment.
	Getenv func(string) string
	// Dir is the current folder: workspace, state_dir and file names are relative to it.
	Dir string
	// UserConfigDir is what os.UserConfigDir gives; "" skips it.
	UserConfigDir string
	// Available lists the plugin types of this build.
	Available []string
}

// Load finds and reads the configuration. Without any file it is Default(src)
// and no YAML is read. A file that --config or A2E_CONFIG names must exist. The
// error is an *Error with every problem when the content is wrong. Warnings
// tell what was accepted without effect, in the order of the file.
func Load(src Source) (*Config, []Warning, error) {
	src.Getenv = envOr(src.Getenv)
	name, data, err := find(src)
	if err != nil {
		return nil, nil, err
	}
	if name == "" {
		c := Default(src)
		d := decoder{getenv: src.Getenv}
		d.check(c, nil, src)
		if len(d.problems) > 0 {
			return nil, nil, fmt.Errorf("without a config file: %s", d.problems[0].Message)
		}
		return c, nil, nil
	}
	return read(src, name, data)
}

// read decodes the content of a file.
func read(src Source, name string, data []byte) (*Config, []Warning, error) {
	root, problems := parse(name, data)
	if root == nil {
		return nil, nil, problemsError(problems)
	}
	d := decoder{file: name, getenv: src.Getenv, problems: problems}
	g := ignoring{file: name}
	c := Default(src)
	c.File = name
	d.config(root, c, src, &g)
	d.check(c, root, src)
	if err := problemsError(d.problems); err != nil {
		return nil, nil, err
	}
	return c, g.all(), nil
}

// config decodes the file's mapping into c.
func (d *decoder) config(root *node, c *Config, src Source, g *ignoring) {
	g.strip(root, ignoredTop())
	if mode := root.at("snapshot_mode"); mode != nil && !mode.null() {
		if text, _, err := expand(mode.text, src.Getenv); err != nil || !slices.Contains(snapshotModes(), text) {
			g.strip(root, []string{"snapshot_mode"})
		}
	}
	plugins := root.at("plugins")
	root.members = slices.DeleteFunc(root.members, func(m member) bool { return m.key == "plugins" })
	c.Audit.Enabled = root.at("audit") != nil
	d.value(root, reflect.ValueOf(c).Elem(), top, "")
	if plugins != nil && !plugins.null() {
		c.Plugins = d.plugins(plugins, src.Available, g)
	}
}

// find gives the name and content of the file to read; "" when there is none.
func find(src Source) (name string, data []byte, err error) {
	explicit := []struct{ path, by string }{{src.Path, "--config"}, {src.Getenv("A2E_CONFIG"), "A2E_CONFIG"}}
	for _, e := range explicit {
		if e.path == "" {
			continue
		}
		data, err := readFile(resolve(src.Dir, e.path))
		if err != nil {
			return "", nil, fmt.Errorf("the config file %s, named by %s, cannot be read: %w", e.path, e.by, cause(err))
		}
		return e.path, data, nil
	}
	usual := []string{filepath.Join(src.Dir, "a2e.yaml")}
	if src.UserConfigDir != "" {
		usual = append(usual, filepath.Join(src.UserConfigDir, "a2e", "config.yaml"))
	}
	for _, path := range usual {
		fi, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !fi.Mode().IsRegular() { // a pipe there would hang the start
			err = errors.New("not a regular file")
		}
		if err == nil {
			data, err = readFile(path)
		}
		if err != nil {
			return "", nil, fmt.Errorf("the config file %s cannot be read: %w", path, cause(err))
		}
		return path, data, nil
	}
	return "", nil, nil
}

// cause drops the path that an *fs.PathError repeats.
func cause(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// readFile reads at most one byte more than a config may have.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}
