package jmes

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/jmespath-community/go-jmespath/pkg/functions"
	"github.com/jmespath-community/go-jmespath/pkg/parsing"
)

// Bounds of one evaluation.
const (
	maxSteps = 5_000_000 // a fraction of a second
	maxBytes = 32 << 20  // that it may build, about
	checkAt  = 1 << 12   // steps between two looks at the context
)

// What the parts of a value take in memory, about.
const (
	cellBytes  = 24 // an element of a list
	entryBytes = 64 // a member of an object
)

var (
	errSteps = errors.New("takes too many steps; compute less in one expression")
	errBytes = errors.New("builds a value that is too large; compute less in one expression")
)

// machine evaluates one expression once.
type machine struct {
	ctx   context.Context
	scope Scope
	vars  []any
	steps int // that are left
	bytes int // that are left
}

// spend counts n steps.
func (m *machine) spend(n int) error {
	before := m.steps
	if m.steps -= n; m.steps < 0 {
		return errSteps
	}
	if before/checkAt != m.steps/checkAt && m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	return nil
}

// build counts n bytes of a value.
func (m *machine) build(n int) error {
	if m.bytes -= n; n < 0 || m.bytes < 0 {
		return errBytes
	}
	return nil
}

// eval gives what a step makes of the current value.
func (m *machine) eval(s *step, cur any) (any, error) {
	if err := m.spend(1); err != nil {
		return nil, err
	}
	switch s.op {
	case opMember:
		v, _ := m.scope.Member(s.name)
		return v, nil
	case opOutput:
		return m.output(s.name), nil
	case opAll:
		all := m.scope.All()
		return all, m.build(len(all) * entryBytes)
	case opCurrent:
		return cur, nil
	case opField:
		object, _ := cur.(map[string]any)
		return object[s.name], nil
	case opIndex:
		return index(cur, s.n), nil
	case opSlice:
		return m.slice(cur, s.bounds)
	case opLiteral:
		return s.val, nil
	case opVariable:
		return m.vars[s.n], nil
	case opLet:
		return m.let(s, cur)
	case opList:
		return m.list(s, cur)
	case opHash:
		return m.hash(s, cur)
	case opCall:
		return m.call(s, cur)
	case opRef:
		return functions.ExpRef(func(v any) (any, error) { return m.eval(s.kids[0], v) }), nil
	}
	left, err := m.eval(s.kids[0], cur)
	if err != nil {
		return nil, err
	}
	return m.after(s, cur, left)
}

// after gives what a step makes of the value of its first part.
func (m *machine) after(s *step, cur, left any) (any, error) {
	switch s.op {
	case opSub:
		if left == nil {
			return nil, nil
		}
		return m.eval(s.kids[1], left)
	case opPipe:
		return m.eval(s.kids[1], left)
	case opOr:
		if Truthy(left) {
			return left, nil
		}
		return m.eval(s.kids[1], cur)
	case opAnd:
		if !Truthy(left) {
			return left, nil
		}
		return m.eval(s.kids[1], cur)
	case opNot:
		return !Truthy(left), nil
	case opCompare, opArith:
		right, err := m.eval(s.kids[1], cur)
		if err != nil {
			return nil, err
		}
		if s.op == opCompare {
			return m.compare(s.tok, left, right)
		}
		return arithmetic(s.tok, left, right)
	case opSign:
		n, ok := toFloat(left)
		switch {
		case !ok:
			return nil, nil
		case s.tok == parsing.TOKMinus:
			return -n, nil
		}
		return n, nil
	case opProject, opText, opFilter:
		return m.project(s, left)
	case opValues:
		return m.values(s, left)
	case opFlatten:
		return m.flatten(left)
	}
	return nil, errors.New("has a step that is not understood")
}

// output gives NAME.output: a member of what the node gave, else that itself.
func (m *machine) output(name string) any {
	v, own := m.scope.Member(name)
	object, isObject := v.(map[string]any)
	if member, ok := object["output"]; ok || !own {
		return member
	} else if isObject || v != nil {
		return v
	}
	return nil
}

func (m *machine) let(s *step, cur any) (any, error) {
	last := len(s.kids) - 1
	for i, kid := range s.kids[:last] {
		v, err := m.eval(kid, cur)
		if err != nil {
			return nil, err
		}
		m.vars[s.n+i] = v
	}
	return m.eval(s.kids[last], cur)
}

// Truthy tells whether a value counts as true: everything but null, false, and an empty
// text, list or object.
func Truthy(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

func index(v any, i int) any {
	list, _ := v.([]any)
	if i < 0 {
		i += len(list)
	}
	if i < 0 || i >= len(list) {
		return nil
	}
	return list[i]
}

// slice gives a part of a list, or of the characters of a text.
func (m *machine) slice(v any, bounds [3]*int) (any, error) {
	switch v := v.(type) {
	case []any:
		from, to, step := sliceBounds(len(v), bounds)
		return m.pick(from, to, step, func(i int) any { return v[i] })
	case string:
		if err := m.build(4 * len(v)); err != nil {
			return nil, err
		}
		runes := []rune(v)
		from, to, step := sliceBounds(len(runes), bounds)
		part := []rune{}
		for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
			part = append(part, runes[i])
		}
		return string(part), m.spend(len(runes) / 8)
	}
	return nil, nil
}

