package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host/agent"
	"a2e/host/config"
	"a2e/plugins/multiagent"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

type agentsCmd struct {
	List agentsListCmd `cmd:"" help:"List the workers of the config, which child agents are made of."`
}

type agentsListCmd struct {
	JSON bool `name:"json" help:"Print them as JSON."`
}

// agentRow describes a worker for the output. It never has the worker's variables and tokens.
type agentRow struct {
	Plugin       string   `json:"plugin"`
	Name         string   `json:"name"`
	Default      bool     `json:"default"` // does the tasks that name no worker
	Mode         string   `json:"mode"`
	Model        string   `json:"model"`
	ModelTier    string   `json:"model_tier"`
	MaxTasks     int      `json:"max_tasks"`
	Program      string   `json:"program"` // the command, or the endpoint of a model
	Network      bool     `json:"network"`
	Read         []string `json:"read"`
	Write        []string `json:"write"`
	Tools        []string `json:"tools"`        // tools of a model; empty = all tools
	Capabilities []string `json:"capabilities"` // empty = all, or the worker reports them itself
	MaxDepth     int      `json:"max_depth"`    // depth of children of children
	MaxSubagents int      `json:"max_subagents"`
}

// Run lists the workers of the config. It cannot list child agents, which exist only in the memory of their host.
func (l agentsListCmd) Run(cmd *commands, sys *System) error {
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return err
	}
	if err := tryPlugins(cfg); err != nil {
		return fail(exitConfig, err)
	}
	rows := []agentRow{}
	for _, p := range cfg.Plugins {
		if p.Type != string(protocol.CapMultiAgent) || !p.Enabled {
			continue
		}
		opts := multiagent.DefaultOptions()
		if err := p.Options.Decode(&opts); err != nil {
			return fail(exitConfig, err)
		}
		for i, w := range opts.Workers {
			rows = append(rows, rowOf(sys, p.Name, &opts, i, &w))
		}
	}
	none := "the config has no worker; see a2e help multiagent"
	return list(sys, l.JSON, rows, none, []string{"WORKER", "MODE", "MODEL", "AT ONCE", "MAY", "PROGRAM"},
		func(r agentRow) []string {
			return []string{
				r.Name, r.Mode, cmp.Or(strings.TrimSpace(r.Model+" "+r.ModelTier), "-"), fmt.Sprint(r.MaxTasks),
				r.may(), r.Program,
			}
		})
}

func rowOf(sys *System, plugin string, opts *multiagent.Options, place int, w *worker.Worker) agentRow {
	row := agentRow{
		Plugin: plugin, Name: w.Name, Default: place == 0, Mode: cmp.Or(w.Mode, worker.ModeOneshot),
		Model: cmp.Or(w.Model, w.LLM.Model), ModelTier: w.ModelTier,
		MaxTasks: max(w.MaxTasks, 1), Program: strings.Join(w.Command, " "), Network: w.Network,
		Read: append([]string{}, w.Read...), Write: append([]string{}, w.Write...),
		Tools: append([]string{}, w.Tools...), Capabilities: append([]string{}, w.Capabilities...),
		MaxDepth: opts.MaxDepth, MaxSubagents: opts.MaxSubagents,
	}
	switch {
	case !w.LLM.IsZero():
		row.Mode, row.Program = worker.ModeLLM, w.LLM.URL
	case w.URL != "":
		row.Mode, row.Program = worker.ModeA2A, w.URL
	case w.Fleet.Reveal() != "":
		row.Mode = worker.ModeQueue
	case len(w.Command) == 0:
		row.Program = w.CLI
	}
	row.Program = sys.secrets.Text(row.Program)
	return row
}

