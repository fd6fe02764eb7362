package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// Limits of a schema that is normalised. Python's validator recurses about twelve times for each level
// of a schema, and its SDK reads no message with 200 nested levels.
const (
	maxInputLevels  = 60
	maxOutputLevels = 40
	maxNesting      = 140     // objects and lists in the JSON
	maxParts        = 50_000  // schemas
	maxNumber       = 1000    // bytes of a number; Python refuses a message with a number of 4,300
	maxSchema       = 1 << 20 // bytes
	maxPasses       = 20
	maxDropped      = 20 // dropped keywords that are named
)

// loss says how much more a normalised schema allows than the original.
type loss int

const (
	exact loss = iota
	vague      // a keyword was dropped that had no meaning in this form, such as minLength: "3"
	lost       // a keyword was dropped that had a meaning
)

// NormaliseInput returns the schema of a tool's arguments in a form that MCP clients accept: the
// schema of an object, with the JSON Schema type for each keyword, only ECMAScript patterns, and no
// dangling references. If nothing has to be changed, the bytes stay the same. Keywords that clients
// cannot use are dropped, such as a pattern of another dialect, so that the schema never allows less;
// the server checks the arguments. dropped are the places of these keywords, as JSON Pointers. The
// error is the end of a sentence about the schema of a tool that cannot be offered.
//
// A missing schema, or null, allows any arguments.
func NormaliseInput(raw jsontext.Value) (out jsontext.Value, dropped []string, err error) {
	if len(raw) == 0 || raw.Kind() == 'n' {
		return jsontext.Value(`{"type":"object","properties":{}}`), nil, nil
	}
	n := normaliser{levels: maxInputLevels}
	out, err = n.normalise(raw)
	if errors.Is(err, errUnsettled) {
		out, err = jsontext.Value(`{"type":"object","properties":{}}`), nil
	}
	return out, n.dropped, err
}

// NormaliseOutput normalises the schema of structured content as NormaliseInput does that of
// arguments. Clients check results against it, so it is an error if a keyword with a meaning would
// have to be dropped: the tool should then be offered without an output schema.
func NormaliseOutput(raw jsontext.Value) (out jsontext.Value, dropped []string, err error) {
	n := normaliser{output: true, levels: maxOutputLevels}
	out, err = n.normalise(raw)
	if err == nil && n.worst == lost {
		err = fmt.Errorf("has parts that clients cannot use: %s", strings.Join(n.dropped, ", "))
	}
	if err == nil && n.endless() {
		err = errors.New("has a reference that leads to itself")
	}
	return out, n.dropped, err
}

// Known reports whether the dialect of a schema is known.
func Known(schema jsontext.Value) bool {
	n := normaliser{}
	return len(schema) == 0 || n.head(schema) == nil && n.dialect != unknown
}

// Moved returns a result of NormaliseOutput with its references changed, so that the schema can be
// moved from one place of a document to another. from and to are JSON Pointers.
func Moved(schema jsontext.Value, from, to string) jsontext.Value {
	n := normaliser{output: true, levels: maxNesting, left: maxParts, from: "#" + from, to: "#" + to}
	n.seen, n.steps = map[string]string{}, map[string][]string{}
	if err := n.head(schema); err != nil {
		return schema
	}
	out, _ := n.schema("", schema, 0)
	return out
}

var errUnsettled = errors.New("has references that depend on each other")

// normaliser normalises one schema in several passes: a keyword that one pass drops may be the target
// of a reference. Its fields describe the findings of one pass.
type normaliser struct {
	output bool
	levels int

	dialect dialect
	base    string // the $id of the root
	left    int    // schemas that are still allowed

	known     map[string]string // the places of schemas in the last pass, by pointers and anchors; nil = first pass
	seen      map[string]string // the same for this pass
	steps     map[string][]string
	worst     loss           // of the earlier passes
	resources bool           // a schema inside has an $id of its own: references are not changed
	tuple     bool           // an output schema has tuples, which draft-07 writes differently
	wrongRoot jsontext.Value // the type of the root if it is not an object
	reopen    bool           // drop unevaluated…, because fewer parts count as evaluated now
	dropped   []string
	from, to  string // the old and the new start of the references
}

