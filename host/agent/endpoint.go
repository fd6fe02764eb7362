package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/agent/openai"
	"a2e/host/guard/private"
	"a2e/host/schema"
	"a2e/protocol"
)

const (
	defaultModelTimeout = 120 * time.Second
	maxModelAnswer      = 8 << 20 // bytes
	maxModelTries       = 4
	longestWait         = 30 * time.Second // that an endpoint may ask for before the next try
)

// EndpointOptions say where a model answers: any server with POST {URL}/chat/completions of the OpenAI API. The
// user info and query of URL, and APIKey, are sent along and shown nowhere.
type EndpointOptions struct {
	URL      string        // such as https://api.example.org/v1
	Model    string        // as the server names it
	APIKey   string        // sent as a bearer token; "" = none
	Thinking string        // sent as reasoning_effort; "" and off send nothing
	Timeout  time.Duration // that the server may be silent; 0 = 120 s
	// the server may be this machine or in a private network; for a URL of the config, not for one of the agent
	AllowPrivate bool
	Now          func() time.Time // nil = time.Now
}

// ThinkingLevels returns the values of Thinking, except "".
func ThinkingLevels() []string { return []string{"off", "minimal", "low", "medium", "high", "xhigh"} }

// NewEndpoint returns the model of an endpoint; it connects at the first use. An error says which option is wrong.
// The model is also an io.Closer, which closes the connections that are kept.
//
// A request that meets a broken connection, a stall, 429 or 5xx is tried again, four times in all, as long as ctx
// lasts. Redirects are followed only within the same server.
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
		return nil, fmt.Errorf("llm: thinking is %.32q; it should be one of %s", o.Thinking,
			strings.Join(ThinkingLevels(), ", "))
	}
	return &endpoint{name: o.Model, thinking: o.Thinking, server: server}, nil
}

// ServedBy asks an endpoint which providers serve a model, as routers such as OpenRouter tell: GET
// {URL}/models/{model}/endpoints. none = the endpoint does not tell that.
func ServedBy(ctx context.Context, o EndpointOptions, model string) (providers []string, none bool, err error) {
	parts := strings.Split(model, "/")
	for i, part := range parts {
		if part == "" || part == "." || part == ".." { // it would be another path
			return nil, true, nil
		}
		parts[i] = url.PathEscape(part)
	}
	var told struct {
		Data struct {
			Endpoints []struct {
				Provider string `json:"provider_name"`
			} `json:"endpoints"`
		} `json:"data"`
	}
	if none, err := o.ask(ctx, "models/"+strings.Join(parts, "/")+"/endpoints", &told); err != nil || none ||
		told.Data.Endpoints == nil {
		return nil, err == nil, err
	}
	for _, e := range told.Data.Endpoints {
		if e.Provider != "" {
			providers = append(providers, e.Provider)
		}
	}
	slices.Sort(providers)
	return slices.Compact(providers), false, nil
}

// models returns the names of the models of an endpoint: GET {URL}/models. none = the endpoint does not tell that.
func (o EndpointOptions) models(ctx context.Context) (names []string, none bool, err error) {
	var told struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	none, err = o.ask(ctx, "models", &told)
	for _, m := range told.Data {
		names = append(names, m.ID)
	}
	return names, none || err == nil && names == nil, err
}

// ask sends a GET request for path to the endpoint, not to the model, and decodes the answer into told. none = the
// endpoint has no such answer.
func (o EndpointOptions) ask(ctx context.Context, path string, told any) (none bool, err error) {
	server, err := openai.New(openai.Options{
		URL: strings.TrimSuffix(strings.TrimRight(o.URL, "/"), "/chat/completions"), Path: path, APIKey: o.APIKey,
		Timeout: askTimeout, AllowPrivate: o.AllowPrivate, Now: o.Now,
	})
	if err != nil {
		return false, fmt.Errorf("llm: %w", err)
	}
	defer server.Close()
	raw, err := server.Get(ctx, maxModelAnswer)
	switch fault := (*openai.Fault)(nil); {
	case errors.As(err, &fault) && (fault.Status == http.StatusNotFound || fault.Status == http.StatusMethodNotAllowed):
		return true, nil
	case err != nil && ctx.Err() != nil:
		return false, context.Cause(ctx)
	case err != nil:
		return false, errorf("%s: %v", server.Where(), err)
	}
	return json.Unmarshal(raw, told) != nil, nil
}

