package worker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"a2e/protocol/fleet"
)

// asked is a text behind how to answer it.
func (r *runner) asked(ctx context.Context, t *task, text string) string {
	if r.Contract != nil && !*r.Contract {
		return text
	}
	return t.contract(r.due(ctx, t)) + text
}

// contract is what the brief of a task begins with for whoever reads it as text, a model in
// the end: how to answer, and by when. due is a time, "" = any. The object is written so that
// it is no JSON: a worker that repeats its brief gives no result by that. A turn of a
// conversation has no contract, as a person reads the answer.
func (t *task) contract(due string) string {
	if t.Talk != nil {
		return ""
	}
	var b strings.Builder
	b.WriteString(`[How to answer. What you are to do follows under "Task".]
End your answer with one JSON object, and nothing after it:
{"status": STATUS, "summary": ANSWER, "next_steps": [TEXT, ...], "artifacts": {"files_changed": [PATH, ...]}}
- STATUS is "done", or "partial" with "remaining": what is left to do, or "blocked" with "blocked_reason": why you could not begin, or "error" with "error": what went wrong.
`)
	switch t.Task.ReplySchema {
	case fleet.ReplyJSON:
		b.WriteString("- ANSWER is a JSON value, not prose.\n")
	case fleet.ReplyStructured:
		b.WriteString("- ANSWER is a short text; what belongs into the other fields stands there.\n")
	default:
		b.WriteString("- ANSWER is a plain text.\n")
	}
	if budget := t.budget(); budget > 0 {
		fmt.Fprintf(&b, "- You may spend %d tokens, on all that you read and write.\n", budget)
	}
	if due != "" {
		fmt.Fprintf(&b, "- Answer before %s, with \"partial\" if need be.\n", due)
	}
	b.WriteString("\n[Task]\n")
	return b.String()
}

// due returns when the worker must have ended a task, as an RFC 3339 time: at the deadline, or
// when its own timeout is over; "" = any time.
func (r *runner) due(ctx context.Context, t *task) string {
	if end, ok := ctx.Deadline(); ok {
		at := r.pool.env.Now().Add(time.Until(end)).Add(time.Millisecond) // as the text has no more digits
		if t.deadline.IsZero() || at.Before(t.deadline) {
			return at.UTC().Format("2006-01-02T15:04:05.000Z07:00")
		}
	}
	return t.Deadline
}
