package jmes

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/jmespath-community/go-jmespath/pkg/functions"
	"github.com/jmespath-community/go-jmespath/pkg/parsing"
)

// function is a function that expressions may call.
type function struct {
	name string
	args []functions.ArgSpec
	lib  functions.JpFunction                      // the library's
	own  func(m *machine, args []any) (any, error) // ours; nil = lib is used
	cost func(args []any) (bytes, steps int)       // of lib; nil = the usual one, see pay
}

// table returns the functions by name.
func table() map[string]*function {
	all := make(map[string]*function)
	for _, f := range functions.GetDefaultFunctions() {
		all[f.Name] = &function{name: f.Name, args: f.Arguments, lib: f.Handler}
	}
	for name, own := range ownFunctions() {
		all[name].own = own
	}
	for name, cost := range costs() {
		all[name].cost = cost
	}
	return all
}

func (f *function) variadic() bool { return len(f.args) > 0 && f.args[len(f.args)-1].Variadic }

// spec returns the types that argument i may have.
func (f *function) spec(i int) functions.ArgSpec { return f.args[min(i, len(f.args)-1)] }

func (f *function) takes(i int, t functions.JpType) bool { return slices.Contains(f.spec(i).Types, t) }

// arity returns an error if the function does not take n arguments.
func (f *function) arity(n int) error {
	least := 0
	for _, a := range f.args {
		if !a.Optional {
			least++
		}
	}
	switch {
	case n < least && f.variadic():
		return fmt.Errorf("gives %s() %d arguments; it takes %d or more", f.name, n, least)
	case n < least || n > len(f.args) && !f.variadic():
		return fmt.Errorf("gives %s() %d arguments; it takes %s", f.name, n, counts(least, len(f.args)))
	}
	return nil
}

func counts(least, most int) string {
	if least == most {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// call calls a function with the values of its arguments.
func (m *machine) call(fn *function, kids []step, cur any) (any, error) {
	if err := m.spend(1); err != nil {
		return nil, err
	}
	args := make([]any, len(kids))
	for i, kid := range kids {
		v, err := kid(m, cur)
		if err != nil {
			return nil, err
		}
		if args[i], err = fn.argument(i, v); err != nil {
			return nil, err
		}
		if err := m.pay(v, fn.own == nil && fn.cost == nil); err != nil {
			return nil, err
		}
	}
	if fn.own != nil {
		return fn.own(m, args)
	}
	if fn.cost != nil {
		bytes, steps := fn.cost(args)
		if err := cmp.Or(m.build(bytes), m.spend(steps)); err != nil {
			return nil, err
		}
	}
	v, err := fn.lib(args)
	if err != nil {
		err = fmt.Errorf("%s(): %.200s", fn.name, err.Error())
	}
	return v, err
}

// pay counts the cost of an argument: a function looks at all of it, and a function of the library builds
// at most as much again.
func (m *machine) pay(v any, builds bool) error {
	var steps, bytes int
	switch v := v.(type) {
	case string:
		steps, bytes = len(v)/16, 4*len(v)
	case []any:
		steps, bytes = len(v), cellBytes*len(v)
	case map[string]any:
		steps, bytes = len(v), entryBytes*len(v)
	}
	if builds {
		if err := m.build(bytes); err != nil {
			return err
		}
	}
	return m.spend(steps)
}

// ordering returns how many steps it takes to sort count texts of size bytes together.
func ordering(count, size int) int { return size / 64 * bits.Len(uint(count)) }

// argument checks one argument and returns it as the function takes it: functions of the library take a
// float64, ours keep a Number.
func (f *function) argument(i int, v any) (any, error) {
	spec := f.spec(i)
	for _, t := range spec.Types {
		if fits, ok := converted(t, v); ok {
			if f.own != nil {
				return v, nil
			}
			return fits, nil
		}
	}
	var names []string
	for _, t := range spec.Types {
		names = append(names, string(t))
	}
	return nil, fmt.Errorf("gives %s() %s as argument %d; it takes %s", f.name, TypeName(v), i+1,
		strings.Join(names, " or "))
}

func converted(t functions.JpType, v any) (fits any, ok bool) {
	switch t {
	case functions.JpAny:
		_, ref := v.(functions.ExpRef)
		return v, !ref
	case functions.JpNumber:
		return toFloat(v)
	case functions.JpString:
		_, ok = v.(string)
	case functions.JpArray:
		_, ok = v.([]any)
	case functions.JpObject:
		_, ok = v.(map[string]any)
	case functions.JpExpref:
		_, ok = v.(functions.ExpRef)
	default:
		if list, isList := v.([]any); isList {
			return convertedList(t, list)
		}
	}
	return v, ok
}

// elementTypes has the types of the elements of lists. It does not change.
var elementTypes = map[functions.JpType]functions.JpType{
	functions.JpArrayString: functions.JpString, functions.JpArrayArray: functions.JpArray,
	functions.JpArrayNumber: functions.JpNumber,
}

// convertedList checks the elements of a list, and converts each Number of a list of numbers.
func convertedList(t functions.JpType, list []any) (any, bool) {
	copied := false
	for i, el := range list {
		fits, ok := converted(elementTypes[t], el)
		if !ok {
			return nil, false
		}
		if _, exact := el.(Number); exact {
			if !copied {
				list, copied = slices.Clone(list), true
			}
			list[i] = fits
		}
	}
	return list, true
}

// TypeName names the JSON type of a value.
func TypeName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case float64, Number:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "an expression"
}

// compare returns the result of a comparison. Only numbers have an order; others compare as nil.
func (m *machine) compare(tok parsing.TokType, left, right any) (any, error) {
	if tok == parsing.TOKEQ || tok == parsing.TOKNE {
		same, err := m.equal(left, right)
		return same == (tok == parsing.TOKEQ), err
	}
	if !isNumber(left) || !isNumber(right) {
		return nil, nil
	}
	switch order := compareNumbers(left, right); tok {
	case parsing.TOKGT:
		return order > 0, nil
	case parsing.TOKGTE:
		return order >= 0, nil
	case parsing.TOKLT:
		return order < 0, nil
	default:
		return order <= 0, nil
	}
}

// equal reports whether two values are the same JSON. Each pair costs a step, as a part that a value
// contains many times could otherwise take very long.
func (m *machine) equal(left, right any) (bool, error) {
	if err := m.spend(1); err != nil {
		return false, err
	}
	switch a := left.(type) {
	case nil:
		return right == nil, nil
	case bool:
		b, ok := right.(bool)
		return ok && a == b, nil
	case string:
		b, ok := right.(string)
		return ok && a == b, m.spend(len(a) / 64)
	case float64, Number:
		return isNumber(right) && compareNumbers(left, right) == 0, nil
	case []any:
		b, ok := right.([]any)
		if !ok || len(a) != len(b) {
			return false, nil
		}
		for i := range a {
			if same, err := m.equal(a[i], b[i]); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	case map[string]any:
		b, ok := right.(map[string]any)
		if !ok || len(a) != len(b) {
			return false, nil
		}
		for key, v := range a {
			other, there := b[key]
			if !there {
				return false, nil
			}
			if err := m.spend(len(key) / 64); err != nil {
				return false, err
			}
			if same, err := m.equal(v, other); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	return false, nil
}
