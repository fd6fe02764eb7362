// Package trace tells a collector of OpenTelemetry what requests did, and how long, by
// OpenTelemetry's SDK, with W3C's trace context between processes.
//
//	trace.go   spans, and how one belongs to another
//	export.go  the variables OTEL_… that the SDK does not read, and the way to the collector
//
// Nothing here makes a request wait or fail: what does not fit into the SDK's queue, or is not
// taken, is dropped.
package trace

import (
	"context"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"a2e/host/observe/event"
)

// The kinds of spans.
const (
	Internal = trace.SpanKindInternal
	Server   = trace.SpanKindServer // a request of somebody else
	Client   = trace.SpanKindClient // a request to somebody else
)

// Tracer makes spans and sends them. It is safe for concurrent use.
type Tracer struct {
	provider *sdk.TracerProvider
	client   *client
	parent   context.Context // of spans that have no other
}

// Start begins the span of a request, of a method and what that is for, and returns a context
// with it; nil = the Tracer is nil. parent is who asks, as W3C's traceparent; what is none is
// passed over, and the process that started this one counts in its place.
func (t *Tracer) Start(kind trace.SpanKind, method, name, parent string) context.Context {
	if t == nil {
		return nil
	}
	return begin(follow(t.parent, parent), t.provider, kind, method, name)
}

func follow(ctx context.Context, parent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
}

func begin(ctx context.Context, by trace.TracerProvider, kind trace.SpanKind, method, name string) context.Context {
	ctx, _ = by.Tracer("a2e").Start(ctx, strings.TrimSpace(method+" "+name), trace.WithSpanKind(kind))
	return ctx
}

// Child begins a span within that of ctx, if there is one, and returns a context with it.
func Child(ctx context.Context, kind trace.SpanKind, method, name string) context.Context {
	outer := trace.SpanFromContext(ctx)
	if !outer.SpanContext().IsValid() {
		return ctx
	}
	return begin(ctx, outer.TracerProvider(), kind, method, name)
}

// End ends the span of a context, if there is one. code says what it failed with; "" = it did
// not. Empty texts are left out.
func End(ctx context.Context, code string, attrs ...attribute.KeyValue) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if attrs = append(attrs, Text("error.type", code)); code != "" {
		span.SetStatus(codes.Error, "")
	}
	span.SetAttributes(slices.DeleteFunc(attrs, func(a attribute.KeyValue) bool {
		return a.Value.Type() == attribute.STRING && a.Value.AsString() == ""
	})...)
	span.End()
}

// Text returns an attribute.
func Text(key, value string) attribute.KeyValue { return attribute.String(key, value) }

// EndRequest ends the span of a request by what is told of it; ctx may be nil.
func EndRequest(ctx context.Context, e event.Event) {
	if ctx == nil { // nor are the attributes made
		return
	}
	End(ctx, e.ErrorCode, Text("rpc.method", e.Type), Text("a2e.name", e.Name), Text("a2e.capability", e.Capability),
		Text("a2e.request_id", e.ReqID), Text("session.id", e.SessionID),
		attribute.Int("a2e.input_bytes", e.InputBytes), attribute.Int("a2e.output_bytes", e.OutputBytes))
}

// Parent returns the traceparent of what the span of a context starts; "" = there is none.
func Parent(ctx context.Context) string {
	says := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, says)
	return says.Get("traceparent")
}
