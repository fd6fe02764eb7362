package toolkits

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/text/unicode/norm"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/guard/redact"
	"a2e/host/guard/webguard"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// api is the web API of the toolkit http, or of openapi.
type api struct {
	kit     string
	base    *url.URL // its path ends with a slash
	headers http.Header
	secrets *redact.Set // the values of headers
	web     *tools.Web
}

// newHTTP makes the toolkit http. An API that the config names may be on a private
// address.
func (p *Plugin) newHTTP(o HTTPOptions, byConfig bool) (*made, error) {
	a, err := p.newAPI(kitHTTP, o, byConfig, byConfig)
	if err != nil {
		return nil, err
	}
	all := []tools.Tool{
		a.tool("api_get", http.MethodGet, "Read something of the API", host.ToolDetail{
			ReadOnly: true, Idempotent: true,
			OpenWorld: true,
		}),
		a.tool("api_post", http.MethodPost, "Send something to the API", host.ToolDetail{OpenWorld: true}),
		a.tool("api_put", http.MethodPut, "Create or replace something in the API", host.ToolDetail{
			Destructive: true,
			Idempotent:  true, OpenWorld: true,
		}),
		a.tool("api_delete", http.MethodDelete, "Delete something of the API", host.ToolDetail{
			Destructive: true,
			Idempotent:  true, OpenWorld: true,
		}),
	}
	return newMade(kitHTTP, all, a.web.Close), nil
}

// newAPI makes an API below a base URL; private = it may be on a private address.
func (p *Plugin) newAPI(kit string, o HTTPOptions, byConfig, private bool) (*api, error) {
	a := &api{kit: kit, headers: make(http.Header)}
	a.web = tools.NewWeb(webguard.Options{AllowPrivate: private || p.opts.AllowPrivate, Setting: "allow_private: true"},
		p.env.MaxOutputBytes, a.holds)
	base, err := a.web.Parse(o.BaseURL)
	if err != nil {
		return nil, err
	}
	if base.RawQuery != "" || base.Fragment != "" {
		return nil, p.wrongSetting("base_url", "must have no query and no fragment", byConfig)
	}
	base.Path, base.RawPath = path.Clean("/"+base.Path), ""
	if base.Path != "/" {
		base.Path += "/"
	}
	a.base = base
	if err := a.setHeaders(o.Headers); err != nil {
		return nil, p.wrongSetting("headers", err.Error(), byConfig)
	}
	return a, nil
}

// setHeaders stores the headers of each request. Their values are secret, with a few exceptions; the error names
// none.
func (a *api) setHeaders(headers map[string]config.Secret) error {
	a.secrets = redact.New(nil)
	for name, secret := range headers {
		value := secret.Reveal()
		name = textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			return errors.New("has a name that a header cannot have")
		case !httpguts.ValidHeaderFieldValue(value):
			return errors.New(name + " has a value that no header can have, such as a line break")
		case slices.Contains([]string{
			"Host", "Content-Length", "Transfer-Encoding", "Connection", "Trailer",
			"Upgrade",
		}, name):
			return errors.New(name + " cannot be set; the host does that itself")
		}
		a.headers.Set(name, value)
		if slices.Contains([]string{"Accept", "Accept-Language", "Content-Type", "User-Agent"}, name) {
			continue // not secret; answers have the same words
		}
		a.secrets.AddSecret(value)
	}
	return nil
}

// holds reports whether a URL is below the base URL.
func (a *api) holds(u *url.URL) bool {
	clean := path.Clean("/" + u.Path)
	return u.Scheme == a.base.Scheme && u.Host == a.base.Host && strings.HasPrefix(clean+"/", a.base.Path) &&
		goesDown(u.EscapedPath())
}

// request has the arguments of a tool.
type request struct {
	target
	Body jsontext.Value `json:"body" may:"What to send: a string goes as text, anything else as JSON."`
}

// target has the arguments of a tool without a body.
type target struct {
	Path  string          `json:"path" need:"Below the base URL, such as users/7."`
	Query protocol.Object `json:"query" may:"Query parameters: strings, numbers and booleans, or lists of them."`
}

// apiAnswer describes the data of a tool: a tools.WebAnswer.
type apiAnswer struct {
	Status      int    `json:"status" need:"HTTP status. From 400 up the call counts as failed."`
	ContentType string `json:"content_type" need:"Content-Type as the server sent it."`
	Content     string `json:"content" need:"The text, cut at the host's output limit."`
}

// tool makes the tool of one HTTP method.
func (a *api) tool(name, method, description string, detail host.ToolDetail) tools.Tool {
	def := protocol.ToolDefinition{
		Name: name, Tags: []string{"web", "api", strings.ToLower(method)}, Idempotent: detail.Idempotent,
		Description: description + " at " + a.base.Host + " with HTTP " + method + ". The host adds the headers " +
			"that were configured.",
	}
	t := tools.Typed[request, apiAnswer](def, detail, func(ctx context.Context, in *request) (*tools.Outcome,
		error,
	) {
		return a.do(ctx, method, in)
	})
	if method != http.MethodPost && method != http.MethodPut {
		t.Def.InputParameters = tools.Members[target]()
	}
	return t
}

