package jmes

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/jmespath-community/go-jmespath/pkg/functions"
)

// ownFunctions returns the functions for which the library uses random order, does not know Number, or has
// a cost that shows only while it runs.
func ownFunctions() map[string]func(*machine, []any) (any, error) {
	return map[string]func(*machine, []any) (any, error){
		"contains": contains, "type": typeOf, "to_string": toString, "to_number": toNumber,
		"keys":     members(0, func(key string, _ any) any { return key }),
		"values":   members(0, func(_ string, v any) any { return v }),
		"items":    members(3*cellBytes, func(key string, v any) any { return []any{key, v} }),
		"group_by": groupBy,
		"sort":     byKey("sort", inOrder), "sort_by": byKey("sort_by", inOrder),
		"max": byKey("max", largest), "max_by": byKey("max_by", largest),
		"min": byKey("min", smallest), "min_by": byKey("min_by", smallest),
		"sum": sum, "avg": average,
		"abs":   func(_ *machine, args []any) (any, error) { return absolute(args[0]), nil },
		"ceil":  func(_ *machine, args []any) (any, error) { return rounded(args[0], math.Ceil), nil },
		"floor": func(_ *machine, args []any) (any, error) { return rounded(args[0], math.Floor), nil },
	}
}

func contains(m *machine, args []any) (any, error) {
	if text, ok := args[0].(string); ok {
		part, ok := args[1].(string)
		return ok && strings.Contains(text, part), nil
	}
	for _, el := range args[0].([]any) {
		if same, err := m.equal(el, args[1]); same || err != nil {
			return same, err
		}
	}
	return false, nil
}

func typeOf(_ *machine, args []any) (any, error) { return TypeName(args[0]), nil }

func toString(m *machine, args []any) (any, error) {
	if text, ok := args[0].(string); ok {
		return text, nil
	}
	raw, err := Append(nil, args[0], m.bytes)
	if errors.Is(err, ErrTooLarge) {
		return nil, errBytes
	}
	if err != nil {
		return nil, fmt.Errorf("to_string(): %w", err)
	}
	if err := m.spend(len(raw) / 8); err != nil {
		return nil, err
	}
	return string(raw), m.build(len(raw))
}

func toNumber(_ *machine, args []any) (any, error) {
	switch v := args[0].(type) {
	case float64, Number:
		return v, nil
	case string:
		if isJSONNumber(v) {
			return parseNumber(v), nil
		}
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || n-n != 0 { // JSON has neither NaN nor infinities
			return nil, nil
		}
		return n, nil
	}
	return nil, nil
}

// members returns a function that lists pick of each member of an object; bytes is the memory for one
// result.
func members(bytes int, pick func(key string, v any) any) func(*machine, []any) (any, error) {
	return func(m *machine, args []any) (any, error) {
		object := args[0].(map[string]any)
		sorted, err := m.sortedKeys(object)
		if err == nil {
			err = m.build(len(sorted) * bytes)
		}
		if err != nil {
			return nil, err
		}
		list := make([]any, len(sorted))
		for i, key := range sorted {
			list[i] = pick(key, object[key])
		}
		return list, nil
	}
}

// groupBy returns null for an empty list, as the library does.
func groupBy(m *machine, args []any) (any, error) {
	list, by := args[0].([]any), args[1].(functions.ExpRef)
	if len(list) == 0 {
		return nil, nil
	}
	if err := m.build(len(list) * (entryBytes + cellBytes)); err != nil {
		return nil, err
	}
	lists := map[string][]any{}
	for _, el := range list {
		v, err := by(el)
		if err != nil {
			return nil, err
		}
		key, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("group_by(): the expression gives %s; it should be a string", TypeName(v))
		}
		lists[key] = append(lists[key], el)
		if err := m.spend(len(key) / 64); err != nil {
			return nil, err
		}
	}
	groups := make(map[string]any, len(lists))
	for key, group := range lists {
		groups[key] = group
	}
	return groups, nil
}

// keyed is an element with the key that orders it.
type keyed struct {
	el   any
	text string // "" where the key is a number
	n    any    // nil where the key is a text
}

