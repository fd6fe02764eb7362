package run

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"code.dny.dev/ssrf"
	"github.com/cenkalti/backoff/v5"
	"github.com/go-json-experiment/json"
)

const (
	maxFault      = 64 << 10 // bytes read of an answer that is an error
	maxFaultRunes = 300      // shown of what the server says in it
	shortSecret   = 8        // bytes of a secret that give it away
)

// lasting is a failure that another try would meet again.
type lasting struct{ text string }

// Error gives what went wrong.
func (l *lasting) Error() string { return l.text }

// permanent makes such a failure, and ends the tries.
func permanent(format string, args ...any) error {
	return backoff.Permanent(&lasting{fmt.Sprintf(format, args...)})
}

// modelRequests gives what makes the requests to target.
func modelRequests(target *url.URL, key string, headers map[string]string) func(context.Context, []byte) (*http.Request, error) {
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

// hider gives what keeps secrets out of a text that a server or the transport wrote. One
// with the beginning of a secret in it is dropped as a whole: servers like to show half a
// key.
func hider(target *url.URL, key string, headers map[string]string) func(string) string {
	secrets := []string{key}
	for _, value := range headers {
		secrets = append(secrets, value)
		if _, token, ok := strings.Cut(value, " "); ok { // behind a scheme
			secrets = append(secrets, token)
		}
	}
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
			if s != "" && strings.Contains(text, s[:min(len(s), shortSecret)]) {
				return "(a text with a secret in it)"
			}
		}
		return text
	}
}

// once asks the server one time.
func (e *endpoint) once(ctx context.Context, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	req, err := e.request(ctx, body)
	if err != nil {
		return nil, permanent("no request can be made for this url")
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, e.broken(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, e.refused(resp)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxModelAnswer+1))
	if err != nil {
		return nil, e.broken(ctx, err)
	}
	if len(raw) > maxModelAnswer {
		return nil, permanent("the answer is larger than %d MiB", maxModelAnswer>>20)
	}
	return raw, nil
}

// broken makes the error of a connection that did not last. Waiting for the whole timeout
// again would keep the caller for too long.
func (e *endpoint) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return backoff.Permanent(fmt.Errorf("no answer within %v", e.timeout))
	}
	if inner := (*url.Error)(nil); errors.As(err, &inner) {
		err = inner.Err // without the address, which may have secrets in it
	}
	if errors.Is(err, ssrf.ErrProhibitedIP) {
		return permanent("it is this machine or in a private network, which is not allowed for this url")
	}
	return errors.New(e.hide(err.Error()))
}

// refused makes the error of a status that is not 200.
func (e *endpoint) refused(resp *http.Response) error {
	code := resp.StatusCode
	text := strings.TrimSpace(fmt.Sprintf("status %d %s", code, http.StatusText(code)))
	switch {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return permanent("%s: check api_key", text)
	case code >= 300 && code < 400:
		return permanent("%s: it sends requests elsewhere; set url to the right address", text)
	}
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxFault)) // what there is, is said
	if said := serverSays(raw); said != "" {
		text += ": " + e.hide(said)
	}
	if code != http.StatusTooManyRequests && code < 500 {
		return permanent("%s", text)
	}
	wait, asked := e.waits(resp.Header.Get("Retry-After"))
	switch {
	case asked && wait > longestWait:
		return backoff.Permanent(errors.New(text))
	case asked:
		return &laterError{text, &backoff.RetryAfterError{Duration: wait}}
	}
	return errors.New(text)
}

// laterError is a failure with the time to wait that the server asked for.
type laterError struct {
	text string
	wait *backoff.RetryAfterError
}

// Error gives what went wrong.
func (l *laterError) Error() string { return l.text }

// Unwrap gives the wait, for package backoff.
func (l *laterError) Unwrap() error { return l.wait }

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
