package memory

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

const (
	maxConditions = 64
	maxPath       = 1_024 // bytes
	maxIn         = 1_000 // values
)

// condition is one condition on a field of an entry's content.
type condition struct {
	path   []string
	op     string
	values []jsontext.Value // in comparableForm; exactly one, except for the operator in
}

// operators lists the operators of a filter.
func operators() []string { return []string{"eq", "ne", "gt", "gte", "lt", "lte", "in", "exists"} }

// parseFilter returns the conditions of a filter: {"user.age": {"gt": 30}, "city": "Rome"}.
// Its error is a `schema_violation`.
func parseFilter(filter protocol.Object) (all []condition, err error) {
	for name, value := range filter.All() {
		at := "/filter/" + pointerEscaped(string(name))
		path, err := parsePath(string(name))
		if err != nil {
			return nil, protocol.Wrong(at, "%v", err)
		}
		if slices.Contains([]string{"$and", "$or", "$not", "$nor"}, path[0]) {
			return nil, protocol.Wrong(at, "%.64q is not a field; all conditions of a filter must hold, and there are "+
				"no others", name)
		}
		if value.Kind() != '{' {
			all, err = appendCondition(all, at, path, "eq", value)
			if err != nil {
				return nil, err
			}
			continue
		}
		given, err := protocol.ParseObject(value)
		if err != nil {
			return nil, protocol.Wrong(at, "%v", err)
		}
		if given.Len() == 0 {
			return nil, protocol.Wrong(at, "names no operator; there are %s", strings.Join(operators(), ", "))
		}
		for op, value := range given.All() {
			if all, err = appendCondition(all, at, path, string(op), value); err != nil {
				return nil, err
			}
		}
	}
	if len(all) > maxConditions {
		return nil, protocol.Wrong("/filter", "has %d conditions; send at most %d", len(all), maxConditions)
	}
	return all, nil
}

// pointerEscaped returns a name as a step of a JSON Pointer, cut to maxPath bytes.
func pointerEscaped(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(cut(name, maxPath))
}

func cut(text string, most int) string { return text[:min(len(text), most)] }

// parsePath splits a path at its dots; \. is a dot within a name and \\ a backslash.
func parsePath(text string) ([]string, error) {
	if len(text) > maxPath {
		return nil, fmt.Errorf("the path has %d bytes; %d are allowed", len(text), maxPath)
	}
	steps := []string{""}
	for i := 0; i < len(text); i++ {
		last := &steps[len(steps)-1]
		switch {
		case text[i] == '.':
			steps = append(steps, "")
		case text[i] != '\\':
			*last += string(text[i : i+1])
		case i+1 < len(text) && (text[i+1] == '.' || text[i+1] == '\\'):
			i++
			*last += string(text[i : i+1])
		default:
			return nil, fmt.Errorf(`%q has a lone \; \. is a dot within a name, \\ a backslash`, text)
		}
	}
	if slices.Contains(steps, "") {
		return nil, fmt.Errorf(`%q has an empty name; write names with dots between, such as user.age or items.0`, text)
	}
	return steps, nil
}

// appendCondition checks one condition of a filter. Operators may begin with $.
func appendCondition(all []condition, at string, path []string, op string, value protocol.Value) ([]condition, error) {
	c := condition{path: path, op: strings.TrimPrefix(op, "$")}
	at += "/" + pointerEscaped(op)
	switch kind := value.Kind(); {
	case !slices.Contains(operators(), c.op):
		return nil, protocol.Wrong(at, "%.64q is not an operator (a field within this one is written with a dot: "+
			"user.age); %s", op, schema.Suggest(c.op, "operators", operators()))
	case c.op == "exists" && kind != 't' && kind != 'f':
		return nil, protocol.Wrong(at, "should be true or false")
	case c.op == "in" && kind != '[':
		return nil, protocol.Wrong(at, "should be a list of values")
	case slices.Contains([]string{"gt", "gte", "lt", "lte"}, c.op) && kind != '0' && kind != '"':
		return nil, protocol.Wrong(at, "should be a number or a string, which have an order")
	}
	values := []jsontext.Value{jsontext.Value(value)}
	if c.op == "in" {
		if err := json.Unmarshal(value, &values); err != nil {
			return nil, protocol.Wrong(at, "%v", err)
		}
		if len(values) > maxIn {
			return nil, protocol.Wrong(at, "has %d values; send at most %d", len(values), maxIn)
		}
	}
	for _, v := range values {
		form, err := comparableForm(v)
		if err != nil {
			return nil, protocol.Wrong(at, "%v", err)
		}
		c.values = append(c.values, form)
	}
	return append(all, c), nil
}

// comparableForm returns a value in the canonical form used for comparing. A number stays as it is
// written, unless it is within a list or object.
func comparableForm(v jsontext.Value) (jsontext.Value, error) {
	if v.Kind() == '0' {
		return v, nil
	}
	text, err := canonical(v)
	return jsontext.Value(text), err
}

