package toolkits

import (
	"slices"
	"strings"

	"a2e/plugins/tools"
)

// filesystemTools names the tools of the toolkit filesystem.
func filesystemTools() []string {
	return []string{"filesystem_edit_file", "filesystem_glob", "filesystem_grep", "filesystem_list_dir", "filesystem_read_file", "filesystem_write_file"}
}

// newFilesystem makes the toolkit filesystem: the built-in file tools over another root.
func (p *Plugin) newFilesystem(o FilesystemOptions, byConfig bool) (*made, error) {
	root, err := p.openFolder("root_dir", o.RootDir, byConfig)
	if err != nil {
		return nil, err
	}
	all := tools.FileTools(root, p.env.MaxOutputBytes)
	if o.ReadOnly {
		all = slices.DeleteFunc(all, func(t tools.Tool) bool { return !t.Detail.ReadOnly })
	}
	for i := range all {
		def := &all[i].Def
		def.Name = "filesystem_" + def.Name
		def.Description = strings.ReplaceAll(def.Description, "the workspace", "the toolkit's folder")
	}
	return newMade(kitFilesystem, all, func() { root.Close() }), nil
}
