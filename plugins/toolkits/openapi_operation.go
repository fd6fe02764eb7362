package toolkits

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	hostschema "a2e/host/schema"
	"a2e/protocol"
)

// maxToolName bounds the name of a tool, in bytes, as most vendors of models do.
const maxToolName = 64

// operation is one operation of a description, ready to be called.
type operation struct {
	method, path string // as the description has them
	id           string // operationId; "" = none
	pointer      string // JSON Pointer of the operation
	tool         string // name of its tool
	server       string // URL of its API
	title        string
	description  string
	tags         []string
	params       []parameter
	body         string // media type of the body; "" = no body
	needsBody    bool
	schema       jsontext.Value
	parameters   []protocol.ToolParameter
}

// parameter is one parameter of an operation.
type parameter struct {
	name, arg string // its names in requests and among the arguments
	in        string // path, query, header or cookie
	style     string
	explode   bool
	json      bool // its value is sent as JSON
	required  bool
	schema    any
	text      string
}

// bodies returns the media types of bodies that can be sent, the best first. Others, such as
// files, cannot be arguments of a tool.
func bodies() []string {
	return []string{
		"application/json", "+json", "application/x-www-form-urlencoded", "multipart/form-data",
		"text/plain", "text/",
	}
}

// methods returns the HTTP methods whose operations become tools.
func methods() []string {
	return []string{
		http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodOptions,
		http.MethodHead, http.MethodPatch,
	}
}

// server returns the URL of an operation's API: base_url, or else the first of the servers of the operation, of its
// path or of the description, resolved against the description's URL.
func (s *spec) server(op *operation, own, ofPath any) (string, error) {
	at := "/servers"
	list, _ := s.root["servers"].([]any)
	switch mine, _ := own.([]any); {
	case s.baseURL != "":
		return s.baseURL, nil
	case len(mine) > 0:
		list, at = mine, op.pointer+at
	default:
		if of, _ := ofPath.([]any); len(of) > 0 {
			list, at = of, op.pointer[:strings.LastIndexByte(op.pointer, '/')]+at
		}
	}
	text := "/"
	if len(list) > 0 {
		first, _ := list[0].(map[string]any)
		text, _ = first["url"].(string)
		variables, _ := first["variables"].(map[string]any)
		text = expanded(text[:min(len(text), specMaxServer+1)], variables)
	}
	u, err := url.Parse(text)
	if err != nil || strings.Contains(text, "{") || len(text) > specMaxServer {
		return "", s.wrong(at+"/0", "the URL %.200q cannot be used; set base_url", text)
	}
	if s.at != nil {
		u = s.at.ResolveReference(u)
	}
	if u.Host == "" {
		return "", s.wrong(at, "say no host; set base_url")
	}
	return u.String(), nil
}

// The bounds of the URL of a server, and of a variable in it.
const (
	specMaxServer   = 8 << 10
	specMaxVariable = 1 << 10
)

// expanded replaces the variables in the URL of a server by their defaults. It does not expand variables within
// a default.
func expanded(text string, variables map[string]any) string {
	return regexp.MustCompile(`\{[^{}]*\}`).ReplaceAllStringFunc(text, func(hole string) string {
		variable, _ := variables[strings.Trim(hole, "{}")].(map[string]any)
		if value, there := variable["default"].(string); there && len(value) <= specMaxVariable {
			return value
		}
		return hole
	})
}

