package openai

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-json-experiment/json/jsontext"
)

// Receiver takes an answer piece by piece.
type Receiver interface {
	// Begin is called when the answer of a try begins; earlier pieces no longer count.
	Begin()
	// Take receives the JSON data of one event, or the whole answer if it is no stream. Its error ends the request,
	// unless it is a *Fault that does not last.
	Take(data []byte) error
	// Complete reports whether the answer may end here if its end is not marked.
	Complete() bool
}

// errSilent is why a stream that stalls is given up.
var errSilent = errors.New("silent")

// Stream sends a body and passes the answer to a receiver as it comes: server-sent events, or one object if the
// server sends that. The timeout of the options is how long the server may be silent. Tries and errors are as with
// Post; an answer that breaks off, or stalls after its begin, is requested again from its start.
func (c *Client) Stream(ctx context.Context, body []byte, limit int, to Receiver) error {
	_, err := c.retry(ctx, func() ([]byte, error) { return nil, c.streamOnce(ctx, body, limit, to) })
	return err
}

// streamOnce is one try of Stream.
func (c *Client) streamOnce(ctx context.Context, body []byte, limit int, to Receiver) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(c.opts.timeout, func() { cancel(errSilent) })
	defer silence.Stop()
	req, err := c.request(ctx, body)
	if err != nil {
		return lasting(0, "no request can be made for this url")
	}
	req.Header.Set("Accept", "text/event-stream, application/json")
	resp, err := c.client().Do(req)
	if err != nil {
		return c.broken(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c.refused(resp)
	}
	in := &heard{body: resp.Body, silence: silence, most: c.opts.timeout}
	to.Begin()
	err = c.read(bufio.NewReader(io.LimitReader(in, int64(limit)+1)), limit, to)
	fault := (*Fault)(nil)
	switch {
	case err == nil:
		return nil
	case in.read > limit:
		return lasting(resp.StatusCode, fmt.Sprintf("the answer is larger than %d bytes", limit))
	case errors.Is(context.Cause(ctx), errSilent):
		return &Fault{text: fmt.Sprintf("the answer stalled: nothing came for %v", c.opts.timeout)}
	case in.err != nil && ctx.Err() == nil:
		return c.broken(ctx, in.err)
	case errors.As(err, &fault) && !fault.Lasting:
		return err
	}
	return backoff.Permanent(err)
}

// heard reads the body of an answer, and limits how long its server may be silent.
type heard struct {
	body    io.Reader
	silence *time.Timer
	most    time.Duration
	read    int
	err     error // except io.EOF
}

// Read implements io.Reader.
func (h *heard) Read(p []byte) (int, error) {
	h.silence.Reset(h.most)
	n, err := h.body.Read(p)
	h.silence.Stop() // the receiver may take its time
	if h.read += n; err != nil && err != io.EOF {
		h.err = err
	}
	return n, err
}

// read passes an answer on. Its first character shows whether it is events or one object.
func (c *Client) read(in *bufio.Reader, limit int, to Receiver) error {
	for {
		first, err := in.Peek(1)
		if err != nil {
			return brokeOff(err)
		}
		if !bytes.Contains([]byte(" \r\n\t\xef\xbb\xbf"), first) {
			break
		}
		_, _ = in.Discard(1)
	}
	if first, _ := in.Peek(1); !bytes.Contains([]byte(":deir"), first) { // comments and fields begin with these
		raw, err := io.ReadAll(in)
		if err != nil || len(raw) > limit {
			return brokeOff(err)
		}
		return c.take(raw, false, to)
	}
	return c.events(in, limit, to)
}

// events reads server-sent events. Only the data of an event matters, and whether the event is an error. A blank
// line ends an event; a line with whole JSON is an event by itself, because some servers send no blank lines.
func (c *Client) events(in *bufio.Reader, limit int, to Receiver) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, limit+2) // more than can be read
	lines.Split(eventLines())
	var data []byte
	failed := false
	for lines.Scan() {
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		ended := len(lines.Bytes()) == 0
		switch string(name) {
		case "event":
			failed = string(value) == "error"
		case "data":
			if string(bytes.TrimSpace(value)) == "[DONE]" {
				return nil
			}
			ended = len(data) == 0 && jsontext.Value(value).IsValid(jsontext.AllowInvalidUTF8(true),
				jsontext.AllowDuplicateNames(true))
			data = append(append(data, value...), '\n')
		}
		if !ended || len(bytes.TrimSpace(data)) == 0 {
			continue
		}
		if err := c.take(data, failed, to); err != nil {
			return err
		}
		data, failed = data[:0], false
	}
	switch err := lines.Err(); {
	case err != nil || len(data) > 0:
		return brokeOff(err)
	case !to.Complete():
		return brokeOff(nil)
	}
	return nil
}

// eventLines splits at LF, CR and CR LF.
func eventLines() bufio.SplitFunc {
	cr := false // the LF of a CR LF may come later than its CR
	return func(data []byte, atEOF bool) (advance int, line []byte, err error) {
		if cr && len(data) > 0 && data[0] == '\n' {
			advance = 1
		}
		cr = cr && len(data) == 0
		rest := data[advance:]
		switch end := bytes.IndexAny(rest, "\r\n"); {
		case end >= 0:
			cr = rest[end] == '\r'
			return advance + end + 1, rest[:end:end], nil
		case atEOF && len(rest) > 0:
			return len(data), rest, nil
		}
		return advance, nil, nil
	}
}

// brokeOff returns the fault of an answer without an end.
func brokeOff(err error) error {
	if err == nil || err == io.EOF {
		return &Fault{text: "the answer broke off before its end"}
	}
	return err
}

// take passes one piece of an answer to the receiver, unless it is an error of the server.
func (c *Client) take(data []byte, failed bool, to Receiver) error {
	if failed || bytes.Contains(data, []byte(`"error"`)) {
		if said, status := serverFault(data); said != "" || failed {
			return &Fault{
				Status: status, Lasting: status >= 400 && status < 500 &&
					status != http.StatusTooManyRequests && status != http.StatusRequestTimeout,
				text: strings.TrimSuffix("the server says, within its answer: "+c.hide(said), ": "),
			}
		}
	}
	return to.Take(data)
}
