// Package worker runs the workers of the config: programs that do tasks for other agents.
//
//	RunTask ── route ── queue ── a place at a worker ─┬─ oneshot: one process for the task
//	                                                  └─ fleet: one child for many tasks
//	result ◄── checked, completed, in the wanted shape ◄──┘
//
//	worker.go   one worker of the config, its start, its health
//	pool.go     the pool: a task from its start to its result
//	task.go     start, end and retries of a task
//	route.go    choice of a worker for a task  place.go    queue for the places of workers
//	oneshot.go  a process for each task        fleet.go    a task at a long-lived child, or in a fleet's queue
//	llm.go      a model with the host's tools  brief.go    the brief of a task, and its agent
//	peer.go     the long-lived child           result.go   the result of a worker
//	context.go  conversations of tasks         cli.go      agents whose output is known
//	remote.go   the card of an A2A agent       remote_task.go  a task there
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/child"
	"a2e/host/config"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/protocol/fleet"
)

// The modes of a worker.
const (
	ModeOneshot = "oneshot" // a process for each task
	ModeFleet   = "fleet"   // one child that speaks the fleet protocol 2.0
	ModeLLM     = "llm"     // a model with the tools of the host, in this process
	ModeA2A     = "a2a"     // an agent of A2A, reached by a URL
	ModeQueue   = "queue"   // the workers of a fleet, on any machines
)

// Defaults and limits of the config.
const (
	defaultTimeout = time.Hour
	maxPlaces      = 1024 // of one worker
	defaultRetries = 2
	maxNameBytes   = 256
)

// MaxRetries is how often a task may be begun again.
const MaxRetries = 100

// Worker is one worker of the config.
type Worker struct {
	Name          string            `yaml:"name" required:"true" doc:"Unique name of the worker."`
	Command       []string          `yaml:"command" doc:"The program and its arguments. A bare name is looked up on the PATH, one with a slash is relative to the workspace. a2e stands for this program where the PATH has none."`
	CLI           string            `yaml:"cli" enum:"claude,codex,opencode,gemini" doc:"A command-line agent whose flags and output are known: claude (Claude Code), codex, opencode or gemini. Its command is the program of that name unless command says otherwise; it may use the network, and keeps its sessions in the state_dir. Give it its key by env."`
	LLM           agent.LLM         `yaml:"llm" doc:"The model that does the tasks, with the tools of this host, instead of a program."`
	Fleet         config.Secret     `yaml:"fleet" doc:"The PostgreSQL URL of a fleet, such as postgres://user@host/database?fleet=team, whose workers do the tasks: each a2e worker --fleet URL."`
	URL           string            `yaml:"url" shown:"yes" doc:"The address of an agent that speaks A2A and does the tasks, such as http://127.0.0.1:8766."`
	Token         config.Secret     `yaml:"token" doc:"The bearer token of that agent."`
	Tools         []string          `yaml:"tools" doc:"The tools that the model may use, by names or globs. Without this list it may use all that the host lists, except deferred ones, and those beside them: bash, bash_output, kill_bash, todo_write, memory_search, memory_store and skill."`
	SystemPrompt  string            `yaml:"system_prompt" doc:"System prompt of the model, instead of a short default text."`
	MaxTurns      int               `yaml:"max_turns" min:"0" max:"1000" doc:"How many answers of the model one task may take; 0 = 50. A task that would take more ends as partial."`
	TokenBudget   int               `yaml:"token_budget" min:"0" doc:"How many tokens of the model one task may take, unless the task itself allows fewer; 0 = any number."`
	Mode          string            `yaml:"mode" enum:"oneshot,fleet,llm,queue,a2a" doc:"Of a command: oneshot (the default), one process for each task, the brief on its stdin; or fleet, one process that speaks the fleet protocol, such as [a2e, worker]. Of an llm always llm, of a fleet queue, of a url a2a."`
	Model         string            `yaml:"model" shown:"yes" doc:"Model that it works with; a task that asks for this model gets it."`
	ModelTier     string            `yaml:"model_tier" shown:"yes" doc:"Tier of that model, for tasks that prefer one."`
	ContextWindow int               `yaml:"context_window" min:"0" doc:"Context window of that model, in tokens."`
	MaxTasks      int               `yaml:"max_tasks" min:"0" max:"1024" doc:"How many tasks it works on at once; 0 = 1, of a fleet 1024."`
	Retries       *int              `yaml:"retries" min:"0" max:"100" doc:"How often a task is started again, here or elsewhere, when its worker dies; default: 2."`
	Timeout       time.Duration     `yaml:"timeout" doc:"Seconds that one task may take; 0 = an hour."`
	Contract      *bool             `yaml:"contract" doc:"Begin the brief with how to answer: the shape of the result, the budget, the deadline. false is for a plain program that takes its whole stdin as the task. Default: true; a fleet worker gets it as fields."`
	Env           map[string]string `yaml:"env" secret:"yes" doc:"Further environment variables of the program."`
	Network       bool              `yaml:"network" doc:"Let the program use the network; default: false."`
	Read          []string          `yaml:"read" doc:"Further files and folders that it may read, relative to the workspace or absolute."`
	ShareState    bool              `yaml:"share_state" doc:"Let an a2e that the worker starts keep its memory in the state of this host (state_dir, state), so that memory scopes reach it. The worker may then change all that lies there. Default: false."`
	Write         []string          `yaml:"write" doc:"Further folders that it may change, relative to the workspace or absolute, such as the one where an agent keeps its settings."`
	Cwd           string            `yaml:"cwd" doc:"The folder it runs in, relative to the workspace or absolute; default: the workspace."`
	Priority      int               `yaml:"priority" doc:"Workers with a higher one get tasks first; default: 0."`
	Capabilities  []string          `yaml:"capabilities" doc:"Tools, toolkits, capabilities and MCP servers that it has. Without this list a oneshot worker is taken to have all, and a fleet worker says itself what it has."`
	AuthToken     config.Secret     `yaml:"auth_token" doc:"Token that a fleet worker wants with each task."`
}

