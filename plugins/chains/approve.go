package chains

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/state/store"
	"a2e/protocol"
)

// codeDenied is the code of an approval that was denied.
const codeDenied protocol.ErrorCode = "approval_denied"

// approve says what a node of kind approve asks.
type approve struct {
	message string
	timeout time.Duration // 0 = as long as the chain has
	byself  string        // the decision when timeout is up; "" = none
}

const (
	approveWord = "approve"
	denyWord    = "deny"
)

// checkApprove notes what is wrong with a node of kind approve.
func (s *spec) checkApprove(at int, bad *problems) {
	if s.message == "" {
		bad.at(at, "message", "is required: say what should be approved")
	}
	switch {
	case s.byself != "" && s.byself != approveWord && s.byself != denyWord:
		bad.at(at, "default", "is %.64q; should be approve or deny", s.byself)
	case s.byself != "" && s.timeout == 0:
		bad.at(at, "default", "is decided when the timeout of the node is up; give it a timeout, in seconds")
	}
}

// decision is the result of an approval.
type decision struct {
	approved bool
	by       string // agent, person or default
}

// approval runs a node of kind approve: it waits until the agent, or a person through the
// journal, has decided.
func (r *run) approval(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	d, err := r.decided(ctx, n, it)
	switch {
	case err != nil:
		return nil, err
	case !d.approved:
		return nil, protocol.Errorf(codeDenied, "it was denied (%s)", d.by)
	}
	return jsontext.Value(`{"approved":true,"by":` + strconv.Quote(d.by) + `}`), nil
}

func (r *run) decided(ctx context.Context, n *node, it *item) (decision, error) {
	own, cancel := context.WithCancel(ctx)
	type reply struct {
		decision
		err error
	}
	asked := make(chan reply, 1)
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	go func() {
		defer close(ended)
		content, accepted, err := r.plugin.elicit(own, n.approve.message,
			`{"type":"object","properties":{"approve":{"type":"boolean","description":"whether the chain may go on"}},"required":["approve"]}`)
		yes, _ := content.Get("approve")
		asked <- reply{decision{accepted && yes.Kind() == 't', "agent"}, err}
	}()
	var up <-chan time.Time
	if n.approve.timeout > 0 {
		timer := time.NewTimer(time.Until(r.begun(n, it).Add(n.approve.timeout)))
		defer timer.Stop()
		up = timer.C
	}
	poll := time.NewTicker(journalPoll)
	defer poll.Stop()
	for {
		if d, ok := r.written(ctx, n, it); ok {
			return d, nil
		}
		select {
		case a := <-asked:
			if a.err == nil {
				return a.decision, nil
			}
			if r.journal == nil && ctx.Err() == nil && up == nil {
				return decision{}, protocol.Errorf(protocol.CodeChainNodeError,
					`nobody can approve it: the agent did not (%w), and the chain has no journal; with a chain_id and "journal": true a person can, by "a2e chain approve"`, a.err)
			}
		case <-up:
			if n.approve.byself == "" {
				return decision{}, protocol.Errorf(protocol.CodeTimeout, "nobody decided within %s", n.approve.timeout)
			}
			return decision{n.approve.byself == approveWord, "default"}, nil
		case <-poll.C:
		case <-ctx.Done():
			return decision{}, context.Cause(ctx)
		}
	}
}

// written returns the decision that a person wrote into the journal; ok is false if there is none.
func (r *run) written(ctx context.Context, n *node, it *item) (d decision, ok bool) {
	if r.journal == nil {
		return d, false
	}
	err := r.plugin.kept.Opener.Read(ctx, func(tx *store.Tx) (err error) { // not logged, as it is read again soon
		ok, err = tx.Get("SELECT approved FROM chains_decisions WHERE journal = $1 AND path = $2",
			[]any{r.journal.number, r.key(n, it)}, &d.approved)
		return err
	})
	d.by = "person"
	return d, ok && err == nil
}

// The decisions about a node of which it is unknown whether it completed.
const (
	resolveRun  = "run"
	resolveDone = "done"
	resolveFail = "fail"
)

// askPatience is how long an agent may take to decide about such a node. An agent that does not know the
// question never answers.
const askPatience = 30 * time.Second

const resolveHelp = `"run" (once more), "done" (its output is null), {"output": …} (it did, and this is its output) or "fail"`

