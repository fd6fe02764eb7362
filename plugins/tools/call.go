package tools

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// call answers tool/call/req:
//
//	find the tool ─ allowed? ─ arguments fit? ─ run it, bounded in time ─ cut its output ─ count the call ─ answer
func (s *Set) call(ctx context.Context, req *protocol.ToolCallRequest, emit host.Emitter) (*callResponse, error) {
	if req.ToolName == "" { // no name is a list's, which waits for all tools on their way
		return nil, s.registry().unknown("")
	}
	content, why := s.current(ctx, req.ToolName)
	t := content.tools[req.ToolName]
	switch {
	case t == nil && why != nil:
		return nil, why
	case t == nil:
		return nil, content.unknown(req.ToolName)
	}
	if t.Denied != "" {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "tool %q %s", req.ToolName, t.Denied)
	}
	args, err := t.fit(req.Arguments)
	if err != nil {
		return nil, err
	}
	if !t.quick {
		host.HandOff(ctx)
	}
	if !t.Detail.ReadOnly && s.services.KeepsCheckpoints() {
		if err := s.services.Checkpoint(ctx, t.changing(args)); err != nil {
			return nil, err
		}
	}
	start := s.now()
	out, data, err := s.result(ctx, t, args, emit)
	end := s.now()
	record := host.CallOutcome{
		Kind: host.KindTool, Component: t.Def.Name, Correlation: req.CorrelationID,
		Duration: end.Sub(start), Ended: end,
	}
	if err != nil {
		if !host.CutShort(ctx) {
			s.services.CountCall(ctx, record)
		}
		return nil, err
	}
	record.Success = !out.Failed
	s.services.CountCall(ctx, record)
	return &callResponse{tool: t, out: out, data: data, took: record.Duration, at: end}, nil
}

// changing returns the name of a call that may change something, for the checkpoint: the tool with the
// program that it runs or the file that it changes. Arguments are left out, since they may be secret.
func (t *registeredTool) changing(args protocol.Object) string {
	what := "tool " + t.Def.Name
	val, _ := args.Get("command")
	if words, ok := val.Strings(); ok && len(words) > 0 {
		return what + " " + words[0]
	}
	val, _ = args.Get("path")
	if path, ok := val.Str(); ok && t.Files != nil && t.Files(args)[0].Access == protocol.Exclusive {
		return what + " " + path
	}
	return what
}

// result runs a tool and encodes the data of its outcome.
func (s *Set) result(ctx context.Context, t *registeredTool, args protocol.Object, emit host.Emitter) (*Outcome,
	protocol.Appender, error,
) {
	out, err := s.run(ctx, t, args, emit)
	if err != nil {
		return nil, nil, err
	}
	data, err := s.data(ctx, t, out)
	return out, data, err
}

// unknown returns the error for a tool name that this plugin does not have; the router
// adds the names that exist.
func (r *registry) unknown(name string) error {
	unknown := protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %q", protocol.Clip(name, maxQuoted))
	return host.NotKnown(unknown, name, r.names)
}

// run runs a tool within its own time limit; the host enforces the limit of the request.
func (s *Set) run(ctx context.Context, t *registeredTool, args protocol.Object, emit host.Emitter) (*Outcome, error) {
	own, limit := ctx, t.Timeout
	if limit > 0 && !host.Limited(ctx, t.Def.Name) {
		var cancel context.CancelFunc
		own, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	out, err := t.Call(own, args, emit)
	var known *protocol.Error
	switch {
	case err == nil && out == nil:
		return nil, protocol.Errorf(protocol.CodeToolError, "tool %q gave no result", t.Def.Name)
	case err == nil:
		return out, nil
	case ctx.Err() != nil: // the host stopped the request, and knows why
		return nil, err
	case limit > 0 && errors.Is(own.Err(), context.DeadlineExceeded):
		late := protocol.Errorf(protocol.CodeTimeout, "tool %q did not end within its own limit of %s", t.Def.Name,
			limit)
		if errors.As(err, &known) {
			late.Detail = known.Detail // what it had printed, for example
		}
		return nil, late
	case errors.As(err, &known):
		return nil, err
	}
	return nil, protocol.Errorf(protocol.CodeToolError, "tool %q: %w", t.Def.Name, err)
}

// data encodes the data of an outcome and cuts it to the limit. An Appender
// bounds itself and is encoded straight into the answer.
func (s *Set) data(ctx context.Context, t *registeredTool, out *Outcome) (protocol.Appender, error) {
	if a, ok := out.Data.(protocol.Appender); ok {
		return a, nil
	}
	raw, err := protocol.AppendJSON(nil, out.Data)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "tool %q gave a result that is not JSON: %w", t.Def.Name,
			err)
	}
	return rawData(s.limited(ctx, t.Def.Name, out, raw)), nil
}

// rawData is data that is encoded already.
type rawData []byte

// AppendJSON implements protocol.Appender.
func (d rawData) AppendJSON(dst []byte) ([]byte, error) { return append(dst, d...), nil }

// callResponse is the answer to a tool call, tool/call/resp. It is encoded by append,
// because every call encodes one.
type callResponse struct {
	tool *registeredTool
	out  *Outcome
	data protocol.Appender
	took time.Duration
	at   time.Time
}

