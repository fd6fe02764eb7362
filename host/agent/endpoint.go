package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/openai"
	"a2e/host/schema"
)

const (
	defaultModelTimeout = 120 * time.Second
	maxModelAnswer      = 8 << 20 // bytes
	maxModelTries       = 4
	longestWait         = 30 * time.Second // that an endpoint may ask for before the next try
)

// EndpointOptions say where a model answers: any server that answers the OpenAI way to
// POST {URL}/chat/completions. URL's user info and query and APIKey are sent
// along and shown nowhere.
type EndpointOptions struct {
	URL          string           // such as https://api.example.org/v1
	Model        string           // as the server names it
	APIKey       string           // sent as a bearer token; "" = none
	Thinking     string           // sent as reasoning_effort; "" and off send nothing
	Timeout      time.Duration    // that the server may be silent; 0 = 120 s
	AllowPrivate bool             // the server may be this machine or in a private network; for an URL of the config, not for one of the agent
	Now          func() time.Time // nil = time.Now
}

// ThinkingLevels lists the values of Thinking, but for "".
func ThinkingLevels() []string {
	return []string{"off", "minimal", "low", "medium", "high", "xhigh"}
}

// NewEndpoint returns the model of an endpoint; it connects at the first use. An error says
// which option is wrong. The model is an io.Closer as well, which closes the connections
// that are kept.
//
// A request that meets a broken connection, a stall, 429 or 5xx is tried again, four times in
// all, as long as ctx lasts. A redirect is followed within the same server alone.
func NewEndpoint(o EndpointOptions) (Model, error) {
	server, err := openai.New(openai.Options{
		URL: o.URL, Path: "chat/completions", APIKey: o.APIKey, Timeout: cmp.Or(o.Timeout, defaultModelTimeout),
		Tries: maxModelTries, Pause: 500 * time.Millisecond, LongestPause: 10 * time.Second, LongestWait: longestWait,
		AllowPrivate: o.AllowPrivate, Now: o.Now,
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("llm: %w", err)
	case o.Model == "":
		return nil, errors.New("llm: model is missing: name the model that the endpoint shall use")
	case o.Thinking != "" && !slices.Contains(ThinkingLevels(), o.Thinking):
		return nil, fmt.Errorf("llm: thinking is %.32q; it should be one of %s", o.Thinking, strings.Join(ThinkingLevels(), ", "))
	}
	return &endpoint{name: o.Model, thinking: o.Thinking, server: server}, nil
}

// ServedBy asks an endpoint which providers serve a model behind it, as routers such as
// OpenRouter tell: GET {URL}/models/{model}/endpoints. none = the endpoint does not tell that.
func ServedBy(ctx context.Context, o EndpointOptions, model string) (providers []string, none bool, err error) {
	parts := strings.Split(model, "/")
	for i, part := range parts {
		if part == "" || part == "." || part == ".." { // it would be another path
			return nil, true, nil
		}
		parts[i] = url.PathEscape(part)
	}
	server, err := openai.New(openai.Options{
		URL: strings.TrimSuffix(strings.TrimRight(o.URL, "/"), "/chat/completions"), Path: "models/" + strings.Join(parts, "/") + "/endpoints", APIKey: o.APIKey,
		Timeout: askTimeout, AllowPrivate: o.AllowPrivate, Now: o.Now,
	})
	if err != nil {
		return nil, false, fmt.Errorf("llm: %w", err)
	}
	defer server.Close()
	var told struct {
		Data struct {
			Endpoints []struct {
				Provider string `json:"provider_name"`
			} `json:"endpoints"`
		} `json:"data"`
	}
	raw, err := server.Get(ctx, maxModelAnswer)
	switch fault := (*openai.Fault)(nil); {
	case errors.As(err, &fault) && (fault.Status == http.StatusNotFound || fault.Status == http.StatusMethodNotAllowed):
		return nil, true, nil
	case err != nil && ctx.Err() != nil:
		return nil, false, context.Cause(ctx)
	case err != nil:
		return nil, false, errorf("%s: %v", server.Where(), err)
	case json.Unmarshal(raw, &told) != nil || told.Data.Endpoints == nil:
		return nil, true, nil
	}
	for _, e := range told.Data.Endpoints {
		if e.Provider != "" {
			providers = append(providers, e.Provider)
		}
	}
	slices.Sort(providers)
	return slices.Compact(providers), false, nil
}

// askTimeout bounds a question that is not to the model.
const askTimeout = 10 * time.Second

// endpoint asks a server.
type endpoint struct {
	name     string // the model
	thinking string
	server   *openai.Client
	plain    atomic.Bool // the server does not take stream_options
}

// Close closes the connections that are not in use. The model stays usable.
func (e *endpoint) Close() error { return e.server.Close() }

// Complete implements Model. The answer is asked for as a stream.
func (e *endpoint) Complete(ctx context.Context, r Request) (*Reply, error) {
	tools := make([]string, len(r.Tools))
	for i, t := range r.Tools {
		tools[i] = t.Name
	}
	names := schema.NewNames(tools)
	ask := e.chat(&r, names)
	for plain := e.plain.Load(); ; plain = true {
		ask.StreamOptions = nil
		if !plain {
			ask.StreamOptions = &streamOptions{IncludeUsage: true}
		}
		body, err := json.Marshal(ask)
		if err != nil {
			return nil, errorf("the request to the model cannot be written: %w", err)
		}
		answer := &answer{to: r.listener()}
		err = e.server.Stream(ctx, body, maxModelAnswer, answer)
		fault, reply := (*openai.Fault)(nil), (*Reply)(nil)
		if err == nil {
			reply, err = answer.reply(names)
		}
		switch {
		case err == nil:
			e.plain.Store(plain)
			return reply, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.As(err, &fault) && (fault.Status == http.StatusBadRequest || fault.Status == http.StatusUnprocessableEntity) && !plain:
			continue // perhaps a server that does not know stream_options
		}
		refused := errorf("the model at %s: %v", e.server.Where(), err)
		refused.Retryable = fault == nil || !fault.Lasting
		return nil, refused
	}
}
