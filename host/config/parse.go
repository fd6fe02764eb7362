package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"a2e/host/config/yamltree"
)

const (
	maxFileBytes  = 1 << 20
	maxDepth      = 64
	maxFromAlias  = 10_000 // values that aliases may add
	maxAliasBytes = 1 << 20
	maxProblems   = 1000
)

const (
	scalar  = yamltree.Scalar
	list    = yamltree.List
	mapping = yamltree.Mapping
)

// node is one value of a file, with aliases and merges resolved.
type (
	node     = yamltree.Node
	member   = yamltree.Member
	position = yamltree.Position
)

// at returns the node at the end of a path of keys, from the top of the file.
func (d *decoder) at(keys ...string) *node { return place(d.root, keys...) }

// take removes a key of a mapping and returns it, or returns a zero member if there is no such key.
func take(n *node, key string) (taken member) {
	if n.At(key) != nil {
		i := slices.IndexFunc(n.Members, func(m member) bool { return m.Key == key })
		taken = n.Members[i]
		n.Members = slices.Delete(n.Members, i, i+1)
	}
	return taken
}

// rename changes the key of a member if the new key is free.
func rename(n *node, from, to string) {
	if i := slices.IndexFunc(n.Members, func(m member) bool { return m.Key == from }); i >= 0 && n.At(to) == nil {
		n.Members[i].Key = to
	}
}

// place returns the node at the end of a path of keys. If the path ends early, it returns an empty
// node.
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
	return &node{Position: position{File: n.File}}
}

// parse parses the one document of a file. Without a document it returns an empty mapping. The node is
// nil if the file cannot be used at all.
func parse(file string, data []byte) (*node, []Problem) {
	if len(data) > maxFileBytes {
		return nil, []Problem{problemAt(position{File: file}, "the file is larger than %d bytes", maxFileBytes)}
	}
	rules := yamltree.Rules{
		File: file, Depth: maxDepth, Aliased: maxFromAlias, AliasedBytes: maxAliasBytes, Merge: true, Name: named,
	}
	doc, err := rules.Load(data)
	switch {
	case err != nil:
		return nil, []Problem{yamlProblem(file, data, err)}
	case doc == nil:
		return &node{Kind: mapping, Position: position{File: file, Line: 1, Column: 1}}, nil
	}
	root, problems := rules.Read(doc)
	if root != nil && root.Null() {
		root = &node{Kind: mapping, Position: root.Position}
	}
	return root, problems
}

// yamlProblem returns the problem of a file that is not YAML.
func yamlProblem(file string, data []byte, err error) Problem {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		return problemAt(position{File: file}, "%v", err)
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
		case strings.HasPrefix(line, "<<<<<<< "), strings.HasPrefix(line, "======="),
			i > 0 && strings.HasPrefix(lines[i-1], "<<<<<<< "):
			message = "a merge conflict of git is not resolved here"
		}
	}
	return problemAt(position{File: file, Line: at.Mark.Line, Column: at.Mark.Column}, "not valid YAML: %s", message)
}

// yamlHints returns messages of the YAML library and better ones. Some of the library's messages quote
// the file, and a token may begin with a star.
func yamlHints() [][2]string {
	return [][2]string{
		{"anchor", "an alias (*name) without its anchor (&name); put a string that begins with * in quotes"},
		{"mapping values are not allowed", "a colon and a space in the middle of a string; put the string in quotes"},
		{"unexpected end of stream", "a quote is opened and never closed"},
		{"expected hexadecimal", "in double quotes a backslash begins an escape such as \\n; put a Windows path in " +
			"single quotes"},
		{"UTF-8", "it is not UTF-8; save it as UTF-8"},
		{"control characters", "there are control characters in it; save it as UTF-8"},
		{"unknown escape character", "in double quotes a backslash begins an escape such as \\n; put a Windows path " +
			"in single quotes"},
	}
}

// errBadVariable is the error for ${ without a valid variable. It shows nothing of the text, which may
// be a secret with unusual characters.
var errBadVariable = errors.New("a variable is written ${NAME} or ${NAME:-default}, without one inside the other; " +
	"$${ stands for ${")

// expand replaces variables: ${NAME}, ${NAME:-default}, and $${ by ${. Other dollar signs stay.
// changed reports whether a variable was replaced.
func expand(text string, getenv func(string) string) (out string, changed bool, err error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		switch {
		case !found:
			return b.String() + before, changed, nil
		case strings.HasSuffix(before, "$"):
			b.WriteString(strings.TrimSuffix(before, "$") + "${")
			text = rest
			continue
		}
		inner, after, closed := strings.Cut(rest, "}")
		name, fallback, hasFallback := strings.Cut(inner, ":-")
		if !closed || !isVariable(name) || strings.Contains(fallback, "${") {
			return "", false, errBadVariable
		}
		value := cmp.Or(getenv(name), fallback)
		if value == "" && !hasFallback {
			const missing = "the variable %s is not set or empty: set it, or write ${%s:-default}"
			return "", false, fmt.Errorf(missing, name, name)
		}
		b.WriteString(before + value)
		text, changed = after, true
	}
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