func (m *machine) pick(from, to, step int, at func(int) any) (any, error) {
	part := []any{}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		part = append(part, at(i))
	}
	if err := m.build(len(part) * cellBytes); err != nil {
		return nil, err
	}
	return part, m.spend(len(part) / 8)
}

// sliceBounds gives where a slice begins, where it ends, and its step, as Python has it.
func sliceBounds(length int, bounds [3]*int) (from, to, step int) {
	step = 1
	if bounds[2] != nil {
		step = max(min(*bounds[2], length+1), -length-1) // so that adding it never overflows
	}
	least, most := 0, length
	if from, to = 0, length; step < 0 {
		least, most = -1, length-1
		from, to = length-1, -1
	}
	within := func(i int) int {
		if i < 0 {
			i += length
		}
		return max(least, min(i, most))
	}
	if bounds[0] != nil {
		from = within(*bounds[0])
	}
	if bounds[1] != nil {
		to = within(*bounds[1])
	}
	return from, to, step
}

func (m *machine) list(s *step, cur any) (any, error) {
	list := make([]any, 0, len(s.kids))
	for _, kid := range s.kids {
		v, err := m.eval(kid, cur)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, m.build(len(list)*cellBytes + cellBytes)
}

func (m *machine) hash(s *step, cur any) (any, error) {
	object := make(map[string]any, len(s.kids))
	for i, kid := range s.kids {
		v, err := m.eval(kid, cur)
		if err != nil {
			return nil, err
		}
		object[s.keys[i]] = v
	}
	return object, m.build(len(object)*entryBytes + entryBytes)
}

// project applies the second part to the elements of a list, for a filter to those for
// which the third part is true, and leaves out what is null.
func (m *machine) project(s *step, left any) (any, error) {
	all, ok := left.([]any)
	if !ok {
		if text, isText := left.(string); isText && s.op == opText {
			return text, nil
		}
		return nil, nil
	}
	list := []any{}
	for _, el := range all {
		if s.op == opFilter {
			keep, err := m.eval(s.kids[2], el)
			if err != nil {
				return nil, err
			}
			if !Truthy(keep) {
				continue
			}
		}
		v, err := m.eval(s.kids[1], el)
		if err != nil {
			return nil, err
		}
		if v != nil {
			list = append(list, v)
		}
		if err := m.build(cellBytes); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// values applies the second part to the members of an object, in the order of their keys.
func (m *machine) values(s *step, left any) (any, error) {
	object, ok := left.(map[string]any)
	if !ok {
		return nil, nil
	}
	keys, err := m.sortedKeys(object)
	if err != nil {
		return nil, err
	}
	list := []any{}
	for _, key := range keys {
		v, err := m.eval(s.kids[1], object[key])
		if err != nil {
			return nil, err
		}
		if v != nil {
			list = append(list, v)
		}
	}
	return list, nil
}

// sortedKeys gives the keys of an object; a list of its members is paid for with them.
func (m *machine) sortedKeys(object map[string]any) ([]string, error) {
	if err := m.build(len(object) * 2 * cellBytes); err != nil {
		return nil, err
	}
	size := 0
	for key := range object {
		size += len(key)
	}
	if err := m.order(len(object), size); err != nil {
		return nil, err
	}
	if err := m.spend(len(object)); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(object)), nil
}

func (m *machine) flatten(left any) (any, error) {
	all, ok := left.([]any)
	if !ok {
		return nil, nil
	}
	flat := []any{}
	for _, el := range all {
		n := 1
		if inner, ok := el.([]any); ok {
			n = len(inner)
			if err := m.build(n * cellBytes); err != nil {
				return nil, err
			}
			flat = append(flat, inner...)
		} else {
			flat = append(flat, el)
		}
		if err := m.spend(1 + n/8); err != nil {
			return nil, err
		}
		if err := m.build(cellBytes); err != nil {
			return nil, err
		}
	}
	return flat, nil
}

// arithmetic computes with numbers; anything else gives null.
func arithmetic(tok parsing.TokType, left, right any) (any, error) {
	a, okA := toFloat(left)
	b, okB := toFloat(right)
	if !okA || !okB {
		return nil, nil
	}
	var n float64
	switch tok {
	case parsing.TOKPlus:
		n = a + b
	case parsing.TOKMinus:
		n = a - b
	case parsing.TOKStar, parsing.TOKMultiply:
		n = a * b
	case parsing.TOKDivide:
		n = a / b
	case parsing.TOKModulo:
		n = math.Mod(a, b)
	case parsing.TOKDiv:
		n = math.Floor(a / b)
	}
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, errors.New("computes a number that JSON does not have; perhaps it divides by zero")
	}
	return n, nil
}
