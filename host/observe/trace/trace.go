// Package trace tells an OpenTelemetry collector what requests did and how long they took. It uses
// OpenTelemetry's SDK, and W3C trace context between processes.
//
//	trace.go   spans, and their parents
//	export.go  the variables OTEL_… that the SDK does not read, and sending to the collector
//
// No request waits or fails because of this package: spans that do not fit into the SDK's queue, or
// that the collector does not accept, are dropped.
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
	Server   = trace.SpanKindServer // a request from another process
	Client   = trace.SpanKindClient // a request to another process
)

// Tracer makes spans and sends them. It is safe for concurrent use.
type Tracer struct {
	provider *sdk.TracerProvider
	client   *client
	parent   context.Context // parent of spans that have no other
}

// Start begins the span of a request, named after its method and what the request is for, and returns
// a context with it; it returns nil for a nil Tracer. parent is the caller as a W3C traceparent; if it
// is not valid, the parent is the process that started this one.
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

// Child begins a span below the span of ctx and returns a context with it. Without such a span it returns ctx.
func Child(ctx context.Context, kind trace.SpanKind, method, name string) context.Context {
	outer := trace.SpanFromContext(ctx)
	if !outer.SpanContext().IsValid() {
		return ctx
	}
	return begin(ctx, outer.TracerProvider(), kind, method, name)
}

// End ends the span of a context, if there is one. code is the error code; "" = success. Empty texts are skipped.
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

// Text returns an attribute with a string value.
func Text(key, value string) attribute.KeyValue { return attribute.String(key, value) }

// EndRequest ends the span of a request with the data of its event; ctx may be nil.
func EndRequest(ctx context.Context, e event.Event) {
	if ctx == nil { // saves making the attributes
		return
	}
	End(ctx, e.ErrorCode, Text("rpc.method", e.Type), Text("a2e.name", e.Name), Text("a2e.capability", e.Capability),
		Text("a2e.request_id", e.ReqID), Text("session.id", e.SessionID),
		attribute.Int("a2e.input_bytes", e.InputBytes), attribute.Int("a2e.output_bytes", e.OutputBytes))
}

// Parent returns the traceparent for programs that the span of a context starts, or "" if there is no span.
func Parent(ctx context.Context) string {
	says := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, says)
	return says.Get("traceparent")
}