// operations returns the operations that include and exclude select, sorted by path, without those that cannot be
// used. The error says what is wrong in the description, in include or in exclude, if there are none.
func (s *spec) operations(include, exclude []string) ([]*operation, error) {
	var found []*operation
	paths, _ := s.root["paths"].(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		pointer := string(jsontext.Pointer("/paths").AppendToken(path))
		if strings.HasPrefix(path, "x-") {
			continue
		}
		item, pointer, err := s.follow(paths[path], pointer)
		if err != nil {
			s.leaveOut(err)
			continue
		}
		for _, method := range methods() {
			if v, ok := item[strings.ToLower(method)]; ok {
				op := &operation{method: method, path: path, pointer: pointer + "/" + strings.ToLower(method)}
				if obj, ok := v.(map[string]any); ok {
					op.id, _ = obj["operationId"].(string)
				}
				found = append(found, op)
			}
		}
	}
	if len(found) > specMaxFound {
		return nil, s.wrong("/paths", "has %d operations; at most %d are read", len(found), specMaxFound)
	}
	if len(found) == 0 && s.bad > 0 {
		return nil, errors.Join(s.problems...)
	}
	found, err := s.chosen(found, include, exclude)
	if err != nil {
		return nil, errors.Join(append(s.problems, err)...)
	}
	s.nameTools(found)
	return s.complete(found)
}

// complete makes operations ready and leaves out the others: s.left has those whose body cannot be sent,
// s.problems the errors of the first ones with a mistake.
func (s *spec) complete(found []*operation) (ready []*operation, err error) {
	paths, _ := s.root["paths"].(map[string]any)
	for _, op := range found {
		item, _, _ := s.follow(paths[op.path], op.pointer)
		switch sendable, err := s.completeOne(op, item); {
		case err != nil:
			s.leaveOut(fmt.Errorf("%s (%.100s)", err, op.label()))
		case sendable:
			ready = append(ready, op)
		default:
			s.left = append(s.left, op.label())
		}
	}
	switch {
	case len(ready) > 0:
		return ready, nil
	case s.bad > 0:
		return nil, errors.Join(s.problems...)
	}
	return nil, s.wrong("/paths", "has no operation whose body could be sent")
}

// matches reports whether a pattern names an operation.
func (op *operation) matches(pattern string) bool {
	return op.id != "" && doublestar.MatchUnvalidated(pattern, op.id) || doublestar.MatchUnvalidated(pattern,
		op.method+" "+op.path)
}

// label returns the operationId, or else method and path, for messages.
func (op *operation) label() string { return cmp.Or(op.id, op.method+" "+op.path) }

// chosen returns the operations that include and exclude select.
func (s *spec) chosen(all []*operation, include, exclude []string) ([]*operation, error) {
	var labels []string
	for _, op := range all {
		labels = append(labels, op.label())
	}
	for _, pattern := range slices.Concat(include, exclude) {
		if !slices.ContainsFunc(all, func(op *operation) bool { return op.matches(pattern) }) {
			return nil, fmt.Errorf("%s: %.100q matches no operation; %s", s.name, pattern,
				hostschema.Suggest(pattern, "operations", labels))
		}
	}
	named := func(op *operation, patterns []string) bool { return slices.ContainsFunc(patterns, op.matches) }
	left := slices.DeleteFunc(all, func(op *operation) bool {
		return len(include) > 0 && !named(op, include) || named(op, exclude)
	})
	if len(left) == 0 || len(left) > specMaxTools {
		return nil, s.wrong("/paths", "has %d operations after include and exclude; 1 to %d become tools", len(left),
			specMaxTools)
	}
	return left, nil
}

// nameTools sets the tool name of each operation: from its operationId, or from method and path
// if that is missing or taken.
func (s *spec) nameTools(all []*operation) {
	taken := map[string]bool{}
	for _, op := range all {
		name := toolName(cmp.Or(op.id, strings.ToLower(op.method)+op.path))
		if taken[name] {
			name = toolName(strings.ToLower(op.method) + op.path)
		}
		if taken[name] {
			name = shortName(name, op.method+" "+op.path)
		}
		op.tool, taken[name] = name, true
	}
}

// toolName makes the name of a tool from a text.
func toolName(text string) string {
	name := "openapi_" + strings.Trim(regexp.MustCompile(`[^A-Za-z0-9_-]+`).ReplaceAllString(text, "_"), "_")
	if len(name) > maxToolName {
		return shortName(name, text)
	}
	return name
}

// shortName cuts a name and adds a hash, so that it stays unique.
func shortName(name, text string) string {
	sum := sha256.Sum256([]byte(text))
	return name[:min(len(name), maxToolName-9)] + "_" + hex.EncodeToString(sum[:4])
}

