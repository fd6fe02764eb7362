package toolkits

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// filesystemTools names the tools of the toolkit filesystem.
func filesystemTools() []string {
	return []string{"filesystem_edit_file", "filesystem_glob", "filesystem_grep", "filesystem_list_dir", "filesystem_read_file", "filesystem_write_file"}
}

// inWorkspace gives the path of a file below a toolkit's folder as seen from the workspace.
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

// newFilesystem makes the toolkit filesystem: the built-in file tools over another root.
func (p *Plugin) newFilesystem(o FilesystemOptions, byConfig bool) (*made, error) {
	root, err := p.openFolder("root_dir", o.RootDir, byConfig)
	if err != nil {
		return nil, err
	}
	all := tools.FileTools(root, p.env.MaxOutputBytes, p.env.Wall, p.set.Services)
	if o.ReadOnly {
		all = slices.DeleteFunc(all, func(t tools.Tool) bool { return !t.Detail.ReadOnly })
	}
	for i := range all {
		in := all[i].Files
		all[i].Files = func(args protocol.Object) host.Files {
			files := in(args)
			files.Path = p.inWorkspace(o.RootDir, files.Path)
			return files
		}
		def := &all[i].Def
		def.Name = "filesystem_" + def.Name
		def.Description = strings.ReplaceAll(def.Description, "the workspace", "the toolkit's folder")
	}
	return newMade(kitFilesystem, all, func() { root.Close() }), nil
}
