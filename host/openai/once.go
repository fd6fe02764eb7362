package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

const (
	maxFault      = 64 << 10 // bytes read of an answer that is an error
	maxFaultRunes = 300      // shown of what the server says in it
)

// lasting makes a failure that another request would meet again, and ends the tries.
func lasting(status int, text string) error {
	return backoff.Permanent(&Fault{Status: status, Lasting: true, text: text})
}

// later is a failure with the time to wait that the server asked for.
type later struct {
	*Fault
	wait *backoff.RetryAfterError
}

// Unwrap gives both, the wait for package backoff.
func (l *later) Unwrap() []error { return []error{l.Fault, l.wait} }

// requests gives what makes the requests to target.
func requests(target *url.URL, key string, headers map[string]string) func(context.Context, []byte) (*http.Request, error) {
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
		for name, value := range headers {
			req.Header.Set(name, value)
		}
		return req, nil
	}
}

// once asks the server one time. Its error is a backoff.PermanentError if asking again
// does not help.
func (c *Client) once(ctx context.Context, body []byte, limit int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.timeout)
	defer cancel()
	req, err := c.request(ctx, body)
	if err != nil {
		return nil, lasting(0, "no request can be made for this url")
	}
	resp, err := c.client.Do(req)
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

// broken makes the error of a connection that did not last. Waiting for the whole timeout
// again would keep the caller for too long.
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

// refused makes the error of a status that is not 200.
func (c *Client) refused(resp *http.Response) error {
	code := resp.StatusCode
	text := strings.TrimSpace(fmt.Sprintf("status %d %s", code, http.StatusText(code)))
	switch {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return lasting(code, text+": check api_key")
	case code >= 300 && code < 400:
		return lasting(code, text+": it sends requests elsewhere; set url to the right address")
	}
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxFault)) // what there is, is said
	if said := serverSays(raw); said != "" {
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
		return &later{f, &backoff.RetryAfterError{Duration: wait}}
	}
	return f
}

// waits reads a Retry-After header: seconds, or a date.
func (c *Client) waits(header string) (wait time.Duration, asked bool) {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if date, err := http.ParseTime(header); err == nil {
		return max(0, date.Sub(c.now())), true
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
