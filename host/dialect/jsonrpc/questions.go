package jsonrpc

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"

	"a2e/host"
	"a2e/host/agent"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// The kinds of questions. In rpc.handshake a client names those that it answers.
const (
	QuestionTool = "tool" // whether the model may make a tool call that may change something
	QuestionForm = "form" // a form of a chain or an MCP server for the user
)

// question is a question that waits for its answer.
type question struct {
	session string
	answer  chan answer // has room for one
}

// answer is the client's answer to a question.
type answer struct {
	ID      text            `json:"question_id"`
	Action  text            `json:"action"` // accept, decline or cancel
	Content protocol.Object `json:"content"`
	Reason  text            `json:"reason"` // why the user refused, for the model
}

// answersTo reports whether the client answers a kind of question.
func (f *Front) answersTo(kind text) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.answers, kind)
}

// ask sends a question to the client and returns its answer. It waits until ctx ends, and then tells the client that
// the question is closed.
func (f *Front) ask(ctx context.Context, session string, told map[string]any) (answer, error) {
	id := uuid.NewString()
	q := &question{session, make(chan answer, 1)}
	f.mu.Lock()
	f.asked[id] = q
	f.mu.Unlock()
	told["session_id"], told["question_id"] = session, id
	f.event(jsonrpc.SessionQuestion, told)
	select {
	case a := <-q.answer:
		return a, nil
	case <-ctx.Done():
		f.mu.Lock()
		delete(f.asked, id)
		f.mu.Unlock()
		f.event(jsonrpc.QuestionClosed, map[string]any{"session_id": session, "question_id": id})
		return answer{}, context.Cause(ctx)
	}
}

func sessionAnswer(f *Front, _ context.Context, c *call, req *answer) (any, error) {
	if !slices.Contains([]text{"accept", "decline", "cancel"}, req.Action) {
		return nil, c.wrong("action", "must be accept, decline or cancel")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.asked[string(req.ID)]
	waits := q != nil && q.session == c.session
	if waits {
		delete(f.asked, string(req.ID))
		req.Content = req.Content.Clone()
		q.answer <- *req
	}
	return map[string]any{"session_id": c.session, "accepted": waits}, nil
}

// permits returns the function that asks the client before a model's calls; nil = the client is not asked.
func (f *Front) permits(t *turn) func(context.Context, agent.ModelCall) error {
	if !f.answersTo(QuestionTool) {
		return nil
	}
	return func(ctx context.Context, c agent.ModelCall) error {
		told := map[string]any{
			"turn_id": t.ID, "kind": QuestionTool, "call": toolCall{c.Name, or(c.Arguments, "{}"), c.WireName, c.ID},
		}
		args, _ := protocol.ParseObject(protocol.Value(c.Arguments)) // empty if the arguments are not an object
		a, err := f.ask(ctx, t.session.ID, add(told, "file", host.ServicesOf(f.ctx).Changes(c.Name, args)))
		switch {
		case err != nil || a.Action == "accept":
			return err
		case a.Reason != "":
			return errors.New("the user did not allow this call: " + string(a.Reason))
		}
		return errors.New("the user did not allow this call")
	}
}

// asker returns the function that passes the questions of plugins to the client of a session; nil = the client answers
// none.
func (f *Front) asker(session string) host.Asker {
	if session == "" || !slices.Contains(f.answers, QuestionForm) {
		return nil
	}
	return func(ctx context.Context, t protocol.Type, req, resp any) error {
		if t != protocol.TypeMCPElicitReq {
			return protocol.Errorf(protocol.CodeRuntimeError, "%s cannot be asked: the agent of this session answers "+
				"forms alone", t)
		}
		a, err := f.ask(ctx, session, map[string]any{"kind": QuestionForm, "form": req})
		if err != nil {
			return err
		}
		raw, err := protocol.AppendJSON(nil, map[string]any{"action": a.Action, "content": a.Content})
		if err != nil {
			return err
		}
		obj, err := protocol.ParseObject(raw)
		if o, ok := resp.(*protocol.Object); ok {
			*o = obj
			return err
		}
		if err != nil {
			return err
		}
		return protocol.Decode(obj, nil, resp)
	}
}
