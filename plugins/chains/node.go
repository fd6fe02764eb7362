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

// kindNames lists the kinds for messages.
const kindNames = "tool, skill, proc, branch, map, chain, wait, while or approve"

// The values of on_error that are not the id of a node.
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
	idempotent, acceptsTruncated          bool
	given                                 []*field // fields that were sent and that not every kind has
}

// field is one field of a node, and where its value goes.
type field struct {
	name, also string // also is its name in older clients; "" = none
	kinds      []Kind // the kinds of nodes that have it; nil = all
	dst        func(*spec) any
	want       string // what its value should be
}

// What the values of some fields should be.
const (
	wantText, wantNodes = "a string", "an array of nodes: the chain that the loop repeats"
	wantTruncated       = "true or false: whether a result that was cut will do"
)

// fields lists the fields of a node. It does not change.
var fields = []field{
	{"node_id", "id", nil, func(s *spec) any { return &s.id }, wantText},
	{"kind", "type", nil, func(s *spec) any { return &s.kind }, wantText},
	{"name", "", nil, func(s *spec) any { return &s.name }, wantText},
	{"input", "", nil, func(s *spec) any { return &s.input }, "an object"},
	{"input_map", "", nil, func(s *spec) any { return &s.inputMap }, "an object of expressions"},
	{"condition", "", nil, func(s *spec) any { return &s.condition }, wantText},
	{"next_node", "next", nil, func(s *spec) any { return &s.nextNode }, wantText},
	{"deps", "depends_on", nil, func(s *spec) any { return &s.deps }, "an array of the ids of nodes"},
	{"on_error", "", nil, func(s *spec) any { return &s.onError }, wantText},
	{"catch", "", nil, func(s *spec) any { return &s.catch }, ""},
	{"retry", "", retryKinds, func(s *spec) any { return &s.retry }, ""},
	{"timeout", "", nil, func(s *spec) any { return &s.timeout }, wantSeconds},
	{"cache", "", cacheKinds, func(s *spec) any { return &s.cache }, ""},
	{"true_node", "", branchKinds, func(s *spec) any { return &s.trueNode }, wantText},
	{"false_node", "", branchKinds, func(s *spec) any { return &s.falseNode }, wantText},
	{"items_path", "", mapKinds, func(s *spec) any { return &s.itemsPath }, wantText},
	{"map_node", "", mapKinds, func(s *spec) any { return &s.mapNode }, wantText},
	{"max_parallel", "", mapKinds, func(s *spec) any { return &s.maxParallel }, "an integer, 0 or more"},
	{"nodes", "", whileKinds, func(s *spec) any { return &s.nodes }, wantNodes},
	{"max_iterations", "", whileKinds, func(s *spec) any { return &s.maxIterations }, "an integer, 1 or more"},
	{"seconds", "", waitKinds, func(s *spec) any { return &s.seconds }, ""},
	{"until", "", waitKinds, func(s *spec) any { return &s.until }, ""},
	{"idempotent", "", callKinds, func(s *spec) any { return &s.idempotent }, "true or false: whether the node may " +
		"run twice"},
	{"accept_truncated", "", callKinds, func(s *spec) any { return &s.acceptsTruncated }, wantTruncated},
	{"message", "", approveKinds, func(s *spec) any { return &s.message }, wantText},
	{"default", "", approveKinds, func(s *spec) any { return &s.byself }, wantText},
}

// fieldOf returns the field called name; nil = there is none.
func fieldOf(name string) *field {
	for i := range fields {
		if f := &fields[i]; f.name == name || f.also == name && name != "" {
			return f
		}
	}
	return nil
}

// The kinds that some fields belong to. They do not change.
var (
	branchKinds  = []Kind{KindBranch}
	mapKinds     = []Kind{KindMap}
	waitKinds    = []Kind{KindWait}
	whileKinds   = []Kind{KindWhile}
	approveKinds = []Kind{KindApprove}
	callKinds    = []Kind{KindTool, KindSkill, KindProc}
	retryKinds   = []Kind{KindTool, KindSkill, KindProc, KindMap, KindChain, KindWhile}
	cacheKinds   = []Kind{KindTool, KindSkill, KindProc, KindChain, KindWhile}
)

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

