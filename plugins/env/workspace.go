package env

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// WorkspaceOptions are the options of the environment `workspace`: tasks to be solved
// with tools, each in a fresh folder.
//
//	workspace.go         the environment             workspace_world.go   one episode, what the agent sees
//	workspace_task.go    what a task is              workspace_action.go  actions and their schema
//	workspace_folder.go  the episodes' folders,      workspace_check.go   checks, and runs that a task lists
//	                     copies of folders           workspace_run.go     runs of the agent's programs, judges
type WorkspaceOptions struct {
	Tasks           string   `yaml:"tasks" doc:"The folder of task folders, relative to the current folder. Each holds task.yaml, files/ and check."`
	Task            string   `yaml:"task" doc:"The task of an episode that asks for none, by its folder or id; default: the first."`
	MaxSteps        int      `yaml:"max_steps" min:"0" doc:"Actions after which an episode is checked and cut short, where its task does not say; 0 = no limit. (max_steps of the plugin cuts short without a check.)"`
	CheckEachStep   bool     `yaml:"check_each_step" doc:"Run the check after each action that may have changed something: the reward is then how much better it got."`
	AllowedCommands []string `yaml:"allowed_commands" doc:"The programs that run_command may start; default: those of the tools."`
	AllowedTools    []string `yaml:"allowed_tools" doc:"Tools, by names or globs, that are actions. Default: all."`
	Deny            []string `yaml:"deny" doc:"Tools, as names or globs, that are not actions."`
	Network         bool     `yaml:"network" doc:"Give the network to the programs, the check and http_get. Without it http_get is no action."`
	MaxFiles        int      `yaml:"max_files" min:"0" doc:"Files and folders that files/ of a task may hold; 0 = 10000."`
	MaxBytes        int64    `yaml:"max_bytes" min:"0" doc:"Bytes that files/ of a task may hold; 0 = 268435456."`
}

// The bounds where the config sets none.
const (
	defaultMaxFiles = 10_000
	defaultMaxBytes = 256 << 20
	// grown is how many times larger than files/ a checked folder may be.
	grown = 10
	// maxWorkspaces bounds the open episodes, each of which may hold a thread and a process.
	maxWorkspaces = 256
)

// workspace is the environment `workspace`.
type workspace struct {
	opts     WorkspaceOptions
	env      host.Env
	tasks    string // absolute
	space    Space
	names    []string       // the action types that are names of tools
	services *host.Services // nil before Start
	dirs     func() []string

	swept   sync.Once       // for the removal of the folders of dead hosts
	sweep   sandbox.Cleaner // removes these folders
	cleaner sandbox.Cleaner // removes our own folders

	mu     sync.Mutex      // guards the field below
	warned map[string]bool // tasks that warnOfLoading has checked
}

// newWorkspace makes the environment `workspace`. It reads the default task, so that a broken one is found
// at the start; other tasks are read when they are needed.
func newWorkspace(opts WorkspaceOptions, e host.Env) (Environment, error) {
	switch {
	case opts.Tasks == "":
		return nil, errors.New(`workspace.tasks is missing; name a folder of task folders, such as "tasks"`)
	case e.StateDir == "":
		return nil, errors.New("the environment workspace needs state_dir: the episodes' folders are kept there")
	case e.ToolBox == nil || e.Confined == nil:
		return nil, errors.New("the environment workspace needs tools and a sandbox; this host gives it none")
	}
	tasks, err := filepath.Abs(opts.Tasks)
	if err != nil {
		return nil, fmt.Errorf("workspace.tasks: %w", err)
	}
	opts.MaxFiles = cmp.Or(opts.MaxFiles, defaultMaxFiles)
	opts.MaxBytes = cmp.Or(opts.MaxBytes, defaultMaxBytes)
	if !opts.Network {
		opts.Deny = append([]string{"http_get"}, opts.Deny...)
	}
	w := &workspace{opts: opts, env: e, tasks: tasks, warned: make(map[string]bool)}
	w.dirs = sync.OnceValue(func() []string { return sandbox.SafePath(os.Getenv("PATH"), e.Workspace) })
	t, err := w.find("")
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	if err := w.makeSpace(); err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	w.warnOfLoading(t)
	warnOfOpenTasks(e.Log, tasks, e.Workspace)
	return w, nil
}

