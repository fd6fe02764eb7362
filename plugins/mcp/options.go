package mcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/config"
	"a2e/plugins/mcp/link"
	"a2e/protocol"
)

// Fixed bounds, which the config cannot raise.
const (
	maxServers = 64   // of one plugin, registered ones included
	maxID      = 64   // characters of a server's id
	maxTimeout = 3600 // seconds; a larger number was probably meant as milliseconds
)

// Register says which servers an agent may add at run time.
type Register string

// The values of Register.
const (
	RegisterOff     Register = "off"
	RegisterAllowed Register = "allowed"
	RegisterAny     Register = "any"
)

// Options are the plugin's options in the config.
type Options struct {
	// Servers and MCPServers hold the same; both may be given.
	Servers    any `yaml:"servers" doc:"The MCP servers: a mapping of an id to {command, args, env, cwd} or {url, type, headers}, as every MCP client writes it, or a list of such entries with server_id. Further keys: network (a started server may use the network; true unless the agent registered it), read (further paths that it may read), timeout (seconds without an answer or progress), start_timeout (seconds until it is connected: 30, or 120 for npx, uvx and other programs that install it first), disabled, allow and deny (tools, as names or globs), resource_allow_list, and sampling, roots, elicitation (false = the server may not ask for it)."`
	MCPServers any `yaml:"mcpServers" doc:"The same as servers."`
	// Pin withholds tools whose definition changed since they were first seen.
	Pin bool `yaml:"pin" doc:"Whether each tool is remembered as it was first seen, and withheld when its name, description, schemas or annotations change, until a2e mcp approve SERVER. Servers that the agent registered are compared with what they offered when they were registered."`
	// Register bounds what mcp/server/register adds.
	Register Register `yaml:"register" enum:"off,allowed,any" doc:"What the agent may register: nothing (off); commands of allowed_commands without the network, and URLs of public addresses (allowed, the default); or any server (any)."`
	// AllowedCommands are the programs of servers that the agent registers.
	AllowedCommands []string `yaml:"allowed_commands" doc:"Programs that a server registered by the agent may be started with, as bare names; without it the usual ones. An entry may have fixed first arguments (python3 tools/run.py). The list is about the first program only: an interpreter or launcher on it, such as sh, env, xargs, python3, git, find or make, starts anything (see exec)."`
	// Exec is sandbox.ExecStrict, or "allowed" or "" if AllowedCommands alone decide.
	Exec string `yaml:"exec" enum:"allowed,strict" doc:"strict: no interpreter or launcher (sh, python3, env, git, find, make, …) may be among allowed_commands except with the script that it may run; set for one plugin, it holds for tools, proc and mcp."`
	// HTTPAllowPrivate lets registered URLs lead to private addresses.
	HTTPAllowPrivate bool `yaml:"http_allow_private" doc:"Let the agent register URLs of private, loopback and link-local addresses."`
	MaxOutputBytes   int  `yaml:"max_output_bytes" min:"0" doc:"Longest data of one result; 0 = limits.max_output_bytes."`
}

// DefaultOptions returns the options of a config that sets none.
func DefaultOptions() Options { return Options{Register: RegisterAllowed} }

// AllowList returns pointers to the options allowed_commands and exec.
func (o *Options) AllowList() (names *[]string, exec *string) { return &o.AllowedCommands, &o.Exec }

// ServerOptions is one server of the config. Its texts that may be secret are never
// shown.
type ServerOptions struct {
	link.Config // Network is false and the fields that depend on the origin are unset; see Plugin.config

	at      string // the path of its option in the config, for host.Need; "" = not from the config
	Name    string // the name shown to people; "" = ID
	Network *bool  // nil = true, or false for a server that the agent registered

	Disabled  bool
	Allow     []string // globs of the tools that may be called; empty = all
	Deny      []string // globs of the tools that may not be called
	Resources []string // globs of the URIs that may be read; empty = all

	Sampling, Roots, Elicitation *bool // false = the server may not ask; nil = it may
}

