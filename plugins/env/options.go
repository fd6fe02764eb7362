package env

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/sandbox"
	"a2e/host/store"
	"a2e/host/wall"
)

// The bounds where the config sets none.
const (
	defaultMaxEpisodes    = 10_000
	defaultMaxExperiences = 100_000
	defaultIdleTimeout    = 24 * 60 * 60 // seconds
)

// Options are the plugin's options in the config.
type Options struct {
	Env            string           `yaml:"env" enum:"counter,gridworld,workspace,exec" doc:"The environment: counter (the default), gridworld, workspace or exec."`
	MaxEpisodes    int              `yaml:"max_episodes" min:"0" doc:"Episodes that may be open at once, and saved ones; 0 = 10000."`
	MaxSteps       int              `yaml:"max_steps" min:"0" doc:"Steps after which an episode is cut short (truncated); 0 = no limit."`
	IdleTimeout    float64          `yaml:"idle_timeout" min:"0" doc:"Seconds after which an episode that nobody asks for is closed; 0 = a day."`
	MaxExperiences int              `yaml:"max_experiences" min:"0" doc:"Steps kept for env/exp/list, the oldest go; 0 = 100000."`
	SaveLater      bool             `yaml:"save_later" doc:"Answer steps before they are in the store: more of them one at a time, and a kill of the host loses those of the last second."`
	Gridworld      GridworldOptions `yaml:"gridworld" doc:"Of the environment gridworld."`
	Workspace      WorkspaceOptions `yaml:"workspace" doc:"Of the environment workspace."`
	Exec           ExecOptions      `yaml:"exec" doc:"Of the environment exec."`
}

func (o *Options) setDefaults() {
	o.Env = cmp.Or(o.Env, "counter")
	o.MaxEpisodes = cmp.Or(o.MaxEpisodes, defaultMaxEpisodes)
	o.MaxExperiences = cmp.Or(o.MaxExperiences, defaultMaxExperiences)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultIdleTimeout)
}

// idle is how long an episode may wait for a request.
func (o *Options) idle() time.Duration {
	const most = 100 * 365 * 24 * time.Hour // what a Duration holds, with room
	return time.Duration(min(o.IdleTimeout*float64(time.Second), float64(most)))
}

// Env is what the plugin gets from outside.
type Env struct {
	// Store gives the store that has Part. It is asked for when it is needed, and closed
	// by whoever made it. nil = nothing outlives the plugin.
	Store       func(context.Context) (store.Store, error)
	SyncJournal bool // each line of the journal waits for the disk, as the store's commits do
	// Launcher starts child processes.
	Launcher  func() (*sandbox.Launcher, error)
	Workspace string     // the folder that the agent works in
	StateDir  string     // the host's own folder
	Wall      *wall.Wall // around the host's own files, which no episode gets a copy of
	// ToolBox makes the tools of an episode of workspace, which closes them; Confined what
	// starts children that may change one folder and read some others, and Apart what
	// starts those that may change one folder and see nothing of another, to be closed by
	// whoever asked. Nil where there is no such environment.
	ToolBox  func(ToolBoxOptions) (ToolBox, error)
	Confined func(workspace string, read ...string) (*sandbox.Launcher, error)
	Apart    func(workspace, hidden string) (*sandbox.Launcher, error)
	Now      func() time.Time // nil = time.Now
	Log      zerolog.Logger
}

// environment makes the environment that the options ask for.
func environment(opts Options, e Env) (Environment, error) {
	switch opts.Env {
	case "counter":
		return newCounter(), nil
	case "gridworld":
		return newGridworld(opts.Gridworld)
	case "workspace":
		return newWorkspace(opts.Workspace, e)
	case "exec":
		return newExec(opts.Exec, e)
	}
	return nil, fmt.Errorf("there is no environment %.64q; there are: counter, gridworld, workspace, exec", opts.Env)
}
