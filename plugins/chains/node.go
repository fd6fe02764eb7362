package chains

import (
	"fmt"
	"strconv"
	"time"

	"a2e/protocol"
)

// Kind says what a node does.
type Kind string

// The kinds of nodes.
const (
	KindTool   Kind = "tool"
	KindSkill  Kind = "skill"
	KindProc   Kind = "proc"
	KindBranch Kind = "branch"
	KindMap    Kind = "map"
	KindChain  Kind = "chain"
)

// Values of on_error that are no node.
const (
	onErrorAbort = "abort"
	onErrorSkip  = "skip"
)

// spec is a node as it was sent.
type spec struct {
	id, name                              string
	kind                                  Kind
	input                                 protocol.Object
	inputMap                              protocol.Object
	condition, trueNode, falseNode        string
	itemsPath, mapNode, nextNode, onError string
	deps                                  []string
	timeout                               time.Duration // 0 = the chain's
	maxParallel                           int           // of a map; 0 = the plugin's
}

// maxProblems is how many problems of a chain an answer lists.
const maxProblems = 20

// problems are what is wrong with a chain.
type problems struct {
	base string // JSON Pointer of the nodes
	list []protocol.FieldError
}

// at notes what is wrong with a field of a node; field may be empty.
func (p *problems) at(node int, field, format string, args ...any) {
	if len(p.list) >= maxProblems {
		return
	}
	path := p.base + "/" + strconv.Itoa(node)
	if field != "" {
		path += "/" + field
	}
	p.list = append(p.list, protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	return protocol.Violation(p.list...)
}

// readSpec reads one node. Names of older clients are understood too; unknown fields are
// ignored, a null is as if it were not there.
func readSpec(at int, obj protocol.Object, bad *problems) *spec {
	s := &spec{}
	for key, val := range obj.All() {
		if val.Kind() == 'n' {
			continue
		}
		name := string(key)
		if dst := s.text(name); dst != nil {
			text, ok := val.Str()
			if !ok {
				bad.at(at, name, "should be a string")
			}
			*dst = text
			continue
		}
		s.other(at, name, val, bad)
	}
	return s
}

// text returns where a field that is a string goes, nil = it is none.
func (s *spec) text(name string) *string {
	switch name {
	case "node_id", "id":
		return &s.id
	case "kind", "type":
		return (*string)(&s.kind)
	case "name":
		return &s.name
	case "condition":
		return &s.condition
	case "true_node":
		return &s.trueNode
	case "false_node":
		return &s.falseNode
	case "items_path":
		return &s.itemsPath
	case "map_node":
		return &s.mapNode
	case "next_node", "next":
		return &s.nextNode
	case "on_error":
		return &s.onError
	}
	return nil
}

// other reads the fields that are no strings.
func (s *spec) other(at int, name string, val protocol.Value, bad *problems) {
	ok, want := true, ""
	switch name {
	case "input":
		s.input, ok = objectOf(val)
		want = "an object"
	case "input_map":
		s.inputMap, ok = objectOf(val)
		want = "an object of expressions"
	case "deps", "depends_on":
		s.deps, ok = val.Strings()
		want = "an array of the ids of nodes"
	case "timeout":
		s.timeout, ok = secondsOf(val)
		want = "a number of seconds, 0 or more"
	case "max_parallel":
		s.maxParallel, ok = val.Int()
		ok = ok && s.maxParallel >= 0
		want = "an integer, 0 or more"
	}
	if !ok {
		bad.at(at, name, "should be %s", want)
	}
}

func objectOf(val protocol.Value) (protocol.Object, bool) {
	obj, err := protocol.ParseObject(val)
	return obj, err == nil
}

// secondsOf reads a time; more than a year is a year.
func secondsOf(val protocol.Value) (time.Duration, bool) {
	const year = 365 * 24 * 3600
	n, err := strconv.ParseFloat(string(val), 64)
	if val.Kind() != '0' || err != nil || n < 0 {
		return 0, false
	}
	return time.Duration(min(n, year) * float64(time.Second)), true
}

// maxID is how long the id of a node may be, in bytes.
const maxID = 128

// check says what does not fit to the kind of the node.
func (s *spec) check(at int, bad *problems) {
	switch {
	case s.id == "":
		bad.at(at, "node_id", "is required")
	case len(s.id) > maxID:
		bad.at(at, "node_id", "is longer than %d bytes", maxID)
	case s.id == memberInput:
		bad.at(at, "node_id", "is %q, by which expressions call the initial input; choose another", memberInput)
	}
	switch s.kind {
	case KindTool, KindSkill, KindChain:
		if s.name == "" {
			bad.at(at, "name", "is required: the %s that the node calls", s.kind)
		}
	case KindProc:
	case KindBranch:
		if s.condition == "" {
			bad.at(at, "condition", "is required: by it the branch chooses true_node or false_node")
		}
		s.passesNothing(at, bad)
	case KindMap:
		if s.itemsPath == "" {
			bad.at(at, "items_path", "is required: an expression that gives the list")
		}
		if s.mapNode == "" {
			bad.at(at, "map_node", "is required: the id of the node that runs for each item")
		}
		s.passesNothing(at, bad)
	case "":
		bad.at(at, "kind", "is required: tool, skill, proc, branch, map or chain")
	default:
		bad.at(at, "kind", "is %.64q; should be tool, skill, proc, branch, map or chain", s.kind)
	}
	s.foreign(at, bad)
}

// passesNothing says that a node which only routes has an input for nobody.
func (s *spec) passesNothing(at int, bad *problems) {
	if s.input.Len() > 0 || s.inputMap.Len() > 0 {
		bad.at(at, "input", "a %s passes nothing on; give input and input_map to the nodes that it leads to", s.kind)
	}
}

// foreign says which fields belong to another kind.
func (s *spec) foreign(at int, bad *problems) {
	for _, f := range []struct {
		field, value string
		kind         Kind
	}{
		{"true_node", s.trueNode, KindBranch}, {"false_node", s.falseNode, KindBranch},
		{"items_path", s.itemsPath, KindMap}, {"map_node", s.mapNode, KindMap},
	} {
		if f.value != "" && s.kind != f.kind {
			bad.at(at, f.field, "only a node of kind %s has it", f.kind)
		}
	}
	if s.maxParallel > 0 && s.kind != KindMap {
		bad.at(at, "max_parallel", "only a node of kind map has it")
	}
}
