package chains

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// What is to become of a node of which nobody knows whether it did what it is for.
const (
	resolveRun  = "run"
	resolveDone = "done"
	resolveFail = "fail"
)

// askPatience is how long an agent may think about such a node: one that does not know the
// question never answers.
const askPatience = 30 * time.Second

const resolveHelp = `"run" (once more), "done" (its output is null), {"output": …} (it did, and this is its output) or "fail"`

// check says what is wrong with the decisions of a request, of which none counts then.
func (j *journal) check(given protocol.Object) error {
	if given.Len() == 0 {
		return nil
	}
	open := j.unknowns()
	var bad []protocol.FieldError
	for key, val := range given.All() {
		path := string(key)
		if !slices.Contains(open, path) {
			bad = append(bad, protocol.FieldError{Path: "/resolve/" + escapedKey(path), Message: "is no node whose end is unknown; there are: " + listed(open)})
		} else if _, ok := decide(val); !ok {
			bad = append(bad, protocol.FieldError{Path: "/resolve/" + escapedKey(path), Message: "should be " + resolveHelp})
		}
	}
	if bad != nil {
		return protocol.Violation(bad...)
	}
	return nil
}

// settle decides what becomes of the nodes that were under way: by the request, which was
// checked, else by asking the agent. The error names those that remain.
func (j *journal) settle(ctx context.Context, given protocol.Object) error {
	open := j.unknowns()
	left := []string{}
	for _, path := range open {
		if val, decided := given.Get(path); decided {
			j.resolve(path, val)
			continue
		}
		if len(left) > 0 || !j.askAbout(ctx, path) { // one that is not answered says enough
			left = append(left, path)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(left) > 0 {
		return protocol.Errorf(protocol.CodeChainNodeError, "nobody knows whether these nodes of the chain %q did what they are for, as it stopped while they ran: %s; "+
			`say so with "resume": true, "resolve": {%q: …}, each %s`, j.id, listed(left), left[0], resolveHelp).With("unknown", left).With("chain_id", j.id)
	}
	return nil
}

// decide reads what is to become of a node: its end, or that it has none and runs once more.
func decide(decision protocol.Value) (e entry, ok bool) {
	switch word, _ := decision.Str(); word {
	case resolveRun:
		return entry{}, true
	case resolveDone:
		return entry{end: stepDone, output: jsontext.Value("null")}, true
	case resolveFail:
		return entry{end: stepFailed, err: protocol.Errorf(protocol.CodeChainNodeError, "the chain stopped while it ran, and it was decided that it failed")}, true
	}
	obj, ok := objectOf(decision)
	output, there := obj.Get("output")
	return entry{end: stepDone, output: jsontext.Value(output).Clone()}, ok && there && obj.Len() == 1
}

// resolve decides about one node; false = the decision is none.
func (j *journal) resolve(path string, decision protocol.Value) bool {
	e, ok := decide(decision)
	switch {
	case !ok:
		return false
	case e.end == "":
		delete(j.known, path)
		return true
	case e.end == stepDone:
		_ = j.end(&step{Path: path, What: stepDone, Output: e.output}) // the next node tells
	}
	j.known[path] = &e
	return true
}

// elicit asks the agent something by a form.
func (p *Plugin) elicit(ctx context.Context, message, schema string) (content protocol.Object, accepted bool, err error) {
	form, err := protocol.ParseObject([]byte(schema))
	if err != nil {
		return content, false, err
	}
	var answer protocol.MCPElicitResponse
	err = p.services.Ask(ctx, protocol.TypeMCPElicitReq, &protocol.MCPElicitRequest{ServerID: p.name, Mode: "form", Message: message, RequestedSchema: form}, &answer)
	if err == nil && answer.Action != "accept" && answer.Action != "decline" {
		err = errors.New("the agent did not decide")
	}
	return answer.Content, answer.Action == "accept", err
}

// askAbout asks the agent about one node; false = it did not decide.
func (j *journal) askAbout(ctx context.Context, path string) bool {
	asking, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	content, accepted, err := j.plugin.elicit(asking, fmt.Sprintf("The chain %q stopped while its node %q ran, and nobody knows whether it did what it is for. Shall it run once more?", j.id, path),
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
