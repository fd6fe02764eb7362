package config

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Pair is a name with a text.
type Pair struct{ Name, Value string }

// ServerEntry is an MCP server as a config names it: a command, or a URL.
type ServerEntry struct {
	Command []string
	Env     []Pair
	Read    []string // further paths that it may read
	URL     string
	Headers []Pair
}

// Options returns the entry, under its id, as options of the plugin for MCP servers.
func (e *ServerEntry) Options(id string, getenv func(string) string) (Options, error) {
	return ParseOptions("", []byte("mcpServers:\n  "+id+":\n"+e.block(4)), getenv)
}

// parts lists the keys of the entry, with the value of each on one line, or its pairs.
func (e *ServerEntry) parts(scalar func(string) string, do func(key, value string, pairs []Pair)) {
	if len(e.Command) > 0 {
		do("command", scalar(e.Command[0]), nil)
	}
	listed := func(words []string) string {
		all := make([]string, len(words))
		for i, word := range words {
			all[i] = scalar(word)
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	if len(e.Command) > 1 {
		do("args", listed(e.Command[1:]), nil)
	}
	if len(e.Read) > 0 {
		do("read", listed(e.Read), nil)
	}
	if len(e.Env) > 0 {
		do("env", "", e.Env)
	}
	if e.URL != "" {
		do("url", scalar(e.URL), nil)
	}
	if len(e.Headers) > 0 {
		do("headers", "", e.Headers)
	}
}

// block writes the entry as lines of YAML below its id, indented by that many spaces.
func (e *ServerEntry) block(indent int) string {
	var b strings.Builder
	before := strings.Repeat(" ", indent)
	e.parts(Scalar, func(key, value string, pairs []Pair) {
		b.WriteString(strings.TrimRight(before+key+": "+value, " ") + "\n")
		for _, p := range pairs {
			b.WriteString(before + "  " + Scalar(p.Name) + ": " + Scalar(p.Value) + "\n")
		}
	})
	return b.String()
}

// flow writes the entry on one line, with its id.
func (e *ServerEntry) flow(id string, scalar func(string) string) string {
	var all []string
	e.parts(scalar, func(key, value string, pairs []Pair) {
		if pairs != nil {
			inner := make([]string, len(pairs))
			for i, p := range pairs {
				inner[i] = scalar(p.Name) + ": " + scalar(p.Value)
			}
			value = "{" + strings.Join(inner, ", ") + "}"
		}
		all = append(all, scalar(key)+": "+value)
	})
	return scalar(id) + ": {" + strings.Join(all, ", ") + "}"
}

// Scalar writes a text so that YAML reads that text, in any place.
func Scalar(text string) string {
	plain := regexp.MustCompile(`^[A-Za-z_./$-][A-Za-z0-9_./@+=$-]*$`).MatchString(text)
	if doc, problems := parse("", []byte("["+text+"]")); plain && problems == nil && len(doc.items) == 1 {
		if read := doc.items[0]; read.tag == "!!str" && read.text == text {
			return text
		}
	}
	if variable := regexp.MustCompile(`^\$\{[A-Za-z_][A-Za-z0-9_]*\}$`); variable.MatchString(text) {
		return `"` + text + `"`
	}
	return quote(text)
}

// quote writes a text so that YAML and JSON read it.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff ||
			r >= utf8.RuneError && r <= 0xffff: // which YAML takes escaped only
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + `"`
}