// may says in a few words what a worker may do beyond using the workspace.
func (r *agentRow) may() string {
	if r.Mode == worker.ModeA2A || r.Mode == worker.ModeQueue { // these workers decide that themselves
		return "-"
	}
	var words []string
	switch {
	case r.Mode == worker.ModeLLM && len(r.Tools) > 0:
		words = append(words, "tools "+strings.Join(r.Tools, " "))
	case r.Mode == worker.ModeLLM:
		words = append(words, "all tools")
	}
	if r.Network {
		words = append(words, "network")
	}
	if len(r.Read) > 0 {
		words = append(words, "read "+strings.Join(r.Read, " "))
	}
	if len(r.Write) > 0 {
		words = append(words, "write "+strings.Join(r.Write, " "))
	}
	return cmp.Or(strings.Join(words, ", "), "workspace")
}

// usualKeyEnv is the variable with the key of an endpoint, unless --api-key-env names another.
const usualKeyEnv = "A2E_LLM_API_KEY"

// llmFlags configure a worker that is a model with the tools of the host. The key is never on the
// command line, where every user of the machine could read it.
type llmFlags struct {
	LLM       string   `name:"llm" placeholder:"URL" help:"Have a model do it, with this host's tools, behind an endpoint that speaks as OpenAI's does, such as http://127.0.0.1:11434/v1."`
	Model     string   `placeholder:"MODEL" help:"The model, as the endpoint of --llm names it; of a command the one that it says it works with."`
	APIKeyEnv string   `name:"api-key-env" placeholder:"NAME" help:"The environment variable with the endpoint's key. Default: A2E_LLM_API_KEY, if it is set."`
	Tools     []string `placeholder:"NAMES" help:"The tools that the model may use, by names or globs. Default: all that the host lists."`
	MaxTurns  int      `placeholder:"N" help:"How many answers of the model one task may take. Default: 50."`
	Thinking  string   `placeholder:"LEVEL" help:"How much the model should think: off, minimal, low, medium, high or xhigh."`
}

// check returns what is wrong with the flags.
func (l *llmFlags) check() error {
	levels := agent.ThinkingLevels()
	switch {
	case l.LLM == "" && (l.APIKeyEnv != "" || l.Tools != nil || l.MaxTurns > 0 || l.Thinking != ""):
		return errors.New("--api-key-env, --tools, --max-turns and --thinking: are for the model of --llm; workers " +
			"of the config have them there")
	case l.MaxTurns > agent.MostTurns:
		return fmt.Errorf("--max-turns %d: should be between 1 and %d", l.MaxTurns, agent.MostTurns)
	case l.LLM != "" && !isWebURL(l.LLM):
		return fmt.Errorf("--llm needs http:// or https://, such as http://%.64s/v1", strings.TrimRight(l.LLM, "/"))
	case l.LLM != "" && l.Model == "":
		return errors.New("--llm: needs --model MODEL, as the endpoint names it")
	case l.Thinking != "" && !slices.Contains(levels, l.Thinking):
		return fmt.Errorf("--thinking %.32q: should be one of %s", l.Thinking, strings.Join(levels, ", "))
	}
	return nil
}

// workFlags say who does tasks, and how.
type workFlags struct {
	llmFlags
	Isolation string `placeholder:"HOW" help:"worktree: each task in its own git worktree; none: in the workspace; unless it says so itself. Default: fleet.isolation of the config."`
	Network   bool   `help:"Let the command use the network."`
	Contract  bool   `default:"true" negatable:"" help:"Start the brief of the command with how to answer; --no-contract is for a plain program."`
}

// check returns what is wrong with the flags, also in combination with a command after --.
func (w *workFlags) check(command []string) error {
	switch err := w.llmFlags.check(); {
	case err != nil:
		return err
	case w.LLM != "" && len(command) > 0:
		return errors.New("--llm: a command stands behind --; give one of them")
	case w.Network && len(command) == 0:
		return errors.New("--network: is for a command behind --; workers of the config have network: true")
	case !slices.Contains([]string{"", string(fleet.IsolationNone), string(fleet.IsolationWorktree)}, w.Isolation):
		return fmt.Errorf("--isolation %.32q: should be worktree or none", w.Isolation)
	}
	return nil
}

