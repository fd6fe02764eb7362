// Package skill is the capability `skill`: folders with a SKILL.md, which agents find and
// call.
//
//	skill.go        the plugin, its routes, the folders and the files of skills
//	walk.go         finds the skills in a folder
//	library.go      the skills that were found, kept up to date
//	document.go     SKILL.md: its front matter and the values in it
//	discover.go     skill/discover, and the tools that a skill names
//	call.go         skill/call, also for a model
//	arguments.go    checks arguments and puts them into the text
//	schemabuild.go  inputs and outputs, and the ways to write them
//	validate.go     checks against the public format; the skill that a2e skills new writes
//
// Skills come from these folders, in this order: those of skills_path; .a2e/skills,
// .agents/skills and .claude/skills in the workspace; "skills" in the user's config folder of
// a2e. If two skills have the same name, the first one counts. Only skills_path may point
// anywhere: the folders of the workspace cannot be links that lead out of it, and links within
// any of the folders are not followed. Each request checks for changes; if the folders have very
// many files, at most twice a second.
//
// A skill is run in one of four ways, which its front matter chooses:
//
//   - without a key: the answer has its text with the arguments filled in, its tools and
//     files, for the agent's own model: {instructions, tools, files, folder}, and output_schema if
//     the skill has outputs.
//   - run: FILE is a script, in the sandbox.
//   - wasm: FILE is a WASI module.
//   - agent: true is a loop of a model and tools, see package agent.
//
// The results of the last three are checked against the skill's outputs. A result that does not
// fit is answered with success:false and error_code skill_error, and with its data, as they may
// still be useful to the agent.
//
// A skill whose tools or toolkits name a tool or toolkit that does not exist is Blocked, and
// metadata.blocked_reason says why. allowed-tools never blocks, as public skills name the tools
// of other hosts there; metadata.unknown_tools has the unknown names. Well-known names of other
// hosts, such as Read or Bash, stand for the tools of this host unless a tool has that name
// itself. This host cannot enforce a rule such as Bash(git:*): in allowed-tools it allows no
// tool, in tools it blocks. A skill with allowed-tools gets only those tools.
//
// Skills are listed by name. metadata.routing_weight says whether a skill has done better or
// worse than usual.
package skill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/plugins/skill/run"
	"a2e/protocol"
)

// Options are the plugin's options in the config.
type Options struct {
	SkillsPath       any       `yaml:"skills_path" doc:"Folders of skills, relative to the current folder: one, or a list. Where two skills have one name the first folder wins, and all of them win over those of the workspace and the user."`
	WorkspaceSkills  bool      `yaml:"workspace_skills" doc:"Whether .a2e/skills, .agents/skills and .claude/skills of the workspace count."`
	UserSkills       bool      `yaml:"user_skills" doc:"Whether a2e/skills in the user's config folder counts."`
	LLM              agent.LLM `yaml:"llm" doc:"The model of skills with agent: true. Without it they ask the agent, by mcp/sample/req, and so do those in the workspace without trust_workspace."`
	AllowLLMOverride bool      `yaml:"allow_llm_override" doc:"Whether llm_override of a call may name another model or endpoint."`
	NetworkDisabled  bool      `yaml:"network_disabled" doc:"Block skills that ask for the network with network: true."`
	TrustWorkspace   bool      `yaml:"trust_workspace" doc:"Whether skills in the workspace, where an agent can write them, get the network and the llm of this config too. Otherwise they get neither: those with agent: true ask the agent."`
	MaxTurns         int       `yaml:"max_turns" min:"1" max:"200" doc:"Most turns of a skill with agent: true."`
	MemoryBytes      int64     `yaml:"memory_bytes" min:"0" max:"4294967296" doc:"Memory of a WASI module; 0 = 256 MiB."`
	MaxOutputBytes   int       `yaml:"max_output_bytes" min:"0" doc:"Longest data of one result; 0 = limits.max_output_bytes."`
}

// DefaultOptions returns the options of a plugin whose config sets none.
func DefaultOptions() Options {
	return Options{WorkspaceSkills: true, UserSkills: true, NetworkDisabled: true, MaxTurns: defaultMaxTurns}
}

const (
	defaultMaxTurns = 50 // if the config does not set max_turns
	defaultTurns    = 10 // of a skill without max_turns
	defaultMemory   = 256 << 20
)

