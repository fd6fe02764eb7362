package learning

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// Bounds of a proposal, as history answers with the proposals of all refinements.
const (
	maxProposal = 64 << 10 // bytes
	maxEdits    = 50
)

// nameWeight is the name in the target of a weight edit, which records use too.
const nameWeight = "routing_weight"

// proposal is a proposal as plan makes it and as history shows it.
type proposal struct {
	ProposalID string         `json:"proposal_id"`
	Component  string         `json:"component"` // of the edits that name none
	Kind       string         `json:"kind"`      // tool, skill, env…
	Edits      []*edit        `json:"edits"`
	Confidence *float64       `json:"confidence,omitzero"` // 0 to 1; nil = not given
	Rationale  string         `json:"rationale"`
	Evidence   jsontext.Value `json:"evidence,omitzero"`
	Scope      string         `json:"scope"`
	CreatedAt  float64        `json:"created_at,omitzero"` // seconds since 1970; 0 = unknown
}

// edit is one change of a proposal.
type edit struct {
	target
	From jsontext.Value `json:"from,omitzero"` // the current value; nil = not given
	To   jsontext.Value `json:"to"`            // null = as if it was never set

	wrong    []string // why it is refused; nil = it is not refused
	original *string  // of a text: the component's own text; nil = not read
}

// sentProposal is a proposal as it is sent: with the names above, or with those of the public
// specification, where a single edit may be a proposal too.
type sentProposal struct {
	ProposalID    string         `json:"proposal_id"`
	RefinementID  string         `json:"refinement_id"` // proposal_id in the specification
	Component     string         `json:"component"`
	ComponentName string         `json:"component_name"`
	Kind          string         `json:"kind"`
	Confidence    *float64       `json:"confidence"`
	Rationale     string         `json:"rationale"`
	Evidence      jsontext.Value `json:"evidence"`
	Scope         string         `json:"scope"`
	CreatedAt     float64        `json:"created_at"`
	Edits         []sentEdit     `json:"edits"`
	sentChange
}

// sentEdit is an edit of a sentProposal; it may name another component than the proposal.
type sentEdit struct {
	Component     string `json:"component"`
	ComponentName string `json:"component_name"`
	Kind          string `json:"kind"`
	sentChange
}

// sentChange is the part of an edit that has two spellings.
type sentChange struct {
	Target   string         `json:"target"` // weight, setting, text; or router_weight, prompt
	Name     string         `json:"name"`
	Path     string         `json:"path"` // router.weights.COMPONENT, KIND.NAME of a text, prompt.template
	Op       string         `json:"op"`   // update, insert, replace, delete
	From     jsontext.Value `json:"from"`
	To       jsontext.Value `json:"to"`
	OldValue jsontext.Value `json:"old_value"`
	NewValue jsontext.Value `json:"new_value"`
}

// parseProposal reads a proposal. The error is a `schema_violation` for a value that has the wrong type or
// is too long. What is wrong with a single edit is noted in the edit.
func parseProposal(obj protocol.Object) (*proposal, error) {
	if n := len(obj.Raw()); n > maxProposal {
		return nil, protocol.Violation(protocol.FieldError{Path: "/proposal", Message: fmt.Sprintf("has %d bytes; "+
			"at most %d are allowed: shorten the rationale and the evidence", n, maxProposal)})
	}
	var sent sentProposal
	if err := obj.Decode(&sent); err != nil {
		return nil, within("/proposal", err)
	}
	pr := &proposal{
		ProposalID: cmp.Or(sent.ProposalID, sent.RefinementID), Component: cmp.Or(sent.Component, sent.ComponentName),
		Kind: sent.Kind, Edits: []*edit{},
		Confidence: sent.Confidence, Rationale: sent.Rationale, Evidence: sent.Evidence.Clone(), Scope: sent.Scope,
		CreatedAt: sent.CreatedAt,
	}
	var wrong []protocol.FieldError
	if c := pr.Confidence; c != nil && !(*c >= 0 && *c <= 1) {
		wrong = append(wrong, protocol.FieldError{Path: "/proposal/confidence", Message: fmt.Sprintf("is %g; it is "+
			"a number from 0 to 1", *c)})
	}
	if n := len(sent.Edits); n > maxEdits {
		wrong = append(wrong, protocol.FieldError{Path: "/proposal/edits", Message: fmt.Sprintf("has %d entries; at "+
			"most %d are allowed", n, maxEdits)})
	}
	if sent.ComponentName != "" && pr.Component != sent.ComponentName {
		wrong = append(wrong, protocol.FieldError{
			Path: "/proposal/component_name",
			Message: fmt.Sprintf("is %q, but component is %q; one of them is enough", sent.ComponentName,
				pr.Component),
		})
	}
	if wrong != nil {
		return nil, protocol.Violation(wrong...)
	}
	if sent.Edits == nil && sent.Target != "" {
		sent.Edits = []sentEdit{{sentChange: sent.sentChange}}
	}
	for _, s := range sent.Edits {
		pr.Edits = append(pr.Edits, s.edit(pr))
	}
	return pr, nil
}

