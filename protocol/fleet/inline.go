package fleet

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// InlineHeading is the line of a brief after which fields of its dispatch follow as text.
const InlineHeading = "TASK DISPATCH (inline)"

// ReadInline moves the fields of the inline form from the brief into d: the lines `key: value` between
// InlineHeading, on a separate line, and the next empty line. A field of the message itself has priority.
// Lines that are not fields stay in the brief, and so does the text before the heading. The error
// names each field that cannot be understood; the brief then stays unchanged.
func (d *Dispatch) ReadInline() error {
	lines := strings.Split(strings.ReplaceAll(d.Brief, "\r\n", "\n"), "\n")
	at := headingIn(lines)
	if at < 0 {
		return nil
	}
	p := inline{d: d, given: make(map[string]bool), rest: lines[at+1:]}
	text := strings.TrimSpace(strings.Join(p.read(), "\n"))
	if len(p.wrong) > 0 {
		return errors.New("the inline dispatch cannot be understood: " + strings.Join(p.wrong, "; "))
	}
	d.Brief = strings.TrimSpace(strings.TrimSpace(strings.Join(lines[:at], "\n")) + "\n\n" + text)
	return nil
}

// headingIn returns the index of the first heading, or -1 if there is none. It ignores fenced text.
func headingIn(lines []string) int {
	fenced := false
	return slices.IndexFunc(lines, func(line string) bool {
		if isFence(line) {
			fenced = !fenced
		}
		return !fenced && strings.EqualFold(strings.Trim(line, " \t#*:-"), InlineHeading)
	})
}

func isFence(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "```") }

// inline reads the fields of one brief.
type inline struct {
	d     *Dispatch
	rest  []string // the lines that are not read yet
	given map[string]bool
	wrong []string // what is wrong with the fields
}

// read reads the fields, and returns the lines of the brief: those that are not fields, and all lines
// after the fields.
func (p *inline) read() (brief []string) {
	if next := slices.IndexFunc(p.rest, isText); next > 0 && (isFence(p.rest[next]) || isField(p.rest[next])) {
		p.rest = p.rest[next:]
	}
	fenced := len(p.rest) > 0 && isFence(p.rest[0])
	if fenced {
		p.rest = p.rest[1:]
	}
	for len(p.rest) > 0 {
		line := p.rest[0]
		switch {
		case fenced && isFence(line):
			p.rest = p.rest[1:]
			return append(brief, p.body()...)
		case !isText(line) && !fenced, labelled(line) && !fenced:
			return append(brief, p.body()...)
		}
		p.rest = p.rest[1:]
		if !p.field(line) {
			brief = append(brief, line)
		}
	}
	return brief
}

func isText(line string) bool { return strings.TrimSpace(line) != "" }

// isField reports whether a line has a field of the inline form or the name of a section.
func isField(line string) bool {
	key, value, ok := split(line)
	return ok && (slices.Contains(inlineKeys, key) || value == "" && slices.Contains(inlineSections, key))
}

// label matches the key of the text after the fields ("brief:"), which a YAML block marker may follow.
var label = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)^[ \t#*-]*brief[ \t]*\**[ \t]*:[ \t]*\**[ \t]*([|>][-+]?[ \t]*$)?`)
})

func labelled(line string) bool { return label().MatchString(line) }

// body returns the remaining lines without a label at their beginning. It removes the common indentation of a
// block.
func (p *inline) body() []string {
	at := slices.IndexFunc(p.rest, isText)
	if at < 0 {
		return nil
	}
	if !labelled(p.rest[at]) {
		return append([]string{""}, p.rest[at:]...)
	}
	first, body := label().ReplaceAllString(p.rest[at], ""), p.rest[at+1:]
	if first == "" {
		indent := commonIndent(body)
		body = slices.Clone(body)
		for i := range body {
			body[i] = strings.TrimPrefix(body[i], indent)
		}
	}
	return append([]string{"", first}, body...)
}

// commonIndent returns the indentation that all lines except empty ones have in common.
func commonIndent(lines []string) string {
	indent, seen := "", false
	for _, line := range lines {
		if !isText(line) {
			continue
		}
		own := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		if !seen {
			indent, seen = own, true
		}
		for !strings.HasPrefix(own, indent) {
			indent = indent[:len(indent)-1]
		}
	}
	return indent
}

// inlineKeys are the fields of the inline form; inlineSections may appear above them, as in the
// message. notInline are fields that only the message itself may have.
var (
	inlineKeys = []string{
		"protocol_version", "task_id", "priority", "reply_schema", "token_budget", "deadline",
		"required_mcp", "required_capabilities",
	}
	inlineSections = []string{"task", "requirements"}
	notInline      = []string{"isolation", "writes", "auth_token", "agent"}
)

// fieldName matches the form of a field's name, unlike prose before a colon.
var fieldName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`) })

// split returns the key of a line in the protocol's spelling, and its value.
func split(line string) (key, value string, ok bool) {
	key, value, ok = strings.Cut(strings.Trim(line, " \t-*"), ":")
	key = strings.TrimSpace(strings.ToLower(strings.Trim(key, "*`\"'")))
	if plain := strings.NewReplacer(" ", "_", "-", "_", "*", "").Replace(key); slices.Contains(inlineKeys, plain) {
		key = plain
	}
	return key, strings.TrimSpace(value), ok
}