// completeOne reads the rest of an operation; false = its body cannot be sent.
func (s *spec) completeOne(op *operation, item map[string]any) (bool, error) {
	obj, pointer, err := s.follow(item[strings.ToLower(op.method)], op.pointer)
	if err != nil {
		return false, err
	}
	op.title, _ = obj["summary"].(string)
	more, _ := obj["description"].(string)
	op.description = strings.TrimSpace(strings.Join([]string{op.title, more}, "\n"))
	if obj["deprecated"] == true {
		op.description = "Deprecated. " + op.description
	}
	op.description = strings.TrimSpace(fmt.Sprintf("%.2000s\n(%s %s)", op.description, op.method, op.path))
	if tags, ok := obj["tags"].([]any); ok {
		for _, tag := range tags {
			if text, ok := tag.(string); ok {
				op.tags = append(op.tags, text)
			}
		}
	}
	if err := s.addParameters(op, item["parameters"], strings.TrimSuffix(op.pointer,
		"/"+strings.ToLower(op.method))+"/parameters"); err != nil {
		return false, err
	}
	if err := s.addParameters(op, obj["parameters"], pointer+"/parameters"); err != nil {
		return false, err
	}
	if err := s.checkTemplate(op); err != nil {
		return false, err
	}
	body, err := s.addBody(op, obj["requestBody"], pointer+"/requestBody")
	if err != nil || body == nil {
		return false, err
	}
	if op.server, err = s.server(op, obj["servers"], item["servers"]); err != nil {
		return false, err
	}
	return true, s.addSchema(op, body)
}

// addParameters reads a list of parameters; those of an operation replace those of its path.
func (s *spec) addParameters(op *operation, v any, pointer string) error {
	list, ok := v.([]any)
	if v != nil && !ok {
		return s.wrong(pointer, "should be a list")
	}
	if len(list) > specMaxParts {
		return s.wrong(pointer, "has %d parameters; at most %d are taken", len(list), specMaxParts)
	}
	for i, v := range list {
		obj, at, err := s.follow(v, fmt.Sprintf("%s/%d", pointer, i))
		if err != nil {
			return err
		}
		p, err := s.parameter(obj, at)
		if err != nil {
			return err
		}
		if name := textproto.CanonicalMIMEHeaderKey(p.name); p.in == "header" &&
			(s.headers[name] != nil || slices.Contains([]string{"Accept", "Content-Type", "Authorization"}, name)) {
			continue // it is configured, or the standard excludes it from the parameters
		}
		op.params = slices.DeleteFunc(op.params, func(other parameter) bool {
			return other.in == p.in && other.name == p.name
		})
		op.params = append(op.params, p)
	}
	return nil
}

// parameter reads one parameter.
func (s *spec) parameter(obj map[string]any, at string) (p parameter, err error) {
	p.name, _ = obj["name"].(string)
	p.in, _ = obj["in"].(string)
	p.style, _ = obj["style"].(string)
	p.text, _ = obj["description"].(string)
	p.required = obj["required"] == true || p.in == "path"
	p.schema = obj["schema"]
	styles := map[string][]string{
		"path": {"simple", "label", "matrix"}, "query": {"form", "spaceDelimited", "pipeDelimited", "deepObject"},
		"header": {"simple"}, "cookie": {"form"},
	}[p.in]
	switch {
	case p.name == "":
		return p, s.wrong(at, "has no name")
	case styles == nil:
		return p, s.wrong(at, "in: is %.40q; should be path, query, header or cookie", p.in)
	case p.style != "" && !slices.Contains(styles, p.style):
		return p, s.wrong(at, "style: is %.40q; should be one of %s", p.style, strings.Join(styles, ", "))
	}
	p.style = cmp.Or(p.style, styles[0])
	p.explode = p.style == "form" || p.style == "deepObject"
	if explode, ok := obj["explode"].(bool); ok {
		p.explode = explode
	}
	content, _ := obj["content"].(map[string]any)
	for media, v := range content {
		if isJSON(media) {
			in, _ := v.(map[string]any)
			p.json, p.schema = true, in["schema"]
		}
	}
	return p, nil
}

