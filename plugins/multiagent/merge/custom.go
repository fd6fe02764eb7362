package merge

import (
	"bytes"
	"context"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

const (
	maxOutput = 1 << 20 // bytes that the command may print
	shown     = 200     // bytes of it in an error
)

// customInput is what the command gets of an agent.
type customInput struct {
	ID      string         `json:"subagent_id"`
	Name    string         `json:"name"`
	Status  string         `json:"status"`
	Summary string         `json:"summary"`
	Result  jsontext.Value `json:"result"` // null = none
	Error   string         `json:"error,omitzero"`
}

// custom merges by a command: {"inputs":[…]} on its stdin, one JSON object on its stdout.
// The result is that object, with the strategy where it has none.
func custom(ctx context.Context, inputs []Input, opts Options) (map[string]any, error) {
	if len(opts.Command) == 0 || opts.Run == nil {
		return nil, protocol.Violation(protocol.FieldError{
			Path: "/strategy", Message: "is custom, but the config names no command that merges; use " + HierarchicalSummary + " or " + Voting,
		})
	}
	rows := make([]customInput, len(inputs))
	for i, in := range inputs {
		rows[i] = customInput(in)
		if _, err := protocol.ParseObject(in.Result); err != nil {
			rows[i].Result = jsontext.Value("null")
		}
	}
	stdin, err := json.Marshal(map[string]any{"inputs": rows})
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the results cannot be given to the merge command: %w", err)
	}
	out, err := opts.Run(ctx, opts.Command, append(stdin, '\n'))
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the merge command %.64q failed: %w", opts.Command[0], err)
	case len(out) > maxOutput:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the merge command %.64q printed %d bytes; at most %d are taken", opts.Command[0], len(out), maxOutput)
	}
	out = bytes.TrimSpace(out)
	obj, err := protocol.ParseObject(out)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the merge command %.64q should print one JSON object and nothing else; it printed %q (%w)", opts.Command[0], out[:min(len(out), shown)], err)
	}
	merged := map[string]any{"strategy": Custom}
	for key, value := range obj.All() {
		merged[string(key)] = jsontext.Value(value)
	}
	return merged, nil
}
