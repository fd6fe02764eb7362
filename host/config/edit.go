package config

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// editor changes a text of YAML by its places.
type editor struct {
	file string
	text []byte
	root *node
	at   []int // where each line begins

	scalar  func(string) string // writes a text in braces
	newline string
}

func newEditor(file string, text []byte) (*editor, error) {
	root, problems := parse(file, text)
	if len(problems) > 0 {
		return nil, problemsError(problems)
	}
	if root.kind != mapping {
		return nil, fmt.Errorf("%s: it should be a mapping of settings", file)
	}
	e := &editor{file: file, text: text, root: root, at: []int{0}, scalar: Scalar, newline: "\n"}
	if jsontext.Value(text).IsValid() {
		e.scalar = quote // others may read it as JSON
	}
	if i := bytes.IndexByte(text, '\n'); i > 0 && text[i-1] == '\r' {
		e.newline = "\r\n"
	}
	for i, c := range text {
		if c == '\n' {
			e.at = append(e.at, i+1)
		}
	}
	return e, nil
}

// offset returns where a place is in the text.
func (e *editor) offset(line, column int) int {
	at := e.at[min(line, len(e.at))-1]
	for ; column > 1 && at < len(e.text); column-- {
		_, n := utf8.DecodeRune(e.text[at:])
		at += n
	}
	return at
}

// isFlow reports whether a value is written in braces.
func (e *editor) isFlow(n *node) bool {
	at := e.offset(n.line, n.column)
	return at < len(e.text) && (e.text[at] == '{' || e.text[at] == '[')
}

// servers returns where the MCP servers stand: what holds them, and under which key; nil = nowhere.
func (e *editor) servers() (holder *node, key string, err error) {
	if e.root.at("mcpServers") != nil {
		return e.root, "mcpServers", nil
	}
	var options []*node
	switch all := e.root.at("plugins"); {
	case all == nil:
	case all.kind == mapping:
		for _, m := range all.members {
			if canonical(m.key) == "mcp" || m.value.at("type") != nil && canonical(m.value.at("type").text) == "mcp" {
				options = append(options, m.value)
			}
		}
	case all.kind == list:
		for _, item := range all.items {
			if typ := item.at("type"); typ != nil && canonical(typ.text) == "mcp" && item.at("metadata") != nil {
				options = append(options, item.at("metadata"))
			}
		}
	}
	for _, o := range options {
		if on, known := booleans(o.text); o.kind == scalar && known && !on {
			return nil, "", fmt.Errorf("%s:%d: the plugin mcp is switched off here; switch it on first", e.file, o.line)
		}
		for _, key := range []string{"mcpServers", "servers"} {
			if o.at(key) != nil {
				return o, key, nil
			}
		}
	}
	return nil, "", nil
}

// ServerNames lists the ids of the MCP servers that the text of a config has.
func ServerNames(file string, text []byte) ([]string, error) {
	e, err := newEditor(file, text)
	if err != nil {
		return nil, err
	}
	holder, key, err := e.servers()
	if err != nil || holder == nil {
		return nil, err
	}
	var names []string
	for _, m := range holder.at(key).members {
		names = append(names, m.key)
	}
	for _, item := range holder.at(key).items {
		for _, id := range []string{"server_id", "id"} {
			if n := item.at(id); n != nil {
				names = append(names, n.text)
			}
		}
	}
	return names, nil
}

// AddServer returns the text of a config with one more MCP server, everything else as it was.
// No server of it has the id yet.
func AddServer(file string, text []byte, id string, entry ServerEntry) ([]byte, error) {
	e, err := newEditor(file, text)
	if err != nil {
		return nil, err
	}
	holder, key, err := e.servers()
	if err != nil {
		return nil, err
	}
	edited := e.withServer(holder, key, id, entry)
	want := e.root
	if holder == nil {
		want = &node{kind: mapping, members: append(slices.Clone(e.root.members), member{key: "mcpServers", value: &node{kind: mapping}})}
		holder, key = want, "mcpServers"
	}
	return edited, e.verify(edited, want, holder, key, func(servers *node) {
		inner, _ := parse("", []byte(entry.block(0))) // it was written here
		if servers.null() {
			servers.text = ""
		}
		servers.kind, servers.members = mapping, append(slices.Clone(servers.members), member{key: id, value: inner})
	}, id+":\n"+entry.block(2))
}