// Needs lists what a model of the config needs: its endpoint, and a key. option is the name of its options in the
// config; stored is the key that is kept for it elsewhere, or "".
func (l LLM) Needs(of, option, stored string) []host.Need {
	look := func() (string, error) {
		u, err := url.Parse(l.URL)
		if err != nil || stored != "" || l.APIKey.Reveal() != "" || u.User != nil || u.RawQuery != "" ||
			near(u.Hostname()) {
			return Origin(l.URL), nil
		}
		return "", &host.Lack{
			Err: fmt.Errorf("%s is asked without a key", Origin(l.URL)),
			Fix: "api_key: ${A2E_LLM_API_KEY}", Minor: true,
		}
	}
	return []host.Need{{Of: of, Option: option + ".url", Look: look, Live: func(ctx context.Context) (string, error) {
		o := l.Endpoint(nil)
		if o.APIKey == "" {
			o.APIKey = stored
		}
		names, none, err := o.models(ctx)
		switch {
		case err != nil:
			return "", err
		case none:
			return "it answers, and does not list its models", nil
		case !slices.Contains(names, l.Model):
			return "", &host.Lack{Err: fmt.Errorf("it does not list the model %q; %s", l.Model,
				schema.Suggest(l.Model, "models", names[:min(len(names), maxNamed)])), Minor: true}
		}
		return fmt.Sprintf("it answers, and has %s among %s", l.Model, protocol.Count(len(names), "model")), nil
	}}}
}

// near reports whether a host is this machine or in a private network, where models need no key.
func near(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast()) || err != nil &&
		!strings.Contains(host, ".")
}

// maxNamed is how many models a message names.
const maxNamed = 8

// askTimeout bounds a request that does not go to the model.
const askTimeout = 10 * time.Second

// endpoint is the Model of a server.
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
		case errors.As(err, &fault) && (fault.Status == http.StatusBadRequest ||
			fault.Status == http.StatusUnprocessableEntity) && !plain:
			continue // perhaps a server that does not know stream_options
		}
		refused := errorf("the model at %s: %v", e.server.Where(), err)
		refused.Retryable = fault == nil || !fault.Lasting
		return nil, refused
	}
}

// keysFile is the file in the state folder with the keys that clients gave for endpoints.
const keysFile = "llm-keys.json"

const maxKeysFile = 1 << 20 // bytes

// Origin returns what a stored key of an endpoint is bound to: scheme and host of its URL, or "" if it has no host.
func Origin(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return ""
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

// StoredKey returns the key that was stored for an origin in a state folder, or "" if there is none.
func StoredKey(dir, origin string) string {
	if dir == "" {
		return ""
	}
	folder, err := private.OpenDir(dir)
	if err != nil {
		return ""
	}
	defer folder.Close()
	keys, _ := storedKeys(folder) // a damaged file has no key
	return keys[origin]
}

func storedKeys(folder *private.Dir) (map[string]string, error) {
	raw, err := folder.Read(keysFile, maxKeysFile)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	keys := map[string]string{}
	if err == nil && json.Unmarshal(raw, &keys) != nil { // the error of Unmarshal may show a key
		keys, err = nil, errors.New(keysFile+" in the state_dir is damaged; repair or remove it")
	}
	return keys, err
}

// StoreKey keeps a key for an origin, in a file that belongs to this user alone; the key "" removes the stored one.
func StoreKey(dir, origin, key string) error {
	if dir == "" {
		return errors.New("there is no state_dir to keep a key in")
	}
	folder, err := private.MakeDir(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	keys, err := storedKeys(folder)
	if err != nil || keys[origin] == key {
		return err
	}
	if keys[origin] = key; key == "" {
		delete(keys, origin)
	}
	raw, err := json.Marshal(keys, json.Deterministic(true))
	if err != nil {
		return err
	}
	return folder.Replace(keysFile, raw)
}
