package trace_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"a2e/host/guard/redact"
	"a2e/host/hosttest/assert"
	"a2e/host/observe/event"
	"a2e/host/observe/trace"
)

const parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-0"

// tracer returns a tracer for these environment variables, which reaches no collector, and the warnings that it gives.
func tracer(t *testing.T, env map[string]string) (tr *trace.Tracer, warned *string) {
	warned = new(string)
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	for name, value := range env {
		t.Setenv(name, value)
	}
	tr = trace.New(trace.Options{Warn: func(line string) { *warned += line }})
	return tr, warned
}

// TestSamplers: the sampler of the variables and the parent decide together whether a trace is sent.
func TestSamplers(t *testing.T) {
	for _, c := range []struct{ name, arg, parent, want string }{
		{"", "", parent + "1", "1"},
		{"", "", parent + "0", "0"},
		{"", "", "", "1"},
		{"always_on", "", parent + "0", "1"},
		{"always_off", "", parent + "1", "0"},
		{"parentbased_always_off", "", parent + "1", "1"},
		{"parentbased_always_off", "", "", "0"},
		{"traceidratio", "0", parent + "1", "0"},
		{"parentbased_traceidratio", "0", parent + "1", "1"},
		{"traceidratio", "1", parent + "0", "1"},
		{"traceidratio", "0.01", parent + "1", "1"}, // 0x0123456789abcdef is less than a hundredth of 2^64
		{"traceidratio", "0.004", parent + "1", "0"},
	} {
		tr, warned := tracer(t, map[string]string{"OTEL_TRACES_SAMPLER": c.name, "OTEL_TRACES_SAMPLER_ARG": c.arg})
		got := trace.Parent(trace.Child(tr.Start(trace.Server, "x", "", c.parent), trace.Internal, "y", ""))
		defer tr.Close()
		assert.That(t, got[len(got)-1]&1 == c.want[0]&1 && *warned == "", "%+v: %s %s", c, got, *warned)
		if c.parent != "" {
			assert.Equal(t, got[:36], parent[:36], "the trace")
		}
	}
}

// TestWhatIsNoTraceparent: a text that is not a traceparent begins a trace of its own. A later version of the format
// may have more parts.
func TestWhatIsNoTraceparent(t *testing.T) {
	tr, _ := tracer(t, nil)
	defer tr.Close()
	for text, follows := range map[string]bool{
		parent + "1": true, "01" + parent[2:] + "1-more": true, "": false, "call-1": false, parent + "1-more": false,
		"ff" + parent[2:] + "1":                                   false,
		"00-00000000000000000000000000000000-0123456789abcdef-01": false,
		"00-0123456789abcdef0123456789abcdef-0000000000000000-01": false,
		strings.ReplaceAll(parent+"1", "-", "_"):                  false, strings.Replace(parent+"1", "a", "g", 1): false,
		strings.Repeat("é", 40): false, "01" + parent[2:] + "12": false,
	} {
		got := trace.Parent(tr.Start(trace.Server, "x", "", text))
		assert.Equal(t, got[3:35] == parent[3:35], follows, "%q: %s", text, got)
	}
}

// TestVariables: a value that cannot be followed is warned of, and nothing is traced. A value that turns tracing off
// gives no warning.
func TestVariables(t *testing.T) {
	for _, c := range []struct{ name, value, says string }{
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"},
		{
			"OTEL_EXPORTER_OTLP_ENDPOINT", "user:secret@host",
			"http://127.0.0.1:4318",
		},
		{"OTEL_TRACES_SAMPLER", "jaeger_remote", "unsupported sampler"},
		{
			"OTEL_TRACES_EXPORTER", "zipkin",
			"only otlp",
		},
		{"OTEL_TRACES_EXPORTER", "none", ""},
		{"OTEL_SDK_DISABLED", "true", ""},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			tr, warned := tracer(t, map[string]string{c.name: c.value})
			defer tr.Close()
			on := c.name == "OTEL_TRACES_SAMPLER" // the SDK's default sampler is used in its place
			assert.That(t, (tr != nil) == on && strings.Contains(*warned, c.says) &&
				(*warned == "") == (c.says == "") && !strings.Contains(*warned, "secret"), "%q", *warned)
		})
	}
	var none *trace.Tracer
	ctx := trace.Child(context.Background(), trace.Client, "y", "")
	trace.End(ctx, "failed")
	assert.That(t, none.Start(trace.Server, "x", "", parent+"1") == nil && trace.Parent(ctx) == "",
		"a span of no tracer")
	none.Close()
}

// TestSent: the spans that a collector gets, here at the second try, show no secret, contain no long text, and have
// the service name of the variables.
func TestSent(t *testing.T) {
	var tries atomic.Int32
	got := make(chan *otlp.TracesData, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		body, _ := io.ReadAll(r.Body)
		said := new(otlp.TracesData)
		assert.That(t, proto.Unmarshal(body, said) == nil && r.Header.Get("X-Key") == "canary-1 2", "%q %v", body,
			r.Header)
		got <- said
	}))
	defer collector.Close()
	secrets := redact.New(nil)
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.URL, "OTEL_EXPORTER_OTLP_HEADERS": "none, x-key = canary-1%202",
		"OTEL_BSP_SCHEDULE_DELAY":  "1",
		"OTEL_RESOURCE_ATTRIBUTES": "service.name=x,team=canary-1 2", "OTEL_SERVICE_NAME": "tested",
	} {
		t.Setenv(name, value)
	}
	tr := trace.New(trace.Options{Secrets: secrets, Warn: func(line string) { t.Error(line) }})
	defer tr.Close()
	ctx := tr.Start(trace.Server, "call", "canary-1 2", "")
	trace.EndRequest(ctx, event.Event{Name: strings.Repeat("é", 300) + "canary-1 2", ReqID: "a\xffb", ErrorCode: "no"})
	said := <-got
	text := said.String()
	assert.That(t, !strings.Contains(text, "canary"), "a secret in %s", text)
	span := said.ResourceSpans[0].ScopeSpans[0].Spans[0]
	attrs := map[string]string{}
	for _, a := range append(span.Attributes, said.ResourceSpans[0].Resource.Attributes...) {
		attrs[a.Key] = a.Value.GetStringValue()
	}
	_, there := attrs["session.id"]
	assert.That(t, attrs["a2e.name"] == strings.Repeat("é", 128) && attrs["a2e.request_id"] == "a\uFFFDb" &&
		attrs["error.type"] == "no" && !there && attrs["service.name"] == "tested", "%v", attrs)
}

// TestDropped: Close warns once about the spans that did not fit into the queue.
func TestDropped(t *testing.T) {
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.URL)
	tr, warned := tracer(t, nil)
	for range 100_000 {
		trace.End(tr.Start(trace.Server, "x", "", ""), "")
	}
	tr.Close()
	assert.That(t, strings.HasPrefix(*warned, "dropped ") && strings.Count(*warned, "dropped") == 1, "%s", *warned)
}