// readSpec reads one node. It also takes the field names of older clients, and ignores a null. It refuses
// a field that no node has, as the node might do something else without it.
func readSpec(at int, obj protocol.Object, bad *problems) *spec {
	s := &spec{}
	for key, val := range obj.All() {
		f := fieldOf(string(key))
		switch {
		case val.Kind() == 'n':
		case f == nil:
			unknown(at, string(key), bad)
		default:
			if f.kinds != nil && !empty(val) {
				s.given = append(s.given, f)
			}
			if !read(at, f.dst(s), val, bad) {
				bad.at(at, string(key), "should be %s", f.want)
			}
		}
	}
	return s
}

// read reads the value of a field into dst; false = the value is not what it should be.
func read(at int, dst any, val protocol.Value, bad *problems) (ok bool) {
	ok = true
	switch dst := dst.(type) {
	case *string:
		*dst, ok = val.Str()
	case *Kind:
		*(*string)(dst), ok = val.Str()
	case *protocol.Object:
		*dst, ok = objectOf(val)
	case *[]protocol.Object:
		ok = json.Unmarshal(val, dst) == nil
	case *[]string:
		*dst, ok = val.Strings()
	case *time.Duration:
		*dst, ok = secondsOf(val)
	case *int:
		*dst, ok = val.Int()
		ok = ok && *dst >= 0
	case *bool:
		*dst = val.Kind() == 't'
		ok = *dst || val.Kind() == 'f'
	case *protocol.Value:
		*dst = val
	case **retry:
		*dst = readRetry(at, val, bad)
	case **catch:
		*dst = readCatch(at, val, bad)
	case **cacheSpec:
		*dst = readCache(at, val, bad)
	}
	return ok
}

// empty reports whether a value is one that clients send for a field that they do not use.
func empty(val protocol.Value) bool {
	switch string(val) {
	case `""`, "0", "{}", "[]":
		return true
	}
	return false
}

// unknown refuses a field that no node has, except remarks: description, and names that begin with x-.
func unknown(at int, name string, bad *problems) {
	if name == "description" || strings.HasPrefix(name, "x-") {
		return
	}
	var names, others []string
	for _, f := range fields {
		if names = append(names, f.name); f.also != "" {
			others = append(others, f.also)
		}
	}
	hint := schema.Suggest(name, "fields of a node", slices.Concat(names, []string{"description"}, others))
	switch name {
	case "max_attempts", "backoff", "on":
		hint = "it belongs in retry, as in \"retry\": {\"max_attempts\": 3}"
	case "key", "ttl":
		hint = "it belongs in cache, as in \"cache\": {\"ttl\": 3600}"
	}
	bad.at(at, escapedKey(name[:min(len(name), maxID)]), "is not known; %s", hint)
}

func objectOf(val protocol.Value) (protocol.Object, bool) {
	obj, err := protocol.ParseObject(val)
	return obj, err == nil
}

// secondsOf reads a duration in seconds; more than a year counts as a year.
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

// check notes what is wrong with the node, or does not fit its kind.
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

// passesNothing notes an input of a node that calls nothing and so cannot pass it on.
func (s *spec) passesNothing(at int, bad *problems) {
	if s.input.Len() > 0 || s.inputMap.Len() > 0 {
		bad.at(at, "input", "has no effect in a node of kind %s; give input and input_map to the nodes that it "+
			"leads to", s.kind)
	}
}

// foreign notes the fields that only other kinds have.
func (s *spec) foreign(at int, bad *problems) {
	for _, f := range s.given {
		if !slices.Contains(f.kinds, s.kind) {
			bad.at(at, f.name, "only a node of kind %s has it", alternatives(f.kinds))
		}
	}
}

// alternatives lists kinds for a message, as in "tool, skill or proc".
func alternatives(kinds []Kind) string {
	text := string(kinds[0])
	for i, kind := range kinds[1:] {
		link := ", "
		if i == len(kinds)-2 {
			link = " or "
		}
		text += link + string(kind)
	}
	return text
}
