package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"a2e/protocol"
)

const (
	maxQueue  = 2048 // spans that wait
	maxBatch  = 512  // spans of one request
	lastWait  = 500 * time.Millisecond
	longTries = 30 * time.Second // of one batch, together
)

// Tracer makes spans and sends them. It is safe for concurrent use.
type Tracer struct {
	opts           Options
	url            *url.URL
	headers        map[string]string
	parent         string // of spans that have no other
	sample         func(*Span) bool
	resource       []Attr
	timeout, pause time.Duration

	client   *http.Client
	queue    chan *Span
	ctx, end context.Context // of the sending; ended by Close, first end
	cut      context.CancelFunc
	close    context.CancelFunc
	ended    chan struct{}
	dropped  atomic.Int64
	warned   bool // of the sending goroutine
}

// begin starts the sending.
func (t *Tracer) begin() {
	t.client = &http.Client{Timeout: t.timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if own, ok := http.DefaultTransport.(*http.Transport); ok {
		t.client.Transport = own.Clone() // so that Close closes its connections and no others
	}
	t.queue, t.ended = make(chan *Span, maxQueue), make(chan struct{})
	t.ctx, t.cut = context.WithCancel(context.Background())
	t.end, t.close = context.WithCancel(t.ctx)
	go t.run()
}

// take has a span sent, if there is room for it.
func (t *Tracer) take(s *Span) {
	select {
	case t.queue <- s:
	default:
		t.dropped.Add(1)
	}
}

// Close sends what is left, for a moment. A nil Tracer has nothing.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	defer time.AfterFunc(lastWait, t.cut).Stop()
	t.close()
	<-t.ended
	t.cut()
	t.client.CloseIdleConnections()
}

// run sends spans until Close, some at a time.
func (t *Tracer) run() {
	defer close(t.ended)
	clock := time.NewTicker(t.pause)
	defer clock.Stop()
	var batch []*Span
	for over := false; !over; {
		select {
		case s := <-t.queue:
			if batch = append(batch, s); len(batch) < maxBatch {
				continue
			}
		case <-clock.C:
		case <-t.end.Done():
			over = true
			for len(t.queue) > 0 {
				batch = append(batch, <-t.queue)
			}
		}
		for len(batch) > 0 {
			n := min(len(batch), maxBatch)
			t.send(batch[:n])
			batch = batch[n:]
		}
	}
	if n := t.dropped.Load(); n > 0 {
		t.warn(fmt.Sprintf("dropped %s: more came than could be sent", protocol.Count(n, "span")))
	}
}

// send posts spans, and tries again what passes, until Close. What is refused in the end is lost.
func (t *Tracer) send(spans []*Span) {
	body := t.encode(spans)
	_, err := backoff.Retry(t.end, func() (struct{}, error) { return struct{}{}, t.post(body) },
		backoff.WithBackOff(backoff.NewExponentialBackOff()), backoff.WithMaxElapsedTime(longTries))
	if err != nil {
		t.warn(fmt.Sprintf("traces cannot be sent to %s, and are dropped until they can: %v", t.url.Host, err))
	}
}

func (t *Tracer) post(body []byte) error {
	req, err := http.NewRequestWithContext(t.ctx, http.MethodPost, t.url.String(), bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(err)
	}
	for name, value := range t.headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := t.client.Do(req)
	if err != nil {
		if inner := (*url.Error)(nil); errors.As(err, &inner) {
			err = inner.Err // without the address, which may have secrets in it
		}
		t.warn(fmt.Sprintf("traces cannot be sent to %s yet: %v", t.url.Host, err))
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code == http.StatusTooManyRequests || code >= 502 && code <= 504:
		return errors.New(resp.Status)
	}
	return backoff.Permanent(errors.New(resp.Status))
}

// warn says once that something gets lost.
func (t *Tracer) warn(line string) {
	if !t.warned {
		t.warned = true
		t.opts.Warn(t.opts.Secrets.Text(line))
	}
}
