package config

import (
	"os"
	"path/filepath"
	"strings"

	"a2e/host/guard/wall"
	"a2e/host/sandbox"
)

// own is a folder with files of the host.
type own struct {
	dir  string // absolute, with links
	file bool   // the host's files are directly in it, possibly next to other files
	what string // its name in messages
	at   *node  // the node that sets it; nil = the default
}

// buildWall sets up the wall that keeps agents from the host's own files, and refuses places that cannot
// be protected.
func (d *decoder) buildWall(c *Config, src Source) {
	workspace, err := filepath.Abs(c.Workspace)
	if err != nil {
		return // the folder was refused already
	}
	real := wall.Real(workspace)
	w := &wall.Wall{Open: []string{real}, Loose: src.Getenv(sandbox.EnvConfined) != ""}
	for _, o := range d.ownFolders(c, src) {
		if o.dir, err = filepath.Abs(o.dir); err != nil {
			continue
		}
		d.place(c, &o, src, workspace, real)
		// a folder that the host shares with others is hidden only inside the workspace
		if dir := wall.Real(o.dir); !w.Hides(dir) && (!o.file || wall.Within(real, dir)) {
			w.Hidden = append(w.Hidden, dir)
		}
	}
	if c.File != "" {
		if file, err := filepath.Abs(resolve(src.Dir, c.File)); err == nil {
			w.Fixed = []string{wall.Real(file)}
			w.Firm = c.Named && wall.Within(real, w.Fixed[0])
			if c.Named && wall.Within(workspace, filepath.Dir(file)) && throughLink(workspace, file) {
				d.fail(d.at(), "the config file is reached through a link that lies in the workspace, where "+
					"agents could put another one; name the file itself")
			}
		}
	}
	c.Wall = w
}

// ownFolders returns the folders with the host's own files.
func (d *decoder) ownFolders(c *Config, src Source) []own {
	state := own{dir: c.StateDir, what: "state_dir"}
	if d.root.At("state_dir") != nil || src.Getenv(EnvStateDir) != "" {
		state.at = d.at("state_dir")
	}
	all := []own{state}
	if c.Audit.Enabled && filepath.Dir(c.Audit.Path) != c.StateDir {
		all = append(all, own{filepath.Dir(c.Audit.Path), true, "the folder of audit.path", d.at("audit", "path")})
	}
	if c.UserDir != "" {
		all = append(all, own{dir: c.UserDir})
	}
	return all
}

// place refuses a folder of the host that agents could reach. Default folders are not refused, because
// a home folder may be the workspace; `doctor` explains the consequences.
func (d *decoder) place(c *Config, o *own, src Source, workspace, real string) {
	if o.at == nil {
		return
	}
	dir := wall.Real(o.dir)
	switch inside := wall.Within(real, dir) || wall.Within(workspace, o.dir); {
	case !inside:
	case dir == real:
		d.fail(o.at, "%s is the workspace itself, where agents could change what the host keeps; name a folder "+
			"outside the workspace", o.what)
	case wall.Within(workspace, o.dir) && throughLink(workspace, o.dir):
		d.fail(o.at, "%s is reached through a link in the workspace, where agents could put another one; name the "+
			"folder itself, best outside the workspace", o.what)
	case c.Sandbox == "off" && src.Getenv(sandbox.EnvConfined) == "":
		d.fail(o.at, "%s lies in the workspace, and with sandbox: off nothing keeps programs out of it; name a "+
			"folder outside the workspace", o.what)
	}
}

// throughLink reports whether a path inside a folder goes through a link below that folder.
func throughLink(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return false
	}
	at := dir
	for name := range strings.SplitSeq(rel, string(filepath.Separator)) {
		at = filepath.Join(at, name)
		if info, err := os.Lstat(at); err == nil && info.Mode()&os.ModeSymlink != 0 {
			return true
		}
	}
	return false
}