// ToolResult implements host.ToolAnswer.
func (r *callResponse) ToolResult() (*protocol.ToolResult, *host.ToolDetail, error) {
	data, err := r.data.AppendJSON(nil)
	if err != nil {
		return nil, nil, protocol.Errorf(protocol.CodeToolError,
			"tool %q gave a result that is not JSON: %w", r.tool.Def.Name, err)
	}
	res := &protocol.ToolResult{
		Success: !r.out.Failed, ToolName: r.tool.Def.Name, Data: slices.Clip(data),
		Summary: appendText(nil, r.out.Summary), Truncated: &r.out.Truncated,
		ExitCode: r.out.ExitCode, DurationMS: r.took.Milliseconds(), Events: []protocol.PastEvent{},
	}
	if r.out.Failed {
		res.Error, res.ErrorCode = &r.out.Failure, new(protocol.CodeToolError)
	}
	return res, &r.tool.Detail, nil
}

// AppendJSON implements protocol.Appender.
func (r *callResponse) AppendJSON(dst []byte) ([]byte, error) {
	out := r.out
	dst = append(dst, `{"data":{"success":`...)
	dst = strconv.AppendBool(dst, !out.Failed)
	dst = append(dst, `,"tool_name":`...)
	dst = protocol.AppendString(dst, r.tool.Def.Name)
	dst = append(dst, `,"data":`...)
	dst, err := r.data.AppendJSON(dst)
	if err != nil {
		return dst, err
	}
	dst = append(dst, `,"summary":`...)
	dst = appendText(dst, out.Summary)
	dst = append(dst, `,"truncated":`...)
	dst = strconv.AppendBool(dst, out.Truncated)
	dst = append(dst, `,"exit_code":`...)
	if out.ExitCode != nil {
		dst = strconv.AppendInt(dst, int64(*out.ExitCode), 10)
	} else {
		dst = append(dst, "null"...)
	}
	if out.Failed {
		dst = append(dst, `,"error":`...)
		dst = protocol.AppendString(dst, out.Failure)
		dst = append(dst, `,"error_code":"`+string(protocol.CodeToolError)+`"`...)
	} else {
		dst = append(dst, `,"error":null,"error_code":null`...)
	}
	dst = append(dst, `,"duration_ms":`...)
	dst = strconv.AppendInt(dst, r.took.Milliseconds(), 10)
	dst = append(dst, `,"events":[]},"created_at":`...)
	return append(protocol.AppendSeconds(dst, r.at), '}'), nil
}

// appendText appends a text, or null for none.
func appendText(dst []byte, text string) []byte {
	if text == "" {
		return append(dst, "null"...)
	}
	return protocol.AppendString(dst, text)
}

// seconds turns a number of seconds from the config into a duration. It returns 0, no limit, for a
// number that is not positive or too large for a duration.
func seconds(s float64) time.Duration {
	if !(s > 0) || s > math.MaxInt64/float64(time.Second) {
		return 0
	}
	return time.Duration(s * float64(time.Second))
}

// CommandTool is a tool that the config declares: a program with a fixed command
// line, in which {name} stands for the text of the parameter of that name.
//
// A parameter fills a part of one argument: there is no shell, and its text is
// never split. An argument that is just {name} is left out when the parameter is
// absent. A call is refused if an argument would begin with "-" because of a parameter and no
// argument "--" stands before it: the program would take it for an option.
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
		Detail: host.ToolDetail{Destructive: true, OpenWorld: network == sandbox.NetworkHost},
		// the config does not say which files the program uses
		Files: seesAll,
		Call: func(ctx context.Context, args protocol.Object, emit host.Emitter) (*Outcome, error) {
			argv, err := cfg.argv(args)
			if err != nil {
				return nil, err
			}
			return c.run(ctx, cfg.Name, sandbox.Policy{
				Path: path, Args: argv, Network: network,
				Home: sandbox.HomeShared,
			}, "", emit)
		},
	}, nil
}

// definition checks the declaration and returns the definition that the agent sees.
func (cfg *CommandTool) definition() (protocol.ToolDefinition, error) {
	def := protocol.ToolDefinition{
		Name: cfg.Name, Description: cfg.Description, Tags: cfg.Tags, DeferLoading: cfg.DeferLoading, Streaming: true,
		Version:          "1.0.0",
		OutputParameters: Members[commandResult]()[:2],
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
			return def, fmt.Errorf("parameters: %q stands nowhere in command; write {%s} where it belongs", p.Name,
				p.Name)
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
			return def, fmt.Errorf("command: {%s} is not a declared parameter; declare it under parameters", name)
		}
	}
	return def, nil
}

// argv fills the command line with a call's arguments.
func (cfg *CommandTool) argv(args protocol.Object) ([]string, error) {
	argv := []string{cfg.Command[0]}
	plain := false // after "--": no argument is an option
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
			return nil, protocol.Errorf(protocol.CodeToolDenied, "%.64q begins with \"-\", which %s would take for "+
				"an option", filled, cfg.Command[0])
		}
		plain = plain || arg == "--"
		argv = append(argv, filled)
	}
	return argv, nil
}
