// Package merge merges the results of child agents.
//
//	merge.go    inputs, voting, custom           digest.go   hierarchical_summary
package merge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"

	"a2e/protocol"
)

// The strategies.
const (
	HierarchicalSummary = "hierarchical_summary" // the default: a digest of all results
	Voting              = "voting"               // the answer that most agents gave
	Custom              = "custom"               // the output of a command
)

// Limits of a merge.
const (
	maxInputs = 1024
	maxBytes  = 16 << 20 // of all inputs together
)

// Input is the result of one child agent. A command gets it as JSON.
type Input struct {
	ID   string `json:"subagent_id"`
	Name string `json:"name"`
	// a protocol.SubagentStatus or a fleet.Status, in any case of letters
	Status  string         `json:"status"`
	Summary string         `json:"summary"`        // its result as text
	Result  jsontext.Value `json:"result"`         // a JSON object, such as a TASK_RESULT; nil = none, null in JSON
	Error   string         `json:"error,omitzero"` // why it failed; "" = it did not
}

// Options are the means of the strategies.
type Options struct {
	// Command is the argv of the strategy custom; empty = none.
	Command []string
	// Run runs a command with stdin and returns its stdout. The error
	// says how the command failed.
	Run func(ctx context.Context, argv []string, stdin []byte) ([]byte, error)
	// Sample sends a prompt to a language model and returns its answer; nil = no model.
	Sample func(ctx context.Context, prompt string) (string, error)
}

// Merge merges results in the order of inputs. An empty strategy means
// HierarchicalSummary. No list in the returned map is nil. The error is a *protocol.Error:
// a schema_violation for an unknown strategy or too many inputs, a runtime_error
// for a command that failed. If ctx has ended, the error is its cause.
func Merge(ctx context.Context, strategy string, inputs []Input, opts Options) (map[string]any, error) {
	strategy = cmp.Or(strategy, HierarchicalSummary)
	merge := map[string]func(context.Context, []Input, Options) (map[string]any, error){
		HierarchicalSummary: digest,
		Voting:              vote, Custom: custom,
	}[strategy]
	if merge == nil {
		return nil, wrong("/strategy", "is %.64q; should be %s, %s or %s", strategy, HierarchicalSummary, Voting,
			Custom)
	}
	if err := check(inputs); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return merge(ctx, valid(inputs), opts)
}

