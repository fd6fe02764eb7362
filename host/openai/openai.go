// Package openai asks servers that answer the OpenAI way: one JSON object is posted, one
// comes back. It tries again what passes, and shows no secret, whatever goes wrong.
//
//	openai.go   the options, and Post with its tries
//	once.go     one try: the request, its answer, what the server says of an error
//	secret.go   what keeps secrets out of texts
package openai

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"a2e/host/webguard"
)

// maxRedirects is how many are followed for one try.
const maxRedirects = 3

// Options say where a server is, and how it is asked. URL's user info and query, APIKey
// and Headers are sent along and shown nowhere.
type Options struct {
	URL          string            // such as https://api.example.org/v1
	Path         string            // what is asked for there, such as chat/completions; URL may end in it
	APIKey       string            // sent as a bearer token; "" = none
	Headers      map[string]string // sent along
	Timeout      time.Duration     // of one try
	Tries        uint              // of one request, at most
	Pause        time.Duration     // after the first try; the next ones are longer
	LongestPause time.Duration
	LongestWait  time.Duration    // that the server may ask for before the next try (Retry-After)
	AllowPrivate bool             // the server may be this machine or in a private network; for an URL of the config, not for one of the agent
	Client       *http.Client     // nil = one of its own; its redirect policy is not used
	Now          func() time.Time // nil = time.Now
}

// Client asks one server. It is safe for concurrent use. What is secret is held by
// functions, which no printing of the struct shows.
type Client struct {
	BackOff func() backoff.BackOff // gives the pauses between the tries of one request; not to be set after the first one

	opts struct { // what of the options is no secret
		timeout, longestWait time.Duration
		tries                uint
	}
	where   string // the address without secrets
	now     func() time.Time
	client  *http.Client
	request func(ctx context.Context, body []byte) (*http.Request, error)
	hide    func(text string) string
}

// notPublic is why a url is not asked that an agent named.
const notPublic = "it is this machine or in a private network, which is not allowed for this url"

// Fault is why a request failed, in the end.
type Fault struct {
	Status  int  // of the answer; 0 = there was none
	Lasting bool // a later request would meet it again

	text string
}

// Error gives what went wrong, without a secret.
func (f *Fault) Error() string { return f.text }

// New gives a client; it connects at the first use. An error says which option is wrong,
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
		return nil, errors.New("api_key has characters that no header may have: spaces, line ends or others beyond ASCII")
	case o.Timeout <= 0:
		return nil, errors.New("timeout must be longer than 0")
	}
	for name, value := range o.Headers {
		if !headerText(name) || name == "" || strings.ContainsAny(name, " :") || !headerText(value) {
			return nil, fmt.Errorf("headers: %.64q, or its value, has characters that no header may have", name)
		}
	}
	c := &Client{
		where: display(target), now: o.Now, client: newHTTP(o.Client, o.AllowPrivate),
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

// Where gives the address that is asked, without secrets.
func (c *Client) Where() string { return c.where }

// Close closes the connections that are not in use. The client stays usable.
func (c *Client) Close() error {
	c.client.CloseIdleConnections()
	return nil
}

// Post sends a body and gives the answer, of at most limit bytes. What meets a broken
// connection, 429 or 5xx is tried again as long as ctx lasts; a try that takes longer than
// the timeout is the last. The error is the cause of ctx once that has ended, else a
// *Fault.
func (c *Client) Post(ctx context.Context, body []byte, limit int) ([]byte, error) {
	raw, err := backoff.Retry(ctx, func() ([]byte, error) { return c.once(ctx, body, limit) },
		backoff.WithBackOff(c.BackOff()), backoff.WithMaxTries(c.opts.tries), backoff.WithMaxElapsedTime(0))
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if fault := (*Fault)(nil); errors.As(err, &fault) {
		return nil, fault
	}
	return raw, err
}

// Display gives the part of an address that is no secret.
func Display(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "no valid URL"
	}
	return display(u)
}

func display(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// headerText tells whether a text may stand in a header.
func headerText(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r >= 0x7f })
}

// parseURL gives the address to post to. Its errors do not repeat the text, which may hold
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

// newHTTP gives a client that follows redirects within one server alone, and only those
// that keep the request as it is.
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
		if len(via) > maxRedirects || req.Method != first.Method || req.URL.Scheme != first.URL.Scheme || req.URL.Host != first.URL.Host {
			return http.ErrUseLastResponse
		}
		return nil
	}
	return &client
}
