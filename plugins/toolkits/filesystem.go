package toolkits

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// inWorkspace returns the path of a file below a toolkit's folder, relative to the workspace.
func (p *Plugin) inWorkspace(root, name string) string {
	if filepath.IsAbs(root) {
		base, err := filepath.Abs(p.env.Workspace)
		if err != nil {
			return "."
		}
		if root, err = filepath.Rel(base, root); err != nil {
			return "."
		}
	}
	if filepath.IsAbs(name) {
		return filepath.ToSlash(root)
	}
	return path.Join(filepath.ToSlash(root), path.Join("/", filepath.ToSlash(name)))
}

// oneFile returns the Tool.Files of a tool that reads or changes one file or folder.
func (p *Plugin) oneFile(t *tools.Tool, name string) func(protocol.Object) []tools.File {
	use := tools.File{Path: p.inWorkspace(name, "."), Access: protocol.Exclusive}
	if t.Detail.ReadOnly {
		use.Access = protocol.Shared
	}
	return func(protocol.Object) []tools.File { return []tools.File{use} }
}

// newFilesystem makes the toolkit filesystem: the built-in file tools over another root.
func (p *Plugin) newFilesystem(o FilesystemOptions, byConfig bool) (*made, error) {
	root, err := p.openFolder("root_dir", o.RootDir, byConfig)
	if err != nil {
		return nil, err
	}
	all := tools.FileTools(root, p.env.MaxOutputBytes, p.env.Wall, p.Services)
	if o.ReadOnly {
		all = slices.DeleteFunc(all, func(t tools.Tool) bool { return !t.Detail.ReadOnly })
	}
	for i := range all {
		in := all[i].Files
		all[i].Files = func(args protocol.Object) []tools.File {
			files := in(args)
			for i := range files {
				files[i].Path = p.inWorkspace(o.RootDir, files[i].Path)
			}
			return files
		}
		def := &all[i].Def
		def.Name = "filesystem_" + def.Name
		def.Description = strings.ReplaceAll(def.Description, "the workspace", "the toolkit's folder")
	}
	m := newMade(kitFilesystem, all, func() { root.Close() })
	return p.follow(kitFilesystem, root.Name(), m, func() (*made, error) {
		return p.newFilesystem(o, p.trusted(o.RootDir, byConfig))
	})
}

// openFolder opens the folder of a toolkit; field is the setting that names it. A folder that the
// config names may be anywhere; a folder that the agent names must lie in the workspace or in one of
// Options.Folders, without a link that leads out.
func (p *Plugin) openFolder(field, name string, byConfig bool) (*os.Root, error) {
	if name == "" {
		return nil, p.wrongSetting(field, "is empty; \".\" is the workspace itself", byConfig)
	}
	if byConfig {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.env.Workspace, name)
		}
		if p.env.Wall.Hides(wall.Real(name)) {
			return nil, p.wrongSetting(field, wall.ErrOwn.Error(), true)
		}
		root, err := os.OpenRoot(wall.AsDir(name))
		if err != nil {
			return nil, p.wrongSetting(field, reason(err), true)
		}
		return root, nil
	}
	base, rest, ok := p.within(name)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeToolDenied,
			"%s leads out of the workspace; the toolkit may be rooted in the workspace, or in one of the folders "+
				"that the host's config lists for toolkits", field)
	}
	outer, err := os.OpenRoot(wall.AsDir(base))
	if err != nil {
		return nil, p.wrongSetting(field, reason(err), false)
	}
	defer outer.Close()
	root, err := p.inner(outer, filepath.ToSlash(rest))
	switch {
	case errors.Is(err, wall.ErrOwn):
		return nil, protocol.Errorf(protocol.CodeToolDenied, "%s %w", field, wall.ErrOwn)
	case err != nil:
		return nil, p.wrongSetting(field, reason(err), false)
	}
	return root, nil
}

// inner opens a folder within an open one. It refuses the host's own folders.
func (p *Plugin) inner(outer *os.Root, rest string) (*os.Root, error) {
	if p.env.Wall.Hides(wall.Real(outer.Name())) {
		return nil, wall.ErrOwn
	}
	if guard := p.env.Wall.In(outer); guard.Holds() {
		root, _, err := guard.OpenDir(rest)
		return root, err
	}
	return outer.OpenRoot(wall.AsDir(rest))
}

// within splits a path of the agent into a folder that the agent may use and a path in it; ok = false if the path
// is in none of them.
func (p *Plugin) within(name string) (base, rest string, ok bool) {
	if !filepath.IsAbs(name) {
		return p.env.Workspace, name, filepath.IsLocal(name)
	}
	for _, base := range append([]string{p.env.Workspace}, p.opts.Folders...) {
		abs, err := filepath.Abs(base)
		if err != nil {
			continue
		}
		if rest, ok := sandbox.Relative(abs, name); ok {
			return abs, rest, true
		}
	}
	return "", "", false
}

// wrongSetting returns the error for one setting of a toolkit.
func (p *Plugin) wrongSetting(field, why string, byConfig bool) error {
	if byConfig {
		return errors.New(field + " " + why)
	}
	return protocol.Violation(protocol.FieldError{Path: "/config/" + field, Message: why})
}

// reason returns the text of an error without paths of this machine.
func reason(err error) string {
	var at *os.PathError
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "names a folder that is not there"
	case errors.As(err, &at) && strings.Contains(at.Err.Error(), "escapes"):
		return "leads out of the workspace, by a link or by .."
	case errors.As(err, &at):
		return "cannot be opened: " + at.Err.Error()
	}
	return "cannot be opened: " + err.Error()
}