// do makes one request.
func (a *api) do(ctx context.Context, method string, in *request) (*tools.Outcome, error) {
	u, err := a.url(in)
	if err != nil {
		return nil, err
	}
	body, kind, err := in.body()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "no request can be made of this path")
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	out, answer, err := a.send(ctx, req)
	if err != nil {
		return nil, err
	}
	out.Data = answer
	return out, nil
}

// send sends a request with the configured headers, and masks their values in the
// answer: some APIs return the headers they received.
func (a *api) send(ctx context.Context, req *http.Request) (*tools.Outcome, *tools.WebAnswer, error) {
	for name, value := range map[string]string{
		"Accept":     "application/json, text/*;q=0.9, */*;q=0.1",
		"User-Agent": "a2e (toolkit " + a.kit + ")",
	} {
		if req.Header.Get(name) == "" {
			req.Header.Set(name, value)
		}
	}
	for name, values := range a.headers {
		req.Header[name] = values
	}
	out, err := a.web.Do(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	answer, ok := out.Data.(*tools.WebAnswer)
	if !ok {
		return nil, nil, fmt.Errorf("an answer of type %T", out.Data)
	}
	answer.ContentType, answer.Content = a.secrets.Text(answer.ContentType), a.secrets.Text(answer.Content)
	out.Summary, out.Failure = a.secrets.Text(out.Summary), a.secrets.Text(out.Failure)
	return out, answer, nil
}

// url returns the URL of a request, and refuses one that is not below the base URL.
func (a *api) url(in *request) (*url.URL, error) {
	ref, err := url.Parse(in.Path)
	if err != nil || ref.Scheme != "" || ref.Host != "" || ref.User != nil || ref.RawQuery != "" ||
		ref.Fragment != "" || strings.ContainsRune(ref.Path, '\\') {
		return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/path", Message: "must be a path below " +
			"the base URL, such as users/7; parameters go into query"})
	}
	u := *a.base
	u.Path, u.RawPath = a.base.Path+strings.TrimPrefix(ref.Path, "/"), ""
	if !goesDown(ref.EscapedPath()) || !a.holds(&u) {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "the path leads out of the API; it must stay below %s",
			a.base.Path)
	}
	query := make(url.Values)
	for key, val := range in.Query.All() {
		values, ok := queryValues(val)
		if !ok {
			return nil, protocol.Violation(protocol.FieldError{
				Path:    "/arguments/query/" + string(key),
				Message: "must be a string, number or boolean, or a list of them",
			})
		}
		query[string(key)] = values
	}
	u.RawQuery = query.Encode()
	return &u, nil
}

// queryValues returns the values of one query parameter as texts.
func queryValues(val protocol.Value) ([]string, bool) {
	if text, ok := val.Scalar(); ok {
		return []string{text}, true
	}
	var list []jsontext.Value
	if val.Kind() != '[' || json.Unmarshal(val, &list) != nil {
		return nil, false
	}
	all := make([]string, len(list))
	for i, item := range list {
		var ok bool
		if all[i], ok = protocol.Value(item).Scalar(); !ok {
			return nil, false
		}
	}
	return all, true
}

// body returns the body of the request and its media type.
func (in *request) body() (body []byte, kind string, err error) {
	switch {
	case in.Body == nil:
		return nil, "", nil
	case in.Body.Kind() == '"':
		var text string
		err := json.Unmarshal(in.Body, &text)
		return []byte(text), "text/plain; charset=utf-8", err
	}
	return in.Body, "application/json", nil
}

// maxDecodings bounds how often a path is decoded: each server on the way may decode it
// once more.
const maxDecodings = 4

// goesDown reports whether every server reads the encoded path as one that does not go up and does not name
// a host. A server may decode the path several times, cut parameters off a step (..;a=b), trim steps, or take
// other characters for dots and slashes. In doubt the result is false.
func goesDown(escaped string) bool {
	for range maxDecodings {
		if !stepsDown(escaped) {
			return false
		}
		decoded, err := url.PathUnescape(escaped)
		if err != nil {
			return !strings.ContainsAny(escaped, ".;") // a single %, which may become part of an escape
		}
		if decoded == escaped {
			return true
		}
		escaped = decoded
	}
	return false
}

// stepsDown checks the steps of a path without decoding it.
func stepsDown(text string) bool {
	if strings.HasPrefix(text, "//") || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) ||
		strings.Contains(text, "\\") {
		return false
	}
	for step := range strings.FieldsFuncSeq(lookalikes().Replace(norm.NFKC.String(text)),
		func(r rune) bool { return r == '/' || r == '\\' }) {
		step, _, _ = strings.Cut(step, ";")
		if step = strings.TrimSpace(step); step != "" && strings.Trim(step, ". ") == "" {
			return false
		}
	}
	return true
}

// lookalikes replaces characters that look like dots and slashes and that NFKC does not replace.
func lookalikes() *strings.Replacer {
	return strings.NewReplacer("\u3002", ".", "\u2044", "/", "\u2215", "/", "\u29f8", "/", "\u2216", "/", "\u29f5", "/",
		"\u29f9", "/")
}
