package tools

import (
	"context"
	"strings"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// runCommandArgs are the arguments of run_command.
type runCommandArgs struct {
	Command []string          `json:"command"`
	Cwd     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
	Stdin   string            `json:"stdin"`
}

// newRunCommand makes the tool that starts an allowed program.
func newRunCommand(c *children) Tool {
	return Tool{
		Def: protocol.ToolDefinition{
			Name: "run_command",
			Description: "Run a program in the workspace and wait for its end. The first word of command is the bare name of an allowed program, the " +
				"others are its arguments as they are: there is no shell, so pipes, globs and variables need [\"sh\",\"-c\",\"…\"]. " +
				"The program gets a clean environment, the workspace, and a home and /tmp of its own, which later calls find again; it has no " +
				"network unless the config says so. It ends, with all that it started, when the call ends.",
			InputParameters: []protocol.ToolParameter{
				{Name: "command", Type: "array", Description: "The program and its arguments, such as [\"git\",\"status\"].", Required: true},
				{Name: "cwd", Type: "string", Description: "Folder to run in, relative to the workspace; default: the workspace."},
				{Name: "env", Type: "object", Description: "Further environment variables, name to text."},
				{Name: "stdin", Type: "string", Description: "Text for the program's standard input; default: none."},
			},
			OutputParameters: []protocol.ToolParameter{
				{Name: "stdout", Type: "string", Description: "What it printed.", Required: true},
				{Name: "stderr", Type: "string", Description: "What it printed as errors.", Required: true},
				{Name: "spilled", Type: "string", Description: "File with the output that did not fit into the answer."},
			},
			Streaming: true,
			Tags:      []string{"process", "shell"},
			Version:   "1.0.0",
		},
		Kind:   KindBuiltin,
		Detail: host.ToolDetail{Destructive: true, OpenWorld: c.network == sandbox.NetworkHost},
		Files:  seesAll,
		Call:   c.runCommand,
	}
}

// seesAll is the Tool.Files of a program: it finds what was written before it. What it writes
// itself, and when, nobody knows before it ends, so nothing waits for it.
func seesAll(protocol.Object) host.Files { return host.Files{Path: ".", Use: host.SeesFiles} }

func (c *children) runCommand(ctx context.Context, args protocol.Object, emit host.Emitter) (*Outcome, error) {
	var a runCommandArgs
	if err := args.Decode(&a); err != nil {
		return nil, err
	}
	if len(a.Command) == 0 {
		return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/command", Message: "needs at least the program's name"})
	}
	for i, word := range a.Command {
		if strings.ContainsRune(word, 0) {
			return nil, protocol.Errorf(protocol.CodeToolDenied, "word %d of the command has a NUL character in it", i)
		}
	}
	allowed, err := c.allow()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "%w", err)
	}
	path, err := allowed.Resolve(a.Cwd, a.Command...)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "%w", err)
	}
	policy := sandbox.Policy{Path: path, Args: a.Command, Env: a.Env, Network: c.network, Home: sandbox.HomeShared}
	if a.Stdin != "" {
		policy.Stdin = strings.NewReader(a.Stdin)
	}
	return c.run(ctx, "run_command", policy, a.Cwd, emit)
}