// Plugin is one `skill` plugin.
type Plugin struct {
	name     string
	opts     Options
	env      host.Env
	library  *library
	room     room
	services *host.Services // set by Start
	model    agent.Model    // of the config; nil = the agent's model is asked
}

// New makes the plugin with the name name. The error says which option is wrong. Missing folders
// and broken skills are not errors, as they may be fixed later.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	env = env.WithDefaults()
	opts.MaxTurns = cmp.Or(opts.MaxTurns, defaultMaxTurns)
	opts.MaxOutputBytes = cmp.Or(opts.MaxOutputBytes, env.MaxOutputBytes)
	opts.MemoryBytes = cmp.Or(opts.MemoryBytes, defaultMemory)
	p := &Plugin{name: name, opts: opts, env: env, room: room{text: 16 << 10, texts: 1 << 20, all: 8 << 20}}
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

// Needs implements host.Needer. The needs are the interpreters of scripts and the model.
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
		host.Handle(protocol.TypeSkillCallReq, p.call),
	}
}

// Close implements host.Plugin. All calls have ended before.
func (p *Plugin) Close(context.Context) error { return closeModel(p.model) }

// The values of SkillDefinition.source.
const (
	sourceSystem  = "system"  // skills_path
	sourceProject = "project" // the workspace
	sourceUser    = "user"
)

// root is a folder with skills.
type root struct {
	source string
	base   string // absolute; the path may have links, as the user chose it
	rel    string // below base, "." = base itself; no link leads out of base
	show   string // the whole path for messages
	named  bool   // the config names it, so a missing folder is a problem
	wall   *wall.Wall
}

// dir returns the absolute path of the folder.
func (r *root) dir() string { return filepath.Join(r.base, r.rel) }

// open opens the folder as an os.Root.
func (r *root) open() (*os.Root, error) {
	top, err := os.OpenRoot(wall.AsDir(r.base))
	if err != nil || r.rel == "." {
		return top, err
	}
	defer top.Close()
	if guard := r.wall.In(top); guard.Holds() { // agents may have put a link there
		own, _, err := guard.OpenDir(filepath.ToSlash(r.rel))
		return own, err
	}
	return top.OpenRoot(wall.AsDir(r.rel))
}

// rootsOf lists the folders of skills, in the order of their priority.
func rootsOf(opts Options, env host.Env) ([]*root, error) {
	paths, err := pathsOf(opts.SkillsPath)
	if err != nil {
		return nil, err
	}
	var all []*root
	for _, path := range paths {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("skills_path: %w", err)
		}
		all = append(all, &root{source: sourceSystem, base: abs, rel: ".", show: path, named: true})
	}
	if opts.WorkspaceSkills && env.Workspace != "" {
		abs, err := filepath.Abs(env.Workspace)
		if err != nil {
			return nil, fmt.Errorf("workspace: %w", err)
		}
		for _, owner := range []string{".a2e", ".agents", ".claude"} {
			rel := filepath.Join(owner, "skills")
			all = append(all, &root{
				wall: env.Wall, source: sourceProject, base: abs, rel: rel,
				show: filepath.Join(env.Workspace, rel),
			})
		}
	}
	if opts.UserSkills && filepath.IsAbs(env.UserDir) {
		path := filepath.Join(env.UserDir, "skills")
		all = append(all, &root{source: sourceUser, base: path, rel: ".", show: path})
	}
	return all, nil
}

// Folders lists the folders of skills_path and of the user that programs started by agents may
// read, so that these programs can run the scripts of skills. It leaves out missing folders, folders that
// agents may change, and folders that contain the workspace, the home or folders of the host.
func Folders(opts Options, env host.Env) []string {
	roots, err := rootsOf(opts, env)
	if err != nil {
		return nil // New reports the error
	}
	workspace := realPath(env.Workspace)
	home, _ := os.UserHomeDir()
	var all []string
	for _, r := range roots {
		dir := realPath(r.dir())
		inside := workspace != "" && wall.Within(workspace, dir) && !env.Wall.Hides(dir)
		if _, err := os.Stat(dir); err != nil || r.source == sourceProject || inside {
			continue
		}
		if !slices.ContainsFunc([]string{workspace, realPath(home), realPath(env.UserDir), realPath(env.StateDir)},
			func(own string) bool { return own != "" && wall.Within(dir, own) }) {
			all = append(all, dir)
		}
	}
	return all
}

// realPath returns the absolute path without links; "" stays "".
func realPath(path string) string {
	abs, err := filepath.Abs(path)
	if path == "" || err != nil {
		return ""
	}
	return wall.Real(abs)
}

