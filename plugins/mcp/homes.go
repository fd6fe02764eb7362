package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"

	"a2e/host/sandbox"
	"a2e/plugins/mcp/link"
)

// homeName names the home of a server. No two share one that differ in who named them, in
// what they run or in what they may do.
func homeName(workspace string, by origin, cfg link.Config) string {
	key, _ := json.Marshal([]any{ // texts, which encode always
		workspace, by, cfg.ID, cfg.Command, cfg.Args, slices.Sorted(maps.Keys(cfg.Env)), cfg.Dir, cfg.Network, cfg.Read,
	})
	sum := sha256.Sum256(key)
	return cfg.ID + "-" + hex.EncodeToString(sum[:8])
}

// homes is the folder of the homes of servers; "" = none stays.
func (p *Plugin) homes() string {
	if p.env.StateDir == "" {
		return ""
	}
	return filepath.Join(p.env.StateDir, "homes")
}

// Installation is a server of the config that the program which starts it installs first.
type Installation struct {
	ID      string
	Command string // the program's name
	State   string // installed, installing (by a host that runs) or missing
	Home    string // where to; "" = a folder that goes with the server
}

// Installations tells of these servers, also before Start.
func (p *Plugin) Installations() []Installation {
	all := []Installation{}
	for _, o := range p.configured {
		cfg := p.config(&o, byConfig)
		if o.Disabled || !cfg.Installs() {
			continue
		}
		one := Installation{ID: o.ID, Command: filepath.Base(cfg.Command), State: "missing"}
		if dir := p.homes(); dir != "" {
			one.Home = filepath.Join(dir, cfg.Home)
			switch ready, used := sandbox.HomeState(dir, cfg.Home); {
			case ready:
				one.State = "installed"
			case used:
				one.State = "installing"
			}
		}
		all = append(all, one)
	}
	return all
}