// checkTemplate checks the parameters against the {names} in the path.
func (s *spec) checkTemplate(op *operation) error {
	for _, match := range templateNames(op.path) {
		if !slices.ContainsFunc(op.params, func(p parameter) bool { return p.in == "path" && p.name == match }) {
			return s.wrong(op.pointer, "the path has {%s}, but there is no parameter of that name in it", match)
		}
	}
	for _, p := range op.params {
		if p.in == "path" && !strings.Contains(op.path, "{"+p.name+"}") {
			return s.wrong(op.pointer, "the parameter %.100q is in the path, which has no {%[1]s}", p.name)
		}
	}
	return nil
}

func templateNames(path string) (names []string) {
	for _, match := range regexp.MustCompile(`\{([^{}]*)\}`).FindAllStringSubmatch(path, -1) {
		names = append(names, match[1])
	}
	return names
}

// addBody reads the body of an operation and returns its schema, true for any body or no body; nil = the operation
// needs a body that cannot be sent.
func (s *spec) addBody(op *operation, v any, pointer string) (any, error) {
	if v == nil {
		return true, nil
	}
	obj, _, err := s.follow(v, pointer)
	if err != nil {
		return nil, err
	}
	content, _ := obj["content"].(map[string]any)
	for _, want := range bodies() {
		for _, media := range slices.Sorted(maps.Keys(content)) {
			name, _, _ := strings.Cut(strings.ToLower(media), ";")
			if name != want && !(want[0] == '+' && strings.HasSuffix(name, want)) &&
				!(strings.HasSuffix(want, "/") && strings.HasPrefix(name, want)) {
				continue
			}
			in, _ := content[media].(map[string]any)
			op.body, op.needsBody = name, obj["required"] == true
			if in["schema"] == nil {
				return true, nil
			}
			return in["schema"], nil
		}
	}
	if obj["required"] == true {
		return nil, nil
	}
	return true, nil
}

// addSchema makes the schema of the arguments: the parameters by their names, and "body".
func (s *spec) addSchema(op *operation, body any) error {
	if s.full {
		const told = "the schemas of those before it have %d bytes, the most that are taken: exclude some"
		return s.wrong(op.pointer, told, specMaxSchemas)
	}
	m := &schemaMaker{spec: s, at: op.pointer, left: specMaxParts}
	properties, required := map[string]any{}, []any{}
	add := func(name string, v any, text string, needed bool) {
		made, ok := m.make(v).(map[string]any)
		if !ok {
			made = map[string]any{}
		}
		if text != "" {
			made["description"] = text
		}
		if properties[name] = made; needed {
			required = append(required, name)
		}
	}
	for i := range op.params {
		p := &op.params[i]
		if p.arg = p.name; properties[p.arg] != nil || p.arg == "body" && op.body != "" {
			p.arg += "_" + p.in
		}
		if properties[p.arg] != nil {
			return s.wrong(op.pointer, "two parameters are called %.100q", p.arg)
		}
		add(p.arg, p.schema, p.text, p.required)
	}
	if op.body != "" {
		add("body", body, "", op.needsBody)
	}
	if m.err != nil {
		return m.err
	}
	whole := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		whole["required"] = required
	}
	op.parameters = hostschema.Parameters(whole)
	raw, err := json.Marshal(whole, json.Deterministic(true))
	op.schema = raw
	s.full = len(raw) <= specMaxSchema && s.bytes+len(raw) > specMaxSchemas
	if err == nil && (len(raw) > specMaxSchema || s.full) {
		const told = "the schema of its arguments has %d bytes, with those before it %d; " +
			"at most %d and %d are taken: exclude it"
		return s.wrong(op.pointer, told, len(raw), s.bytes+len(raw), specMaxSchema, specMaxSchemas)
	}
	s.bytes += len(raw)
	return err
}
