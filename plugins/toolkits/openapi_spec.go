package toolkits

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/config/yamltree"
	hostschema "a2e/host/schema"
	"a2e/protocol"
)

// The bounds of a description, and of its operations and schemas.
const (
	specMaxBytes    = 16 << 20
	specMaxYAML     = 4 << 20 // of YAML, which takes far more memory than its size
	specMaxTools    = 1000
	specMaxFound    = 50_000   // operations before include and exclude
	specMaxPatterns = 200      // of include, and also of exclude
	specMaxParts    = 2000     // schemas of one operation, with those that references name
	specMaxAllParts = 200_000  // of all
	specMaxSchema   = 1 << 20  // bytes of the schema of one operation
	specMaxSchemas  = 32 << 20 // of all
	specMaxDepth    = 24       // schemas within schemas
	specMaxRefs     = 32       // references that lead to references
	specMaxProblems = 10
)

// spec is an OpenAPI description, 3.0 or 3.1.
type spec struct {
	name  string // path or URL for messages
	raw   []byte
	lines map[string]int // lines of the values near the top, by JSON Pointer; nil = raw is JSON
	root  map[string]any
	new31 bool     // schemas are JSON Schema
	parts int      // schemas that may still be made
	bytes int      // bytes of all schemas made so far
	left  []string // operations whose body cannot be sent
	full  bool     // no more schemas are made

	wrongs   int     // number of errors made by wrong
	bad      int     // operations and paths with an error
	problems []error // their first errors, at most specMaxProblems

	headers http.Header // headers from the configuration
	at      *url.URL    // URL of the description; nil = a file
	baseURL string      // from the configuration; replaces all servers
}