// within puts path before the paths of a `schema_violation`.
func within(path string, err error) error {
	var refusal *protocol.Error
	if !errors.As(err, &refusal) {
		return err
	}
	problems, _ := refusal.Detail["errors"].([]protocol.FieldError)
	for i := range problems {
		problems[i].Path = path + strings.TrimSuffix(problems[i].Path, "/")
	}
	return protocol.Violation(problems...)
}

// edit converts one edit of a proposal.
func (s *sentEdit) edit(pr *proposal) *edit {
	e := &edit{
		target: target{Kind: cmp.Or(s.Kind, pr.Kind), Component: cmp.Or(s.Component, s.ComponentName), Name: s.Name},
		From:   present(s.From, s.OldValue), To: present(s.To, s.NewValue),
	}
	switch s.Target {
	case targetWeight, "router_weight":
		e.Target = targetWeight
		e.readWeight(s)
	case targetSetting:
		e.Target = targetSetting
		if s.Path != "" {
			e.refuse("a setting is named by `name` and has no path")
		}
	case targetText, "prompt":
		e.Target = targetText
		e.readPath(s.Path)
	default:
		e.Target = s.Target
		e.refuse("the target is %.64q; this host can change %s, %s and %s of a component, nothing else", s.Target,
			targetWeight, targetSetting, targetText)
	}
	e.Component = cmp.Or(e.Component, pr.Component)
	switch s.Op {
	case "", "update", "replace", "insert":
	case "delete":
		e.To = jsontext.Value("null")
	default:
		e.refuse("the op is %.64q; it can be update, insert, replace or delete", s.Op)
	}
	if e.To == nil {
		e.refuse("it does not say what to change to; `to` should, null being as if nothing was ever set")
	}
	if e.Component == "" {
		e.refuse("no component is named; `component` should, learn/stats/req lists them")
	}
	return e
}

// readPath reads from a path which text an edit is about: prompt.template means any text of the component.
func (e *edit) readPath(path string) {
	kind, name, ok := strings.Cut(path, ".")
	switch {
	case path == "" || path == "prompt.template":
	case !ok || len(textTargets(kind, name)) != 1:
		e.refuse("the path is %.128q; that of a text is one of tool.description, skill.instructions, "+
			"prompt.description and prompt.text", path)
	default:
		e.Kind, e.Name = cmp.Or(e.Kind, kind), cmp.Or(e.Name, name)
	}
}

// readWeight reads the component of a weight edit, in all spellings.
func (e *edit) readWeight(s *sentEdit) {
	named := ""
	if s.Name != nameWeight {
		named = s.Name
	}
	if s.Path != "" {
		component, ok := strings.CutPrefix(s.Path, "router.weights.")
		if !ok {
			e.refuse("the path is %.128q; that of a weight is router.weights.COMPONENT", s.Path)
		}
		named = cmp.Or(named, component)
	}
	if e.Component == "" {
		e.Component = named
	} else if named != "" && named != e.Component {
		e.refuse("it names two components, %.128q and %.128q", e.Component, named)
	}
	e.Name = nameWeight
}

func (e *edit) refuse(format string, args ...any) {
	e.wrong = append(e.wrong, fmt.Sprintf(format, args...))
}

// present returns a copy of the first value that was sent.
func present(a, b jsontext.Value) jsontext.Value {
	if a == nil {
		a = b
	}
	if a == nil {
		return nil
	}
	a = a.Clone()
	_ = a.Canonicalize() // other text than JSON was refused before
	return a
}
