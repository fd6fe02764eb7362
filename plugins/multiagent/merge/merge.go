// Package merge puts the results of child agents together.
//
//	merge.go    the strategies, what goes in     read.go     what a result holds
//	digest.go   hierarchical_summary             tree.go     its text by sampling
//	voting.go   voting                           custom.go   custom
package merge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// The strategies.
const (
	HierarchicalSummary = "hierarchical_summary" // the default: a digest of all results
	Voting              = "voting"               // the answer that most agents gave
	Custom              = "custom"               // what a command makes of them
)

// Bounds of what is merged.
const (
	maxInputs = 1024
	maxBytes  = 16 << 20 // of all inputs together
)

// Input is what one child agent came to.
type Input struct {
	ID      string
	Name    string
	Status  string         // a protocol.SubagentStatus or a fleet.Status, in any case of letters
	Summary string         // its result as text
	Result  jsontext.Value // a JSON object, such as a TASK_RESULT; nil = none
	Error   string         // why it failed; "" = it did not
}

// Options is what the strategies work with.
type Options struct {
	// Command is the argv of the strategy custom; empty = there is none.
	Command []string
	// Run starts a command, gives it stdin and returns what it printed on stdout. The error
	// says how it failed.
	Run func(ctx context.Context, argv []string, stdin []byte) ([]byte, error)
	// Sample has a language model answer a prompt; nil = there is none.
	Sample func(ctx context.Context, prompt string) (string, error)
}

// Merge puts results together, in the order given. An empty strategy is
// HierarchicalSummary. No list of what it returns is nil. The error is a *protocol.Error:
// a schema_violation for a strategy that there is not or too much to merge, a runtime_error
// for a command that failed; or it is the cause of ctx, once that has ended.
func Merge(ctx context.Context, strategy string, inputs []Input, opts Options) (map[string]any, error) {
	if strategy == "" {
		strategy = HierarchicalSummary
	}
	var merge func(context.Context, []Input, Options) (map[string]any, error)
	switch strategy {
	case HierarchicalSummary:
		merge = digest
	case Voting:
		merge = vote
	case Custom:
		merge = custom
	default:
		return nil, protocol.Violation(protocol.FieldError{Path: "/strategy", Message: fmt.Sprintf("is %.64q; should be %s, %s or %s", strategy, HierarchicalSummary, Voting, Custom)})
	}
	if err := check(inputs); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return merge(ctx, valid(inputs), opts)
}

// valid gives inputs whose texts can be written as JSON, whatever the agents wrote.
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

// check bounds what is merged.
func check(inputs []Input) error {
	size := 0
	for _, in := range inputs {
		size += len(in.ID) + len(in.Name) + len(in.Status) + len(in.Summary) + len(in.Result) + len(in.Error)
	}
	switch {
	case len(inputs) == 0:
		return protocol.Violation(protocol.FieldError{Path: "/subagent_ids", Message: "is empty; name the agents whose results are to be merged"})
	case len(inputs) > maxInputs:
		return protocol.Violation(protocol.FieldError{Path: "/subagent_ids", Message: fmt.Sprintf("names %d agents; at most %d can be merged at once", len(inputs), maxInputs)})
	case size > maxBytes:
		return protocol.Violation(protocol.FieldError{Path: "/subagent_ids", Message: fmt.Sprintf("the results have %d bytes together; at most %d can be merged at once: name fewer agents", size, maxBytes)})
	}
	return nil
}

// end is how an agent ended.
type end int

const (
	endCompleted end = iota
	endFailed
	endNone // it is still at work, or has not begun
)

// end tells how the agent ended. A status that is not known counts as a failure.
func (in *Input) end() end {
	switch strings.ToUpper(in.Status) {
	case string(protocol.SubagentCompleted), "DONE", "PARTIAL":
		return endCompleted
	case string(protocol.SubagentReady), string(protocol.SubagentRunning), string(protocol.SubagentWaiting):
		return endNone
	}
	return endFailed
}

// title names an agent for a reader.
func (in *Input) title() string {
	name := in.Name
	if name == "" {
		name = in.ID
	}
	return fmt.Sprintf("%s (%s)", name, in.Status)
}

// says is the text of an agent: its summary, or why it has none.
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