// argv returns the flags as arguments of a worker, followed by the command.
func (w *workFlags) argv(command []string) (argv []string) {
	for _, f := range []struct{ name, value string }{
		{"--llm", w.LLM},
		{"--model", w.Model},
		{"--api-key-env", w.APIKeyEnv},
		{"--tools", strings.Join(w.Tools, ",")},
		{"--thinking", w.Thinking},
		{"--isolation", w.Isolation},
	} {
		if f.value != "" {
			argv = append(argv, f.name+"="+f.value)
		}
	}
	if w.MaxTurns > 0 {
		argv = append(argv, fmt.Sprint("--max-turns=", w.MaxTurns))
	}
	if w.Network {
		argv = append(argv, "--network")
	}
	if !w.Contract {
		argv = append(argv, "--no-contract")
	}
	if len(command) > 0 {
		argv = append(append(argv, "--"), command...)
	}
	return argv
}

// equip replaces the config's workers by the model of the flags. It returns an error if neither has
// a worker. or is a further way to get a worker, for the text of that error.
func (l *llmFlags) equip(cfg *config.Config, sys *System, or string) error {
	if l.LLM == "" {
		if _, workers, err := workersOf(cfg); err != nil || len(workers) > 0 {
			return nil // the plugin itself reports errors of its options
		}
		_, config, _ := strings.Cut(agent.NoWorker().Message, "\n")
		return fmt.Errorf("no worker is configured; give --llm URL --model MODEL%s, or these three lines of a "+
			"config:\n%s", or, config)
	}
	llm := map[string]any{"url": literal(l.LLM), "model": literal(l.Model)}
	name := cmp.Or(l.APIKeyEnv, usualKeyEnv)
	switch key := sys.getenv(name); {
	case key != "":
		sys.secrets.AddSecret(key)
		llm["api_key"] = literal(key)
	case l.APIKeyEnv != "":
		return fmt.Errorf("--api-key-env: there is no variable %.64q, or it is empty", name)
	}
	if l.Thinking != "" {
		llm["thinking"] = l.Thinking
	}
	does := map[string]any{"name": "llm", "llm": llm, "max_tasks": cfg.Fleet.MaxTasks}
	if l.Tools != nil {
		does["tools"] = each(l.Tools, literal)
	}
	if l.MaxTurns > 0 {
		does["max_turns"] = l.MaxTurns
	}
	return setWorker(cfg, does)
}

// setWorker replaces the workers of the config by one worker.
func setWorker(cfg *config.Config, does map[string]any) error {
	const kind = string(protocol.CapMultiAgent)
	text, err := json.Marshal(map[string]any{"workers": []any{does}})
	if err != nil {
		return fmt.Errorf("the command line: %w", err)
	}
	opts, err := config.ParseOptions("the command line", text, nil)
	if err != nil {
		return err
	}
	cfg.Plugins = slices.DeleteFunc(cfg.Plugins, func(p config.Plugin) bool { return p.Type == kind })
	cfg.Plugins = append(cfg.Plugins, config.Plugin{Name: kind, Type: kind, Enabled: true, Options: opts})
	return nil
}

// literal escapes a text of the command line, so that a config does not read it as a variable.
func literal(text string) string { return strings.ReplaceAll(text, "${", "$${") }

// workersOf returns the workers of the config, and the plugin that has them.
func workersOf(cfg *config.Config) (*config.Plugin, []worker.Worker, error) {
	for i := range cfg.Plugins {
		p := &cfg.Plugins[i]
		if !p.Enabled || p.Type != string(protocol.CapMultiAgent) {
			continue
		}
		opts := multiagent.DefaultOptions()
		if err := p.Options.Decode(&opts); err != nil || len(opts.Workers) > 0 {
			return p, opts.Workers, err
		}
	}
	return nil, nil, nil
}
