package chains

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// The names in expressions that are not nodes.
const (
	memberInput = "input"
	memberItem  = "item"
	memberIndex = "index"
	memberLast  = "last"
	memberError = "error"
	// their names in the docs of the Python SDK
	memberItemSDK  = "_item"
	memberIndexSDK = "_index"
)

// maxExpressions bounds the expressions of one chain together, in bytes.
const maxExpressions = 4 << 20

// mapping is one entry of input_map that is an expression.
type mapping struct {
	key  []byte // as JSON, with its colon
	path string // its JSON Pointer in the node
	expr *jmes.Expr
}

// expressions compiles the expressions of a chain.
type expressions struct {
	compiler *jmes.Compiler
	bad      *problems
	known    map[string]*jmes.Expr // by text, so that each is compiled once
	odd      map[string]bool       // ids such as read-file, which JMESPath reads as a difference
	bytes    int                   // of all texts so far
}

// compile compiles one expression; nil = it is wrong, which is noted in bad.
func (x *expressions) compile(at int, field, text string) *jmes.Expr {
	if e := x.known[text]; e != nil {
		return e
	}
	if x.bytes += len(text); x.bytes > maxExpressions {
		x.bad.at(at, field, "the expressions of the chain have more than %d bytes together", maxExpressions)
		return nil
	}
	var e *jmes.Expr
	var err error
	if other := forgiving(text, x.odd); other != text {
		e, _ = x.compiler.Compile(other)
	}
	if e == nil {
		e, err = x.compiler.Compile(text)
	}
	if err != nil {
		x.bad.at(at, field, "the expression %.80q %v", text, err)
		return nil
	}
	x.known[text] = e
	return e
}

// pythonic returns a condition as JMESPath, as a comparison may also be written as clients of the Python SDK's host
// do: a number stands without backquotes, and a word that is not a node is a string. Such a string is compared
// without the blanks around the other side, as outputs of programs have them.
func pythonic(text string, nodes map[string]int) string {
	left, operator, right := comparison(text)
	word := strings.Trim(right, `"`)
	if _, isNode := nodes[word]; word == "" || isNode {
		return text
	}
	number, err := strconv.ParseFloat(right, 64)
	switch {
	case isScalar(right): // a number keeps all its digits
		word = "`" + word + "`"
	case err == nil && !math.IsInf(number, 0) && !math.IsNaN(number):
		word = "`" + strconv.FormatFloat(number, 'g', -1, 64) + "`"
	default:
		left = fmt.Sprintf("(type(%[1]s) == 'string' && [trim(%[1]s)] || [%[1]s])[0]", left)
		word = "'" + word + "'"
	}
	return left + " " + operator + " " + word
}

// isScalar reports whether a word is a number, true, false or null as JSON writes it.
func isScalar(word string) bool {
	raw := jsontext.Value(word)
	return raw.IsValid() && strings.ContainsRune("0tfn", rune(raw.Kind()))
}

// comparison splits `$.path OPERATOR word` into its parts, which are empty if the text has another form.
func comparison(text string) (left, operator, right string) {
	at := strings.IndexAny(text, "=!<>")
	if at < 0 {
		return "", "", ""
	}
	end := at + 1
	if strings.HasPrefix(text[end:], "=") {
		end++
	}
	left, operator, right = strings.TrimSpace(text[:at]), text[at:end], strings.TrimSpace(text[end:])
	path, isPath := strings.CutPrefix(left, "$.")
	other := func(r rune) bool { return !wordRune(r) && r != '.' && r != '+' }
	isWord := !strings.ContainsFunc(right, other)
	if n := len(right); n > 1 && right[0] == '"' && right[n-1] == '"' {
		isWord = !strings.ContainsAny(right[1:n-1], "'\"\\")
	}
	if !isPath || !isWord || operator == "=" || operator == "!" || strings.ContainsFunc(path, other) {
		return "", "", ""
	}
	return left, operator, right
}

// inputs compiles the input and input_map of a node to a constant part, which is an object without its
// closing brace, and the expressions.
func (x *expressions) inputs(at int, s *spec) (constant []byte, mapped []mapping) {
	constant = append(constant, '{')
	add := func(key []byte, val protocol.Value) {
		if len(constant) > 1 {
			constant = append(constant, ',')
		}
		constant = append(append(protocol.AppendString(constant, key), ':'), val...)
	}
	for key, val := range s.input.All() {
		if _, over := s.inputMap.Get(string(key)); !over {
			add(key, val)
		}
	}
	for key, val := range s.inputMap.All() {
		text, isText := val.Str()
		if !isText {
			add(key, val)
			continue
		}
		path := pointer("input_map", string(key))
		if e := x.compile(at, path, text); e != nil {
			mapped = append(mapped, mapping{append(protocol.AppendString(nil, key), ':'), path, e})
		}
	}
	return constant, mapped
}

// pointer returns the JSON Pointer of a member of a field.
func pointer(field, key string) string {
	if len(key) > maxID {
		key = key[:maxID]
	}
	return field + "/" + escapedKey(key)
}

// escapedKey returns a key as JSON Pointers write it.
func escapedKey(key string) string { return string(jsontext.Pointer("").AppendToken(key)[1:]) }

// forgiving changes what the docs of the Python SDK allow to JMESPath: OR between expressions, and ids
// such as read-file without double quotes.
func forgiving(text string, odd map[string]bool) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		end := jmes.PartEnd(text, i)
		for wordRune(rune(text[i])) && end < len(text) && wordRune(rune(text[end])) {
			end++
		}
		part := text[i:end]
		switch {
		case part == "OR":
			part = "||"
		case odd[part] && !isPlace(text, i, end):
			part = `"` + part + `"`
		}
		b.WriteString(part)
		i = end
	}
	return b.String()
}