// readSpec parses a description. The error names the file, and the line where it is known.
func readSpec(name string, text []byte) (*spec, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	s := &spec{name: name, raw: text, parts: specMaxAllParts}
	raw := text
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		if len(text) > specMaxYAML {
			return nil, fmt.Errorf("%s: has more than %d bytes of YAML; convert it to JSON, which may have %d", name,
				specMaxYAML, specMaxBytes)
		}
		var err error
		if raw, s.lines, err = yamltree.ToJSON(text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	var root any
	if err := json.Unmarshal(raw, &root); err != nil {
		line := 1
		if at, ok := errors.AsType[*jsontext.SyntacticError](err); ok && s.lines == nil {
			line += bytes.Count(raw[:min(int(at.ByteOffset), len(raw))], []byte("\n"))
		}
		return nil, fmt.Errorf("%s:%d: not valid JSON: %w", name, line, err)
	}
	var ok bool
	if s.root, ok = root.(map[string]any); !ok {
		return nil, s.wrong("", "should be an object with the key openapi")
	}
	return s, s.check()
}

// check checks the version of the description and that it has paths.
func (s *spec) check() error {
	version, _ := s.root["openapi"].(string)
	paths, _ := s.root["paths"].(map[string]any)
	switch {
	case s.root["swagger"] != nil:
		return s.wrong("/swagger", "is Swagger 2.0, which is not read; convert it to OpenAPI 3, such as with "+
			"`npx swagger2openapi` or at https://converter.swagger.io")
	case version == "":
		return s.wrong("", "has no key openapi with a version, such as 3.1.0")
	case !strings.HasPrefix(version, "3.0.") && !strings.HasPrefix(version, "3.1."):
		return s.wrong("/openapi", "is version %.20q; 3.0 and 3.1 are understood", version)
	case len(paths) == 0:
		return s.wrong("/paths", "has no operations")
	}
	s.new31 = strings.HasPrefix(version, "3.1.")
	return nil
}

// wrong returns an error about the value at a JSON Pointer. Only the first errors have a line number, since
// finding one takes a search of the whole text.
func (s *spec) wrong(pointer, format string, args ...any) error {
	place := s.name
	if s.wrongs++; s.wrongs <= specMaxProblems {
		place = fmt.Sprintf("%s:%d", s.name, s.line(pointer))
	}
	return fmt.Errorf("%s: %s: %s", place, cmp.Or(pointer, "/"), fmt.Sprintf(format, args...))
}

// leaveOut counts an operation or a path that becomes no tool, and stores the first errors.
func (s *spec) leaveOut(err error) {
	if s.bad++; s.bad <= specMaxProblems {
		s.problems = append(s.problems, err)
	}
}

// note returns a text about the operations that became no tools, or "" if all did.
func (s *spec) note() string {
	var all []string
	if len(s.left) > 0 {
		named := strings.Join(s.left[:min(len(s.left), specMaxProblems)], ", ")
		const told = "%s left out, with a body of a type that cannot be sent: %.300s"
		all = append(all, fmt.Sprintf(told, protocol.Count(len(s.left), "operation"), named))
	}
	if s.bad > 0 {
		named := strings.ReplaceAll(errors.Join(s.problems...).Error(), "\n", "; ")
		const told = "%s of it left out, with mistakes: %.2000s"
		all = append(all, fmt.Sprintf(told, protocol.Count(s.bad, "part"), named))
	}
	return strings.Join(all, "; ")
}

// line returns the line of the value at a JSON Pointer, or of the nearest value around it with a known line.
func (s *spec) line(pointer string) int {
	if s.lines == nil {
		return s.jsonLine(pointer)
	}
	return max(1, yamltree.Line(s.lines, pointer))
}

func (s *spec) jsonLine(pointer string) int {
	dec := jsontext.NewDecoder(bytes.NewReader(s.raw))
	for {
		if _, err := dec.ReadToken(); errors.Is(err, io.EOF) || err != nil {
			return 1
		}
		if string(dec.StackPointer()) == pointer {
			return 1 + bytes.Count(s.raw[:dec.InputOffset()], []byte("\n"))
		}
	}
}

// follow returns the object v, or the object that v refers to, with its JSON Pointer.
func (s *spec) follow(v any, pointer string) (map[string]any, string, error) {
	for range specMaxRefs {
		obj, ok := v.(map[string]any)
		if !ok {
			return nil, pointer, s.wrong(pointer, "should be an object")
		}
		ref, ok := obj["$ref"].(string)
		if !ok {
			return obj, pointer, nil
		}
		target, err := s.find(ref, pointer)
		if err != nil {
			return nil, pointer, err
		}
		v, pointer = target, strings.TrimPrefix(ref, "#")
	}
	return nil, pointer, s.wrong(pointer, "$ref: the references lead on and on")
}

// find returns the value that a reference names. pointer is the place of the reference, for the error.
func (s *spec) find(ref, pointer string) (any, error) {
	at, within := strings.CutPrefix(ref, "#/")
	if !within {
		return nil, s.wrong(pointer, "$ref: %.200q leads out of the file; put what it names into it (`redocly "+
			"bundle` does that)", ref)
	}
	var v any = s.root
	if text, err := url.PathUnescape(at); err == nil {
		at = text
	}
	for token := range jsontext.Pointer("/" + at).Tokens() {
		switch in := v.(type) {
		case map[string]any:
			v = in[token]
		case []any:
			i, err := strconv.Atoi(token)
			if v = nil; err == nil && i >= 0 && i < len(in) {
				v = in[i]
			}
		default:
			v = nil
		}
	}
	if v == nil {
		return nil, s.wrong(pointer, "$ref: there is no %.200q", ref)
	}
	return v, nil
}

// schemaMaker makes the JSON Schema of one operation's arguments from the schemas of the description.
// It replaces references by the schemas that they name. Where a reference refers to itself, or there would be
// too many schemas, any value is valid.
type schemaMaker struct {
	*spec
	at   string   // JSON Pointer of the operation, for errors
	open []string // references and levels being followed
	left int      // schemas that may still be made
	err  error
}

// make makes one schema; {} allows any value.
func (m *schemaMaker) make(v any) any {
	obj, ok := v.(map[string]any)
	if m.left--; m.left < 0 || len(m.open) > specMaxDepth || m.err != nil {
		return map[string]any{}
	}
	if m.parts--; m.parts < 0 {
		return map[string]any{}
	}
	if !ok {
		if v == false {
			return map[string]any{"not": map[string]any{}}
		}
		return map[string]any{}
	}
	if ref, ok := obj["$ref"].(string); ok {
		return m.reference(ref, obj)
	}
	m.open = append(m.open, "")
	defer func() { m.open = m.open[:len(m.open)-1] }()
	out := make(map[string]any, len(obj))
	for _, key := range slices.Sorted(maps.Keys(obj)) {
		m.keyword(out, key, obj[key])
	}
	if !m.new31 {
		m.as31(out, obj)
	}
	m.dropReadOnly(out, obj)
	return out
}

// reference makes the schema that a reference names.
func (m *schemaMaker) reference(ref string, beside map[string]any) any {
	if slices.Contains(m.open, ref) {
		return map[string]any{"description": "as " + ref[strings.LastIndexByte(ref, '/')+1:] + " around it"}
	}
	target, err := m.find(ref, m.at)
	if err != nil {
		m.err = err
		return map[string]any{}
	}
	m.open = append(m.open, ref)
	defer func() { m.open = m.open[:len(m.open)-1] }()
	made, _ := m.make(target).(map[string]any)
	if text, ok := beside["description"].(string); ok && made != nil {
		made["description"] = text
	}
	return made
}

// keyword copies one keyword of a schema. It leaves out keywords that do not restrict or describe values, such as
// examples.
func (m *schemaMaker) keyword(out map[string]any, key string, v any) {
	switch key {
	case "type", "enum", "const", "default", "title", "description", "format", "pattern", "minimum", "maximum",
		"exclusiveMinimum", "exclusiveMaximum", "multipleOf",
		"minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "minProperties",
		"maxProperties", "required", "dependentRequired":
		out[key] = v
	default:
		made, holds := hostschema.Parts(key, v, m.make)
		if list, ok := made.([]any); holds && (!ok || len(list) > 0) {
			out[key] = made
		}
	}
}

// as31 rewrites the keywords of version 3.0 as JSON Schema.
func (m *schemaMaker) as31(out, obj map[string]any) {
	for limit, exclusive := range map[string]string{"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"} {
		if is, ok := out[exclusive].(bool); ok {
			delete(out, exclusive)
			if is && out[limit] != nil {
				out[exclusive] = out[limit]
				delete(out, limit)
			}
		}
	}
	if obj["nullable"] != true {
		return
	}
	if typ, ok := out["type"].(string); ok {
		out["type"] = []any{typ, "null"}
	}
	if enum, ok := out["enum"].([]any); ok && !slices.Contains(enum, nil) {
		out["enum"] = append(slices.Clone(enum), nil)
	}
}

// dropReadOnly removes the members that only answers have.
func (m *schemaMaker) dropReadOnly(out, obj map[string]any) {
	members, _ := obj["properties"].(map[string]any)
	made, _ := out["properties"].(map[string]any)
	for name, member := range members {
		if part, ok := member.(map[string]any); ok && part["readOnly"] == true {
			delete(made, name)
			if required, ok := out["required"].([]any); ok {
				out["required"] = slices.DeleteFunc(slices.Clone(required), func(v any) bool { return v == name })
			}
		}
	}
}
