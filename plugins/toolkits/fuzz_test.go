package toolkits

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// FuzzOpenAPI: whatever a description says, each tool has its own name and a schema, and the value of
// an argument changes no other part of the request.
func FuzzOpenAPI(f *testing.F) {
	f.Add([]byte(pets), "a/../b?c=d&e#f;g=%2e\r\nX: y")
	f.Add([]byte(`{"openapi":"3.0.3","servers":[{"url":"/v2"}],"paths":{"/a/{b}.{c}":{"get":{"parameters":[{"name":"b","in":"path","schema":{"type":"string","nullable":true}},{"name":"c","in":"path","style":"label"}]}}}}`), "..")
	f.Add([]byte("openapi: 3.1.0\npaths:\n  /x: {$ref: '#/components/y'}\ncomponents: {y: {delete: {requestBody: "+
		"{content: {text/csv: {}}}}}}"), "{b}")
	p := must.Get(New("toolkits", Options{}, host.Env{Workspace: f.TempDir()}))(f)
	a := must.Get(p.newAPI(kitOpenAPI, HTTPOptions{BaseURL: "https://api.example/v1"}, true, false))(f)
	toolNames := regexp.MustCompile(`^openapi_[A-Za-z0-9_-]{0,56}$`)
	f.Fuzz(func(t *testing.T, text []byte, value string) {
		s, err := readSpec("spec", text)
		var ops []*operation
		if err == nil {
			s.at = &url.URL{Scheme: "https", Host: "from.example", Path: "/spec.yaml"}
			ops, err = s.operations(nil, nil)
		}
		if err != nil {
			must.That(t, strings.HasPrefix(err.Error(), "spec:") && len(err.Error()) < 30_000, "%v", err)
			return
		}
		taken := map[string]bool{}
		for _, op := range ops {
			must.That(t, toolNames.MatchString(op.tool) && !taken[op.tool] && op.schema.IsValid() &&
				len(op.schema) <= specMaxSchema, "the tool %q: %s", op.tool, op.schema)
			taken[op.tool] = true
			for kind := range 3 {
				requested(t, a, op, strings.ToValidUTF8(value, "?"), kind)
			}
		}
	})
}

// requested makes a request of an operation. All arguments are the text, a list of it, or an object
// with it.
func requested(t *testing.T, a *api, op *operation, text string, kind int) {
	value := any(text)
	switch kind {
	case 1:
		value = []string{text, text}
	case 2:
		value = map[string]string{text: text}
	}
	members := map[string]any{"body": value}
	for _, p := range op.params {
		members[p.arg] = value
	}
	args := must.Get(protocol.ParseObject(must.Get(json.Marshal(members))(t)))(t)
	req, err := op.request(t.Context(), a, args)
	if err != nil {
		wrong, ok := errors.AsType[*protocol.Error](err)
		must.That(t, ok && wrong.Message != "", "%v", err)
		return
	}
	u := req.URL
	must.That(t, a.holds(u) && u.User == nil && u.Fragment == "" && req.Host == "api.example",
		"%s leads out of the API, by %s with %q", u, op.path, text)
	steps := strings.Count(strings.Trim(op.path, "/"), "/")
	must.Equal(t, strings.Count(strings.Trim(strings.TrimPrefix(u.EscapedPath(), a.base.Path), "/"), "/"), steps,
		"steps of %s, by %s with %q", u, op.path, text)
	query, err := url.ParseQuery(u.RawQuery)
	must.OK(t, err)
	for name := range query {
		ok := kind == 2 && name == text // exploded
		for _, p := range op.params {
			ok = ok || p.in == "query" && (name == p.name || name == fmt.Sprintf("%s[%s]", p.name, text))
		}
		must.That(t, ok, "nobody gave the parameter %q of %s", name, u)
	}
	for name, values := range req.Header {
		must.That(t, len(values) == 1 && !strings.ContainsAny(name+values[0], "\r\n\x00"), "the header %q: %q", name,
			values)
	}
}
