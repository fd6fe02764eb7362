package trace

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"a2e/host/redact"
)

// Options say what is traced, and for whom.
type Options struct {
	Getenv  func(string) string // the variables
	Version string              // of this program
	Secrets *redact.Set         // no text of a span shows them; what the headers hold is added
	Warn    func(line string)   // of what is wrong, or gets lost; it must not block
}

const (
	endpointVar = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesVar   = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
)

// New returns the Tracer that the variables ask for; nil = none. Variables that cannot be followed
// are warned of: they are set for many programs, of which this one may not be the one that matters.
func New(o Options) *Tracer {
	get := o.Getenv
	if get(endpointVar) == "" && get(tracesVar) == "" || strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") {
		return nil
	}
	if names := strings.Split(cmp.Or(get("OTEL_TRACES_EXPORTER"), "otlp"), ","); !slices.Contains(names, "otlp") {
		if !slices.Contains(names, "none") {
			o.Warn(fmt.Sprintf("no traces: OTEL_TRACES_EXPORTER=%s is not supported, only otlp",
				get("OTEL_TRACES_EXPORTER")))
		}
		return nil
	}
	t := &Tracer{opts: o, parent: get("TRACEPARENT"), headers: headers(o, get)}
	var err error
	if t.url, err = endpoint(get); err == nil {
		t.sample, err = sampler(get("OTEL_TRACES_SAMPLER"), get("OTEL_TRACES_SAMPLER_ARG"))
	}
	if err != nil {
		o.Warn("no traces: " + err.Error())
		return nil
	}
	t.resource = resource(o.Version, get)
	t.timeout = milliseconds(cmp.Or(get("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"), get("OTEL_EXPORTER_OTLP_TIMEOUT")), 10*time.Second)
	t.pause = milliseconds(get("OTEL_BSP_SCHEDULE_DELAY"), 5*time.Second)
	t.begin()
	return t
}

func milliseconds(text string, otherwise time.Duration) time.Duration {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil && n > 0 {
		return time.Duration(n) * time.Millisecond
	}
	return otherwise
}

// endpoint returns where spans are posted to.
func endpoint(get func(string) string) (*url.URL, error) {
	if p := cmp.Or(get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), get("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf"); p != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s is not supported, only http/protobuf, which "+
			"collectors take on port 4318", p)
	}
	name, text := tracesVar, get(tracesVar)
	if text == "" {
		name, text = endpointVar, get(endpointVar)
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%s must be an address such as http://127.0.0.1:4318", name) // without the text, which may hold a password
	}
	if name == endpointVar {
		u = u.JoinPath("v1/traces")
	}
	return u, nil
}

// pairs reads k=v,k=v as these variables have it.
func pairs(text string, take func(key, value string)) {
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		if value, err := url.PathUnescape(strings.TrimSpace(value)); ok && err == nil && key != "" {
			take(key, value)
		}
	}
}

func headers(o Options, get func(string) string) map[string]string {
	all := make(map[string]string)
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		pairs(get(name), func(key, value string) {
			all[key] = value
			o.Secrets.AddSecret(value)
		})
	}
	return all
}

// resource says what the spans are of.
func resource(version string, get func(string) string) []Attr {
	all := map[string]string{"service.name": "a2e", "service.version": version, "telemetry.sdk.name": "a2e", "telemetry.sdk.language": "go", "telemetry.sdk.version": version}
	pairs(get("OTEL_RESOURCE_ATTRIBUTES"), func(key, value string) { all[key] = value })
	all["service.name"] = cmp.Or(get("OTEL_SERVICE_NAME"), all["service.name"])
	attrs := make([]Attr, 0, len(all))
	for key, value := range all {
		attrs = append(attrs, Attr{key, value})
	}
	slices.SortFunc(attrs, func(a, b Attr) int { return cmp.Compare(a.Key, b.Key) })
	return attrs
}

// sampler says which spans are sent: those that begin a trace as the name has it, and those of a
// trace that another process began as that one has decided, unless the name is of the other kind.
func sampler(name, arg string) (func(*Span) bool, error) {
	root, based := strings.CutPrefix(cmp.Or(name, "parentbased_always_on"), "parentbased_")
	part := 1.0
	switch root {
	case "always_on":
	case "always_off":
		part = 0
	case "traceidratio":
		if arg != "" {
			n, err := strconv.ParseFloat(arg, 64)
			if err != nil || n < 0 || n > 1 {
				return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1, not %.64q", arg)
			}
			part = n
		}
	default:
		return nil, fmt.Errorf("OTEL_TRACES_SAMPLER must be always_on, always_off or traceidratio, each also after parentbased_, not %.64q", name)
	}
	return func(s *Span) bool {
		if based && s.remotelyBegun {
			return s.sampled
		}
		return below(s.trace, part)
	}, nil
}
