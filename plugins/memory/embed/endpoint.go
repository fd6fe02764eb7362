package embed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	defaultBatch   = 64
	defaultTimeout = 10 * time.Second
	maxBatch       = 2048
	maxRunes       = 8000             // of one input: what most models take
	maxTries       = 3                // of one request
	shortWait      = 5 * time.Second  // the longest Retry-After that is waited for
	pause          = 30 * time.Second // how long a failing endpoint is left alone
)

// Endpoint says where vectors come from: any server that answers the OpenAI way
// to POST {URL}/embeddings.
type Endpoint struct {
	URL     string           // such as https://api.example.org/v1; user info and a query are sent along and shown nowhere
	Model   string           // as the server names it
	APIKey  string           // sent as a bearer token; "" = none
	Size    int              // dimensions; 0 = as the first answer has them
	Timeout time.Duration    // of one request; 0 = 10 s
	Batch   int              // texts in one request; 0 = 64
	Client  *http.Client     // nil = one of its own; its redirect policy is not used
	Now     func() time.Time // nil = time.Now
}

// Format writes the endpoint without its secrets, for every verb.
func (e Endpoint) Format(w fmt.State, _ rune) {
	shown := "no valid URL"
	if u, err := url.Parse(e.URL); err == nil {
		shown = display(u)
	}
	_, _ = io.WriteString(w, "embed.Endpoint{"+shown+" "+e.Model+"}")
}

// NewEndpoint gives an embedder that asks the endpoint e; it connects at the
// first use. An error says which field is wrong.
//
// A request that meets a broken connection, 429 or 5xx is tried again, three
// times in all; one that takes longer than the timeout is not. After a failure
// all calls fail at once for 30 s, so that they do not wait for a server that is
// down, and then one call tries again. No error shows the key.
//
// The embedder also is an io.Closer, which closes the connections that are kept.
func NewEndpoint(e Endpoint) (Embedder, error) {
	target, err := parseURL(e.URL)
	switch {
	case err != nil:
		return nil, err
	case e.Model == "":
		return nil, errors.New("embeddings: model is missing: name the model that the endpoint shall use")
	case strings.ContainsFunc(e.APIKey, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return nil, errors.New("embeddings: api_key has characters that no header may have: spaces, line ends or others beyond ASCII")
	case e.Size < 0 || e.Timeout < 0 || e.Batch < 0 || e.Batch > maxBatch:
		return nil, fmt.Errorf("embeddings: size %d, timeout %v and batch %d must not be negative, and batch at most %d", e.Size, e.Timeout, e.Batch, maxBatch)
	}
	out := &endpoint{
		name: e.Model, where: display(target), size: e.Size,
		timeout: cmp.Or(e.Timeout, defaultTimeout), batch: cmp.Or(e.Batch, defaultBatch), now: e.Now,
		client: newClient(e.Client), request: requests(target, e.APIKey), hide: hider(target, e.APIKey),
		backOff: func() backoff.BackOff {
			b := backoff.NewExponentialBackOff()
			b.InitialInterval, b.MaxInterval = 200*time.Millisecond, 2*time.Second
			return b
		},
	}
	if out.now == nil {
		out.now = time.Now
	}
	return out, nil
}

// parseURL gives the address to post to. Its errors do not repeat the text,
// which may hold a password.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("embeddings: url must be an address such as https://api.example.org/v1")
	}
	u.Fragment = ""
	if !strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/embeddings") {
		u = u.JoinPath("embeddings")
	}
	return u, nil
}

// display gives the part of an address that is no secret.
func display(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// endpoint asks a server for vectors. What is secret of it is held by functions,
// which no printing of the struct shows.
type endpoint struct {
	name, where string // the model; the address without secrets
	timeout     time.Duration
	batch       int
	now         func() time.Time
	client      *http.Client
	request     func(ctx context.Context, body []byte) (*http.Request, error)
	hide        func(text string) string // a text by others, unless it has a secret in it
	backOff     func() backoff.BackOff

	mu      sync.Mutex
	size    int       // guarded by mu; 0 = not known yet
	until   time.Time // guarded by mu: no call before this; zero = the last one went well
	failure string    // guarded by mu: why
}

// Model gives the model's name, and its size once that is known.
func (e *endpoint) Model() Model {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Model{Name: e.name, Size: e.size}
}

// Close closes the connections that are not in use. The embedder stays usable.
func (e *endpoint) Close() error {
	e.client.CloseIdleConnections()
	return nil
}

// Embed asks for the vectors of texts, batch by batch.
func (e *endpoint) Embed(ctx context.Context, texts []string) ([]Vector, error) {
	out := make([]Vector, len(texts))
	var inputs []string
	var places []int // of the inputs in out
	for i, text := range texts {
		if input := prepared(text); input != "" {
			inputs, places = append(inputs, input), append(places, i)
		}
	}
	if len(inputs) == 0 {
		return out, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := e.enter(); err != nil {
		return nil, err
	}
	for from := 0; from < len(inputs); from += e.batch {
		to := min(from+e.batch, len(inputs))
		vectors, err := e.ask(ctx, inputs[from:to])
		if err != nil {
			return nil, e.leave(ctx, err)
		}
		for i, v := range vectors {
			out[places[from+i]] = v
		}
	}
	return out, e.leave(ctx, nil)
}

// ask asks for one batch, and again if that may help.
func (e *endpoint) ask(ctx context.Context, inputs []string) ([]Vector, error) {
	return backoff.Retry(ctx, func() ([]Vector, error) { return e.once(ctx, inputs) },
		backoff.WithBackOff(e.backOff()), backoff.WithMaxTries(maxTries), backoff.WithMaxElapsedTime(0))
}

// enter refuses a call while the endpoint is left alone. The first call after
// that goes on, and holds the others off until it knows more.
func (e *endpoint) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	if now.Before(e.until) {
		return fmt.Errorf("embeddings: %s failed and is not asked again for %v: %s", e.where, e.until.Sub(now).Round(time.Second), e.failure)
	}
	if !e.until.IsZero() {
		e.until = now.Add(pause)
	}
	return nil
}

// leave takes note of how a call went, and gives its error in words of our own.
func (e *endpoint) leave(ctx context.Context, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var f *fault
	switch {
	case err == nil:
		e.until, e.failure = time.Time{}, ""
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		// says nothing about the endpoint: the next call may try
		if !e.until.IsZero() {
			e.until = e.now()
		}
		return context.Cause(ctx)
	case ctx.Err() != nil:
		e.until, e.failure = e.now().Add(pause), "it took longer than the caller waits"
		return context.Cause(ctx)
	case errors.As(err, &f) && f.ofInput:
		e.until, e.failure = time.Time{}, ""
	default:
		e.until, e.failure = e.now().Add(pause), err.Error()
	}
	return fmt.Errorf("embeddings: %s: %w", e.where, err)
}

// known compares the size of vectors with that of the ones before.
func (e *endpoint) known(size int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.size == 0 {
		e.size = size
	}
	if e.size != size {
		return fmt.Errorf("the answer has vectors of %d dimensions, and %d are expected: is the model %q another one now?", size, e.size, e.name)
	}
	return nil
}