// isPlace reports whether a word between brackets is an index of a list, or a bound of a slice: [0] is the
// first element, even if a node has the id 0.
func isPlace(text string, from, to int) bool {
	before, after := strings.TrimRight(text[:from], " \t\r\n"), strings.TrimLeft(text[to:], " \t\r\n")
	if before == "" || after == "" || strings.Trim(text[from:to], "-0123456789") != "" {
		return false
	}
	last := before[len(before)-1]
	return (last == '[' || last == ':') && (after[0] == ']' || after[0] == ':')
}

func wordRune(r rune) bool {
	return r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// oddID reports whether an id is a word that JMESPath needs in quotes.
func oddID(id string) bool {
	word := id != "" && !strings.ContainsFunc(id, func(r rune) bool { return !wordRune(r) })
	return word && (id[0] >= '0' && id[0] <= '9' || strings.Contains(id, "-"))
}

// item is what a node runs for: an item of a map, an iteration of a while, a further attempt of a retry;
// nil = none of these.
type item struct {
	of        string // the map; "" = none
	around    string // place of the item around it, such as "[2]"
	value     any
	index     int
	loop      bool // it is an iteration of a while
	iteration int  // from 0
	last      any  // the output of the previous iteration; nil = null
	attempt   int  // number of a further attempt of a retry, from 2; 0 = the first
}

// again returns the item for an attempt; the first attempt has the item itself.
func (it *item) again(attempt int) *item {
	if attempt == 1 {
		return it
	}
	next := item{}
	if it != nil {
		next = *it
	}
	next.attempt = attempt
	return &next
}

// event makes an event that says which item of a map it is about.
func (it *item) event() event {
	if it == nil {
		return event{}
	}
	return event{of: it.of, index: it.index}
}

// member returns the value of a name that the item binds; bound is false if it binds no such name.
func (it *item) member(name string) (v any, bound bool) {
	if it == nil {
		return nil, false
	}
	switch name {
	case memberItem, memberItemSDK:
		return it.value, it.of != ""
	case memberIndex, memberIndexSDK:
		if it.loop {
			return float64(it.iteration), true
		}
		return float64(it.index), it.of != ""
	case memberLast:
		return it.last, it.loop
	}
	return nil, false
}

// view is what the expressions of a node see: the initial input, the outputs of the nodes that it waits
// for, its item, and the error that it handles.
type view struct {
	run  *run
	node *node
	item *item // nil = none
}

// Member implements jmes.Scope.
func (v *view) Member(name string) (any, bool) {
	if val, bound := v.item.member(name); bound {
		return val, false
	}
	if name == memberError && v.node.handles {
		return v.run.caughtError(v.node), false
	}
	if name == memberInput {
		return v.run.input, false
	}
	if i, ok := v.run.byID[name]; ok {
		return v.run.outcomes[i].value, true
	}
	input, _ := v.run.input.(map[string]any)
	return input[name], false
}

// All implements jmes.Scope. It has only the outputs that the node waits for, so that it does not depend
// on which node was quicker.
func (v *view) All() map[string]any {
	all := map[string]any{memberInput: v.run.input}
	for _, e := range v.node.in {
		all[v.run.nodes[e.node].id] = v.run.outcomes[e.node].value
	}
	for _, name := range []string{memberItem, memberIndex, memberLast} {
		if val, bound := v.item.member(name); bound {
			all[name] = val
		}
	}
	if v.node.handles {
		all[memberError] = v.run.caughtError(v.node)
	}
	return all
}

// eval evaluates one expression of a node.
func (r *run) eval(ctx context.Context, n *node, it *item, field string, e *jmes.Expr) (any, error) {
	v, err := e.Eval(ctx, &view{r, n, it})
	return v, r.explained(ctx, field, err)
}

// explained returns an error that names the expression; an error of ctx stays as it is.
func (r *run) explained(ctx context.Context, field string, err error) error {
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return err
	}
	return protocol.Errorf(protocol.CodeChainNodeError, "the expression of %s %w", field, err)
}

// maxInput bounds the input of one node, in bytes; a message cannot have more.
const maxInput = 16 << 20

// arguments returns the input of a node, as a JSON object.
func (r *run) arguments(ctx context.Context, n *node, it *item) ([]byte, error) {
	dst := make([]byte, len(n.constant), len(n.constant)+64*(len(n.mapped)+1))
	copy(dst, n.constant)
	if n.passItem && n.kind == KindWhile {
		out, err := jmes.Append(append(strconv.AppendInt(append(dst, `"index":`...), int64(it.iteration), 10),
			`,"last":`...), it.last, maxInput)
		return append(out, '}'), r.explained(ctx, "the last output", err)
	}
	if n.passItem {
		out, err := jmes.Append(append(dst, `"item":`...), it.value, maxInput)
		return append(out, '}'), r.explained(ctx, "the item", err)
	}
	for _, m := range n.mapped {
		v, err := r.eval(ctx, n, it, m.path, m.expr)
		if err != nil {
			return nil, err
		}
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		if dst, err = jmes.Append(append(dst, m.key...), v, maxInput-len(dst)); err != nil {
			return nil, r.explained(ctx, m.path, err)
		}
	}
	return append(dst, '}'), nil
}