// Validate returns an error if the config of the worker is wrong.
func (w *Worker) Validate() error {
	switch {
	case w.Name == "":
		return errors.New("a worker has no name; give each one a name of its own")
	case len(w.Name) > maxNameBytes || strings.ContainsFunc(w.Name, func(r rune) bool { return r < ' ' }):
		return fmt.Errorf("worker %.64q: the name should be at most %d bytes without control characters", w.Name,
			maxNameBytes)
	case !slices.Contains([]string{"", ModeOneshot, ModeFleet, ModeLLM, ModeQueue, ModeA2A}, w.Mode):
		return fmt.Errorf("worker %q: mode is %.32q; it should be oneshot, fleet, llm, queue or a2a", w.Name, w.Mode)
	case len(w.Command) > 0 && !w.LLM.IsZero():
		return fmt.Errorf("worker %q has a command and an llm; it should have one of them", w.Name)
	case w.CLI != "" && (!w.LLM.IsZero() || w.queued() || w.Mode != "" && w.Mode != ModeOneshot):
		return fmt.Errorf("worker %q: cli is for a program, which runs once for each task; leave out llm, "+
			"fleet and mode", w.Name)
	case len(w.Command) == 0 && w.CLI == "" && w.LLM.IsZero() && !w.queued() && w.URL == "":
		return fmt.Errorf("worker %q has neither a command nor an llm; name the program that does the tasks, such "+
			"as command: [my-agent, --print], or a model, such as llm: {url: \"http://127.0.0.1:11434/v1\", model: "+
			"qwen3}", w.Name)
	case w.ContextWindow < 0:
		return fmt.Errorf("worker %q: context_window should be 0 or more tokens", w.Name)
	case w.MaxTasks < 0 || w.MaxTasks > w.mostTasks():
		return fmt.Errorf("worker %q: max_tasks should be between 1 and %d", w.Name, w.mostTasks())
	case w.Retries != nil && (*w.Retries < 0 || *w.Retries > MaxRetries):
		return fmt.Errorf("worker %q: retries should be between 0 and %d", w.Name, MaxRetries)
	case w.Timeout < 0:
		return fmt.Errorf("worker %q: timeout should be 0 or more seconds", w.Name)
	case w.URL != "":
		return w.validateRemote()
	case w.Token.Reveal() != "":
		return fmt.Errorf("worker %q: token is for an agent with a url", w.Name)
	case w.queued():
		return w.validateQueue()
	case w.Contract != nil && w.Mode == ModeFleet:
		return fmt.Errorf("worker %q: contract is for workers that read their brief as a text; one of mode fleet "+
			"gets it as fields", w.Name)
	case w.AuthToken.Reveal() != "" && w.Mode != ModeFleet:
		return fmt.Errorf("worker %q: auth_token is for mode fleet; a oneshot worker gets secrets by env", w.Name)
	}
	if !w.LLM.IsZero() {
		return w.validateLLM()
	}
	if w.Mode == ModeLLM || w.Tools != nil || w.SystemPrompt != "" || w.MaxTurns != 0 || w.TokenBudget != 0 {
		return fmt.Errorf("worker %q: mode llm, tools, system_prompt, max_turns and token_budget are for a worker "+
			"with an llm; this one has a command", w.Name)
	}
	if w.CLI != "" && len(w.Command) == 0 {
		return nil
	}
	if err := child.CheckCommand(w.Command, "the program that does the tasks, such as [my-agent, --print]"); err != nil {
		return fmt.Errorf("worker %q: %w", w.Name, err)
	}
	return nil
}