// wrong returns a schema_violation for one field.
func wrong(path, format string, args ...any) error {
	return protocol.Violation(protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// valid returns a copy of the inputs with texts that can be written as JSON.
func valid(inputs []Input) []Input {
	inputs = slices.Clone(inputs)
	for i := range inputs {
		in := &inputs[i]
		for _, text := range []*string{&in.ID, &in.Name, &in.Status, &in.Summary, &in.Error} {
			*text = strings.ToValidUTF8(*text, "\uFFFD")
		}
	}
	return inputs
}

// check returns an error if there are no inputs, or too many.
func check(inputs []Input) error {
	size := 0
	for _, in := range inputs {
		size += len(in.ID) + len(in.Name) + len(in.Status) + len(in.Summary) + len(in.Result) + len(in.Error)
	}
	switch {
	case len(inputs) == 0:
		return wrong("/subagent_ids", "is empty; name the agents whose results are to be merged")
	case len(inputs) > maxInputs:
		return wrong("/subagent_ids", "names %d agents; at most %d can be merged at once", len(inputs), maxInputs)
	case size > maxBytes:
		return wrong("/subagent_ids", "the results have %d bytes together; at most %d can be merged at once: name "+
			"fewer agents", size, maxBytes)
	}
	return nil
}

// end is how an agent ended.
type end int

const (
	endCompleted end = iota
	endFailed
	endNone // it still works, or has not begun
)

// end returns how the agent ended. An unknown status counts as a failure.
func (in *Input) end() end {
	switch strings.ToUpper(in.Status) {
	case string(protocol.SubagentCompleted), "DONE", "PARTIAL":
		return endCompleted
	case string(protocol.SubagentReady), string(protocol.SubagentRunning), string(protocol.SubagentWaiting):
		return endNone
	}
	return endFailed
}

// title returns the name and status of an agent for a reader.
func (in *Input) title() string { return fmt.Sprintf("%s (%s)", cmp.Or(in.Name, in.ID), in.Status) }

// says returns the text of an agent: its summary and its error.
func (in *Input) says() string {
	text := strings.TrimSpace(in.Summary)
	switch {
	case in.Error == "":
		return text
	case text == "":
		return "error: " + in.Error
	}
	return text + "\nerror: " + in.Error
}

// candidate is an answer with the ids of the agents that gave it.
type candidate struct {
	value jsontext.Value // canonical
	ids   []string
}

// vote merges by voting. Two answers are the same if their canonical JSON is equal, or if they are
// texts that fold to the same text. The result has the first of them.
func vote(_ context.Context, inputs []Input, _ Options) (map[string]any, error) {
	var all []*candidate
	byValue := make(map[string]*candidate)
	total, silent := 0, []map[string]any{}
	for _, in := range inputs {
		value, err := in.answer()
		if err != nil {
			row := in.row()
			if in.Error == "" {
				row["error"] = err.Error()
			}
			silent = append(silent, row)
			continue
		}
		key := string(value)
		if text, ok := protocol.Value(value).Str(); ok {
			key = fold(text)
		}
		c := byValue[key]
		if c == nil {
			c = &candidate{value: value}
			byValue[key] = c
			all = append(all, c)
		}
		c.ids = append(c.ids, in.ID)
		total++
	}
	slices.SortStableFunc(all, func(a, b *candidate) int { return len(b.ids) - len(a.ids) })
	votes := make([]map[string]any, len(all))
	for i, c := range all {
		votes[i] = map[string]any{"value": c.value, "count": len(c.ids), "subagent_ids": c.ids}
	}
	merged := map[string]any{
		"strategy": Voting, "winner": nil, "votes": votes, "total": total, "failed": silent,
		"majority": len(all) > 0 && 2*len(all[0].ids) > total,
		"tie":      len(all) > 1 && len(all[0].ids) == len(all[1].ids),
	}
	if len(all) > 0 {
		merged["winner"] = all[0].value
	}
	return merged, nil
}

// answer returns the vote of an agent as canonical JSON: the member answer of its result,
// else the member result, else its text. The error says why the agent does not vote.
func (in *Input) answer() (jsontext.Value, error) {
	switch in.end() {
	case endFailed:
		return nil, errors.New("the agent did not complete its task")
	case endNone:
		return nil, errors.New("the agent has not finished")
	}
	if obj, err := protocol.ParseObject(in.Result); err == nil {
		for _, key := range []string{"answer", "result"} {
			if raw, ok := obj.Get(key); ok && string(raw) != "null" {
				return canonical(jsontext.Value(raw))
			}
		}
	}
	text := strings.TrimSpace(in.Summary)
	if text == "" {
		return nil, errors.New("the agent gave no answer")
	}
	if value := jsontext.Value(text); (text[0] == '{' || text[0] == '[') && value.IsValid() {
		return canonical(value)
	}
	return canonical(protocol.AppendString(nil, text))
}

// fold returns a text for comparing answers, without case, spaces and punctuation.
// It keeps signs in numbers, as in -1 and 2.5, and other symbols, such as those in C++ and 5 %.
// The result begins with a space, unlike canonical JSON, so that it never equals another kind of answer.
func fold(text string) string {
	runes := []rune(strings.ToLower(norm.NFKC.String(text)))
	var b strings.Builder
	gap := true
	for i, r := range runes {
		digits := i+1 < len(runes) && unicode.IsDigit(runes[i+1]) && strings.ContainsRune("-−.,", r)
		if !digits && (unicode.IsSpace(r) || unicode.IsPunct(r) && !strings.ContainsRune(`#%&*/@\_`, r)) {
			gap = true
			continue
		}
		if gap {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
		gap = false
	}
	if b.Len() == 0 {
		return " " + text
	}
	return b.String()
}

// canonical returns JSON in the form of RFC 8785, except that integers keep all digits.
func canonical(value jsontext.Value) (jsontext.Value, error) {
	c := value.Clone()
	if err := c.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
		return nil, fmt.Errorf("its answer is not valid JSON: %w", err)
	}
	return c, nil
}

const (
	maxOutput = 1 << 20 // bytes that the command may print
	shown     = 200     // bytes of the output in an error
)

// custom merges with a command: it gets {"inputs":[…]} on stdin and prints one JSON object on stdout.
// The result is that object, with a member strategy added if it has none.
func custom(ctx context.Context, inputs []Input, opts Options) (map[string]any, error) {
	if len(opts.Command) == 0 || opts.Run == nil {
		return nil, wrong("/strategy", "is custom, but the config names no command that merges; use %s or %s",
			HierarchicalSummary, Voting)
	}
	rows := slices.Clone(inputs)
	for i, in := range inputs {
		if _, err := protocol.ParseObject(in.Result); err != nil {
			rows[i].Result = jsontext.Value("null")
		}
	}
	stdin, err := json.Marshal(map[string]any{"inputs": rows})
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the results cannot be given to the merge command: %w",
			err)
	}
	out, err := opts.Run(ctx, opts.Command, append(stdin, '\n'))
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the merge command %.64q failed: %w", opts.Command[0],
			err)
	case len(out) > maxOutput:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the merge command %.64q printed %d bytes; at most "+
			"%d are taken", opts.Command[0], len(out), maxOutput)
	}
	out = bytes.TrimSpace(out)
	obj, err := protocol.ParseObject(out)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the merge command %.64q should print one JSON "+
			"object and nothing else; it printed %q (%w)", opts.Command[0], out[:min(len(out), shown)], err)
	}
	merged := map[string]any{"strategy": Custom}
	for key, value := range obj.All() {
		merged[string(key)] = jsontext.Value(value)
	}
	return merged, nil
}
