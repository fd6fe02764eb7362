// Package openai sends requests to servers with the OpenAI API: one JSON object is posted, one comes back. It tries
// again after failures that may pass, and never shows a secret.
package openai

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/guard/redact"
	"a2e/host/guard/webguard"
	"a2e/host/observe/trace"
	"a2e/protocol"
)

// maxRedirects is how many are followed for one try.
const maxRedirects = 3

// Options say where a server is, and how to ask it. The user info and query of URL, APIKey and Headers are sent
// along and shown nowhere.
type Options struct {
	URL          string            // such as https://api.example.org/v1
	Path         string            // below URL, such as chat/completions; URL may already end in it
	APIKey       string            // sent as a bearer token; "" = none
	Headers      map[string]string // sent along
	Timeout      time.Duration     // of one try
	Tries        uint              // of one request, at most
	Pause        time.Duration     // after the first try; the next ones are longer
	LongestPause time.Duration
	LongestWait  time.Duration // that the server may ask for before the next try (Retry-After)
	// the server may be this machine or in a private network; for a URL of the config, not for one of the agent
	AllowPrivate bool
	Client       *http.Client     // nil = one of its own; its redirect policy is not used
	Now          func() time.Time // nil = time.Now
}

// Client sends requests to one server. It is safe for concurrent use. Functions hold the secrets, so that printing
// the struct does not show them.
type Client struct {
	// BackOff returns the pauses between the tries of one request. It must be set before the first request.
	BackOff func() backoff.BackOff

	opts struct { // the options that are no secrets
		timeout, longestWait time.Duration
		tries                uint
	}
	where   string // the address without secrets
	now     func() time.Time
	client  func() *http.Client // made at the first use
	request func(ctx context.Context, body []byte) (*http.Request, error)
	hide    func(text string) string
}

// notPublic says why a URL that an agent named is refused.
const notPublic = "it is this machine or in a private network, which is not allowed for this url"

// Fault is why a request failed, after its last try.
type Fault struct {
	Status  int  // of the answer; 0 = there was none
	Lasting bool // a later request would fail in the same way

	text string
}

// Error returns what went wrong, without a secret.
func (f *Fault) Error() string { return f.text }

// New returns a client; it connects at the first use. An error says which option is wrong,
// by its name in a config.
func New(o Options) (*Client, error) {
	target, err := parseURL(o.URL, o.Path)
	if err == nil && !o.AllowPrivate {
		if bad := webguard.New(webguard.Options{}).CheckURL(target); bad != nil {
			err = errors.New("url: " + notPublic)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case !headerText(o.APIKey) || strings.Contains(o.APIKey, " "):
		return nil, errors.New("api_key has characters that no header may have: spaces, line ends or others beyond " +
			"ASCII")
	case o.Timeout <= 0:
		return nil, errors.New("timeout must be longer than 0")
	}
	for name, value := range o.Headers {
		if !headerText(name) || name == "" || strings.ContainsAny(name, " :") || !headerText(value) {
			return nil, fmt.Errorf("headers: %.64q, or its value, has characters that no header may have", name)
		}
	}
	c := &Client{
		where: display(target), now: o.Now, client: sync.OnceValue(func() *http.Client {
			return newHTTP(o.Client,
				o.AllowPrivate)
		}),
		request: requests(target, o.APIKey, o.Headers), hide: hider(target, o.APIKey, o.Headers),
		BackOff: func() backoff.BackOff {
			b := backoff.NewExponentialBackOff()
			b.InitialInterval, b.MaxInterval = o.Pause, o.LongestPause
			return b
		},
	}
	c.opts.timeout, c.opts.longestWait, c.opts.tries = o.Timeout, o.LongestWait, max(o.Tries, 1)
	if c.now == nil {
		c.now = time.Now
	}
	return c, nil
}

// Where returns the address that is asked, without secrets.
func (c *Client) Where() string { return c.where }

// Close closes the connections that are not in use. The client stays usable.
func (c *Client) Close() error {
	c.client().CloseIdleConnections()
	return nil
}

// Post sends a body and returns the answer, of at most limit bytes. A request that meets a broken connection, 429
// or 5xx is tried again as long as ctx lasts; a try that takes longer than the timeout is the last. The error is
// the cause of ctx once ctx has ended, otherwise a *Fault.
func (c *Client) Post(ctx context.Context, body []byte, limit int) ([]byte, error) {
	return c.retry(ctx, func() ([]byte, error) { return c.once(ctx, body, limit) })
}

// Get is Post without a body: it sends a GET request.
func (c *Client) Get(ctx context.Context, limit int) ([]byte, error) { return c.Post(ctx, nil, limit) }

// retry calls once until it succeeds, until another try does not help, or until all tries are used up.
func (c *Client) retry(ctx context.Context, once func() ([]byte, error)) (raw []byte, err error) {
	traced := trace.Child(ctx, trace.Client, "POST", path.Base(c.where))
	defer func() {
		code := ""
		if err != nil {
			code = "failed"
		}
		trace.End(traced, code, trace.Text("url.full", c.where))
	}()
	raw, err = backoff.Retry(ctx, once,
		backoff.WithBackOff(c.BackOff()), backoff.WithMaxTries(c.opts.tries), backoff.WithMaxElapsedTime(0))
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if fault := (*Fault)(nil); errors.As(err, &fault) {
		return nil, fault
	}
	return raw, err
}

func display(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// headerText reports whether a header may contain a text.
func headerText(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r >= 0x7f })
}

