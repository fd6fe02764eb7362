// Package skill is the capability `skill`: folders with a SKILL.md, which agents find and
// call.
//
//	skill.go     the plugin and its routes         walk.go        finding the skills in a folder
//	folders.go   the folders, and files of a skill  library.go     what was found, kept up to date; how values are read
//	document.go  SKILL.md: front matter, its keys   discover.go    skill/discover, and which tools a skill has
//	call.go      skill/call: run one, also by a model  arguments.go  do they fit? and put into the text
//	schemabuild.go  inputs and outputs, and the ways to write them
//	validate.go  the public format; a skill to begin with
//
// Skills come from these folders, the first of which wins a name: those of skills_path; in
// the workspace .a2e/skills, .agents/skills and .claude/skills; "skills" in the user's config
// folder of a2e. Only skills_path may point anywhere: the folders of the workspace cannot be
// links that lead out of it, and links within any of them are not followed. Each request
// looks whether something has changed; where very much lies there, at most twice a second.
//
// A skill is run in one of four ways, which its front matter chooses:
//
//   - nothing said: its text comes back with the arguments put in, along with its tools and
//     files, for the agent's own model: {instructions, tools, files, folder}, and output_schema where
//     the skill has outputs.
//   - run: FILE is a script, in the sandbox.
//   - wasm: FILE is a WASI module.
//   - agent: true is a loop of a model and tools, see package agent.
//
// What the last three give is held against the skill's outputs. A result that does not fit
// is answered with success:false and error_code skill_error, and its data are kept: an agent
// may well make use of them.
//
// A skill that names a tool or toolkit in tools or toolkits that is not there is Blocked, and
// metadata.blocked_reason says why. allowed-tools never blocks: public skills name the tools
// of other hosts there; metadata.unknown_tools has those without meaning. Well-known names of such tools, Read or Bash say, stand for those
// of this host where nothing has the name itself. A rule such as Bash(git:*) is narrower than
// anything this host can hold to: in allowed-tools it gives no tool, in tools it blocks. Where
// allowed-tools stands, a skill gets no tool but those.
//
// Skills are listed by name. metadata.routing_weight says where one has done better or
// worse than usual.
package skill

import (
	"context"
	"fmt"
	"os"
	"sync"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/sandbox"
	"a2e/plugins/skill/run"
	"a2e/protocol"
)

// Options are the plugin's options in the config.
type Options struct {
	// SkillsPath lists folders of skills, or folders that are one: a list, or one text.
	SkillsPath any `yaml:"skills_path" doc:"Folders of skills, relative to the current folder: one, or a list. Where two skills have one name the first folder wins, and all of them win over those of the workspace and the user."`
	// WorkspaceSkills looks into the workspace.
	WorkspaceSkills bool `yaml:"workspace_skills" doc:"Whether .a2e/skills, .agents/skills and .claude/skills of the workspace count."`
	// UserSkills looks into the user's folder.
	UserSkills bool `yaml:"user_skills" doc:"Whether a2e/skills in the user's config folder counts."`
	// LLM is the model of skills with agent: true; without it the agent is asked.
	LLM agent.LLM `yaml:"llm" doc:"The model of skills with agent: true. Without it they ask the agent, by mcp/sample/req, and so do those in the workspace without trust_workspace."`
	// AllowLLMOverride lets a call choose another model.
	AllowLLMOverride bool `yaml:"allow_llm_override" doc:"Whether llm_override of a call may name another model or endpoint."`
	// NetworkDisabled refuses skills whose script asks for the network.
	NetworkDisabled bool `yaml:"network_disabled" doc:"Block skills that ask for the network with network: true."`
	// TrustWorkspace returns skills that an agent can write what others get.
	TrustWorkspace bool `yaml:"trust_workspace" doc:"Whether skills in the workspace, where an agent can write them, get the network and the llm of this config too. Otherwise they get neither: those with agent: true ask the agent."`
	// MaxTurns bounds the turns of skills with agent: true, whatever they say.
	MaxTurns int `yaml:"max_turns" min:"1" max:"200" doc:"Most turns of a skill with agent: true."`
	// MemoryBytes bounds the memory of a WASI module; 0 = 256 MiB.
	MemoryBytes int64 `yaml:"memory_bytes" min:"0" max:"4294967296" doc:"Memory of a WASI module; 0 = 256 MiB."`
	// MaxOutputBytes bounds the data of one result; 0 = limits.max_output_bytes.
	MaxOutputBytes int `yaml:"max_output_bytes" min:"0" doc:"Longest data of one result; 0 = limits.max_output_bytes."`
}

// DefaultOptions are the options of a config that sets none.
func DefaultOptions() Options {
	return Options{WorkspaceSkills: true, UserSkills: true, NetworkDisabled: true, MaxTurns: defaultMaxTurns}
}

const (
	defaultMaxTurns  = 50 // where the config does not say
	defaultTurns     = 10 // of a skill that does not say
	defaultMaxOutput = 1 << 20
)

// Env is what the host gives to the plugin.
type Env = host.Env

// Plugin is one `skill` plugin.
type Plugin struct {
	name     string
	opts     Options
	env      Env
	library  *library
	room     room
	services *host.Services // set by Start
	model    agent.Model    // of the config; nil = the agent is asked
}

// New makes the plugin called name. The error says which option does not fit. Folders that
// are not there, and broken skills, are no errors: they may be put right later.
func New(name string, opts Options, env Env) (*Plugin, error) {
	env = env.WithDefaults()
	if opts.MaxTurns == 0 {
		opts.MaxTurns = defaultMaxTurns
	}
	if opts.MaxOutputBytes == 0 {
		opts.MaxOutputBytes = env.MaxOutputBytes
	}
	if opts.MaxOutputBytes <= 0 {
		opts.MaxOutputBytes = defaultMaxOutput
	}
	p := &Plugin{name: name, opts: opts, env: env, room: usualRoom()}
	roots, err := rootsOf(opts, env)
	if err == nil && !opts.LLM.IsZero() {
		p.model, err = agent.NewEndpoint(opts.LLM.Endpoint(env.Now))
	}
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	p.library = newLibrary(roots, env.Now, env.Log.With().Str("plugin", name).Logger())
	return p, nil
}

// Needs implements host.Needer: what runs the scripts of the skills, and the model.
func (p *Plugin) Needs() []host.Need {
	var all []host.Need
	dirs := sync.OnceValue(func() []string { return sandbox.SafePath(os.Getenv("PATH"), p.env.Workspace) })
	for _, s := range p.library.current(true).skills {
		if s.front.kind == kindRun {
			all = append(all, host.Need{Of: "skill " + s.name, Look: func() (string, error) {
				file, err := run.Look(run.Job{Dir: s.dir, File: s.file, Workspace: p.env.Workspace}, dirs())
				if err != nil {
					err = &host.Lack{Err: err, Minor: true}
				}
				return file, err
			}})
		}
	}
	if !p.opts.LLM.IsZero() {
		all = append(all, p.opts.LLM.Needs("skills with agent: true", "llm", "")...)
	}
	return all
}

// Start implements host.Starter.
func (p *Plugin) Start(_ context.Context, s *host.Services) error {
	p.services = s
	return nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapSkill, Children: true}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.List(protocol.TypeSkillDiscoverReq, p.discover, protocol.MergeSkills),
		host.Handle(protocol.TypeSkillCallReq, p.call).SeesWorkspace(),
	}
}

// Close implements host.Plugin. The host has ended all calls before.
func (p *Plugin) Close(context.Context) error { return closeModel(p.model) }
