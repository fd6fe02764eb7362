package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/openai"
)

const (
	defaultModelTimeout = 120 * time.Second
	maxModelAnswer      = 8 << 20 // bytes
	maxModelTries       = 4
	longestWait         = 30 * time.Second // that an endpoint may ask for before the next try
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
	_, _ = io.WriteString(w, "run.EndpointOptions{"+openai.Display(o.URL)+" "+o.Model+"}")
}

// NewEndpoint gives the model of an endpoint; it connects at the first use. An error says
// which option is wrong. The model is an io.Closer as well, which closes the connections
// that are kept.
//
// A request that meets a broken connection, 429 or 5xx is tried again, four times in all,
// as long as ctx lasts. A redirect is followed within the same server alone.
func NewEndpoint(o EndpointOptions) (Model, error) {
	server, err := openai.New(openai.Options{
		URL: o.URL, Path: "chat/completions", APIKey: o.APIKey, Headers: o.Headers, Timeout: cmp.Or(o.Timeout, defaultModelTimeout),
		Tries: maxModelTries, Pause: 500 * time.Millisecond, LongestPause: 10 * time.Second, LongestWait: longestWait,
		AllowPrivate: o.AllowPrivate, Client: o.Client, Now: o.Now,
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("llm: %w", err)
	case o.Model == "":
		return nil, errors.New("llm: model is missing: name the model that the endpoint shall use")
	case o.MaxTokens < 0:
		return nil, errors.New("llm: max_tokens must not be negative")
	}
	return &endpoint{name: o.Model, maxTokens: o.MaxTokens, server: server}, nil
}

// endpoint asks a server.
type endpoint struct {
	name      string // the model
	maxTokens int
	server    *openai.Client
}

// Close closes the connections that are not in use. The model stays usable.
func (e *endpoint) Close() error { return e.server.Close() }

// Complete implements Model.
func (e *endpoint) Complete(ctx context.Context, r Request) (*Reply, error) {
	names := newWireNames(r.Tools)
	body, err := json.Marshal(e.chat(&r, names))
	if err != nil {
		return nil, errorf("the request to the model cannot be written: %w", err)
	}
	raw, err := e.server.Post(ctx, body, maxModelAnswer)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		refused := errorf("the model at %s: %v", e.server.Where(), err)
		fault := (*openai.Fault)(nil)
		refused.Retryable = !errors.As(err, &fault) || !fault.Lasting
		return nil, refused
	}
	reply, err := readChat(raw, names)
	if err != nil {
		return nil, errorf("the model at %s: %v", e.server.Where(), err)
	}
	return reply, nil
}