// field reads one line, and the further lines of its value. It reports whether the line is a field.
func (p *inline) field(line string) bool {
	key, value, ok := split(line)
	switch {
	case !ok:
		return false
	case slices.Contains(inlineSections, key) && value == "":
		return true
	case slices.Contains(notInline, key):
		p.fail("%s is not a field of the inline form; set it in the message itself", key)
		return true
	case !slices.Contains(inlineKeys, key):
		if near := nearest(key); near != "" {
			p.fail("%.64q is not known; did you mean %s?", key, near)
		} else if fieldName().MatchString(key) {
			p.fail("%.64q is not known; there are %s", key, strings.Join(inlineKeys, ", "))
		} else {
			return false
		}
		return true
	case p.given[key]:
		p.fail("%s is given twice", key)
		return true
	}
	p.given[key] = true
	switch key {
	case "required_mcp":
		p.list(key, value, &p.d.Requirements.RequiredMCP)
	case "required_capabilities":
		p.list(key, value, &p.d.Requirements.RequiredCapabilities)
	default:
		p.scalar(key, value)
	}
	return true
}

func (p *inline) fail(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// scalar reads a value of one line. It ignores an empty value.
func (p *inline) scalar(key, value string) {
	if key != "task_id" {
		value = uncommented(value)
	}
	value = strings.Trim(value, " \t*`\"'")
	word := strings.ToLower(value)
	if value == "" || slices.Contains([]string{"null", "~"}, word) {
		return
	}
	t, own := Dispatch{}, &p.d.Task
	switch key {
	case "protocol_version":
		if p.d.ProtocolVersion == "" {
			p.d.ProtocolVersion = value
		}
		if !Speaks(value) {
			p.fail("%s", WrongVersion(value))
		}
		return
	case "task_id":
		t.Task.TaskID = value
	case "priority":
		t.Task.Priority = Priority(word)
	case "reply_schema":
		t.Task.ReplySchema = ReplySchema(word)
	case "token_budget":
		n, err := strconv.Atoi(strings.NewReplacer(",", "", "_", "", " tokens", "").Replace(word))
		if err != nil && word != "none" {
			p.fail("token_budget is %.32q; should be a whole number", value)
		}
		t.Task.TokenBudget = n
	case "deadline":
		if word == "none" {
			return
		}
		t.Deadline = value
	}
	_, _, err := t.DeadlineTime()
	if fault := t.Check(); fault != nil {
		p.fail("%s %s", key, fault.Message)
	} else if err != nil {
		p.fail("deadline %.64q is not an RFC 3339 time, such as 2026-11-21T15:04:05Z", value)
	}
	if len(p.wrong) > 0 && key != "task_id" { // the id is kept for the result of the refused task
		return
	}
	keep(&own.TaskID, t.Task.TaskID)
	keep(&own.Priority, t.Task.Priority)
	keep(&own.ReplySchema, t.Task.ReplySchema)
	keep(&own.TokenBudget, t.Task.TokenBudget)
	keep(&p.d.Deadline, t.Deadline)
}

// keep sets a field unless it has a value already.
func keep[T comparable](field *T, value T) {
	var none T
	if *field == none {
		*field = value
	}
}

// list reads names: separated by commas, in brackets, which may span several lines, or
// as the items of a YAML list on the following lines.
func (p *inline) list(key, value string, field *[]string) {
	value = uncommented(value)
	open := func() bool { return strings.HasPrefix(value, "[") && !strings.Contains(value, "]") }
	for open() && len(p.rest) > 0 && isText(p.rest[0]) && !isField(p.rest[0]) {
		value += " " + uncommented(p.rest[0])
		p.rest = p.rest[1:]
	}
	for items := value == ""; items && len(p.rest) > 0 && isItem(p.rest[0]); p.rest = p.rest[1:] {
		value += "," + uncommented(strings.TrimLeft(p.rest[0], " \t-*"))
	}
	halved := strings.HasPrefix(value, "[") != strings.HasSuffix(value, "]")
	if halved || strings.ContainsAny(value, "{}") || strings.Contains(value+" ", ": ") {
		p.fail("%s is %.64q; should be names with commas between them, or a list of names", key, value)
		return
	}
	names := strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(", []\"'`*", r) })
	if len(names) == 1 && slices.Contains([]string{"none", "null", "~"}, strings.ToLower(names[0])) {
		names = nil
	}
	if len(*field) == 0 {
		*field = names
	}
}

// isItem reports whether a line is an item of a list, and not another field with a bullet.
func isItem(line string) bool {
	text := strings.TrimLeft(line, " \t")
	marked := strings.HasPrefix(text, "- ") || strings.HasPrefix(text, "* ")
	return marked && !isField(line) && !labelled(line)
}

// uncommented returns a value without a YAML comment at its end.
func uncommented(value string) string {
	value, _, _ = strings.Cut(value, " #")
	return strings.TrimSpace(value)
}

// nearest returns the field that differs from a key by one typing error; "" = none.
func nearest(key string) string {
	at := slices.IndexFunc(inlineKeys, func(known string) bool {
		a, b := key, known
		for a != "" && b != "" && a[0] == b[0] {
			a, b = a[1:], b[1:]
		}
		for a != "" && b != "" && a[len(a)-1] == b[len(b)-1] {
			a, b = a[:len(a)-1], b[:len(b)-1]
		}
		return len(a) <= 1 && len(b) <= 1 || len(a) == 2 && len(b) == 2 && a[0] == b[1] && a[1] == b[0]
	})
	if at < 0 {
		return ""
	}
	return inlineKeys[at]
}
