package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"a2e/host/schema"
)

// What a value of each kind must be, for messages.
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
	switch v.Kind() {
	case reflect.String:
		if s, ok := d.textOf(n, path, rules); ok && d.allowed(n, s, path, rules) {
			v.SetString(s)
			if rules.Get("secret") != "" {
				d.secrets.Add(lastKey(path), s)
			}
		}
	case reflect.Bool:
		if text, ok := d.literal(n, path, wantBool); ok {
			b, known := booleans(text)
			if !known {
				d.wrong(n, path, wantBool)
			}
			v.SetBool(b)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		var i int64
		unit := unitOf(lastKey(path))
		parse := func(s string) (f float64, err error) {
			if i, err = strconv.ParseInt(unit.digits(s), 0, 64); err == nil && v.OverflowInt(i) {
				err = strconv.ErrRange
			}
			return float64(i), err
		}
		if d.number(n, path, cmp.Or(unit.want, wantWhole), rules, parse) {
			v.SetInt(i)
		}
	case reflect.Float32, reflect.Float64:
		var f float64
		unit := unitOf(lastKey(path))
		parse := func(s string) (_ float64, err error) { f, err = finite(unit.digits(s)); return f, err }
		if d.number(n, path, cmp.Or(unit.want, wantNumber), rules, parse) {
			v.SetFloat(f)
		}
	default:
		d.fail(n, "%s cannot be set: its Go type %s is not supported", path, v.Type())
	}
}

// number reads n with parse and checks the min and max rules.
func (d *decoder) number(n *node, path, want string, rules reflect.StructTag, parse func(string) (float64, error)) bool {
	text, ok := d.literal(n, path, want)
	if !ok {
		return false
	}
	f, err := parse(text)
	lowest, hasMin := bound(rules, "min")
	highest, hasMax := bound(rules, "max")
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
	default:
		return true
	}
	return false
}

func bound(rules reflect.StructTag, name string) (float64, bool) {
	f, err := strconv.ParseFloat(rules.Get(name), 64)
	return f, err == nil
}

// literal returns the text of a number or boolean: written without quotes, or a variable.
func (d *decoder) literal(n *node, path, want string) (text string, ok bool) {
	if n.Kind != scalar || n.Null() {
		d.wrong(n, path, want)
		return "", false
	}
	text, changed, ok := d.expanded(n, path, "")
	if ok && !changed && !n.Plain {
		d.fail(n, "%s must be %s, without quotes", path, want)
		return "", false
	}
	return text, ok
}

// textOf returns a text. A bare number or boolean is refused: it may not mean
// what it looks like (0123, true).
func (d *decoder) textOf(n *node, path string, rules reflect.StructTag) (string, bool) {
	if n.Kind != scalar || n.Null() {
		d.wrong(n, path, wantText)
		return "", false
	}
	text, changed, ok := d.expanded(n, path, rules)
	if name, is := strings.CutPrefix(n.Text, "$"); is && n.Plain && isVariable(name) {
		d.fail(n, "%s: a variable is written ${%s}; put %s in quotes if it is meant as it stands", path, name, n.Text)
		return "", false
	}
	if ok && !changed && n.Tag != "!!str" && n.Tag != "!!timestamp" {
		d.wrong(n, path, wantText+" in quotes")
		return "", false
	}
	return text, ok
}

// expanded puts variables in. What they hold is secret, but for fields whose rules say
// that they are for everybody to see.
func (d *decoder) expanded(n *node, path string, rules reflect.StructTag) (text string, changed, ok bool) {
	if d.getenv == nil { // a file without variables
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

// allowed checks the enum rule.
func (d *decoder) allowed(n *node, s, path string, rules reflect.StructTag) bool {
	enum := rules.Get("enum")
	if enum == "" {
		return true
	}
	values := strings.Split(enum, ",")
	for _, v := range values {
		if s == v {
			return true
		}
	}
	hint := ""
	if isName(n.Text) { // not what a variable holds
		if hint = schema.DidYouMean(n.Text, values); hint != "" {
			hint = ": " + hint
		}
	}
	d.fail(n, "%s must be one of %s%s", path, strings.Join(values, ", "), hint)
	return false
}

// duration takes a number of seconds, or a text such as 1m30s.
func (d *decoder) duration(n *node, v reflect.Value, path string) {
	if n.Kind != scalar || n.Null() {
		d.wrong(n, path, wantDuration)
		return
	}
	text, _, ok := d.expanded(n, path, "")
	if !ok {
		return
	}
	if seconds, err := finite(text); err == nil && math.Abs(seconds) < math.MaxInt64/float64(time.Second) {
		v.SetInt(int64(seconds * float64(time.Second)))
	} else if t, parseErr := time.ParseDuration(text); parseErr == nil {
		v.SetInt(int64(t))
	} else if err == nil {
		d.fail(n, "%s: the number is too large", path)
	} else {
		d.wrong(n, path, wantDuration)
	}
}

// any returns the value that the file shows: nil, bool, int64, uint64, float64,
// string, []any or map[string]any.
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
	tag := n.Tag
	if changed && n.Plain {
		tag = tagOf(text)
	}
	return bare(text, tag)
}

// tagOf returns the YAML type of a bare text that a variable made.
func tagOf(text string) string {
	if text == "true" || text == "false" {
		return "!!bool"
	}
	if _, err := finite(text); err == nil {
		return "!!int" // bare takes a fraction for what it is
	}
	return "!!str"
}

// bare reads a scalar by its YAML type; what fits no Go number stays a text.
func bare(text, tag string) any {
	switch tag {
	case "!!null":
		return nil
	case "!!bool":
		b, _ := booleans(text)
		return b
	case "!!int":
		if i, err := strconv.ParseInt(text, 0, 64); err == nil {
			return i
		}
		if u, err := strconv.ParseUint(text, 0, 64); err == nil {
			return u
		}
	}
	if tag == "!!int" || tag == "!!float" {
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

// unit is what a number counts, for people who write 10MB or 1m30s.
type unit struct {
	want   string                    // for messages; "" = a bare number
	number func(text string) float64 // of a text with a unit; NaN = it has none that is known
}

// unitOf returns the unit of a key, which its name tells.
func unitOf(key string) unit {
	switch {
	case strings.HasSuffix(key, "_bytes"):
		return unit{wantBytes, bytesOf}
	case key == "timeout", strings.HasSuffix(key, "_timeout"), strings.HasSuffix(key, "_seconds"):
		return unit{wantDuration, secondsOf}
	}
	return unit{}
}

// digits returns a text with a unit as the bare number that it stands for; other texts stay.
func (u unit) digits(text string) string {
	if u.number != nil {
		if f := u.number(text); !math.IsNaN(f) {
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
	}
	return text
}

// bytesOf reads a size: kB, MB, GB and TB count by 1000, KiB, MiB, GiB and TiB by 1024.
func bytesOf(text string) float64 {
	text, ok := strings.CutSuffix(strings.ToUpper(strings.TrimSpace(text)), "B")
	base := 1000.0
	if binary, is := strings.CutSuffix(text, "I"); is {
		text, base = binary, 1024
	}
	if !ok || text == "" {
		return math.NaN()
	}
	power := strings.IndexByte("KMGT", text[len(text)-1]) + 1
	f, err := finite(strings.TrimSpace(text[:len(text)-1]))
	if power == 0 || err != nil {
		return math.NaN()
	}
	return f * math.Pow(base, float64(power))
}

func secondsOf(text string) float64 {
	t, err := time.ParseDuration(text)
	if err != nil || t == 0 {
		return math.NaN()
	}
	return t.Seconds()
}