// byKey returns a function that passes the elements of a list to pick, with the keys that order them.
func byKey(name string, pick func([]keyed) any) func(*machine, []any) (any, error) {
	return func(m *machine, args []any) (any, error) {
		all, err := keyedBy(m, name, args)
		if err != nil {
			return nil, err
		}
		return pick(all), nil
	}
}

// keyedBy returns the elements with their keys, all texts or all numbers. Without an expression in args, each
// element is its own key.
func keyedBy(m *machine, name string, args []any) ([]keyed, error) {
	list, by := args[0].([]any), functions.ExpRef(func(v any) (any, error) { return v, nil })
	if len(args) > 1 {
		by = args[1].(functions.ExpRef)
	}
	if err := m.build(len(list) * 3 * cellBytes); err != nil {
		return nil, err
	}
	all := make([]keyed, len(list))
	numbers, size := 0, 0
	for i, el := range list {
		v, err := by(el)
		if err != nil {
			return nil, err
		}
		all[i].el = el
		text, isText := v.(string)
		if isNumber(v) {
			numbers++
			all[i].n = v
		}
		if !isText && !isNumber(v) || numbers != 0 && numbers != i+1 {
			return nil, fmt.Errorf("%s(): the expression gives %s for element %d; it should give only strings or "+
				"only numbers", name, TypeName(v), i)
		}
		all[i].text = text
		size += len(text)
	}
	return all, m.spend(ordering(len(all), size) + len(all)*4)
}

func (k keyed) compare(other keyed) int {
	if k.n != nil && other.n != nil {
		return compareNumbers(k.n, other.n)
	}
	return strings.Compare(k.text, other.text)
}

// inOrder returns the elements in the order of their keys; it sorts all in place.
func inOrder(all []keyed) any {
	slices.SortStableFunc(all, keyed.compare)
	list := make([]any, len(all))
	for i, k := range all {
		list[i] = k.el
	}
	return list
}

// largest returns the first of the elements with the largest key; nil = all is empty.
func largest(all []keyed) any {
	if len(all) == 0 {
		return nil
	}
	return slices.MaxFunc(all, keyed.compare).el
}

// smallest returns the first of the elements with the smallest key; nil = all is empty.
func smallest(all []keyed) any {
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, keyed.compare).el
}

// costs returns, for functions of the library, how many bytes they build and how many steps they take
// besides a look at each argument. Other functions are taken to build their arguments again.
func costs() map[string]func(args []any) (bytes, steps int) {
	trimmed := func(args []any) (bytes, steps int) { // each character is compared with those to trim
		if text := args[0].(string); len(args) > 1 {
			return len(text), len(text) / 64 * len(args[1].(string))
		}
		return 0, 0
	}
	padded := func(args []any) (bytes, steps int) {
		width := atMost(args, 1, 1<<40)
		return max(width, len(args[0].(string))), width / 16
	}
	return map[string]func(args []any) (bytes, steps int){
		"trim": trimmed, "trim_left": trimmed, "trim_right": trimmed,
		"pad_left": padded, "pad_right": padded,
		"join": func(args []any) (bytes, steps int) {
			list := args[1].([]any)
			bytes = len(args[0].(string))*len(list) + textBytes(list)
			return bytes, bytes / 16
		},
		"replace": func(args []any) (bytes, steps int) {
			text := args[0].(string)
			bytes = len(text) + atMost(args, 3, strings.Count(text, args[1].(string)))*len(args[2].(string))
			return bytes, bytes / 16
		},
		"split": func(args []any) (bytes, steps int) {
			parts := atMost(args, 2, strings.Count(args[0].(string), args[1].(string))) + 1
			return parts * 3 * cellBytes, parts
		},
		"from_items": func(args []any) (bytes, steps int) {
			for _, el := range args[0].([]any) {
				if pair := el.([]any); len(pair) > 0 {
					key, _ := pair[0].(string)
					steps += len(key) / 64
				}
				bytes += entryBytes
			}
			return bytes, steps
		},
	}
}

// textBytes returns the total length of the texts in a list.
func textBytes(list []any) (n int) {
	for _, el := range list {
		text, _ := el.(string)
		n += len(text)
	}
	return n
}

// atMost returns argument i as an integer from 0 to most, or most if there is no argument i.
func atMost(args []any, i, most int) int {
	if i >= len(args) {
		return most
	}
	return int(max(0, min(args[i].(float64), float64(most))))
}
