package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"a2e/host/schema"
)

// What a value of each type must be, for messages.
const (
	wantText     = "a string"
	wantBool     = "true or false"
	wantWhole    = "a whole number"
	wantNumber   = "a number"
	wantDuration = "a number of seconds, or a duration such as 1m30s"
	wantBytes    = "a number of bytes, or a size such as 10MB or 16MiB"
)

var errNotFinite = errors.New("not a finite number")

func (d *decoder) scalar(n *node, v reflect.Value, path string, rules reflect.StructTag) {
	switch {
	case v.Kind() == reflect.String:
		if s, ok := d.text(n, path, wantText, rules); ok && d.allowed(n, s, path, rules) {
			v.SetString(s)
			if rules.Get("secret") != "" {
				d.secrets.Add(lastKey(path), s)
			}
		}
	case v.Kind() == reflect.Bool:
		if text, ok := d.text(n, path, wantBool, rules); ok {
			b, known := booleans(text)
			if !known {
				d.wrong(n, path, wantBool)
			}
			v.SetBool(b)
		}
	case v.CanInt() || v.CanFloat():
		d.number(n, v, path, rules)
	default:
		d.fail(n, "%s cannot be set: its Go type %s is not supported", path, v.Type())
	}
}

// number decodes a number, or a duration, within the limits of the rules.
func (d *decoder) number(n *node, v reflect.Value, path string, rules reflect.StructTag) {
	want := wantOf(lastKey(path), v.Type())
	text, ok := d.text(n, path, want, rules)
	if !ok {
		return
	}
	whole, f, err := numberOf(text, want, v)
	lowest, hasMin := bound(rules, "min")
	highest, hasMax := bound(rules, "max")
	least, _ := bound(rules, "least")
	switch {
	case errors.Is(err, strconv.ErrRange):
		d.fail(n, "%s: the number is too large", path)
	case errors.Is(err, errNotFinite), err != nil && strings.HasSuffix(strings.ToLower(n.Text), "inf"):
		d.fail(n, "%s must be a finite number", path)
	case err != nil && n.Tag == "!!float":
		d.fail(n, "%s must be %s, not a fraction", path, want)
	case err != nil:
		d.wrong(n, path, want)
	case hasMin && hasMax && (f < lowest || f > highest):
		d.fail(n, "%s must be between %s and %s", path, rules.Get("min"), rules.Get("max"))
	case hasMin && f < lowest:
		d.fail(n, "%s must be at least %s", path, rules.Get("min"))
	case hasMax && f > highest:
		d.fail(n, "%s must be at most %s", path, rules.Get("max"))
	case f > 0 && f < least:
		d.fail(n, "%s must be %s or more, 0 for the default, or -1 for no bound", path, rules.Get("least"))
	case v.CanFloat():
		v.SetFloat(f)
	default:
		v.SetInt(whole)
	}
}

func bound(rules reflect.StructTag, name string) (float64, bool) {
	f, err := strconv.ParseFloat(rules.Get(name), 64)
	return f, err == nil
}

// text returns the text of a scalar that must be what want says. A string must not look like a number
// or a boolean, since its meaning may differ from its look (0123, true). Other values must not be in
// quotes, unless they may have a unit.
func (d *decoder) text(n *node, path, want string, rules reflect.StructTag) (string, bool) {
	if n.Kind != scalar || n.Null() {
		d.wrong(n, path, want)
		return "", false
	}
	text, changed, ok := d.expanded(n, path, rules)
	name, dollar := strings.CutPrefix(n.Text, "$")
	switch isText := want == wantText; {
	case !ok:
	case isText && dollar && n.Plain && isVariable(name):
		d.fail(n, "%s: a variable is written ${%s}; put %s in quotes if it is meant as it stands", path, name, n.Text)
	case isText && !changed && n.Tag != "!!str" && n.Tag != "!!timestamp":
		d.wrong(n, path, wantText+" in quotes")
	case isText && text == "" && rules.Get("filled") != "":
		d.fail(n, "%s must not be empty", path)
	case !isText && !changed && !n.Plain && !hasUnit(want):
		d.fail(n, "%s must be %s, without quotes", path, want)
	default:
		return text, true
	}
	return "", false
}

// expanded replaces the variables in n. Their values are secret, unless the rules say that the field
// may be shown.
func (d *decoder) expanded(n *node, path string, rules reflect.StructTag) (text string, changed, ok bool) {
	if d.getenv == nil { // variables are not replaced
		return n.Text, false, true
	}
	text, changed, err := expand(n.Text, func(name string) string {
		value := d.getenv(name)
		if rules.Get("shown") == "" {
			d.secrets.Add(name, value)
		}
		return value
	})
	if err != nil {
		d.fail(n, "%s: %s", path, err)
	}
	return text, changed, err == nil
}