// validateLLM returns an error if the config of a worker that is a model is wrong.
func (w *Worker) validateLLM() error {
	_, err := agent.NewEndpoint(w.LLM.Endpoint(nil))
	switch {
	case err != nil:
		return fmt.Errorf("worker %q: %w", w.Name, err)
	case w.Mode != "" && w.Mode != ModeLLM:
		return fmt.Errorf("worker %q: mode %s is for a command; leave mode out beside llm", w.Name, w.Mode)
	case w.MaxTurns < 0 || w.MaxTurns > agent.MostTurns:
		return fmt.Errorf("worker %q: max_turns should be between 1 and %d", w.Name, agent.MostTurns)
	case w.TokenBudget < 0:
		return fmt.Errorf("worker %q: token_budget should be 0 or more tokens", w.Name)
	case len(w.Env)+len(w.Read)+len(w.Write) > 0 || w.Cwd != "" || w.ShareState:
		return fmt.Errorf("worker %q: env, read, write, cwd and share_state are for a command; an llm works with "+
			"the tools of this host", w.Name)
	}
	for _, pattern := range w.Tools {
		if !doublestar.ValidatePattern(pattern) {
			return fmt.Errorf("worker %q: tools: %.64q is neither a name nor a glob", w.Name, pattern)
		}
	}
	return nil
}

// withDefaults returns the worker with the defaults filled in.
func (w Worker) withDefaults() Worker {
	if w.Mode = cmp.Or(w.Mode, ModeOneshot); !w.LLM.IsZero() {
		w.Mode, w.Model, w.MaxTurns = ModeLLM, cmp.Or(w.Model, w.LLM.Model), cmp.Or(w.MaxTurns, defaultTurns)
	}
	if agent, ok := presets(w.CLI); ok {
		w.Network = true
		if len(w.Command) == 0 {
			w.Command = agent.command
		}
	}
	if w.URL != "" {
		w.Mode = ModeA2A
	}
	if w.queued() {
		w.Mode, w.MaxTasks = ModeQueue, cmp.Or(w.MaxTasks, maxPlaces)
	}
	w.MaxTasks = max(w.MaxTasks, 1)
	if w.Timeout == 0 && !w.queued() { // the workers of a fleet have their own timeouts
		w.Timeout = defaultTimeout
	}
	return w
}

// validate returns an error if a worker of a list is wrong, or two have the same name.
func validate(workers []Worker) error {
	seen := make(map[string]bool, len(workers))
	for i := range workers {
		w := &workers[i]
		if err := w.Validate(); err != nil {
			return config.At(err, "workers", strconv.Itoa(i))
		}
		if seen[w.Name] {
			return config.At(fmt.Errorf("two workers have the name %q; each needs its own", w.Name), "workers",
				strconv.Itoa(i), "name")
		}
		seen[w.Name] = true
	}
	return nil
}

// selfName is the command that means this program if the PATH has no such program.
const selfName = "a2e"

func (r *runner) program() child.Program {
	return child.Program{
		Command: r.Command, Self: selfName, Workspace: r.pool.workspace, Cwd: r.Cwd,
		Read: r.Read, Write: r.Write, Network: r.Network, Launcher: r.pool.env.Launcher,
	}
}

