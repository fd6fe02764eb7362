package trace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"a2e/host/guard/redact"
	"a2e/protocol"
)

const (
	maxText   = 256                    // bytes of a text in a span
	lastWait  = 500 * time.Millisecond // for the remaining spans at the end
	longTries = 30 * time.Second       // for all tries of one batch together
)

// Options say what is traced and how.
type Options struct {
	Version string            // version of this program
	Secrets *redact.Set       // are masked in all texts of spans; secrets of the headers are added
	Warn    func(line string) // reports problems and lost spans; it must not block
}

// New returns the Tracer that the variables of this process ask for, or nil if they ask for none. Unusable variables
// are only reported by Warn: they are set for many programs, and tracing may not matter for this one.
func New(o Options) *Tracer {
	at, traces := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
	exporter := cmp.Or(os.Getenv("OTEL_TRACES_EXPORTER"), "otlp")
	if at+traces == "" || exporter == "none" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil
	}
	where, err := endpoint(at, traces)
	if !strings.Contains(exporter, "otlp") {
		err = fmt.Errorf("OTEL_TRACES_EXPORTER=%s is not supported, only otlp", exporter)
	}
	if err != nil {
		o.Warn("no traces: " + err.Error())
		return nil
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		o.Warn(o.Secrets.Text("OpenTelemetry: " + err.Error()))
	}))
	own := resource.WithAttributes(Text("service.name", "a2e"), Text("service.version", o.Version))
	// the provider reads the variables as well, and reports what is wrong
	about, _ := resource.New(context.Background(), resource.WithTelemetrySDK(), own, resource.WithFromEnv())
	c := newClient(o, where)
	sends := counting{sdk.NewBatchSpanProcessor(otlptrace.NewUnstarted(c)), &c.waiting}
	return &Tracer{
		provider: sdk.NewTracerProvider(sdk.WithResource(about), sdk.WithSpanProcessor(sends)),
		client:   c, parent: follow(context.Background(), os.Getenv("TRACEPARENT")),
	}
}

// endpoint returns the URL to which spans are sent.
func endpoint(at, traces string) (*url.URL, error) {
	speaks := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"))
	if speaks != "" && speaks != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s is not supported, only http/protobuf, which "+
			"collectors take on port 4318", speaks)
	}
	u, err := url.Parse(cmp.Or(traces, at))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" { // the text may contain a password
		return nil, errors.New("OTEL_EXPORTER_OTLP_ENDPOINT, or …_TRACES_ENDPOINT, must be an address such as " +
			"http://127.0.0.1:4318")
	}
	if traces == "" {
		u = u.JoinPath("v1/traces")
	}
	return u, nil
}

// Close sends the remaining spans, for lastWait at most. A nil Tracer does nothing.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	c := t.client
	defer time.AfterFunc(lastWait, c.cut).Stop()
	c.hurry()
	_ = t.provider.Shutdown(context.Background()) // ends soon after the call of cut
	c.cut()
	c.http.CloseIdleConnections()
	if n := c.waiting.Load(); n > 0 {
		c.warn(fmt.Sprintf("dropped %s: more came than could be sent", protocol.Count(n, "span")))
	}
}

// counting counts the spans on their way to a client.
type counting struct {
	sdk.SpanProcessor
	waiting *atomic.Int64
}

func (p counting) OnEnd(s sdk.ReadOnlySpan) {
	p.waiting.Add(1)
	p.SpanProcessor.OnEnd(s)
}

// client sends spans to a collector. It is an otlptrace.Client.
type client struct {
	opts    Options
	url     *url.URL
	headers http.Header
	http    *http.Client
	waiting atomic.Int64 // spans that have ended but have not reached the client
	warned  atomic.Bool

	retries, all context.Context // contexts of further tries and of all sending; ended by
	hurry, cut   context.CancelFunc
}

func newClient(o Options, where *url.URL) *client {
	c := &client{opts: o, url: where, headers: http.Header{"Content-Type": {"application/x-protobuf"}}}
	for _, name := range [...]string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		for pair := range strings.SplitSeq(os.Getenv(name), ",") {
			key, value, ok := strings.Cut(pair, "=")
			value, err := url.PathUnescape(strings.TrimSpace(value))
			if key = strings.TrimSpace(key); ok && err == nil && key != "" {
				c.headers.Set(key, value)
				o.Secrets.AddSecret(value)
			}
		}
	}
	text := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"), os.Getenv("OTEL_EXPORTER_OTLP_TIMEOUT"))
	timeout, err := time.ParseDuration(text + "ms")
	if err != nil || timeout <= 0 {
		timeout = 10 * time.Second
	}
	c.http = &http.Client{
		Timeout: timeout, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.retries, c.hurry = context.WithCancel(context.Background())
	c.all, c.cut = context.WithCancel(context.Background())
	return c
}

// Start implements otlptrace.Client.
func (c *client) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *client) Stop(context.Context) error { return nil }

// UploadTraces implements otlptrace.Client. After a temporary error it tries again, until Close. Spans
// that are refused in the end are lost.
func (c *client) UploadTraces(ctx context.Context, spans []*otlp.ResourceSpans) error {
	c.mask(spans)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.all, stop)()
	var err error
	try := func() (struct{}, error) {
		err = c.post(ctx, &otlp.TracesData{ResourceSpans: spans})
		return struct{}{}, err
	}
	_, failed := backoff.Retry(c.retries, try, backoff.WithMaxElapsedTime(longTries))
	if failed != nil { // failed with err, or because c.retries ended after that
		c.warn(fmt.Sprintf("traces cannot be sent to %s, and are dropped until they can: %v", c.url.Host, err))
	}
	return nil
}

func (c *client) post(ctx context.Context, data *otlp.TracesData) error {
	body, err := proto.Marshal(data)
	req, bad := http.NewRequestWithContext(ctx, http.MethodPost, c.url.String(), bytes.NewReader(body))
	if err = errors.Join(err, bad); err != nil {
		return backoff.Permanent(err)
	}
	req.Header = c.headers
	resp, err := c.http.Do(req)
	if err != nil {
		if inner := (*url.Error)(nil); errors.As(err, &inner) {
			err = inner.Err // without the address, which may contain secrets
		}
		c.warn(fmt.Sprintf("traces cannot be sent to %s yet: %v", c.url.Host, err))
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be reused
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code == http.StatusTooManyRequests || code >= 502 && code <= 504:
		return errors.New(resp.Status)
	}
	return backoff.Permanent(errors.New(resp.Status))
}

// warn reports a problem, only once.
func (c *client) warn(line string) {
	if !c.warned.Swap(true) {
		c.opts.Warn(c.opts.Secrets.Text(line))
	}
}

// mask hides secrets in the texts of spans, shortens the texts, and subtracts the spans from waiting.
func (c *client) mask(all []*otlp.ResourceSpans) {
	for _, r := range all {
		texts := r.GetResource().GetAttributes()
		for _, scope := range r.ScopeSpans {
			c.waiting.Add(-int64(len(scope.Spans)))
			for _, s := range scope.Spans {
				s.Name = c.text(s.Name)
				texts = append(texts, s.Attributes...)
			}
		}
		for _, a := range texts {
			if v, ok := a.GetValue().GetValue().(*common.AnyValue_StringValue); ok {
				v.StringValue = c.text(v.StringValue)
			}
		}
	}
}

func (c *client) text(s string) string {
	s = strings.ToValidUTF8(c.opts.Secrets.Text(s), "\uFFFD")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}
