package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"code.dny.dev/ssrf"
	"github.com/cenkalti/backoff/v5"
	"github.com/go-json-experiment/json"
)

const (
	defaultModelTimeout = 120 * time.Second
	maxModelAnswer      = 8 << 20 // bytes
	maxModelTries       = 4
	longestWait         = 30 * time.Second // that an endpoint may ask for before the next try
	maxRedirects        = 3
)

// EndpointOptions say where a model answers: any server that answers the OpenAI way to
// POST {URL}/chat/completions. URL's user info and query, APIKey and Headers are sent
// along and shown nowhere.
type EndpointOptions struct {
	URL          string            // such as https://api.example.org/v1
	Model        string            // as the server names it
	APIKey       string            // sent as a bearer token; "" = none
	Headers      map[string]string // sent along
	MaxTokens    int               // of one answer; 0 = the server's own bound
	Timeout      time.Duration     // of one try; 0 = 120 s
	AllowPrivate bool              // the server may be this machine or in a private network; for an URL of the config, not for one of the agent
	Client       *http.Client      // nil = one of its own; its redirect policy is not used
	Now          func() time.Time  // nil = time.Now
}

// Format writes the options without their secrets, for every verb.
func (o EndpointOptions) Format(w fmt.State, _ rune) {
	shown := "no valid URL"
	if u, err := url.Parse(o.URL); err == nil {
		shown = display(u)
	}
	_, _ = io.WriteString(w, "run.EndpointOptions{"+shown+" "+o.Model+"}")
}

// NewEndpoint gives the model of an endpoint; it connects at the first use. An error says
// which option is wrong. The model is an io.Closer as well, which closes the connections
// that are kept.
//
// A request that meets a broken connection, 429 or 5xx is tried again, four times in all,
// as long as ctx lasts. A redirect is followed within the same server alone.
func NewEndpoint(o EndpointOptions) (Model, error) {
	target, err := modelURL(o.URL)
	switch {
	case err != nil:
		return nil, err
	case o.Model == "":
		return nil, errors.New("llm: model is missing: name the model that the endpoint shall use")
	case !headerText(o.APIKey) || strings.Contains(o.APIKey, " "):
		return nil, errors.New("llm: api_key has characters that no header may have: spaces, line ends or others beyond ASCII")
	case o.Timeout < 0 || o.MaxTokens < 0:
		return nil, errors.New("llm: timeout and max_tokens must not be negative")
	}
	for name, value := range o.Headers {
		if !headerText(name) || name == "" || strings.ContainsAny(name, " :") || !headerText(value) {
			return nil, fmt.Errorf("llm: headers: %.64q, or its value, has characters that no header may have", name)
		}
	}
	e := &endpoint{
		name: o.Model, where: display(target), maxTokens: o.MaxTokens, timeout: cmp.Or(o.Timeout, defaultModelTimeout), now: o.Now,
		client: modelClient(o.Client, o.AllowPrivate), request: modelRequests(target, o.APIKey, o.Headers), hide: hider(target, o.APIKey, o.Headers),
		backOff: func() backoff.BackOff {
			b := backoff.NewExponentialBackOff()
			b.InitialInterval, b.MaxInterval = 500*time.Millisecond, 10*time.Second
			return b
		},
	}
	if e.now == nil {
		e.now = time.Now
	}
	return e, nil
}

// headerText tells whether a text may stand in a header.
func headerText(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r >= 0x7f })
}

// modelURL gives the address to post to. Its errors do not repeat the text, which may
// hold a password.
func modelURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("llm: url must be an address such as https://api.example.org/v1")
	}
	u.Fragment = ""
	if !strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/chat/completions") {
		u = u.JoinPath("chat", "completions")
	}
	return u, nil
}

// display gives the part of an address that is no secret.
func display(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// modelClient gives a client that follows redirects within one server alone, and only
// those that keep the request as it is.
func modelClient(base *http.Client, private bool) *http.Client {
	var client http.Client
	if base != nil {
		client = *base
	} else if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t = t.Clone() // so that closing its connections closes no others
		t.IdleConnTimeout = 30 * time.Second
		if !private {
			dialer := &net.Dialer{Timeout: 10 * time.Second, Control: ssrf.New(ssrf.WithAnyPort()).Safe}
			t.DialContext, t.Proxy = dialer.DialContext, nil
		}
		client.Transport = t
	}
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		first := via[0]
		if len(via) > maxRedirects || req.Method != first.Method || req.URL.Scheme != first.URL.Scheme || req.URL.Host != first.URL.Host {
			return http.ErrUseLastResponse
		}
		return nil
	}
	return &client
}

// endpoint asks a server. What is secret is held by functions, which no printing of the
// struct shows.
type endpoint struct {
	name, where string // the model; the address without secrets
	maxTokens   int
	timeout     time.Duration
	now         func() time.Time
	client      *http.Client
	request     func(ctx context.Context, body []byte) (*http.Request, error)
	hide        func(text string) string
	backOff     func() backoff.BackOff
}

// Close closes the connections that are not in use. The model stays usable.
func (e *endpoint) Close() error {
	e.client.CloseIdleConnections()
	return nil
}

// Complete implements Model.
func (e *endpoint) Complete(ctx context.Context, r Request) (*Reply, error) {
	names := newWireNames(r.Tools)
	body, err := json.Marshal(e.chat(&r, names))
	if err != nil {
		return nil, errorf("the request to the model cannot be written: %w", err)
	}
	raw, err := backoff.Retry(ctx, func() ([]byte, error) { return e.once(ctx, body) },
		backoff.WithBackOff(e.backOff()), backoff.WithMaxTries(maxModelTries), backoff.WithMaxElapsedTime(0))
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		refused := errorf("the model at %s: %v", e.where, err)
		refused.Retryable = !errors.As(err, new(*lasting))
		return nil, refused
	}
	reply, err := readChat(raw, names)
	if err != nil {
		return nil, errorf("the model at %s: %v", e.where, err)
	}
	return reply, nil
}