// pathsOf reads skills_path: one string, or a list of strings.
func pathsOf(option any) ([]string, error) {
	var paths []string
	switch v := option.(type) {
	case nil:
	case string:
		paths = []string{v}
	case []string:
		paths = v
	case []any:
		for _, item := range v {
			text, ok := item.(string)
			if !ok {
				return nil, errors.New("skills_path: should be a path, or a list of paths")
			}
			paths = append(paths, text)
		}
	default:
		return nil, errors.New("skills_path: should be a path, or a list of paths")
	}
	for i, path := range paths {
		if path == "" || strings.ContainsRune(path, 0) {
			return nil, errors.New("skills_path: a path is empty, or has a NUL character in it")
		}
		if rest, ok := strings.CutPrefix(path, "~/"); ok {
			home, err := os.UserHomeDir()
			if err != nil {
				return nil, fmt.Errorf("skills_path: %s: %w", path, err)
			}
			paths[i] = filepath.Join(home, rest)
		}
	}
	return paths, nil
}

// Limits of the list of a skill's files in a call.
const (
	maxFilesListed = 500
	maxFilesSeen   = 5000 // names looked at
	maxFileLevels  = 8    // levels of folders
)

// scheme is the scheme of the URIs of a skill's files.
const scheme = "skill"

// Scheme implements host.FileSource.
func (p *Plugin) Scheme() string { return scheme }

// OpenFiles implements host.FileSource. It opens the folder of the skill authority. For an unknown
// skill the error is unknown_skill.
func (p *Plugin) OpenFiles(_ context.Context, authority string) (*os.Root, error) {
	s, err := p.find(authority)
	if err != nil {
		return nil, err
	}
	return s.open()
}

// uri returns the URI of a file of the skill; "" = its folder.
func (s *skill) uri(file string) string { return scheme + "://" + s.name + "/" + file }

// open opens the skill's folder. The folder may have been deleted meanwhile.
func (s *skill) open() (*os.Root, error) {
	top, err := s.root.open()
	if err != nil {
		return nil, s.gone(err)
	}
	defer top.Close()
	own, err := top.OpenRoot(wall.AsDir(s.rel))
	if err != nil {
		return nil, s.gone(err)
	}
	return own, nil
}

func (s *skill) gone(err error) error {
	return protocol.Errorf(protocol.CodeSkillError, "the folder of skill %q cannot be opened: %w", s.name, reason(err))
}

// place returns the absolute path of the skill's folder, without links, for programs that
// need a path. It checks that the path leads to the folder that open opens, and not to another folder by
// a link that somebody has put there.
func (s *skill) place() (string, error) {
	own, err := s.open()
	if err != nil {
		return "", err
	}
	defer own.Close()
	inside, err := own.Stat(".")
	if err != nil {
		return "", s.gone(err)
	}
	real, err := filepath.EvalSymlinks(s.dir)
	if err != nil {
		return "", s.gone(err)
	}
	outside, err := os.Lstat(real)
	if err != nil {
		return "", s.gone(err)
	}
	if !os.SameFile(inside, outside) {
		return "", s.gone(errors.New("it was replaced by another folder"))
	}
	return real, nil
}

// files lists the URIs of the files in the skill's folder except its SKILL.md, ordered by path. more
// reports whether files were left out because of the limits.
func (s *skill) files() (uris []string, more bool, err error) {
	own, err := s.open()
	if err != nil {
		return nil, false, err
	}
	defer own.Close()
	uris, seen := []string{}, 0
	guard := s.root.wall.In(own)
	var add func(dir string, level int)
	add = func(dir string, level int) {
		f, err := own.OpenFile(dir, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return
		}
		entries, err := f.ReadDir(maxFilesSeen)
		f.Close()
		if err != nil {
			return
		}
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			seen++
			switch {
			case guard.Hides(name, nil):
			case len(uris) >= maxFilesListed || seen > maxFilesSeen:
				more = true
				return
			case e.Name()[0] == '.' || strings.ContainsFunc(e.Name(), func(r rune) bool { return !unicode.IsPrint(r) }):
			case e.IsDir() && level < maxFileLevels:
				add(name, level+1)
			case e.IsDir():
				more = true
			case e.Type().IsRegular() && name != s.doc:
				uris = append(uris, s.uri(name))
			}
		}
	}
	add(".", 0)
	return uris, more, nil
}
