package jmes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jmespath-community/go-jmespath/pkg/functions"
	"github.com/jmespath-community/go-jmespath/pkg/parsing"
)

// Bounds of one evaluation.
const (
	maxSteps = 5_000_000 // a fraction of a second
	maxBytes = 32 << 20  // about what it may build
	checkAt  = 1 << 12   // steps between two looks at the context
)

// About how many bytes the parts of a value take in memory.
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
	steps int // left of maxSteps
	bytes int // left of maxBytes
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

// build counts n bytes of a new value.
func (m *machine) build(n int) error {
	if m.bytes -= n; n < 0 || m.bytes < 0 {
		return errBytes
	}
	return nil
}

// combined returns the step of a node that computes with the values of its children.
func combined(n *parsing.ASTNode, kids []step) (step, error) {
	text := false
	switch n.NodeType {
	case parsing.ASTMultiSelectList:
		return func(m *machine, cur any) (any, error) { return m.list(kids, cur) }, nil
	case parsing.ASTMultiSelectHash:
		return func(m *machine, cur any) (any, error) { return m.hash(n, kids, cur) }, nil
	case parsing.ASTExpRef:
		return func(m *machine, _ any) (any, error) {
			return functions.ExpRef(func(v any) (any, error) { return kids[0](m, v) }), m.spend(1)
		}, nil
	case parsing.ASTProjection: // after a slice, a text stays a text
		left := n.Children[0]
		text = left.NodeType == parsing.ASTIndexExpression && left.Children[1].NodeType == parsing.ASTSlice
	case parsing.ASTOrExpression, parsing.ASTAndExpression, parsing.ASTNotExpression, parsing.ASTComparator,
		parsing.ASTArithmeticExpression,
		parsing.ASTArithmeticUnaryExpression, parsing.ASTFilterProjection, parsing.ASTValueProjection,
		parsing.ASTFlatten:
	default:
		return nil, fmt.Errorf("has a part that is not understood: %s", n.NodeType)
	}
	return func(m *machine, cur any) (any, error) {
		if err := m.spend(1); err != nil {
			return nil, err
		}
		left, err := kids[0](m, cur)
		if err != nil {
			return nil, err
		}
		switch n.NodeType {
		case parsing.ASTProjection, parsing.ASTFilterProjection:
			return m.project(kids, left, text)
		case parsing.ASTValueProjection:
			return m.values(kids[1], left)
		case parsing.ASTFlatten:
			return m.flatten(left)
		}
		return m.operate(n, kids, cur, left)
	}, nil
}

// operate returns the value of an operator whose left side is known.
func (m *machine) operate(n *parsing.ASTNode, kids []step, cur, left any) (any, error) {
	switch n.NodeType {
	case parsing.ASTNotExpression:
		return !Truthy(left), nil
	case parsing.ASTArithmeticUnaryExpression:
		if !isNumber(left) {
			return nil, nil
		}
		if n.Value.(parsing.TokType) == parsing.TOKMinus {
			return negated(left), nil
		}
		return left, nil
	case parsing.ASTOrExpression, parsing.ASTAndExpression:
		if Truthy(left) == (n.NodeType == parsing.ASTOrExpression) {
			return left, nil
		}
		return kids[1](m, cur)
	}
	right, err := kids[1](m, cur)
	if err != nil {
		return nil, err
	}
	if n.NodeType == parsing.ASTComparator {
		return m.compare(n.Value.(parsing.TokType), left, right)
	}
	return arithmetic(n.Value.(parsing.TokType), left, right)
}

// output returns NAME.output: the member output of what the node returned, or else that itself.
func (m *machine) output(name string) any {
	v, own := m.scope.Member(name)
	object, _ := v.(map[string]any)
	if member, ok := object["output"]; ok || !own {
		return member
	}
	return v
}

// Truthy reports whether a value counts as true: everything but null, false, and an empty
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

// slice returns a part of a list, or of the characters of a text.
func (m *machine) slice(v any, bounds [3]*int) (any, error) {
	if err := m.spend(1); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case []any:
		part := sliceOf(v, bounds)
		return part, cmp.Or(m.build(len(part)*cellBytes), m.spend(len(part)/8))
	case string:
		if err := m.build(4 * len(v)); err != nil {
			return nil, err
		}
		runes := []rune(v)
		return string(sliceOf(runes, bounds)), m.spend(len(runes) / 8)
	}
	return nil, nil
}

// sliceOf returns the part of a list between bounds.
func sliceOf[E any](all []E, bounds [3]*int) []E {
	from, to, step := sliceBounds(len(all), bounds)
	part := []E{}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		part = append(part, all[i])
	}
	return part
}

// sliceBounds returns where a slice begins, where it ends, and its step, by the rules of Python.
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

func (m *machine) list(kids []step, cur any) (any, error) {
	list := make([]any, 0, len(kids))
	for _, kid := range kids {
		v, err := kid(m, cur)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, cmp.Or(m.spend(1), m.build(len(list)*cellBytes+cellBytes))
}

func (m *machine) hash(n *parsing.ASTNode, kids []step, cur any) (any, error) {
	object := make(map[string]any, len(kids))
	for i, kid := range kids {
		v, err := kid(m, cur)
		if err != nil {
			return nil, err
		}
		object[n.Children[i].Value.(string)] = v
	}
	return object, cmp.Or(m.spend(1), m.build(len(object)*entryBytes+entryBytes))
}

// project applies kids[1] to the elements of a list and leaves out null results. For a filter, kids[2]
// selects the elements. text = a text is returned unchanged.
func (m *machine) project(kids []step, left any, text bool) (any, error) {
	all, ok := left.([]any)
	if !ok {
		if _, isText := left.(string); isText && text {
			return left, nil
		}
		return nil, nil
	}
	list := []any{}
	for _, el := range all {
		if len(kids) > 2 {
			keep, err := kids[2](m, el)
			if err != nil {
				return nil, err
			}
			if !Truthy(keep) {
				continue
			}
		}
		v, err := kids[1](m, el)
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

// values applies right to the members of an object, in the order of their keys, and leaves out null
// results.
func (m *machine) values(right step, left any) (any, error) {
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
		v, err := right(m, object[key])
		if err != nil {
			return nil, err
		}
		if v != nil {
			list = append(list, v)
		}
	}
	return list, nil
}

// sortedKeys returns the keys of an object in order. It also counts the memory for a list of the members.
func (m *machine) sortedKeys(object map[string]any) ([]string, error) {
	if err := m.build(len(object) * 2 * cellBytes); err != nil {
		return nil, err
	}
	size := 0
	for key := range object {
		size += len(key)
	}
	if err := m.spend(ordering(len(object), size) + len(object)); err != nil {
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
		inner, isList := el.([]any)
		if err := cmp.Or(m.build((1+len(inner))*cellBytes), m.spend(1+len(inner)/8)); err != nil {
			return nil, err
		}
		if flat = append(flat, inner...); !isList {
			flat = append(flat, el)
		}
	}
	return flat, nil
}
