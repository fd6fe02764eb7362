package fleet

import (
	"slices"
	"strconv"
	"strings"
)

// InlineHeading is the first line of a brief that carries fields of its dispatch as text.
const InlineHeading = "TASK DISPATCH (inline)"

// ReadInline takes the hints out of a brief that begins with InlineHeading: the lines
// `key: value` up to the first empty one. A field of the message itself wins. What is no hint
// stays in the brief.
func (d *Dispatch) ReadInline() {
	first, rest, _ := strings.Cut(strings.TrimSpace(d.Brief), "\n")
	if !strings.EqualFold(strings.Trim(first, " \t\r#*:-"), InlineHeading) {
		return
	}
	lines := strings.Split(rest, "\n")
	end := slices.IndexFunc(lines, func(line string) bool { return strings.TrimSpace(line) == "" })
	if end < 0 {
		end = len(lines)
	}
	hints := slices.DeleteFunc(slices.Clone(lines[:end]), func(line string) bool {
		key, value, ok := strings.Cut(strings.Trim(line, " \t\r-*"), ":")
		return ok && d.hint(strings.NewReplacer(" ", "_", "-", "_", "*", "").Replace(strings.ToLower(key)), strings.Trim(value, " \t*`\""))
	})
	d.Brief = strings.TrimSpace(strings.Join(append(hints, lines[end:]...), "\n"))
}

// hint takes one hint; false = it is none.
func (d *Dispatch) hint(key, value string) bool {
	t, need := &d.Task, &d.Requirements
	word := strings.ToLower(value)
	switch key {
	case "task_id":
		return keep(&t.TaskID, value, value != "")
	case "priority":
		return keep(&t.Priority, Priority(word), slices.Contains([]Priority{PriorityLow, PriorityNormal, PriorityHigh, PriorityUrgent}, Priority(word)))
	case "reply_schema":
		return keep(&t.ReplySchema, ReplySchema(word), slices.Contains([]ReplySchema{ReplyProse, ReplyStructured, ReplyJSON}, ReplySchema(word)))
	case "token_budget":
		n, err := strconv.Atoi(strings.NewReplacer(",", "", "_", "", " tokens", "").Replace(word))
		return keep(&t.TokenBudget, n, err == nil && n >= 0)
	case "deadline":
		_, _, err := (&Dispatch{Deadline: value}).DeadlineTime()
		return keep(&d.Deadline, value, err == nil && value != "")
	case "required_mcp":
		return keepList(&need.RequiredMCP, value)
	case "required_capabilities":
		return keepList(&need.RequiredCapabilities, value)
	}
	return false
}

// keep sets a field that is not set, to a value that fits.
func keep[T comparable](field *T, value T, fits bool) bool {
	var none T
	if fits && *field == none {
		*field = value
	}
	return fits
}

// keepList sets a list that is empty, of names with commas between them.
func keepList(field *[]string, value string) bool {
	names := strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(", []\"'`", r) })
	if len(*field) == 0 && !slices.Equal(names, []string{"none"}) {
		*field = names
	}
	return true
}