// matchOf returns the index expression for the entries of a space that have the words of the
// conditions' values; "" = no condition has words to look for. numbers reports whether numbers are
// among these values: the index cannot find a number that a content writes with an exponent.
func matchOf(space int64, all []condition) (match string, numbers bool) {
	var must []string
	for i := range all {
		c := &all[i]
		if c.op != "eq" && c.op != "in" || len(c.values) > maxMatched {
			continue
		}
		any := make([]string, 0, len(c.values))
		hasNumber := false
		for _, v := range c.values {
			words := wordsOf(v)
			if len(words) == 0 {
				any = nil
				break
			}
			hasNumber = hasNumber || v.Kind() == '0'
			for i, word := range words {
				words[i] = `"` + spaceMark(space) + word + `"`
			}
			any = append(any, "("+strings.Join(words, " AND ")+")")
		}
		if len(any) > 0 {
			must, numbers = append(must, "("+strings.Join(any, " OR ")+")"), numbers || hasNumber
		}
	}
	return strings.Join(must, " AND "), numbers
}

const (
	maxMatched    = 32 // a condition with more values is not looked up in the index
	maxMatchWords = 8  // words of each value that are looked up
)

// wordsOf returns words that every text with the value contains, however the value is written there,
// except for numbers with an exponent. It returns nil unless the value is an ASCII string or a whole number.
func wordsOf(v jsontext.Value) (words []string) {
	text := string(v)
	switch v.Kind() {
	case '0':
		text = strings.TrimSuffix(text, ".0")
		if strings.ContainsAny(text, ".eE") {
			return nil
		}
	case '"':
		raw, err := jsontext.AppendUnquote(nil, v)
		if err != nil || bytes.ContainsFunc(raw, func(r rune) bool { return r >= utf8.RuneSelf }) {
			return nil
		}
		text = string(raw)
	default:
		return nil
	}
	for word := range embed.Words(text) {
		if len(words) == maxMatchWords {
			break
		}
		words = append(words, word)
	}
	return words
}

// meets reports whether a content meets all conditions.
func meets(content jsontext.Value, all []condition) bool {
	for i := range all {
		if !all[i].holds(content) {
			return false
		}
	}
	return true
}

func (c *condition) holds(content jsontext.Value) bool {
	value, exists := lookup(content, c.path)
	if c.op == "exists" {
		return exists == (c.values[0].Kind() == 't')
	}
	if !exists {
		return c.op == "ne"
	}
	switch c.op {
	case "eq", "ne", "in":
		return slices.ContainsFunc(c.values, func(one jsontext.Value) bool {
			return equal(value,
				one)
		}) == (c.op != "ne")
	}
	if value.Kind() != c.values[0].Kind() {
		return false
	}
	order := compareValues(value, c.values[0])
	switch c.op {
	case "gt":
		return order > 0
	case "gte":
		return order >= 0
	case "lt":
		return order < 0
	}
	return order <= 0
}

// lookup returns the value at a path. A step is the name of a member or the number of an element.
func lookup(content jsontext.Value, path []string) (jsontext.Value, bool) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(content), jsontext.AllowDuplicateNames(true))
	for _, step := range path {
		open, err := dec.ReadToken()
		if err != nil {
			return nil, false
		}
		place := 0
		if open.Kind() == '[' {
			if place, err = strconv.Atoi(step); err != nil || place < 0 || strconv.Itoa(place) != step {
				return nil, false
			}
		}
		if !enter(dec, open.Kind(), step, place) {
			return nil, false
		}
	}
	value, err := dec.ReadValue()
	return value, err == nil
}

// enter moves dec to the member name of the opened object, or to the element at place of the opened
// list. It reports whether that exists.
func enter(dec *jsontext.Decoder, open jsontext.Kind, name string, place int) bool {
	for ; ; place-- {
		switch next := dec.PeekKind(); {
		case open == '{' && next == '"':
			token, err := dec.ReadToken()
			if err != nil || token.String() == name {
				return err == nil
			}
		case open != '[' || next == ']' || next == 0:
			return false
		case place == 0:
			return true
		}
		if dec.SkipValue() != nil {
			return false
		}
	}
}

// equal reports whether a value equals other, which is in comparableForm. Values of different types are
// never equal.
func equal(value, other jsontext.Value) bool {
	if value.Kind() != other.Kind() {
		return false
	}
	return compareValues(value, other) == 0
}

// compareValues orders a value of a content and other, a value of the same kind in comparableForm: numbers
// by all their digits, other values by their text.
func compareValues(value, other jsontext.Value) int {
	if value.Kind() == '0' {
		return protocol.CompareNumbers(string(value), string(other))
	}
	if value.Kind() == '"' {
		a, errA := jsontext.AppendUnquote(nil, value)
		b, errB := jsontext.AppendUnquote(nil, other)
		if errA == nil && errB == nil {
			return bytes.Compare(a, b)
		}
	}
	form, err := comparableForm(value)
	if err != nil {
		form = value
	}
	return bytes.Compare(form, other)
}
