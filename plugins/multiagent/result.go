package multiagent

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Names in the result of an await.
const (
	keySummary = "summary"
	keyTokens  = "tokens_spent"
)

// Bounds of a result that is kept.
const (
	maxEntries = 1000    // of each list
	maxEntry   = 4 << 10 // bytes of one of them
	maxList    = 1 << 20 // bytes of all of them
)

// outcomeOf tells what a task came to that was not stopped: what is done in part is
// COMPLETED too, and its result says what remains.
func (p *Plugin) outcomeOf(c *child, res *fleet.Result, err error) outcome {
	if err != nil {
		var own *protocol.Error
		switch {
		case errors.As(err, &own):
			return outcome{status: protocol.SubagentFailed, err: own.Message}
		case errors.Is(err, context.Canceled): // of the host
			return outcome{status: protocol.SubagentTerminated, err: errClosed.Error()}
		}
		return outcome{status: protocol.SubagentFailed, err: err.Error()}
	}
	out := outcome{status: protocol.SubagentCompleted, result: p.resultOf(res)}
	switch res.Status {
	case fleet.StatusBlocked:
		out.status, out.err = protocol.SubagentFailed, "blocked: "+*res.BlockedReason
	case fleet.StatusError:
		out.status, out.err = protocol.SubagentFailed, res.Error
		if res.Error == "deadline" {
			out.err = fmt.Sprintf("the task did not end within its timeout_seconds of %d", c.config.TimeoutSeconds)
		}
		out.result["error"] = shorten(out.err, maxEntry)
	}
	out.err = shorten(out.err, maxEntry)
	return out
}

// resultOf gives a worker's result as an await tells it. What is too long is cut.
func (p *Plugin) resultOf(res *fleet.Result) map[string]any {
	m := map[string]any{
		"status":        string(res.Status),
		keySummary:      shorten(res.Summary, p.env.MaxOutputBytes),
		keyTokens:       res.TokensSpent,
		"next_steps":    entries(res.NextSteps),
		"files_changed": entries(res.Artifacts.FilesChanged),
	}
	if res.TokensEstimated {
		m["tokens_estimated"] = true
	}
	if res.Artifacts.PR != nil {
		m["pr"] = shorten(*res.Artifacts.PR, maxEntry)
	}
	if res.BlockedReason != nil {
		m["blocked_reason"] = shorten(*res.BlockedReason, maxEntry)
	}
	if rest := res.Remaining; len(rest) > 0 {
		m["remaining"] = rest
		if len(rest) > p.env.MaxOutputBytes {
			m["remaining"] = jsontext.Value(protocol.AppendString(nil, shorten(string(rest), p.env.MaxOutputBytes)))
		}
	}
	return m
}

// entries gives a list that is never nil and not too long.
func entries(all []string) []string {
	kept := make([]string, 0, min(len(all), maxEntries))
	size := 0
	for _, text := range all[:cap(kept)] {
		text = shorten(text, maxEntry)
		if size += len(text); size > maxList {
			break
		}
		kept = append(kept, text)
	}
	return kept
}

// text gives a member of a result that is a text.
func text(result map[string]any, key string) string {
	s, _ := result[key].(string)
	return s
}