// Needs lists the needs of the workers: their programs and the endpoints of their models.
func (p *Pool) Needs() (all []host.Need) {
	for i, r := range p.runners {
		of, option := "worker "+r.Name, fmt.Sprintf("workers[%d]", i)
		switch r.Mode {
		case ModeQueue:
			continue
		case ModeA2A:
			all = append(all, host.Need{
				Of: of, Option: option + ".url", Wait: cardTimeout,
				Look: func() (string, error) { return r.URL, nil },
				Live: func(ctx context.Context) (string, error) {
					a, err := r.agent(ctx)
					if err != nil {
						return "", err
					}
					return "it is " + a.announce.Worker.AgentID, nil
				},
			})
			continue
		}
		if r.Mode == ModeLLM {
			all = append(all, r.LLM.Needs(of, option+".llm", agent.StoredKey(p.stateDir, agent.Origin(r.LLM.URL)))...)
			continue
		}
		program := r.program()
		all = append(all, host.Need{Of: of, Option: option + ".command", Look: program.Look})
	}
	return all
}

// policy returns the sandbox policy for a process of the worker. vars are added to the config's variables;
// agent is the agent that it works for, nil = unknown; workspace is the folder to use instead of
// the host's, "" = the host's. The caller closes its DirFile, if it has one.
func (r *runner) policy(vars map[string]string, agent *fleet.Agent, workspace string) (sandbox.Policy, error) {
	p := r.pool
	program := r.program()
	if r.ShareState { // the sandbox grants only existing folders
		if err := os.MkdirAll(p.stateDir, 0o700); err != nil {
			return sandbox.Policy{}, fmt.Errorf("state_dir, which the worker shares: %w", err)
		}
		program.Write = append(slices.Clone(r.Write), p.stateDir)
	}
	if workspace != "" {
		if inside := child.Absolute(p.workspace, r.Cwd); wall.Within(p.workspace, inside) {
			rel, _ := filepath.Rel(p.workspace, inside) // cannot fail
			program.Cwd = filepath.Join(workspace, rel)
		}
		program.Write = append(slices.Clone(program.Write), workspace, filepath.Join(p.workspace,
			".git")) // git stores commits there
	}
	var err error
	if program.Env, err = r.environment(vars, agent); err != nil {
		return sandbox.Policy{}, err
	}
	own, err := r.settle(program.Env)
	if err != nil {
		return sandbox.Policy{}, fmt.Errorf("the folder of the worker in the state_dir: %w", err)
	}
	program.Write = append(slices.Clone(program.Write), own...)
	policy, err := program.Policy()
	if workspace != "" {
		policy.ReadOnly = append(policy.ReadOnly, p.workspace)
	}
	return policy, err
}

// A child that ends within soonAfter of its start without a result may be unable to work. From the
// second such end in a row, each start waits twice as long as the one before. After triesBeforeDown
// starts in a row without any output, tasks do not wait for the worker either.
const (
	soonAfter       = 10 * time.Second
	firstRest       = 500 * time.Millisecond
	longestRest     = 30 * time.Second
	triesBeforeDown = 3
)

// condition is the health of a worker; smaller is better.
type condition int

const (
	conditionGood condition = iota
	conditionRests
	conditionDown
)

// health records the failures of a worker. It is guarded by Pool.mu.
type health struct {
	child.Backoff
	mute      int             // starts in a row without any output
	announced *fleet.Announce // the last one; nil = none yet
}

// condition returns the health of the worker at the time now.
func (h *health) condition(now time.Time) condition {
	switch {
	case h.Wait(now) <= 0:
		return conditionGood
	case h.mute >= triesBeforeDown:
		return conditionDown
	}
	return conditionRests
}

// lost records how a worker ended, or why it did not start; lived is 0 then, and the rest begins at
// once. spoke says whether it printed anything, gave whether it had a result. first is the
// shortest rest.
func (h *health) lost(now time.Time, err error, lived time.Duration, spoke, gave bool, first time.Duration) {
	if h.mute++; spoke {
		h.mute = 0
	}
	h.First, h.Most, h.Enough, h.Free = first, longestRest, soonAfter, 1
	if lived == 0 {
		h.Free = 0
	}
	h.Down(now, err, lived, gave)
}

// runs records that the program was started.
func (r *runner) runs() {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.health.Up()
	r.health.mute = 0
}

// fails records that the worker could not be started or reached.
func (r *runner) fails(err error) {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	r.health.lost(p.env.Now(), err, 0, false, false, p.pace.rest)
	if r.rests() && r.health.condition(p.env.Now()) == conditionDown {
		r.evictLocked()
	}
	what := "a worker cannot be started"
	if r.Mode == ModeA2A {
		what = "the agent of a worker gives no answer"
	}
	if r.Mode == ModeLLM {
		what = "the model of a worker gives no answer"
	}
	p.env.Log.Warn().Err(err).Str("worker", r.Name).Msg(what)
}