// check returns an error that lists the wrong decisions of a request. After an error none of the decisions
// is used.
func (j *journal) check(given protocol.Object) error {
	if given.Len() == 0 {
		return nil
	}
	open := j.unknowns()
	var bad []protocol.FieldError
	for key, val := range given.All() {
		path := string(key)
		if !slices.Contains(open, path) {
			bad = append(bad, protocol.FieldError{
				Path:    "/resolve/" + escapedKey(path),
				Message: "is not a node whose end is unknown; there are: " + listed(open),
			})
		} else if _, ok := decide(val); !ok {
			bad = append(bad, protocol.FieldError{
				Path:    "/resolve/" + escapedKey(path),
				Message: "should be " + resolveHelp,
			})
		}
	}
	if bad != nil {
		return protocol.Violation(bad...)
	}
	return nil
}

// settle decides about the nodes that were running when the chain stopped: as the request says, which
// check has checked, else by asking the agent. The error names the nodes that remain undecided.
func (j *journal) settle(ctx context.Context, given protocol.Object) error {
	open := j.unknowns()
	left := []string{}
	for _, path := range open {
		if val, decided := given.Get(path); decided {
			j.resolve(path, val)
			continue
		}
		if len(left) > 0 || !j.askAbout(ctx, path) { // after one unanswered question no other is asked
			left = append(left, path)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(left) > 0 {
		return protocol.Errorf(protocol.CodeChainNodeError, "it is unknown whether these nodes of the chain %q "+
			"completed, as it stopped while they ran: %s; "+
			`decide with "resume": true, "resolve": {%q: …}, each %s`, j.id, listed(left), left[0], resolveHelp).
			With("unknown", left).With("chain_id", j.id)
	}
	return nil
}

// decide reads a decision about a node. The entry has an end, or none if the node runs once more. ok is
// false for a value that is not a decision.
func decide(decision protocol.Value) (e entry, ok bool) {
	switch word, _ := decision.Str(); word {
	case resolveRun:
		return entry{}, true
	case resolveDone:
		return entry{end: stepDone, output: jsontext.Value("null")}, true
	case resolveFail:
		return entry{end: stepFailed, err: protocol.Errorf(protocol.CodeChainNodeError, "the chain stopped while it "+
			"ran, and it was decided that it failed")}, true
	}
	obj, ok := objectOf(decision)
	output, there := obj.Get("output")
	return entry{end: stepDone, output: jsontext.Value(output).Clone()}, ok && there && obj.Len() == 1
}

// resolve applies a decision to one node; false = the value is not a decision.
func (j *journal) resolve(path string, decision protocol.Value) bool {
	e, ok := decide(decision)
	switch {
	case !ok:
		return false
	case e.end == "":
		delete(j.known, path)
		return true
	case e.end == stepDone:
		_ = j.end(&step{Path: path, What: stepDone, Output: e.output}) // the next write reports an error
	}
	j.known[path] = &e
	return true
}

// elicit asks the agent to fill in a form.
func (p *Plugin) elicit(ctx context.Context, message, schema string) (content protocol.Object, accepted bool,
	err error,
) {
	form, err := protocol.ParseObject([]byte(schema))
	if err != nil {
		return content, false, err
	}
	var answer protocol.MCPElicitResponse
	err = p.services.Ask(ctx, protocol.TypeMCPElicitReq, &protocol.MCPElicitRequest{
		ServerID: p.name, Mode: "form",
		Message: message, RequestedSchema: form,
	}, &answer)
	if err == nil && answer.Action != "accept" && answer.Action != "decline" {
		err = errors.New("the agent did not decide")
	}
	return answer.Content, answer.Action == "accept", err
}

// askAbout asks the agent about one node; false = it did not decide.
func (j *journal) askAbout(ctx context.Context, path string) bool {
	asking, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	content, accepted, err := j.plugin.elicit(asking, fmt.Sprintf("The chain %q stopped while its node %q ran, and "+
		"it is unknown whether it completed. Run it again?", j.id, path),
		`{"type":"object","properties":{"decision":{"type":"string","enum":["run","done","fail"],"description":"run it once more; done: it did; fail: go on as after a failure"},`+
			`"output":{"type":"string","description":"with done: what it gave, as JSON; without it null"}},"required":["decision"]}`)
	if err != nil || !accepted {
		return false
	}
	decision, _ := content.Get("decision")
	output, _ := content.Get("output")
	if word, _ := decision.Str(); word == resolveDone && output != nil {
		text, _ := output.Str()
		if !jsontext.Value(text).IsValid() {
			return false
		}
		raw, err := json.Marshal(map[string]jsontext.Value{"output": jsontext.Value(strings.TrimSpace(text))})
		return err == nil && j.resolve(path, raw)
	}
	return j.resolve(path, decision)
}
