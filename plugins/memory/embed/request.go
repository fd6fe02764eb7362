package embed

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-json-experiment/json"
)

const (
	answerBase    = 64 << 10  // bytes of an answer beside its vectors
	answerEach    = 512 << 10 // bytes of one vector: 20,000 dimensions in full precision
	maxRedirects  = 3
	maxFaultRunes = 200 // of what the server says about an error
)

// fault is a failure of one request.
type fault struct {
	text    string
	ofInput bool // this input's fault: others may go well
}

// Error gives what went wrong.
func (f *fault) Error() string { return f.text }

// retryAfter is a failure with the time to wait that the server asked for.
type retryAfter struct {
	*fault
	wait *backoff.RetryAfterError
}

// Unwrap gives both, the wait for package backoff.
func (r *retryAfter) Unwrap() []error { return []error{r.fault, r.wait} }

// requests gives what makes the requests to target.
func requests(target *url.URL, key string) func(context.Context, []byte) (*http.Request, error) {
	bare := *target
	bare.User = nil
	return func(ctx context.Context, body []byte) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, bare.String(), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json")
		if user := target.User; user != nil {
			password, _ := user.Password()
			req.SetBasicAuth(user.Username(), password)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		return req, nil
	}
}

// newClient gives a client that follows redirects within one server alone, and
// only those that keep the request as it is.
func newClient(base *http.Client) *http.Client {
	var client http.Client
	if base != nil {
		client = *base
	} else if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t = t.Clone() // so that closing its connections closes no others
		t.IdleConnTimeout = 30 * time.Second
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

// hider gives what keeps secrets out of a text that a server or the transport
// wrote. One with the beginning of a secret in it is dropped as a whole: servers
// like to show half a key.
func hider(target *url.URL, key string) func(string) string {
	secrets := []string{key}
	for _, values := range target.Query() {
		for _, v := range values {
			secrets = append(secrets, v, url.QueryEscape(v))
		}
	}
	if user := target.User; user != nil {
		password, _ := user.Password()
		secrets = append(secrets, password, user.String(), base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	return func(text string) string {
		for _, s := range secrets {
			if s != "" && strings.Contains(text, s[:min(len(s), 8)]) {
				return "(a text with a secret in it)"
			}
		}
		return text
	}
}

// prepared gives a text as it is sent: valid, without NUL, which some servers
// refuse, and not too long; "" if nothing is left.
func prepared(text string) string {
	text = cut(text, maxRunes*4) // bytes: the runes are counted below
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

// once asks for the vectors of inputs. Its error is a backoff.PermanentError if
// asking again does not help.
func (e *endpoint) once(ctx context.Context, inputs []string) ([]Vector, error) {
	body, err := json.Marshal(struct {
		Model string   `json:"model"`
		Input []string `json:"input"`
	}{e.name, inputs})
	if err != nil {
		return nil, backoff.Permanent(err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	req, err := e.request(ctx, body)
	if err != nil {
		return nil, backoff.Permanent(errors.New("no request can be made for this url"))
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, e.broken(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, e.refused(resp)
	}
	limit := answerBase + answerEach*len(inputs)
	raw, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if err != nil {
		return nil, e.broken(ctx, err)
	}
	if len(raw) > limit {
		return nil, backoff.Permanent(fmt.Errorf("the answer is larger than %d bytes", limit))
	}
	vectors, err := e.decode(raw, len(inputs))
	if err != nil {
		return nil, backoff.Permanent(err)
	}
	return vectors, nil
}

// broken makes the error of a connection that did not last. Waiting for the whole
// timeout again would keep the caller for too long.
func (e *endpoint) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return backoff.Permanent(fmt.Errorf("no answer within %v", e.timeout))
	}
	if inner := (*url.Error)(nil); errors.As(err, &inner) {
		err = inner.Err // without the address, which may have secrets in it
	}
	return errors.New(e.hide(err.Error()))
}

// refused makes the error of a status that is not 200.
func (e *endpoint) refused(resp *http.Response) error {
	code := resp.StatusCode
	f := &fault{text: strings.TrimSpace(fmt.Sprintf("status %d %s", code, http.StatusText(code)))}
	switch {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		f.text += ": check api_key"
		return backoff.Permanent(f)
	case code >= 300 && code < 400:
		f.text += ": it sends requests elsewhere; set url to the right address"
		return backoff.Permanent(f)
	}
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, answerBase)) // what there is, is said
	if said := serverSays(raw); said != "" {
		f.text += ": " + e.hide(said)
	}
	if code != http.StatusTooManyRequests && code < 500 {
		f.ofInput = code == http.StatusBadRequest || code == http.StatusRequestEntityTooLarge || code == http.StatusUnprocessableEntity
		return backoff.Permanent(f)
	}
	wait, asked := e.waits(resp.Header.Get("Retry-After"))
	switch {
	case asked && wait > shortWait:
		return backoff.Permanent(f)
	case asked:
		return &retryAfter{f, &backoff.RetryAfterError{Duration: wait}}
	}
	return f
}

// waits reads a Retry-After header: seconds, or a date.
func (e *endpoint) waits(header string) (wait time.Duration, asked bool) {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if date, err := http.ParseTime(header); err == nil {
		return max(0, date.Sub(e.now())), true
	}
	return 0, false
}

// serverSays gives the message of an error's body, on one line; "" if there is none.
func serverSays(raw []byte) string {
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(raw, &answer) != nil {
		return ""
	}
	said := []rune(strings.Join(strings.FieldsFunc(answer.Error.Message, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " "))
	return string(said[:min(len(said), maxFaultRunes)])
}

// decode reads an answer: as many vectors as there were inputs, each input's at
// its index, all of the size known.
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
			return nil, fmt.Errorf("the answer has a vector with the index %d, which is taken or not one of %d texts", at, count)
		}
		if size := len(d.Embedding); size == 0 || size != len(answer.Data[0].Embedding) {
			return nil, fmt.Errorf("the answer has vectors of %d and of %d dimensions", len(answer.Data[0].Embedding), size)
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
