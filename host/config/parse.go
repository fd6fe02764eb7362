package config

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"

	"a2e/host/yamltree"
)

const (
	maxFileBytes  = 1 << 20
	maxDepth      = 64
	maxFromAlias  = 10_000 // values that aliases may add
	maxAliasBytes = 1 << 20
	maxKeyProblem = 1000
)

const (
	scalar  = yamltree.Scalar
	list    = yamltree.List
	mapping = yamltree.Mapping
)

// node is one value of a file, aliases and merges resolved.
type (
	node     = yamltree.Node
	member   = yamltree.Member
	position = yamltree.Place
)

// textMember is a member that is not in the file.
func textMember(at position, key, text string) member {
	return member{Place: at, Key: key, Value: &node{Place: at, Tag: "!!str", Text: text}}
}

// place follows keys; a node that is nowhere in the file when the path ends early.
func place(n *node, keys ...string) *node {
	found := n
	for _, key := range keys {
		found = found.At(key)
	}
	switch {
	case found != nil && len(keys) > 0:
		return found
	case n == nil:
		return &node{}
	}
	return &node{Place: position{File: n.File}}
}

// parse reads one document. A file without any gives an empty mapping. The
// node is nil when nothing of the file can be used.
func parse(file string, data []byte) (*node, []Problem) {
	if len(data) > maxFileBytes {
		return nil, []Problem{{File: file, Message: fmt.Sprintf("the file is larger than %d bytes", maxFileBytes)}}
	}
	rules := yamltree.Rules{
		File: file, Depth: maxDepth, Aliased: maxFromAlias, AliasedBytes: maxAliasBytes, Merge: true, Name: named,
	}
	doc, err := rules.Load(data)
	switch {
	case err != nil:
		return nil, []Problem{yamlProblem(file, data, err)}
	case doc == nil:
		return &node{Kind: mapping, Place: position{File: file, Line: 1, Column: 1}}, nil
	}
	root, wrong := rules.Read(doc)
	var problems []Problem
	for _, w := range wrong {
		problems = append(problems, Problem{File: file, Line: w.Line, Column: w.Column, Message: w.Text})
	}
	if root == nil {
		return nil, problems
	}
	if root.Null() {
		root = &node{Kind: mapping, Place: root.Place}
	}
	return root, problems
}

// yamlProblem tells of a file that is no YAML.
func yamlProblem(file string, data []byte, err error) Problem {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		return Problem{File: file, Message: err.Error()}
	}
	message := at.Message
	for _, better := range yamlHints() {
		if strings.Contains(message, better[0]) {
			message = better[1]
		}
	}
	lines := strings.Split(string(data), "\n")
	if i := at.Mark.Line - 1; i >= 0 && i < len(lines) {
		switch line := lines[i]; {
		case strings.Contains(line[:len(line)-len(strings.TrimLeft(line, " \t"))], "\t"):
			message = "the line is indented with a tab; YAML takes spaces only"
		case strings.HasPrefix(line, "<<<<<<< "), strings.HasPrefix(line, "======="), i > 0 && strings.HasPrefix(lines[i-1], "<<<<<<< "):
			message = "a merge conflict of git is not resolved here"
		}
	}
	return Problem{File: file, Line: at.Mark.Line, Column: at.Mark.Column, Message: "not valid YAML: " + message}
}

// yamlHints are messages of the YAML library, and what to say instead. Some of them quote the
// file, and a token may well begin with a star.
func yamlHints() [][2]string {
	return [][2]string{
		{"anchor", "an alias (*name) without its anchor (&name); put a string that begins with * in quotes"},
		{"mapping values are not allowed", "a colon and a space in the middle of a string; put the string in quotes"},
		{"unexpected end of stream", "a quote is opened and never closed"},
		{"expected hexadecimal", "in double quotes a backslash begins an escape such as \\n; put a Windows path in single quotes"},
		{"UTF-8", "it is not UTF-8; save it as UTF-8"},
		{"control characters", "there are control characters in it; save it as UTF-8"},
		{"unknown escape character", "in double quotes a backslash begins an escape such as \\n; put a Windows path in single quotes"},
	}
}

// errBadVariable is for ${ that begins no variable. It shows nothing of the
// text, which may be a secret with odd characters.
var errBadVariable = errors.New("a variable is written ${NAME} or ${NAME:-default}, without one inside the other; $${ stands for ${")

// expand puts variables in: ${NAME}, ${NAME:-default}, and $${ for ${. Other
// dollar signs stay. changed reports whether a variable was put in.
func expand(text string, getenv func(string) string) (out string, changed bool, err error) {
	if !strings.Contains(text, "${") {
		return text, false, nil
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		if !found {
			b.WriteString(text)
			return b.String(), changed, nil
		}
		if strings.HasSuffix(before, "$") {
			b.WriteString(before[:len(before)-1] + "${")
			text = rest
			continue
		}
		b.WriteString(before)
		inner, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", false, errBadVariable
		}
		value, err := variable(inner, getenv)
		if err != nil {
			return "", false, err
		}
		b.WriteString(value)
		text, changed = after, true
	}
}

// variable returns the value of what stands between ${ and }.
func variable(inner string, getenv func(string) string) (string, error) {
	name, fallback, hasFallback := strings.Cut(inner, ":-")
	if !isVariable(name) || strings.Contains(fallback, "${") {
		return "", errBadVariable
	}
	if value := getenv(name); value != "" || hasFallback {
		if value == "" {
			value = fallback
		}
		return value, nil
	}
	return "", fmt.Errorf("the variable %s is not set or empty: set it, or write ${%s:-default}", name, name)
}

func isVariable(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