// allowed checks the rule enum.
func (d *decoder) allowed(n *node, s, path string, rules reflect.StructTag) bool {
	enum := rules.Get("enum")
	if enum == "" {
		return true
	}
	values := strings.Split(enum, ",")
	if slices.Contains(values, s) {
		return true
	}
	hint := ""
	if isName(n.Text) { // never the value of a variable
		hint = strings.TrimSuffix(": "+schema.DidYouMean(n.Text, values), ": ")
	}
	d.fail(n, "%s must be one of %s%s", path, strings.Join(values, ", "), hint)
	return false
}

// any returns the value of a node: nil, bool, int64, uint64, float64, string, []any or map[string]any.
func (d *decoder) any(n *node, path string) any {
	switch n.Kind {
	case mapping:
		out := make(map[string]any, len(n.Members))
		for _, m := range n.Members {
			out[m.Key] = d.any(m.Value, joined(path, shortKey(m.Key)))
		}
		return out
	case list:
		out := make([]any, len(n.Items))
		for i, item := range n.Items {
			out[i] = d.any(item, fmt.Sprintf("%s[%d]", path, i))
		}
		return out
	}
	text, changed, _ := d.expanded(n, path, "")
	if !changed || !n.Plain {
		return bare(text, n.Tag)
	}
	if _, err := finite(text); err == nil { // a text without quotes that a variable made
		return bare(text, "!!int")
	}
	if text == "true" || text == "false" {
		return text == "true"
	}
	return text
}

// bare converts a scalar by its YAML type. A number that fits no Go type stays a text.
func bare(text, tag string) any {
	switch tag {
	case "!!null":
		return nil
	case "!!bool":
		b, _ := booleans(text)
		return b
	case "!!int", "!!float":
		if i, err := strconv.ParseInt(text, 0, 64); err == nil {
			return i
		}
		if u, err := strconv.ParseUint(text, 0, 64); err == nil {
			return u
		}
		if f, err := finite(text); err == nil {
			return f
		}
	}
	return text
}

func finite(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err == nil && (math.IsInf(f, 0) || math.IsNaN(f)) {
		err = errNotFinite
	}
	return f, err
}

func booleans(text string) (b, known bool) {
	switch strings.ToLower(text) {
	case "true", "yes", "on":
		return true, true
	case "false", "no", "off":
		return false, true
	}
	return false, false
}

// wantOf returns what a number must be. Its key says whether it may have a unit, for people who write
// 10MB or 1m30s.
func wantOf(key string, t reflect.Type) string {
	switch {
	case strings.HasSuffix(key, "_bytes"):
		return wantBytes
	case t == durationType, key == "timeout", strings.HasSuffix(key, "_timeout"), strings.HasSuffix(key, "_seconds"):
		return wantDuration
	case t.Kind() == reflect.Float64, t.Kind() == reflect.Float32:
		return wantNumber
	}
	return wantWhole
}

func hasUnit(want string) bool { return want == wantBytes || want == wantDuration }

// numberOf parses a number for v: whole is the value for an integer or a duration, f the number of
// seconds, of bytes, or the number itself.
func numberOf(text, want string, v reflect.Value) (whole int64, f float64, err error) {
	if want == wantBytes {
		text = bytesOf(text)
	} else if t, err := time.ParseDuration(text); err == nil && want == wantDuration {
		text = strconv.FormatFloat(t.Seconds(), 'f', -1, 64)
	}
	switch {
	case v.Type() == durationType:
		if f, err = finite(text); err == nil && math.Abs(f) >= math.MaxInt64/float64(time.Second) {
			err = strconv.ErrRange
		}
		return int64(f * float64(time.Second)), f, err
	case v.CanFloat():
		f, err = finite(text)
		return 0, f, err
	}
	if whole, err = strconv.ParseInt(text, 0, 64); err == nil && v.OverflowInt(whole) {
		err = strconv.ErrRange
	}
	return whole, float64(whole), err
}

// bytesOf converts a size with a unit to a plain number: kB, MB, GB and TB are powers of 1000, KiB,
// MiB, GiB and TiB of 1024. Other texts are returned unchanged.
func bytesOf(text string) string {
	size, ok := strings.CutSuffix(strings.ToUpper(strings.TrimSpace(text)), "B")
	base := 1000.0
	if binary, is := strings.CutSuffix(size, "I"); is {
		size, base = binary, 1024
	}
	if !ok || size == "" {
		return text
	}
	power := strings.IndexByte("KMGT", size[len(size)-1]) + 1
	f, err := finite(strings.TrimSpace(size[:len(size)-1]))
	if power == 0 || err != nil {
		return text
	}
	return strconv.FormatFloat(f*math.Pow(base, float64(power)), 'f', -1, 64)
}
