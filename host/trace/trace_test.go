package trace_test

import (
	"context"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/trace"
)

const parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-0"

// tracer makes one of variables, which sends nothing anywhere, and what it warns of.
func tracer(t *testing.T, env map[string]string) (tr *trace.Tracer, warned string) {
	t.Helper()
	get := func(name string) string {
		if name == "OTEL_EXPORTER_OTLP_ENDPOINT" && env[name] == "" {
			return "http://127.0.0.1:1"
		}
		return env[name]
	}
	tr = trace.New(trace.Options{Getenv: get, Warn: func(line string) { warned += line }})
	t.Cleanup(tr.Close)
	return tr, warned
}

// TestSamplers: who decides whether a trace is sent.
func TestSamplers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, arg, parent, want string }{
		{"", "", parent + "1", "1"}, {"", "", parent + "0", "0"}, {"", "", "", "1"},
		{"always_on", "", parent + "0", "1"}, {"always_off", "", parent + "1", "0"},
		{"parentbased_always_off", "", parent + "1", "1"}, {"parentbased_always_off", "", "", "0"},
		{"traceidratio", "0", parent + "1", "0"}, {"parentbased_traceidratio", "0", parent + "1", "1"}, {"traceidratio", "1", parent + "0", "1"},
		{"traceidratio", "0.01", parent + "1", "1"}, // 0x0123456789abcdef of 2^64 is less than a hundredth
		{"traceidratio", "0.004", parent + "1", "0"},
	} {
		tr, warned := tracer(t, map[string]string{"OTEL_TRACES_SAMPLER": c.name, "OTEL_TRACES_SAMPLER_ARG": c.arg})
		got := tr.Start("x", trace.Server, c.parent).Child("y", trace.Internal).Parent()
		assert.That(t, strings.HasSuffix(got, c.want) && warned == "", "%+v: %s %s", c, got, warned)
		if c.parent != "" {
			assert.Equal(t, got[:36], parent[:36], "the trace")
		}
	}
}

// TestWhatIsNoTraceparent begins a trace of its own; a later version may say more.
func TestWhatIsNoTraceparent(t *testing.T) {
	t.Parallel()
	tr, _ := tracer(t, nil)
	for text, follows := range map[string]bool{
		parent + "1": true, "01" + parent[2:] + "1-more": true, "": false, "call-1": false, parent + "1-more": false, "ff" + parent[2:] + "1": false,
		"00-00000000000000000000000000000000-0123456789abcdef-01": false, "00-0123456789abcdef0123456789abcdef-0000000000000000-01": false,
		strings.ReplaceAll(parent+"1", "-", "_"): false, strings.Replace(parent+"1", "a", "g", 1): false, strings.Repeat("é", 40): false, "01" + parent[2:] + "12": false,
	} {
		got := tr.Start("x", trace.Server, text).Parent()
		assert.Equal(t, got[3:35] == parent[3:35], follows, "%q: %s", text, got)
	}
}

// TestVariables: what cannot be followed is said, and nothing is traced; what says that nothing
// shall be is not.
func TestVariables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, value, says string }{
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"}, {"OTEL_EXPORTER_OTLP_ENDPOINT", "user:secret@host", "http://127.0.0.1:4318"},
		{"OTEL_TRACES_SAMPLER", "jaeger_remote", "traceidratio"}, {"OTEL_TRACES_EXPORTER", "zipkin", "only otlp"}, {"OTEL_TRACES_EXPORTER", "none", ""}, {"OTEL_SDK_DISABLED", "true", ""},
	} {
		tr, warned := tracer(t, map[string]string{c.name: c.value})
		assert.That(t, tr == nil && strings.Contains(warned, c.says) && (warned == "") == (c.says == "") && !strings.Contains(warned, "secret"), "%s=%s: %q", c.name, c.value, warned)
	}
	var none *trace.Tracer
	s := none.Start("x", trace.Server, parent+"1").Child("y", trace.Client)
	s.End("failed")
	assert.That(t, trace.From(trace.With(context.Background(), s)).Parent() == "", "a span of no tracer")
}