// normalise makes passes until two in a row have changed nothing.
func (n *normaliser) normalise(raw jsontext.Value) (jsontext.Value, error) {
	switch kind := raw.Kind(); {
	case len(raw) > maxSchema:
		return nil, fmt.Errorf("has %d bytes; at most %d are possible", len(raw), maxSchema)
	case kind != '{':
		return nil, fmt.Errorf("is %s; it should be an object", kindWords[kind])
	case !raw.IsValid():
		return nil, errors.New("is not valid JSON: a key is there twice, or a text is not UTF-8")
	}
	references := bytes.Contains(raw, []byte(`"$`)) || bytes.Contains(raw, []byte(`\u`))
	for same, pass := 0, 0; pass < maxPasses; pass++ {
		if err := n.head(raw); err != nil {
			return nil, err
		}
		n.left, n.seen, n.steps = maxParts, map[string]string{}, map[string][]string{}
		worst, reopen, resources, tuple := n.worst, n.reopen, n.resources, n.tuple
		out, l := n.schema("", raw, 0)
		if n.wrongRoot != nil {
			wrong := protocol.Clip(string(n.wrongRoot), maxName)
			return nil, fmt.Errorf("has the type %s; it should have \"object\"", wrong)
		}
		n.worst = max(worst, l)
		if resources != n.resources || tuple != n.tuple {
			continue // the root must be written differently
		}
		if same++; !bytes.Equal(out, raw) || reopen != n.reopen || worst != n.worst {
			same = 0
		}
		if n.known = n.seen; same == 2 || same == 1 && !references {
			return out, nil
		}
		raw = out
	}
	return nil, errUnsettled
}

var kindWords = map[jsontext.Kind]string{
	'n': "null", 't': "true", 'f': "false", '"': "a text", '0': "a number", '[': "a list", 0: "no JSON",
}

// head reads the keywords of the root that apply to the whole schema.
func (n *normaliser) head(raw jsontext.Value) error {
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	n.dialect = dialectOf(obj.Text("$schema"))
	n.base = strings.TrimSuffix(obj.Text(idWord(n.dialect)), "#")
	return nil
}

// drop records a part that is dropped.
func (n *normaliser) drop(at, key string) {
	if place := at + "/" + escaped(key); len(n.dropped) < maxDropped && !slices.Contains(n.dropped, place) {
		n.dropped = append(n.dropped, place)
	}
}

func escaped(token string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(token) }

// schema normalises the schema at a place; level is its depth.
func (n *normaliser) schema(at string, v jsontext.Value, level int) (jsontext.Value, loss) {
	if n.left--; level > n.levels || n.left < 0 {
		n.drop(at, "")
		n.reopen = true
		return anything(v), lost
	}
	n.seen[at] = at
	switch v.Kind() {
	case 't', 'f':
		return v, exact
	case '{':
	default:
		n.drop(at, "")
		return anything(v), vague
	}
	obj, err := protocol.ParseObject(v)
	if err != nil {
		return anything(v), lost
	}
	s := &subschema{normaliser: n, at: at, level: level, obj: obj}
	for key, val := range obj.All() {
		s.keyword(string(key), jsontext.Value(val))
	}
	s.settle()
	if !s.changed {
		return v, s.loss
	}
	return s.members.encode(), s.loss
}

// anything returns the schema that allows everything, or v if it is that schema.
func anything(v jsontext.Value) jsontext.Value {
	if string(v) == "{}" {
		return v
	}
	return jsontext.Value("{}")
}

// follows reports whether a reference leads to a schema of the document, and returns the place of that
// schema.
func (n *normaliser) follows(ref string) (to string, ok bool) {
	if n.known == nil || n.resources {
		return "#", true // the place is not known
	}
	fragment, within := strings.CutPrefix(ref, "#")
	if !within {
		return "", false
	}
	if place, err := url.PathUnescape(fragment); err == nil && (place == "" || place[0] == '/') {
		to, ok = n.known[place]
		return to, ok
	}
	to, ok = n.known[ref]
	return to, ok
}

// endless reports whether checking a value against the schema would come back to the same schema with
// the same value.
func (n *normaliser) endless() bool {
	state := map[string]int{} // 1 = being followed, 2 = it ends
	var loops func(at string) bool
	loops = func(at string) bool {
		switch state[at] {
		case 1:
			return true
		case 2:
			return false
		}
		state[at] = 1
		found := slices.ContainsFunc(n.steps[at], loops)
		state[at] = 2
		return found
	}
	return slices.ContainsFunc(slices.Sorted(maps.Keys(n.steps)), loops)
}

// member is a member of an object that is being written.
type member struct {
	key string
	val jsontext.Value
}

type members []member

func (m members) encode() jsontext.Value {
	dst := []byte{'{'}
	for i, one := range m {
		dst = append(protocol.AppendString(appendComma(dst, i), one.key), ':')
		dst = append(dst, one.val...)
	}
	return append(dst, '}')
}

func (m members) find(key string) int {
	return slices.IndexFunc(m, func(one member) bool { return one.key == key })
}

// plain reports whether a value that is not a schema can be passed on.
func (s *subschema) plain(v jsontext.Value) bool {
	level := 2 * (s.level + 1) // each level is an object in an object
	dec := jsontext.NewDecoder(bytes.NewReader(v))
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		if level+dec.StackDepth() > maxNesting || token.Kind() == '0' && len(token.String()) > maxNumber {
			return false
		}
	}
}

// list returns the items of a JSON list; ok is false for other values.
func list(v jsontext.Value) (all []jsontext.Value, ok bool) {
	return all, v.Kind() == '[' && json.Unmarshal(v, &all) == nil
}