// withServer puts the entry where servers stand.
func (e *editor) withServer(holder *node, key, id string, entry ServerEntry) []byte {
	name := Scalar(id)
	if holder == nil {
		end, before := len(bytes.TrimRight(e.text, " \t")), ""
		if end > 0 && e.text[end-1] != '\n' {
			before = "\n"
		}
		return e.splice(end, len(e.text), before+"mcpServers:\n  "+name+":\n"+entry.block(4))
	}
	all := holder.at(key)
	switch at := e.offset(all.line, all.column); {
	case all.kind == mapping && len(all.members) > 0 && e.isFlow(all):
		first, between := all.members[0], ", "
		if first.line > all.line {
			at, between = e.offset(first.line, first.column)-1, ",\n"+strings.Repeat(" ", first.column-1)
			if line := e.text[e.at[first.line-1] : at+1]; len(bytes.TrimLeft(line, " \t")) == 0 {
				between = ",\n" + string(line)
			}
		}
		return e.splice(at+1, at+1, entry.flow(id, e.scalar)+between)
	case all.kind == mapping && len(all.members) > 0:
		indent := all.members[0].column - 1
		end := e.endOf(holder, key, indent)
		before := ""
		if end > 0 && e.text[end-1] != '\n' {
			before = "\n"
		}
		return e.splice(end, end, before+strings.Repeat(" ", indent)+name+":\n"+entry.block(indent+2))
	}
	m := holder.members[slices.IndexFunc(holder.members, func(m member) bool { return m.key == key })]
	if e.isFlow(holder) {
		at := e.offset(all.line, all.column)
		return e.splice(at, e.afterEmpty(at), "{"+entry.flow(id, e.scalar)+"}")
	}
	at := e.offset(m.line, m.column)
	at += bytes.IndexByte(e.text[at:], ':') + 1
	indent := m.column + 1
	end := e.afterEmpty(at)
	rest := e.lineEnd(end)
	after := string(bytes.TrimRight(e.text[end:rest], " \t\r"))
	if after != "" {
		after = " " + strings.TrimLeft(after, " \t")
	}
	next := rest
	if next < len(e.text) {
		next++
	}
	return e.splice(at, next, after+"\n"+strings.Repeat(" ", indent)+name+":\n"+entry.block(indent+2))
}

// afterEmpty returns where an empty value ends that begins at or after a place: {}, null, ~ or
// nothing.
func (e *editor) afterEmpty(at int) int {
	found := regexp.MustCompile(`^[ \t]*(\{[ \t]*\}|null|~)`).FindIndex(e.text[at:])
	if found == nil {
		return at
	}
	return at + found[1]
}

// lineEnd returns where the line of a place ends.
func (e *editor) lineEnd(at int) int {
	if i := bytes.IndexByte(e.text[at:], '\n'); i >= 0 {
		return at + i
	}
	return len(e.text)
}

// splice replaces a part of the text.
func (e *editor) splice(from, to int, with string) []byte {
	return slices.Concat(e.text[:from], []byte(strings.ReplaceAll(with, "\n", e.newline)), e.text[to:])
}

// endOf returns where the lines of a mapping end that stands under a key, whose keys are indented
// by that much: what is blank, and comments further to the left, belong to what follows.
func (e *editor) endOf(holder *node, key string, indent int) int {
	line := len(e.at) + 1
	from := 0
	for _, m := range holder.members {
		if m.key == key {
			from = m.line
		}
	}
	e.root.each(func(line2, column int) {
		if line2 > from && column-1 < indent && line2 < line {
			line = line2
		}
	})
	return e.back(line, indent)
}

// each calls do with the places of all keys and items.
func (n *node) each(do func(line, column int)) {
	for _, m := range n.members {
		do(m.line, m.column)
		m.value.each(do)
	}
	for _, item := range n.items {
		do(item.line, item.column)
		item.each(do)
	}
}

// back returns the begin of a line, or of those before it that are blank or comments further to
// the left than indent.
func (e *editor) back(line, indent int) int {
	for ; line > 1; line-- {
		from := e.at[line-2]
		text := string(e.text[from:e.lineEnd(from)])
		trimmed := strings.TrimLeft(text, " \t")
		own := len(text)-len(trimmed) >= indent
		if strings.TrimSpace(text) != "" && !(strings.HasPrefix(trimmed, "#") && !own) {
			break
		}
	}
	if line > len(e.at) {
		return len(e.text)
	}
	return e.at[line-1]
}

