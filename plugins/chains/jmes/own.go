package jmes

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jmespath-community/go-jmespath/pkg/functions"
)

// ownFunctions are those that the library does without a bound, in random order, or not
// for a Number.
func ownFunctions() map[string]func(*machine, []any) (any, error) {
	return map[string]func(*machine, []any) (any, error){
		"contains": contains, "type": typeOf, "to_string": toString, "to_number": toNumber,
		"keys":       members(0, func(key string, _ any) any { return key }),
		"values":     members(0, func(_ string, v any) any { return v }),
		"items":      members(3*cellBytes, func(key string, v any) any { return []any{key, v} }),
		"from_items": fromItems, "group_by": groupBy,
		"sort_by": sortBy,
		"max_by":  func(m *machine, args []any) (any, error) { return extremeBy(m, args, 1) },
		"min_by":  func(m *machine, args []any) (any, error) { return extremeBy(m, args, -1) },
		"join":    join, "replace": replace, "split": split,
		"pad_left":  func(m *machine, args []any) (any, error) { return pad(m, args, true) },
		"pad_right": func(m *machine, args []any) (any, error) { return pad(m, args, false) },
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
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || n-n != 0 { // NaN and infinities are no JSON
			return nil, nil
		}
		return n, nil
	}
	return nil, nil
}

// members lists what pick makes of each member of an object, which takes so many bytes.
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

func fromItems(m *machine, args []any) (any, error) {
	list := args[0].([]any)
	if err := m.build(len(list) * entryBytes); err != nil {
		return nil, err
	}
	object := make(map[string]any, len(list))
	for i, el := range list {
		pair := el.([]any)
		if len(pair) != 2 {
			return nil, fmt.Errorf("from_items(): element %d is no pair of a key and a value", i)
		}
		key, ok := pair[0].(string)
		if !ok {
			return nil, fmt.Errorf("from_items(): the key of element %d is %s; it should be a string", i, TypeName(pair[0]))
		}
		object[key] = pair[1]
		if err := m.spend(len(key) / 64); err != nil {
			return nil, err
		}
	}
	return object, nil
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

// keyed is an element and what it is ordered by.
type keyed struct {
	el   any
	text string
	n    float64
}

// keyedBy returns the elements with their keys, all texts or all numbers.
func keyedBy(m *machine, name string, args []any) ([]keyed, error) {
	list, by := args[0].([]any), args[1].(functions.ExpRef)
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
		n, isNumber := toFloat(v)
		if isNumber {
			numbers++
		}
		if !isText && !isNumber || numbers != 0 && numbers != i+1 {
			return nil, fmt.Errorf("%s(): the expression gives %s for element %d; it should give only strings or only numbers", name, TypeName(v), i)
		}
		all[i].text, all[i].n = text, n
		size += len(text)
	}
	if err := m.order(len(all), size); err != nil {
		return nil, err
	}
	return all, m.spend(len(all) * 4)
}

func (k keyed) compare(other keyed) int {
	return cmp.Or(cmp.Compare(k.n, other.n), strings.Compare(k.text, other.text))
}

func sortBy(m *machine, args []any) (any, error) {
	all, err := keyedBy(m, "sort_by", args)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, keyed.compare)
	list := make([]any, len(all))
	for i, k := range all {
		list[i] = k.el
	}
	return list, nil
}

// extremeBy returns the first of the elements with the largest key, or the smallest with
// sign -1.
func extremeBy(m *machine, args []any, sign int) (any, error) {
	name := map[int]string{1: "max_by", -1: "min_by"}[sign]
	all, err := keyedBy(m, name, args)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	best := all[0]
	for _, k := range all[1:] {
		if k.compare(best)*sign > 0 {
			best = k
		}
	}
	return best.el, nil
}

func join(m *machine, args []any) (any, error) {
	glue, list := args[0].(string), args[1].([]any)
	size := len(glue) * max(0, len(list)-1)
	for _, el := range list {
		size += len(el.(string))
	}
	if err := m.build(size); err != nil {
		return nil, err
	}
	texts := make([]string, len(list))
	for i, el := range list {
		texts[i] = el.(string)
	}
	return strings.Join(texts, glue), m.spend(size / 16)
}

func replace(m *machine, args []any) (any, error) {
	text, old, by := args[0].(string), args[1].(string), args[2].(string)
	times := strings.Count(text, old)
	if len(args) > 3 {
		n, ok := whole(args[3])
		if !ok {
			return nil, errors.New("replace(): the count should be an integer, 0 or more")
		}
		times = min(times, n)
	}
	if err := m.build(len(text) + times*len(by)); err != nil {
		return nil, err
	}
	return strings.Replace(text, old, by, times), m.spend((len(text) + times*len(by)) / 16)
}

func split(m *machine, args []any) (any, error) {
	text, by := args[0].(string), args[1].(string)
	if text == "" {
		return []any{}, nil
	}
	parts := strings.Count(text, by) + 1
	if len(args) > 2 {
		n, ok := whole(args[2])
		if !ok {
			return nil, errors.New("split(): the count should be an integer, 0 or more")
		}
		parts = min(parts, n+1)
	}
	if err := m.build(parts * 3 * cellBytes); err != nil {
		return nil, err
	}
	list := []any{}
	for _, part := range strings.SplitN(text, by, parts) {
		list = append(list, part)
	}
	return list, m.spend(parts)
}

// pad counts bytes, as the library does.
func pad(m *machine, args []any, left bool) (any, error) {
	text := args[0].(string)
	width, ok := whole(args[1])
	if !ok {
		return nil, errors.New("pad: the width should be an integer, 0 or more")
	}
	fill := " "
	if len(args) > 2 {
		if fill = args[2].(string); len(fill) != 1 {
			return nil, errors.New("pad: the text to pad with should be one character")
		}
	}
	missing := max(0, width-len(text))
	if err := m.build(len(text) + missing); err != nil {
		return nil, err
	}
	padding := strings.Repeat(fill, missing)
	if left {
		return padding + text, m.spend(missing / 16)
	}
	return text + padding, m.spend(missing / 16)
}

// whole returns an integer of 0 or more, that fits with room.
func whole(v any) (int, bool) {
	n := v.(float64)
	if n < 0 || n != float64(int64(n)) || n > 1<<40 {
		return 0, false
	}
	return int(n), true
}