// servers reads the servers of both keys and sorts them by id.
func (o *Options) servers() ([]ServerOptions, error) {
	var all []ServerOptions
	for _, part := range []struct {
		key   string
		value any
	}{{"servers", o.Servers}, {"mcpServers", o.MCPServers}} {
		if part.value == nil {
			continue
		}
		raw, err := json.Marshal(part.value, json.Deterministic(true))
		if err != nil {
			return nil, config.At(err, part.key)
		}
		found, err := readServers(raw)
		if err != nil {
			return nil, config.At(err, part.key)
		}
		for i := range found {
			found[i].at = part.key + "." + found[i].ID
			if _, listed := part.value.([]any); listed {
				found[i].at = fmt.Sprintf("%s[%d]", part.key, i)
			}
		}
		all = append(all, found...)
	}
	slices.SortStableFunc(all, func(a, b ServerOptions) int { return strings.Compare(a.ID, b.ID) })
	for i := 1; i < len(all); i++ {
		if all[i].ID == all[i-1].ID {
			return nil, fmt.Errorf("the server %q appears twice; give each its own id", all[i].ID)
		}
	}
	if len(all) > maxServers {
		return nil, fmt.Errorf("there are %d servers; at most %d are possible", len(all), maxServers)
	}
	return all, nil
}

// check returns what is wrong in the options. The paths are relative to the server's entry.
func (o *ServerOptions) check() (wrong problems) {
	if err := link.ValidateID(o.ID); err != nil {
		wrong.add("/server_id", "%v; %q would do", err, asID(o.ID))
		return wrong
	}
	for _, list := range []struct {
		path  string
		globs []string
	}{{"/allow", o.Allow}, {"/deny", o.Deny}, {"/resource_allow_list", o.Resources}} {
		for _, glob := range list.globs {
			if !doublestar.ValidatePattern(glob) {
				wrong.add(list.path, "%.64q is not a valid pattern; write names or globs such as \"get_*\"", glob)
			}
		}
	}
	if err := o.Validate(); err != nil {
		if inner := errors.Unwrap(err); inner != nil {
			err = inner // the caller names the server
		}
		path := "/command"
		if o.URL != "" {
			path = "/url"
		}
		wrong.add(path, "%v", err)
	}
	return wrong
}

// idChars are the characters that may be in an id and in the name of a tool.
const idChars = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"

// asID makes a valid id from a name.
func asID(name string) string {
	id := strings.Map(func(r rune) rune {
		if strings.ContainsRune(idChars, r) {
			return r
		}
		return '-'
	}, name[:min(len(name), maxID)])
	for strings.Contains(id, protocol.MCPSeparator) {
		id = strings.ReplaceAll(id, protocol.MCPSeparator, "_")
	}
	if id = strings.Trim(id, "-"); id == "" {
		return "server-1"
	}
	return id
}

// problems collects what is wrong.
type problems []protocol.FieldError

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// allowed reports whether a server may do something that is on unless it is switched off.
func allowed(flag *bool) bool { return flag == nil || *flag }

// Needs implements host.Needer: it returns a need for each enabled server of the config, with its program
// or address. Need.Live starts all servers.
func (p *Plugin) Needs() []host.Need {
	start := sync.OnceValue(func() error { return p.Start(context.Background(), nil) })
	var all []host.Need
	for _, o := range p.configured {
		if o.Disabled {
			continue
		}
		cfg := p.config(&o, byConfig)
		need := host.Need{Of: "MCP server " + o.ID, Option: o.at + ".command", Wait: cfg.Patience() + time.Second}
		need.Look = func() (string, error) {
			found, err := cfg.Look(p.env.Workspace, p.env.Launcher)
			if err == nil {
				err = unset(cfg.Env, "variable")
			}
			return found, err
		}
		if cfg.URL != "" {
			_, what := o.Summary()
			need.Option, need.Look = o.at+".url", func() (string, error) { return what, unset(cfg.Headers, "header") }
		}
		need.Live = func(ctx context.Context) (string, error) {
			if err := start(); err != nil {
				return "", err
			}
			offer, err := p.Offer(ctx, o.ID)
			if err != nil {
				return "", err
			}
			return offer.summary(o.ID)
		}
		all = append(all, need)
	}
	return all
}

// unset returns a *host.Lack for a variable or header that is set but empty, for example because the
// variable of the host that it is taken from is not set. what is the word for it in the error.
func unset(given map[string]string, what string) error {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if strings.TrimSpace(given[name]) == "" {
			return &host.Lack{
				Err:   fmt.Errorf("its %s %s is empty: set what the config takes it from", what, name),
				Minor: true,
			}
		}
	}
	return nil
}
