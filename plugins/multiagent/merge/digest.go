package merge

import (
	"context"
	"fmt"
	"strings"
)

// Bounds of the digest.
const (
	maxSummary = 16 << 10 // bytes of one agent's text in it
	maxText    = 32 << 10 // bytes of its own text
	leastShare = 64       // bytes of that text that each agent has, however many there are
	maxList    = 10_000   // files, and next steps
)

// digest merges by hierarchical_summary.
func digest(ctx context.Context, inputs []Input, opts Options) (map[string]any, error) {
	found := gather(inputs)
	agents := make([]map[string]any, len(inputs))
	var count [endNone + 1]int
	for i, in := range inputs {
		count[in.end()]++
		agents[i] = in.row()
		agents[i]["summary"] = cut(in.Summary, maxSummary)
	}
	merged := map[string]any{
		"strategy": HierarchicalSummary, "summary": plainText(inputs, count), "summarized_by": "digest",
		"agents": agents, "completed": count[endCompleted], "failed": count[endFailed], "unfinished": count[endNone],
		"files_changed": found.files[:min(len(found.files), maxList)], "next_steps": found.next[:min(len(found.next), maxList)],
		"tokens_spent": found.tokens, "tokens_estimated": found.estimated,
	}
	if opts.Sample == nil {
		return merged, nil
	}
	text, err := climb(ctx, inputs, opts.Sample)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		merged["sampling_error"] = cut(err.Error(), maxSummary)
	default:
		merged["summary"], merged["summarized_by"] = text, "sampling"
	}
	return merged, nil
}

// row is what each list says of an agent.
func (in *Input) row() map[string]any {
	row := map[string]any{"subagent_id": in.ID, "name": in.Name, "status": in.Status}
	if in.Error != "" {
		row["error"] = cut(in.Error, maxSummary)
	}
	return row
}

// plainText tells what the agents say without a model: a line for each.
func plainText(inputs []Input, count [endNone + 1]int) string {
	noun := "agents"
	if len(inputs) == 1 {
		noun = "agent"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d %s completed", count[endCompleted], len(inputs), noun)
	if n := count[endFailed]; n > 0 {
		fmt.Fprintf(&b, ", %d failed", n)
	}
	if n := count[endNone]; n > 0 {
		fmt.Fprintf(&b, ", %d not finished", n)
	}
	b.WriteByte('.')
	share := max(maxText/len(inputs), leastShare)
	for _, in := range inputs {
		text := strings.Join(strings.Fields(in.says()), " ")
		if text == "" {
			text = "no text"
		}
		b.WriteString("\n- " + cut(in.title()+": "+text, share))
	}
	return b.String()
}