// parseURL returns the address to post to. Its errors do not repeat the text, which may hold
// a password.
func parseURL(text, path string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("url must be an address such as https://api.example.org/v1")
	}
	u.Fragment = ""
	if !strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/"+path) {
		u = u.JoinPath(path)
	}
	return u, nil
}

// newHTTP returns a client that follows redirects only within one server, and only if they keep the method of the
// request.
func newHTTP(base *http.Client, private bool) *http.Client {
	client := *cmp.Or(base, new(http.Client))
	if t, ok := http.DefaultTransport.(*http.Transport); base == nil && ok {
		t = t.Clone() // so that closing its connections closes no others
		t.IdleConnTimeout = 30 * time.Second
		if !private {
			t.DialContext, t.Proxy = webguard.New(webguard.Options{}).DialContext, nil
		}
		client.Transport = t
	}
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		first := via[0]
		if len(via) > maxRedirects || req.Method != first.Method || req.URL.Scheme != first.URL.Scheme ||
			req.URL.Host != first.URL.Host {
			return http.ErrUseLastResponse
		}
		return nil
	}
	return &client
}

const (
	maxFault      = 64 << 10 // bytes read of an answer that is an error
	maxFaultRunes = 300      // shown of the server's text in it
)

// lasting returns a failure that another request would meet again; it ends the tries.
func lasting(status int, text string) error {
	return backoff.Permanent(&Fault{Status: status, Lasting: true, text: text})
}

// requests returns a function that makes the requests to target.
func requests(target *url.URL, key string, headers map[string]string) func(context.Context, []byte) (*http.Request,
	error) {
	bare := *target
	bare.User = nil
	return func(ctx context.Context, body []byte) (*http.Request, error) {
		method := http.MethodPost
		if body == nil {
			method = http.MethodGet
		}
		req, err := http.NewRequestWithContext(ctx, method, bare.String(), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		if body != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		req.Header.Set("Accept", "application/json")
		if user := target.User; user != nil {
			password, _ := user.Password()
			req.SetBasicAuth(user.Username(), password)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		for name, value := range headers {
			req.Header.Set(name, value)
		}
		return req, nil
	}
}

// once sends one request. Its error is a backoff.PermanentError if another try does not help.
func (c *Client) once(ctx context.Context, body []byte, limit int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.timeout)
	defer cancel()
	req, err := c.request(ctx, body)
	if err != nil {
		return nil, lasting(0, "no request can be made for this url")
	}
	resp, err := c.client().Do(req)
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, c.refused(resp)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	if len(raw) > limit {
		return nil, lasting(resp.StatusCode, fmt.Sprintf("the answer is larger than %d bytes", limit))
	}
	return raw, nil
}

// broken returns the error of a broken connection. After a timeout there is no other try, because the caller would
// wait for too long.
func (c *Client) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return backoff.Permanent(&Fault{text: fmt.Sprintf("no answer within %v", c.opts.timeout)})
	}
	if inner := (*url.Error)(nil); errors.As(err, &inner) {
		err = inner.Err // without the address, which may have secrets in it
	}
	if guard := (*protocol.Error)(nil); errors.As(err, &guard) {
		return lasting(0, notPublic)
	}
	return &Fault{text: c.hide(err.Error())}
}

