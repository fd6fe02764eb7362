package config

import (
	"reflect"
	"slices"
)

// Rule says when a value that an untrusted file gives for a key only tightens. A key
// without a rule never does. The rules of the host's own keys are in topRules, those of
// options come with Source.Tighten.
type Rule struct {
	// take returns the value to hold, made of the one that holds and the one that is given;
	// all is false where what is given would widen something, in whole or, with inPart, in
	// part: then v counts all the same.
	take   func(base *Config, held, given reflect.Value) (v reflect.Value, all bool)
	inPart bool
	// settle returns the value of a key that the file does not name; nil = it stays.
	settle func(base *Config, held reflect.Value) reflect.Value
}

// Lower takes a number above 0 that is not above the one that holds. Where that one is 0
// or less, it stands for usual, or for no bound where usual is 0 as well.
func Lower(usual float64) Rule {
	return LowerThan(func(*Config) float64 { return usual })
}

// LowerThan is Lower with a usual number that depends on the rest of the config.
func LowerThan(usual func(base *Config) float64) Rule {
	return Rule{take: func(base *Config, held, given reflect.Value) (reflect.Value, bool) {
		bound, n := numberOf(held), numberOf(given)
		if bound <= 0 {
			bound = usual(base)
		}
		return given, n > 0 && (bound <= 0 || n <= bound)
	}}
}

// LowerOrNone is Lower for a number of which 0 is the tightest.
func LowerOrNone() Rule {
	return Rule{take: func(_ *Config, held, given reflect.Value) (reflect.Value, bool) {
		return given, numberOf(given) >= 0 && numberOf(given) <= numberOf(held)
	}}
}

func numberOf(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanFloat():
		return v.Float()
	}
	return 0
}

// Only takes a boolean of this value.
func Only(tight bool) Rule {
	return Rule{take: func(_ *Config, _, given reflect.Value) (reflect.Value, bool) { return given, given.Bool() == tight }}
}

// Ordered takes one of some texts, listed from the loosest to the tightest, that does not
// stand before the one that holds.
func Ordered(values ...string) Rule {
	return Rule{take: func(_ *Config, held, given reflect.Value) (reflect.Value, bool) {
		before, after := slices.Index(values, held.String()), slices.Index(values, given.String())
		return given, before >= 0 && after >= before
	}}
}

// Longer adds texts to a list of what is denied. valid reports whether a text can stand there.
func Longer(valid func(base *Config, text string) bool) Rule {
	return Rule{inPart: true, take: func(base *Config, held, given reflect.Value) (reflect.Value, bool) {
		old, more := held.Interface().([]string), given.Interface().([]string)
		added := slices.DeleteFunc(slices.Clone(more), func(s string) bool { return !valid(base, s) })
		if len(added) == 0 {
			return held, false
		}
		return reflect.ValueOf(slices.Concat(old, added)), len(added) == len(more)
	}}
}

// Within takes of a list of what is allowed the texts that were allowed before. A list that
// holds as nil stands for that of inherited, or for usual where that is nil as well.
func Within(inherited func(base *Config) []string, usual []string) Rule {
	return Rule{
		inPart: true,
		take: func(base *Config, held, given reflect.Value) (reflect.Value, bool) {
			allowed := held.Interface().([]string)
			if allowed == nil {
				allowed = inherited(base)
			}
			if allowed == nil {
				allowed = usual
			}
			both, all := []string{}, true
			for _, name := range given.Interface().([]string) {
				if slices.Contains(allowed, name) {
					both = append(both, name)
				} else {
					all = false
				}
			}
			return reflect.ValueOf(both), all
		},
		// The plugin that it is inherited from may be switched off.
		settle: func(base *Config, held reflect.Value) reflect.Value {
			if list := inherited(base); held.IsNil() && list != nil {
				return reflect.ValueOf(list)
			}
			return held
		},
	}
}

// Inherited takes nothing. It writes down a text that others of the plugins set, as they may
// be switched off.
func Inherited(inherited func(base *Config) string) Rule {
	return Rule{settle: func(base *Config, held reflect.Value) reflect.Value {
		if text := inherited(base); text != "" {
			return reflect.ValueOf(text)
		}
		return held
	}}
}

// firstToken takes a token where none is asked for so far: the user's own is not replaced
// by one that the folder knows.
func firstToken() Rule {
	return Rule{take: func(_ *Config, held, given reflect.Value) (reflect.Value, bool) {
		return given, held.Interface().(Secret).Reveal() == "" && given.Interface().(Secret).Reveal() != ""
	}}
}

// topRules are those of the host's own keys. What bounds how long records are kept is
// not among them: less of that destroys the user's.
func topRules() map[string]Rule {
	return map[string]Rule{
		"auth_token":              firstToken(),
		"max_parallel":            Lower(0),
		"limits.max_line_bytes":   Lower(0),
		"limits.max_queue":        Lower(0),
		"limits.max_queue_bytes":  Lower(0),
		"limits.max_output_bytes": Lower(0),
		"fleet.max_tasks":         Lower(0),
		"sandbox":                 Ordered("off", "best_effort", "", "required"), // "" = required for skills, best_effort for the rest
		"children.memory_bytes":   Lower(4 << 30),                                // the least default
		"children.address_bytes":  Lower(0),
		"children.file_bytes":     Lower(2 << 30),
		"children.open_files":     Lower(16384),
		"children.processes":      Lower(1024),
		"children.cpu_seconds":    Lower(0),
		"children.disk_bytes":     Lower(8 << 30),
	}
}
