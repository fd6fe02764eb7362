package toolkits

import (
	"bytes"
	"context"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/http/httpguts"

	"a2e/protocol"
)

// request makes the request of an operation. Each value is encoded, so that it cannot become
// another path, a second parameter or another header.
func (op *operation) request(ctx context.Context, a *api, args protocol.Object) (*http.Request, error) {
	path, header := op.path, make(http.Header)
	var query, cookies []string
	for i := range op.params {
		p := &op.params[i]
		val, ok := args.Get(p.arg)
		if !ok {
			continue
		}
		wrong := func(message string) error {
			return protocol.Violation(protocol.FieldError{Path: "/arguments/" + p.arg, Message: message})
		}
		v, ok := p.value(val)
		if !ok {
			return nil, wrong("holds lists or objects deeper than a parameter can")
		}
		switch p.in {
		case "path":
			text := p.inPath(v)
			if text == "" {
				return nil, wrong("is empty; a path has no empty step")
			}
			path = strings.ReplaceAll(path, "{"+p.name+"}", text)
		case "query":
			query = append(query, p.inQuery(v)...)
		case "header":
			text := v.join(",", plainText, p.explode)
			if !httpguts.ValidHeaderFieldName(p.name) || !httpguts.ValidHeaderFieldValue(text) {
				return nil, wrong("holds what no header can have, such as a line break")
			}
			header.Set(p.name, text)
		case "cookie":
			cookies = append(cookies, p.inQuery(v)...)
		}
	}
	u, err := a.below(path)
	if err != nil {
		return nil, err
	}
	u.RawQuery = strings.Join(query, "&")
	if len(cookies) > 0 {
		header.Set("Cookie", strings.Join(cookies, "; "))
	}
	body, kind, err := op.encode(args)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, op.method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "no request can be made of this path")
	}
	if req.Header = header; kind != "" {
		header.Set("Content-Type", kind)
	}
	return req, nil
}

// below returns the URL of an encoded path below the base URL.
func (a *api) below(escaped string) (*url.URL, error) {
	escaped = strings.TrimPrefix(escaped, "/")
	path, err := url.PathUnescape(escaped)
	u := *a.base
	u.Path, u.RawPath = a.base.Path+path, a.base.EscapedPath()+escaped
	if err != nil || !goesDown(escaped) || !a.holds(&u) {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "the path leads out of the API; it must stay below %s",
			a.base.Path)
	}
	return &u, nil
}

// paramValue is the value of a parameter: a list, the members of an object, or one text.
type paramValue struct {
	kind  byte // '[', '{' or '"'
	names []string
	texts []string
}

// value reads the value of a parameter.
func (p *parameter) value(val protocol.Value) (v paramValue, ok bool) {
	if v.kind = '"'; p.json {
		v.texts = []string{string(val)}
		return v, true
	}
	switch val.Kind() {
	case '[':
		v.kind = '['
		var items []jsontext.Value
		if json.Unmarshal(val, &items) != nil {
			return v, false
		}
		for _, item := range items {
			text, ok := scalarText(protocol.Value(item))
			if !ok {
				return v, false
			}
			v.texts = append(v.texts, text)
		}
		return v, true
	case '{':
		v.kind = '{'
		obj, err := protocol.ParseObject(val)
		if err != nil {
			return v, false
		}
		return v, v.addMembers(obj, "", p.style == "deepObject")
	}
	text, ok := scalarText(val)
	v.texts = []string{text}
	return v, ok
}

// addMembers adds the members of an object; deep = also those of objects within it, with names such as a][b.
func (v *paramValue) addMembers(obj protocol.Object, prefix string, deep bool) bool {
	for key, val := range obj.All() {
		name := prefix + string(key)
		if inner, err := protocol.ParseObject(val); deep && err == nil && len(v.names) < 1000 &&
			strings.Count(prefix, "][") < 10 {
			if !v.addMembers(inner, name+"][", deep) {
				return false
			}
			continue
		}
		text, ok := scalarText(val)
		if !ok {
			return false
		}
		v.names, v.texts = append(v.names, name), append(v.texts, text)
	}
	return true
}

