package embed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/agent/openai"
)

const (
	defaultBatch   = 64
	defaultTimeout = 10 * time.Second
	maxBatch       = 2048
	maxRunes       = 8000             // runes of one input: most models take that many
	maxTries       = 3                // attempts for one request
	shortWait      = 5 * time.Second  // the longest Retry-After that a request waits for
	pause          = 30 * time.Second // how long a failing endpoint is not asked again
)

// Endpoint describes the server that makes the vectors: any server that answers
// POST {URL}/embeddings like OpenAI's API.
type Endpoint struct {
	// such as https://api.example.org/v1; user info and a query are sent but never shown
	URL     string
	Model   string           // the server's name for it
	APIKey  string           // sent as a bearer token; "" = none
	Size    int              // dimensions; 0 = those of the first answer
	Timeout time.Duration    // of one request; 0 = 10 s
	Batch   int              // texts in one request; 0 = 64
	Now     func() time.Time // nil = time.Now
}

// NewEndpoint returns an embedder that asks the endpoint e; it connects at the
// first use. An error says which field is wrong.
//
// After a broken connection, 429 or 5xx the embedder repeats the request, with at most
// three attempts; after a timeout it does not. After a failure all calls
// fail at once for 30 s, so that they do not wait for a server that is
// down; then one call tries again. No error shows the key.
//
// The embedder also is an io.Closer, which closes the idle connections.
func NewEndpoint(e Endpoint) (Embedder, error) {
	server, err := openai.New(openai.Options{
		URL: e.URL, Path: "embeddings", APIKey: e.APIKey, Timeout: cmp.Or(e.Timeout, defaultTimeout),
		Tries: maxTries, Pause: 200 * time.Millisecond, LongestPause: 2 * time.Second, LongestWait: shortWait,
		AllowPrivate: true, Now: e.Now,
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("embeddings: %w", err)
	case e.Model == "":
		return nil, errors.New("embeddings: model is missing: name the model that the endpoint shall use")
	case e.Size < 0 || e.Batch < 0 || e.Batch > maxBatch:
		return nil, fmt.Errorf("embeddings: size %d and batch %d must not be negative, and batch at most %d", e.Size,
			e.Batch, maxBatch)
	}
	out := &endpoint{name: e.Model, server: server, size: e.Size, batch: cmp.Or(e.Batch, defaultBatch), now: e.Now}
	if out.now == nil {
		out.now = time.Now
	}
	return out, nil
}

// endpoint asks a server for vectors.
type endpoint struct {
	name   string // the model
	server *openai.Client
	batch  int
	now    func() time.Time

	mu      sync.Mutex
	size    int       // guarded by mu; 0 = not known yet
	until   time.Time // guarded by mu: no call before this; zero = the last call succeeded
	failure string    // guarded by mu: why the last call failed
}

// Model returns the model's name, and its size once that is known.
func (e *endpoint) Model() Model {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Model{Name: e.name, Size: e.size}
}

// Close closes the connections that are not in use. The embedder stays usable.
func (e *endpoint) Close() error { return e.server.Close() }

// Embed asks for the vectors of texts, batch by batch.
func (e *endpoint) Embed(ctx context.Context, texts []string) ([]Vector, error) {
	out := make([]Vector, len(texts))
	var inputs []string
	var places []int // index in out of each input
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

// enter refuses a call during the pause after a failure. It lets the first call after
// the pause through, and refuses others until that call has ended.
func (e *endpoint) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	if now.Before(e.until) {
		return fmt.Errorf("embeddings: %s failed and is not asked again for %v: %s", e.server.Where(),
			e.until.Sub(now).Round(time.Second), e.failure)
	}
	if !e.until.IsZero() {
		e.until = now.Add(pause)
	}
	return nil
}

// leave records the result of a call, and returns its error with the address of the endpoint.
func (e *endpoint) leave(ctx context.Context, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	fault, _ := errors.AsType[*openai.Fault](err)
	switch {
	case err == nil:
		e.until, e.failure = time.Time{}, ""
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		// a cancelled call tells nothing about the endpoint: the next call may try
		if !e.until.IsZero() {
			e.until = e.now()
		}
		return context.Cause(ctx)
	case ctx.Err() != nil:
		e.until, e.failure = e.now().Add(pause), "it took longer than the caller waits"
		return context.Cause(ctx)
	case fault != nil && ofInput(fault.Status):
		e.until, e.failure = time.Time{}, ""
	default:
		e.until, e.failure = e.now().Add(pause), err.Error()
	}
	return fmt.Errorf("embeddings: %s: %w", e.server.Where(), err)
}

// known returns an error if the size of vectors differs from the known one. The first call sets it.
func (e *endpoint) known(size int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.size == 0 {
		e.size = size
	}
	if e.size != size {
		return fmt.Errorf("the answer has vectors of %d dimensions, and %d are expected: has the model %q changed?",
			size, e.size, e.name)
	}
	return nil
}

// ofInput reports whether a status means that the input is bad; other inputs may succeed.
func ofInput(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge ||
		status == http.StatusUnprocessableEntity
}

const (
	answerBase = 64 << 10  // bytes of an answer beside its vectors
	answerEach = 512 << 10 // bytes of one vector: 20,000 dimensions in full precision
)

// prepared returns a text as it is sent: valid UTF-8, without NUL, which some servers
// refuse, and cut to maxRunes; "" if nothing is left.
func prepared(text string) string {
	text = cut(text, maxRunes*4) // in bytes; the loop below counts runes
	text = strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", " "), "\ufffd"))
	runes := 0
	for i := range text {
		if runes == maxRunes {
			return text[:i]
		}
		runes++
	}
	return text
}

// ask asks for the vectors of one batch of inputs.
func (e *endpoint) ask(ctx context.Context, inputs []string) ([]Vector, error) {
	body, err := json.Marshal(struct {
		Model string   `json:"model"`
		Input []string `json:"input"`
	}{e.name, inputs})
	if err != nil {
		return nil, err
	}
	raw, err := e.server.Post(ctx, body, answerBase+answerEach*len(inputs))
	if err != nil {
		return nil, err
	}
	return e.decode(raw, len(inputs))
}

// decode reads an answer. It must have one vector for each of count inputs, each at the
// index of its input, all of the known size.
func (e *endpoint) decode(raw []byte, count int) ([]Vector, error) {
	var answer struct {
		Data []struct {
			Index     *int      `json:"index"`
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, errors.New(`the answer is not of the form {"data":[{"index":0,"embedding":[0.1]}]} with numbers that fit 32 bits`)
	}
	if len(answer.Data) != count {
		return nil, fmt.Errorf("the answer has %d vectors for %d texts", len(answer.Data), count)
	}
	out, filled := make([]Vector, count), make([]bool, count)
	for i, d := range answer.Data {
		at := i
		if d.Index != nil {
			at = *d.Index
		}
		if at < 0 || at >= count || filled[at] {
			return nil, fmt.Errorf("the answer has a vector with the index %d, which is taken or not one of %d texts",
				at, count)
		}
		if size := len(d.Embedding); size == 0 || size != len(answer.Data[0].Embedding) {
			return nil, fmt.Errorf("the answer has vectors of %d and of %d dimensions", len(answer.Data[0].Embedding),
				size)
		}
		for _, f := range d.Embedding {
			if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
				return nil, fmt.Errorf("the answer has a vector with a number that is not finite, at index %d", at)
			}
		}
		out[at], filled[at] = Quantise(d.Embedding), true
	}
	return out, e.known(len(answer.Data[0].Embedding))
}