// warnOfOpenTasks logs a warning if the agent can reach the tasks by other ways than an episode.
func warnOfOpenTasks(log zerolog.Logger, tasks, workspace string) {
	if workspace == "" {
		return
	}
	if abs, err := filepath.Abs(workspace); err == nil && wall.Within(abs, tasks) {
		log.Warn().Str("tasks", tasks).Msg("the tasks of env workspace lie within the workspace: tools outside of " +
			"an episode can read and change their checks")
	}
}

// makeSpace asks the tools for their definitions; it runs nothing.
func (w *workspace) makeSpace() error {
	box, err := w.env.ToolBox(w.boxOptions(w.tasks))
	if err != nil {
		return err
	}
	defs := box.Tools()
	for _, def := range defs {
		w.names = append(w.names, def.Name)
	}
	w.space = workspaceSpace(defs)
	return box.Close(context.Background())
}

func (w *workspace) boxOptions(folder string) host.ToolBoxOptions {
	return host.ToolBoxOptions{
		Workspace: folder, Hidden: w.tasks, AllowedCommands: w.opts.AllowedCommands,
		AllowedTools: w.opts.AllowedTools, Deny: w.opts.Deny, Network: w.opts.Network,
	}
}

// Start sets the services that tools may use.
func (w *workspace) Start(s *host.Services) { w.services = s }

// Name implements Environment.
func (w *workspace) Name() string { return "workspace" }

// Space implements Environment.
func (w *workspace) Space(context.Context) (Space, error) { return w.space, nil }

// Reset implements Environment. It copies the files of the task into a new folder.
func (w *workspace) Reset(ctx context.Context, r Reset) (World, error) {
	host.HandOff(ctx)
	t, err := w.find(r.Options.Text("task"))
	if err != nil {
		return nil, resetDenied(err)
	}
	w.warnOfLoading(t)
	world, err := w.begin(ctx, r.EpisodeID, t)
	if err != nil {
		return nil, resetDenied(err)
	}
	return world, nil
}

func (w *workspace) begin(ctx context.Context, id string, t *task) (*workspaceWorld, error) {
	if _, err := w.program(t); err != nil {
		return nil, err
	}
	folder, err := w.newFolder(id)
	if err != nil {
		return nil, err
	}
	if err := w.fill(ctx, t, folder); err != nil {
		return nil, errors.Join(err, folder.remove())
	}
	world, err := w.live(t, folder)
	if err != nil {
		return nil, errors.Join(err, folder.remove())
	}
	return world, nil
}

// fill copies the files of the task, except the hidden ones, into the agent's folder.
func (w *workspace) fill(ctx context.Context, t *task, f *folder) error {
	if err := os.Mkdir(f.work(), 0o700); err != nil {
		return err
	}
	c := copier{left: bounds{w.opts.MaxFiles, w.opts.MaxBytes}, strict: true, skip: t.hides, wall: w.env.Wall}
	err := c.tree(ctx, t.files(), f.work())
	if errors.Is(err, os.ErrNotExist) && !pathExists(t.files()) {
		return nil // a task without files
	}
	if err != nil {
		return fmt.Errorf("files of task %q: %w", t.Name, err)
	}
	return nil
}

// live makes the world for a filled folder.
func (w *workspace) live(t *task, f *folder) (*workspaceWorld, error) {
	root, err := os.OpenRoot(f.work())
	if err != nil {
		return nil, err
	}
	box, err := w.env.ToolBox(w.boxOptions(f.work()))
	if err == nil {
		err = box.Start(context.Background(), w.services)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &workspaceWorld{env: w, task: t, folder: f, root: root, box: box}, nil
}

// Restore implements Restorer.
func (w *workspace) Restore(_ context.Context, r Reset, saved jsontext.Value) (World, error) {
	s, err := parseSaved(saved)
	if err != nil {
		return nil, err
	}
	t, err := w.find(s.Task)
	if err != nil {
		return nil, err
	}
	f, err := w.oldFolder(r.EpisodeID)
	if err != nil {
		return nil, err
	}
	world, err := w.live(t, f)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	world.steps, world.done, world.score, world.last = s.Steps, s.Done, s.Score, s.Last
	return world, nil
}

// Close implements Environment.
func (w *workspace) Close(context.Context) error {
	w.cleaner.End(sandbox.RemoveFor)
	w.sweep.End(0)
	return nil
}

// resetDenied returns an error as the answer to a reset, without paths of the machine.
func resetDenied(err error) error {
	return explainedAs(protocol.CodeResetDenied, "the episode cannot begin", err)
}
