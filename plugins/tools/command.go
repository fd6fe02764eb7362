package tools

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// CommandTool is a tool that the config declares: a program with a fixed command
// line, in which {name} stands for the text of the parameter of that name.
//
// A parameter fills a part of one argument: there is no shell, and its text is
// never split. An argument that is just {name} is left out when the parameter is
// absent, and refuses a text that begins with "-" unless an argument "--" stands
// before it: the program would take it for an option.
type CommandTool struct {
	Name         string             `yaml:"name" required:"true" doc:"Name of the tool."`
	Description  string             `yaml:"description" doc:"What it does, for the agent."`
	Command      []string           `yaml:"command" required:"true" doc:"The program, as a bare name or an absolute path, and its arguments; {name} stands for a parameter."`
	Parameters   []CommandParameter `yaml:"parameters" doc:"What the agent may set."`
	Tags         []string           `yaml:"tags" doc:"Words to find it by."`
	Timeout      float64            `yaml:"timeout" min:"0" doc:"Seconds that a call may take; 0 = as the request says."`
	DeferLoading bool               `yaml:"defer_loading" doc:"Listed only when asked for."`
	Network      bool               `yaml:"network" doc:"Give the program the network, also where network_disabled keeps it from others."`
}

// CommandParameter is one parameter of a CommandTool.
type CommandParameter struct {
	Name        string   `yaml:"name" required:"true" doc:"Its name, as in {name}."`
	Type        string   `yaml:"type" enum:"string,integer,number,boolean" doc:"string (the default), integer, number or boolean."`
	Description string   `yaml:"description" doc:"What it means, for the agent."`
	Required    bool     `yaml:"required" doc:"Whether each call must set it."`
	Enum        []string `yaml:"enum" doc:"The texts allowed."`
}

// placeholder matches {name} within an argument.
var placeholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_]*)\}`) })

// newCommandTool makes the tool that cfg declares. The error says what does not fit.
func newCommandTool(cfg CommandTool, c *children) (Tool, error) {
	def, err := cfg.definition()
	if err != nil {
		return Tool{}, err
	}
	path, err := sandbox.LookPath(cfg.Command[0], c.dirs(), c.workspace)
	if err != nil {
		return Tool{}, fmt.Errorf("command: %w", err)
	}
	network := c.network
	if cfg.Network {
		network = sandbox.NetworkHost
	}
	return Tool{
		Def: def, Kind: KindCommand, Timeout: seconds(cfg.Timeout),
		Detail: host.ToolDetail{Destructive: true, OpenWorld: network == sandbox.NetworkHost}, // nobody says what the program does
		Files:  seesAll,
		Call: func(ctx context.Context, args protocol.Object, emit host.Emitter) (*Outcome, error) {
			argv, err := cfg.argv(args)
			if err != nil {
				return nil, err
			}
			return c.run(ctx, cfg.Name, sandbox.Policy{Path: path, Args: argv, Network: network, Home: sandbox.HomeShared}, "", emit)
		},
	}, nil
}

// definition returns what the agent sees of the tool, and checks the declaration.
func (cfg *CommandTool) definition() (protocol.ToolDefinition, error) {
	def := protocol.ToolDefinition{
		Name: cfg.Name, Description: cfg.Description, Tags: cfg.Tags, DeferLoading: cfg.DeferLoading, Streaming: true, Version: "1.0.0",
		OutputParameters: printed(),
	}
	if len(cfg.Command) == 0 || cfg.Command[0] == "" {
		return def, errors.New("command: it needs at least a program")
	}
	if placeholder().MatchString(cfg.Command[0]) {
		return def, errors.New("command: the program must be fixed; a parameter may appear in its arguments only")
	}
	var used []string
	for _, arg := range cfg.Command[1:] {
		for _, m := range placeholder().FindAllStringSubmatch(arg, -1) {
			used = append(used, m[1])
		}
	}
	for _, p := range cfg.Parameters {
		if !slices.Contains(used, p.Name) {
			return def, fmt.Errorf("parameters: %q stands nowhere in command; write {%s} where it belongs", p.Name, p.Name)
		}
		if p.Type == "" {
			p.Type = "string"
		}
		def.InputParameters = append(def.InputParameters, protocol.ToolParameter{
			Name: p.Name, Type: p.Type, Description: p.Description, Required: p.Required, Enum: p.Enum,
		})
	}
	for _, name := range used {
		if !slices.ContainsFunc(cfg.Parameters, func(p CommandParameter) bool { return p.Name == name }) {
			return def, fmt.Errorf("command: {%s} is no declared parameter; declare it under parameters", name)
		}
	}
	return def, nil
}

// argv fills the command line with a call's arguments.
func (cfg *CommandTool) argv(args protocol.Object) ([]string, error) {
	argv := []string{cfg.Command[0]}
	plain := false // past "--": nothing is an option any more
	for _, arg := range cfg.Command[1:] {
		whole := placeholder().FindString(arg) == arg && arg != ""
		if whole {
			if val, ok := args.Get(arg[1 : len(arg)-1]); !ok || val.Kind() == 'n' {
				continue
			}
		}
		filled := placeholder().ReplaceAllStringFunc(arg, func(hole string) string {
			val, _ := args.Get(hole[1 : len(hole)-1])
			if text, ok := val.Str(); ok {
				return text
			}
			return string(val)
		})
		if strings.ContainsRune(filled, 0) {
			return nil, protocol.Errorf(protocol.CodeToolDenied, "an argument has a NUL character in it")
		}
		if strings.HasPrefix(filled, "-") && !strings.HasPrefix(arg, "-") && !plain {
			return nil, protocol.Errorf(protocol.CodeToolDenied, "%.64q begins with \"-\", which %s would take for an option", filled, cfg.Command[0])
		}
		plain = plain || arg == "--"
		argv = append(argv, filled)
	}
	return argv, nil
}
