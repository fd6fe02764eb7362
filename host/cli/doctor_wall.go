package cli

import (
	"path/filepath"
	"slices"
	"strings"

	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/host/wall"
	"a2e/plugins"
)

// wallCheck is a place of the host's own that lies in the workspace.
type wallCheck struct {
	OK   bool   `json:"ok"` // agents and their programs are kept from it, or do not start
	Name string `json:"name"`
	Path string `json:"path"`
	Note string `json:"note"` // how it is held, or why it is not

	firm bool // programs do not start where it cannot be held
}

// wallsOf lists what of the host's own lies in the workspace. lacks says why mounts cannot
// hide it on this machine; "" = they can, or nobody has looked.
func wallsOf(cfg *config.Config, lacks string) []wallCheck {
	w := cfg.Wall
	workspace, err := filepath.Abs(cfg.Workspace)
	if w == nil || err != nil {
		return nil
	}
	var all []wallCheck
	add := func(name, path, held string, firm bool) {
		if real := wall.Real(workspace); path == real || !wall.Within(real, path) {
			return
		}
		c := wallCheck{OK: true, Name: name, Path: path, Note: held, firm: firm}
		switch {
		case plugins.Mode(cfg) == sandbox.Off:
			c.OK, c.Note = false, "file tools keep out of it; programs do not, as sandbox is off: move it out of the workspace"
		case lacks != "" && w.Loose:
			c.OK, c.firm, c.Note = false, false, "file tools keep out of it; programs do not, as this host runs in the sandbox of another, whose walls hold"
		case lacks != "" && firm:
			c.Note = "programs do not start, as nothing here keeps them out of it (mount_namespace: " + lacks + "): move it out of the workspace"
		case lacks != "":
			c.OK, c.Note = false, "file tools do not change it; programs can, as this machine has no mount namespace ("+lacks+"): move it out of the workspace"
		}
		all = append(all, c)
	}
	for _, h := range w.Hidden {
		name := "files of the host"
		switch {
		case sameFolder(h, cfg.StateDir):
			name = "state_dir"
		case sameFolder(h, cfg.UserDir):
			name = "the user's config folder"
		}
		add(name, h, "lies in the workspace: hidden from agents and their programs", true)
	}
	for _, f := range w.Fixed {
		if !w.Hides(f) {
			add("config", f, "lies in the workspace: agents and their programs can read it and not change it", w.Firm)
		}
	}
	return all
}

func sameFolder(real, name string) bool {
	abs, err := filepath.Abs(name)
	return err == nil && name != "" && wall.Real(abs) == real
}

// checkWalls adds what the sandbox of this machine makes of them.
func (d *diagnosis) checkWalls(cfg *config.Config) {
	lacks := ""
	for _, f := range d.Sandbox.Findings {
		if f.Name == "mount_namespace" && !f.OK {
			lacks = f.Reason
		}
	}
	d.Walls = append(d.Walls, wallsOf(cfg, lacks)...)
	if lacks == "" || !slices.ContainsFunc(d.Walls, func(w wallCheck) bool { return w.firm }) {
		return
	}
	for i := range d.Sandbox.Verdicts {
		v := &d.Sandbox.Verdicts[i]
		if v.Mode != sandbox.BestEffort {
			continue
		}
		v.OK = false
		v.Text = "children do not start, as files of the host lie in the workspace and nothing here keeps them out; otherwise " + v.Text
		d.Sandbox.OK = d.Sandbox.OK && d.Sandbox.Mode != v.Mode
	}
}

func printWalls(b *strings.Builder, walls []wallCheck) {
	if len(walls) == 0 {
		return
	}
	section(b, "the host's own files", func(row func(...string)) {
		for _, w := range walls {
			state := "ok"
			if !w.OK {
				state = "open"
			}
			row(state, w.Name, noted(w.Path, w.Note))
		}
	})
}