// scalarText returns the text of a string, number, boolean or null ("") for a request.
func scalarText(val protocol.Value) (string, bool) {
	if val.Kind() == 'n' {
		return "", true
	}
	return val.Scalar()
}

func plainText(text string) string { return text }

// join joins the encoded texts; members of an object are name=text with explode, else name,text.
func (v paramValue) join(separator string, encode func(string) string, explode bool) string {
	var all []string
	for i, text := range v.texts {
		switch {
		case v.kind == '{' && explode:
			all = append(all, encode(v.names[i])+"="+encode(text))
		case v.kind == '{':
			all = append(all, encode(v.names[i])+","+encode(text))
		default:
			all = append(all, encode(text))
		}
	}
	return strings.Join(all, separator)
}

// inPath returns the value encoded for a path.
func (p *parameter) inPath(v paramValue) string {
	encode := func(text string) string { return strings.ReplaceAll(url.PathEscape(text), ";", "%3B") }
	switch {
	case p.style == "label" && p.explode:
		return "." + v.join(".", encode, true)
	case p.style == "label":
		return "." + v.join(",", encode, false)
	case p.style == "matrix" && p.explode && v.kind == '[':
		return ";" + encode(p.name) + "=" + v.join(";"+encode(p.name)+"=", encode, true)
	case p.style == "matrix" && p.explode && v.kind == '{':
		return ";" + v.join(";", encode, true)
	case p.style == "matrix":
		return ";" + encode(p.name) + "=" + v.join(",", encode, false)
	}
	return v.join(",", encode, p.explode)
}

// inQuery returns the value as encoded parts of a query.
func (p *parameter) inQuery(v paramValue) (parts []string) {
	name, encode := url.QueryEscape(p.name), url.QueryEscape
	switch {
	case p.style == "deepObject" && v.kind == '{':
		for i, text := range v.texts {
			parts = append(parts, encode(p.name+"["+v.names[i]+"]")+"="+encode(text))
		}
		return parts
	case p.explode && v.kind == '[':
		for _, text := range v.texts {
			parts = append(parts, name+"="+encode(text))
		}
		return parts
	case p.explode && v.kind == '{':
		return []string{v.join("&", encode, true)}
	}
	separator := map[string]string{"spaceDelimited": "%20", "pipeDelimited": "%7C"}[p.style]
	if separator == "" {
		separator = ","
	}
	return []string{name + "=" + v.join(separator, encode, false)}
}

// encode returns the body of the request and its media type.
func (op *operation) encode(args protocol.Object) (body []byte, kind string, err error) {
	val, ok := args.Get("body")
	if op.body == "" || !ok {
		return nil, "", nil
	}
	wrong := func(message string) error {
		return protocol.Violation(protocol.FieldError{Path: "/arguments/body", Message: message})
	}
	switch {
	case isJSON(op.body):
		return val, op.body, nil
	case strings.HasPrefix(op.body, "text/"):
		text, ok := val.Str()
		if !ok {
			return nil, "", wrong("should be a text")
		}
		return []byte(text), op.body + "; charset=utf-8", nil
	}
	obj, err := protocol.ParseObject(val)
	if err != nil {
		return nil, "", wrong("should be an object")
	}
	if op.body == "multipart/form-data" {
		return multipartBody(obj)
	}
	form := make(url.Values)
	for key, val := range obj.All() {
		texts, ok := queryValues(val)
		if !ok {
			texts = []string{string(val)} // objects as JSON
		}
		form[string(key)] = texts
	}
	return []byte(form.Encode()), op.body, nil
}

// multipartBody makes a multipart form: texts unchanged, lists and objects as JSON.
func multipartBody(obj protocol.Object) (body []byte, kind string, err error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for key, val := range obj.All() {
		text, ok := scalarText(val)
		if !ok {
			text = string(val)
		}
		if err := w.WriteField(string(key), text); err != nil {
			return nil, "", fmt.Errorf("the form: %w", err)
		}
	}
	err = w.Close()
	return b.Bytes(), w.FormDataContentType(), err
}
