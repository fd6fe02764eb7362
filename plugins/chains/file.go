package chains

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"a2e/protocol"
)

// File is a chain in a file: the fields of a chain/req as YAML or JSON.
type File struct {
	Path    string
	Request *protocol.ChainRequest

	hasTimeout bool
	lines      map[string]int // of values, by JSON Pointer; nil for JSON
}

// ReadFile reads a chain from a file of any folder, or of stdin for "-".
func ReadFile(path string, stdin io.Reader) (*File, error) {
	if path == "-" {
		text, err := readBounded(stdin)
		if err != nil {
			return nil, fmt.Errorf("stdin: %w", err)
		}
		return ParseFile("stdin", text)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := readBounded(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return ParseFile(path, text)
}

// ParseFile reads a chain from text; path is for messages. The error names the line.
// Fields that no chain has are errors here, while a request's are ignored.
func ParseFile(path string, text []byte) (*File, error) {
	f := &File{Path: path, Request: &protocol.ChainRequest{}}
	raw := bytes.TrimSpace(text)
	if !isJSON(path, raw) {
		var err error
		if raw, f.lines, err = fromYAML(text); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	obj, err := protocol.ParseObject(raw)
	if err == nil {
		err = strictFields(obj)
	}
	if err == nil {
		err = protocol.Decode(obj, []string{"nodes"}, f.Request)
	}
	if err != nil {
		return nil, f.Explain(err)
	}
	_, f.hasTimeout = obj.Get("timeout")
	return f, nil
}

// isJSON tells whether a file is read as JSON.
func isJSON(path string, raw []byte) bool {
	if strings.EqualFold(filepath.Ext(path), ".json") {
		return true
	}
	_, err := protocol.ParseObject(raw)
	return err == nil
}

// strictFields refuses what neither a chain nor a node has: most likely a slip of the pen.
func strictFields(obj protocol.Object) error {
	var bad []protocol.FieldError
	check := func(path string, obj protocol.Object, known []string) {
		for key := range obj.All() {
			if name := string(key); !slices.Contains(known, name) && len(bad) < maxProblems {
				bad = append(bad, protocol.FieldError{Path: path + "/" + name, Message: "is not known; there are: " + strings.Join(known, ", ")})
			}
		}
	}
	check("", obj, []string{"nodes", "entry_node", "initial_input", "timeout", "description", "chain_id", "correlation_id", "session_id", "streaming", "type"})
	var nodes struct {
		Nodes []protocol.Object `json:"nodes"`
	}
	if err := obj.Decode(&nodes); err != nil {
		return err
	}
	for i, n := range nodes.Nodes {
		check(fmt.Sprintf("/nodes/%d", i), n, []string{
			"node_id", "kind", "name", "input", "input_map", "condition", "true_node", "false_node", "items_path", "map_node", "next_node",
			"on_error", "deps", "timeout", "max_parallel", "description", "id", "type", "next", "depends_on",
		})
	}
	if bad != nil {
		return protocol.Violation(bad...)
	}
	return nil
}

// size is how long the chain is as JSON, in bytes.
func (f *File) size() int {
	n := len(f.Request.InitialInput.Raw())
	for _, node := range f.Request.Nodes {
		n += len(node.Raw())
	}
	return n
}

// Explain says where in the file the problems are that an error names.
func (f *File) Explain(err error) error {
	var known *protocol.Error
	if !errors.As(err, &known) {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	all, _ := known.Detail["errors"].([]protocol.FieldError)
	if len(all) == 0 {
		return fmt.Errorf("%s: %s", f.Path, known.Message)
	}
	var texts []string
	for _, one := range all {
		if line := f.line(one.Path); line > 0 {
			texts = append(texts, fmt.Sprintf("%s:%d: %s: %s", f.Path, line, one.Path, one.Message))
		} else {
			texts = append(texts, fmt.Sprintf("%s: %s: %s", f.Path, one.Path, one.Message))
		}
	}
	return errors.New(strings.Join(texts, "\n"))
}

// line gives the line of a value, or of what should hold it.
func (f *File) line(path string) int {
	for {
		if n, ok := f.lines[path]; ok {
			return n
		}
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return 0
		}
		path = path[:i]
	}
}
