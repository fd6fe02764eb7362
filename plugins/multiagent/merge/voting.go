package merge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// candidate is an answer with those who gave it.
type candidate struct {
	value jsontext.Value // canonical
	ids   []string
}

// vote merges by voting: the answers are the same if their canonical JSON is.
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
		c := byValue[string(value)]
		if c == nil {
			c = &candidate{value: value}
			byValue[string(value)] = c
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

// answer gives what an agent votes for as canonical JSON: the member answer of its result,
// else result, else its text. The error says why it does not vote.
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

// canonical gives JSON in the form of RFC 8785, but for integers, which keep all digits.
func canonical(value jsontext.Value) (jsontext.Value, error) {
	c := value.Clone()
	if err := c.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
		return nil, fmt.Errorf("its answer is not valid JSON: %w", err)
	}
	return c, nil
}
