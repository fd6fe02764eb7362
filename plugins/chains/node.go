package chains

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/schema"
	"a2e/protocol"
)

// Kind says what a node does.
type Kind string

// The kinds of nodes.
const (
	KindTool    Kind = "tool"
	KindSkill   Kind = "skill"
	KindProc    Kind = "proc"
	KindBranch  Kind = "branch"
	KindMap     Kind = "map"
	KindChain   Kind = "chain"
	KindWait    Kind = "wait"
	KindWhile   Kind = "while"
	KindApprove Kind = "approve"
)

// kindNames is how messages list the kinds.
const kindNames = "tool, skill, proc, branch, map, chain, wait, while or approve"

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
	timeout                               time.Duration     // 0 = the chain's
	maxParallel                           int               // of a map; 0 = the plugin's
	retry                                 *retry            // nil = it is tried once
	catch                                 *catch            // nil = none
	cache                                 *cacheSpec        // nil = none
	seconds, until                        protocol.Value    // of a wait; nil = not given
	nodes                                 []protocol.Object // of a while
	maxIterations                         int               // of a while
	message, byself                       string            // of an approval
	idempotent                            bool
	given                                 []string // fields that not every kind has
}

// owners lists the kinds that a field belongs to; nil = to all of them.
func owners(field string) []Kind {
	switch field {
	case "true_node", "false_node":
		return []Kind{KindBranch}
	case "items_path", "map_node", "max_parallel":
		return []Kind{KindMap}
	case "seconds", "until":
		return []Kind{KindWait}
	case "nodes", "max_iterations":
		return []Kind{KindWhile}
	case "message", "default":
		return []Kind{KindApprove}
	case "idempotent":
		return []Kind{KindTool, KindSkill, KindProc}
	case "retry":
		return []Kind{KindTool, KindSkill, KindProc, KindMap, KindChain, KindWhile}
	case "cache":
		return []Kind{KindTool, KindSkill, KindProc, KindChain, KindWhile}
	}
	return nil
}

// nodeFields lists the fields of nodes, for who misspelt one.
func nodeFields() []string {
	return []string{
		"node_id", "kind", "name", "input", "input_map", "condition", "next_node", "deps", "on_error", "catch", "retry", "timeout", "cache", "true_node", "false_node",
		"items_path", "map_node", "max_parallel", "nodes", "max_iterations", "seconds", "until", "idempotent", "message", "default", "description", "id", "type", "next", "depends_on",
	}
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

// readSpec reads one node. Names of older clients are understood too; a null is as if it were
// not there. A field that no node has is refused, as it might have changed what the node does.
func readSpec(at int, obj protocol.Object, bad *problems) *spec {
	s := &spec{}
	for key, val := range obj.All() {
		if val.Kind() == 'n' {
			continue
		}
		name := string(key)
		if !empty(val) && owners(name) != nil {
			s.given = append(s.given, strings.Clone(name)) // name itself takes no memory
		}
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

// empty reports whether a value is one that clients send for a field that they do not use.
func empty(val protocol.Value) bool {
	switch string(val) {
	case `""`, "0", "{}", "[]":
		return true
	}
	return false
}

// unknown refuses a field that no node has, but for a remark: description, and what begins with x-.
func unknown(at int, name string, bad *problems) {
	if name == "description" || strings.HasPrefix(name, "x-") {
		return
	}
	hint := schema.Suggest(name, "fields of a node", nodeFields())
	switch name {
	case "max_attempts", "backoff", "on":
		hint = "it belongs into retry, as in \"retry\": {\"max_attempts\": 3}"
	case "key", "ttl":
		hint = "it belongs into cache, as in \"cache\": {\"ttl\": 3600}"
	}
	bad.at(at, escapedKey(name[:min(len(name), maxID)]), "is not known; %s", hint)
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
	case "message":
		return &s.message
	case "default":
		return &s.byself
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
	case "max_iterations":
		s.maxIterations, ok = val.Int()
		ok = ok && s.maxIterations >= 0
		want = "an integer, 1 or more"
	case "nodes":
		s.nodes, ok = objectsOf(val)
		want = "an array of nodes: the chain that the loop repeats"
	case "idempotent":
		s.idempotent = val.Kind() == 't'
		ok = s.idempotent || val.Kind() == 'f'
		want = "true or false: whether the node may run twice"
	case "seconds":
		s.seconds = val
	case "until":
		s.until = val
	case "retry":
		s.retry = readRetry(at, val, bad)
	case "catch":
		s.catch = readCatch(at, val, bad)
	case "cache":
		s.cache = readCache(at, val, bad)
	default:
		unknown(at, strings.Clone(name), bad)
	}
	if !ok {
		bad.at(at, name, "should be %s", want)
	}
}

func objectOf(val protocol.Value) (protocol.Object, bool) {
	obj, err := protocol.ParseObject(val)
	return obj, err == nil
}

// objectsOf reads an array of objects.
func objectsOf(val protocol.Value) (list []protocol.Object, ok bool) {
	return list, json.Unmarshal(val, &list) == nil
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
	case KindWait:
		s.checkWait(at, bad)
		s.passesNothing(at, bad)
	case KindApprove:
		s.checkApprove(at, bad)
		s.passesNothing(at, bad)
	case KindWhile:
		s.checkWhile(at, bad)
	case "":
		bad.at(at, "kind", "is required: %s", kindNames)
	default:
		bad.at(at, "kind", "is %.64q; should be %s", s.kind, kindNames)
	}
	s.foreign(at, bad)
}

// passesNothing says that a node which calls nothing has an input for nobody.
func (s *spec) passesNothing(at int, bad *problems) {
	if s.input.Len() > 0 || s.inputMap.Len() > 0 {
		bad.at(at, "input", "a %s passes nothing on; give input and input_map to the nodes that it leads to", s.kind)
	}
}

// foreign says which fields belong to another kind.
func (s *spec) foreign(at int, bad *problems) {
	for _, field := range s.given {
		if kinds := owners(field); !slices.Contains(kinds, s.kind) {
			bad.at(at, field, "only a node of kind %s has it", alternatives(kinds))
		}
	}
}

// alternatives lists kinds as a message has them.
func alternatives(kinds []Kind) string {
	var b strings.Builder
	for i, kind := range kinds {
		switch {
		case i > 0 && i == len(kinds)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(string(kind))
	}
	return b.String()
}