// RemoveServer returns the text of a config without an MCP server, everything else as it was.
func RemoveServer(file string, text []byte, id string) ([]byte, error) {
	e, err := newEditor(file, text)
	if err != nil {
		return nil, err
	}
	holder, key, err := e.servers()
	if err != nil {
		return nil, err
	}
	all := holder.at(key)
	i := slices.IndexFunc(all.members, func(m member) bool { return m.key == id })
	if i < 0 {
		return nil, fmt.Errorf("%s:%d: the servers are a list here, which is not edited by this command; take %s out of it yourself", file, all.line, id)
	}
	return e.withoutServer(holder, key, i), e.verify(e.withoutServer(holder, key, i), e.root, holder, key, func(servers *node) {
		servers.members = slices.Delete(slices.Clone(servers.members), i, i+1)
	}, "")
}

// withoutServer takes the entry of that index out.
func (e *editor) withoutServer(holder *node, key string, i int) []byte {
	all := holder.at(key)
	m := all.members[i]
	from := e.offset(m.line, m.column)
	switch {
	case e.isFlow(all) && i+1 < len(all.members) && (all.members[i+1].line == m.line || len(bytes.TrimSpace(e.text[e.at[m.line-1]:from])) > 0):
		next := all.members[i+1]
		return e.splice(from, e.offset(next.line, next.column), "")
	case e.isFlow(all) && i+1 == len(all.members):
		end := e.closing(e.offset(all.line, all.column))
		for from > 0 && strings.ContainsRune(" \t\r\n,", rune(e.text[from-1])) {
			from--
		}
		return e.splice(from, end, "")
	}
	from = e.at[m.line-1]
	end := 0
	if i+1 < len(all.members) {
		end = e.at[all.members[i+1].line-1]
		for l := all.members[i+1].line; l-1 > m.line; l-- { // comments above the next one are its own
			begin := e.at[l-2]
			if text := bytes.TrimSpace(e.text[begin:e.lineEnd(begin)]); len(text) > 0 && text[0] != '#' {
				break
			}
			end = begin
		}
	} else {
		end = e.endOf(holder, key, m.column-1)
	}
	if len(all.members) > 1 {
		return e.splice(from, end, "")
	}
	held := holder.members[slices.IndexFunc(holder.members, func(m member) bool { return m.key == key })]
	at := e.offset(held.line, held.column)
	at += bytes.IndexByte(e.text[at:], ':') + 1
	return slices.Concat(e.text[:at], []byte(" {}"), e.text[min(at, from):from], e.text[end:])
}

// closing returns where the brace stands that closes the one at a place.
func (e *editor) closing(at int) int {
	depth := 0
	for i := at; i < len(e.text); i++ {
		switch c := e.text[i]; c {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i
			}
		case '"', '\'':
			for i++; i < len(e.text) && e.text[i] != c; i++ {
				if c == '"' && e.text[i] == '\\' {
					i++
				}
			}
		}
	}
	return len(e.text)
}

// verify holds the edited text against what it should mean: the old one, with one thing changed
// of the servers under a key of holder, which is a part of want. lines are what a person can write
// where that cannot be done.
func (e *editor) verify(edited []byte, want, holder *node, key string, change func(servers *node), lines string) error {
	changed := *holder.at(key)
	change(&changed)
	got, problems := parse(e.file, edited)
	if len(problems) == 0 && sameValue(got, want.with(holder, key, &changed)) {
		return nil
	}
	text := fmt.Sprintf("%s is written in a way that this command cannot change safely; edit %s in it yourself", e.file, key)
	if lines != "" {
		text += ", and put this there:\n" + lines
	}
	return errors.New(strings.TrimSpace(text))
}

// with returns n with another value under a key of a part of it.
func (n *node) with(part *node, key string, value *node) *node {
	c := *n
	c.members, c.items = slices.Clone(n.members), slices.Clone(n.items)
	for i := range c.members {
		if n == part && c.members[i].key == key {
			c.members[i].value = value
		} else {
			c.members[i].value = n.members[i].value.with(part, key, value)
		}
	}
	for i, item := range n.items {
		c.items[i] = item.with(part, key, value)
	}
	return &c
}

// sameValue reports whether two values mean the same, whatever the order of their keys; nothing is
// as good as an empty mapping.
func sameValue(a, b *node) bool {
	empty := func(n *node) bool { return n.null() || n.kind == mapping && len(n.members) == 0 }
	if empty(a) && empty(b) {
		return true
	}
	if a.kind != b.kind || a.text != b.text || a.tag != b.tag && a.kind == scalar || len(a.members) != len(b.members) || len(a.items) != len(b.items) {
		return false
	}
	for _, m := range a.members {
		if other := b.at(m.key); other == nil || !sameValue(m.value, other) {
			return false
		}
	}
	for i := range a.items {
		if !sameValue(a.items[i], b.items[i]) {
			return false
		}
	}
	return true
}