// refused returns the error for a status that is not 200.
func (c *Client) refused(resp *http.Response) error {
	code := resp.StatusCode
	text := strings.TrimSpace(fmt.Sprintf("status %d %s", code, http.StatusText(code)))
	switch {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return lasting(code, text+": check api_key")
	case code >= 300 && code < 400:
		return lasting(code, text+": it sends requests elsewhere; set url to the right address")
	}
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxFault)) // the part that was read is shown
	if said, _ := serverFault(raw); said != "" {
		text += ": " + c.hide(said)
	}
	if code != http.StatusTooManyRequests && code < 500 {
		return lasting(code, text)
	}
	f := &Fault{Status: code, text: text}
	wait, asked := c.waits(resp.Header.Get("Retry-After"))
	switch {
	case asked && wait > c.opts.longestWait:
		return backoff.Permanent(f)
	case asked:
		return errors.Join(f, &backoff.RetryAfterError{Duration: wait}) // the wait is for package backoff
	}
	return f
}

// waits parses a Retry-After header: seconds, or a date.
func (c *Client) waits(header string) (wait time.Duration, asked bool) {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if date, err := http.ParseTime(header); err == nil {
		return max(0, date.Sub(c.now())), true
	}
	return 0, false
}

// serverFault returns the message in the body of an error, on one line, or "" if there is none. status is the HTTP
// status that the body names; 0 = none.
func serverFault(raw []byte) (said string, status int) {
	var answer struct {
		Error jsontext.Value `json:"error"`
	}
	if json.Unmarshal(raw, &answer, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil {
		return "", 0
	}
	var fault struct {
		Message string         `json:"message"`
		Type    string         `json:"type"`
		Code    jsontext.Value `json:"code"`
	}
	if json.Unmarshal(answer.Error, &said) != nil { // otherwise it is a plain text
		_ = json.Unmarshal(answer.Error, &fault) // the fields that fit
		said = fault.Message
	}
	status, _ = protocol.Value(fault.Code).Int()
	if strings.HasPrefix(fault.Type, "invalid_request") {
		status = cmp.Or(status, http.StatusBadRequest)
	}
	text := []rune(strings.Join(strings.FieldsFunc(said, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " "))
	return string(text[:min(len(text), maxFaultRunes)]), status
}

// shortSecret is how many bytes at the beginning or end of a secret count as the secret.
const shortSecret = 8

// hider returns a function that keeps secrets out of a text from a server or the transport. It replaces a text that
// contains the beginning or the end of a secret, because some servers show half a key.
func hider(target *url.URL, key string, headers map[string]string) func(string) string {
	secrets := []string{key}
	for _, value := range headers {
		secrets = append(secrets, value)
		if _, token, ok := strings.Cut(value, " "); ok { // behind a scheme
			secrets = append(secrets, token)
		}
	}
	for _, v := range redact.Query(target.RawQuery) {
		secrets = append(secrets, v, url.QueryEscape(v))
	}
	if user := target.User; user != nil {
		password, _ := user.Password()
		secrets = append(secrets, password, user.String(),
			base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	return func(text string) string {
		for _, s := range secrets {
			if n := min(len(s), shortSecret); n > 0 && (strings.Contains(text, s[:n]) ||
				strings.Contains(text, s[len(s)-n:])) {
				return "(a text with a secret in it)"
			}
		}
		return text
	}
}
