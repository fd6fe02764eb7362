package metrics

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// The media types of the two forms.
const (
	openMetrics = "application/openmetrics-text"
	prometheus  = "text/plain; version=0.0.4; charset=utf-8"
)

// ServeHTTP implements http.Handler: OpenMetrics for who takes that, else what Prometheus has
// always read.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := &page{open: strings.Contains(r.Header.Get("Accept"), openMetrics)}
	m.requests(p)
	m.gauges(p)
	m.process(p)
	kind := prometheus
	if p.open {
		kind = openMetrics + "; version=1.0.0; charset=utf-8"
		p.text = append(p.text, "# EOF\n"...)
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(p.text) // who does not read the answer has gone
}

func (m *Metrics) requests(p *page) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := slices.Sorted(maps.Keys(m.types))
	p.family("counter", "a2e_requests", "Requests that were answered.")
	for _, name := range names {
		for _, outcome := range slices.Sorted(maps.Keys(m.types[name].outcomes)) {
			p.sample("_total", float64(m.types[name].outcomes[outcome]), "type", name, "outcome", outcome)
		}
	}
	p.family("histogram", "a2e_request_duration_seconds", "Time from a request to its answer.")
	for _, name := range names {
		r, count := m.types[name], uint64(0)
		for i, n := range r.buckets {
			count += n
			bound := "+Inf"
			if i < len(bounds()) {
				bound = number(bounds()[i])
			}
			p.sample("_bucket", float64(count), "type", name, "le", bound)
		}
		p.sample("_sum", r.seconds, "type", name)
		p.sample("_count", float64(count), "type", name)
	}
}

func (m *Metrics) gauges(p *page) {
	open, waiting := m.opts.Load()
	p.gauge("a2e_sessions", "Sessions over HTTP.", float64(m.opts.Sessions()))
	p.gauge("a2e_processes", "Child processes that run, without what they start themselves.", float64(m.opts.Processes()))
	p.gauge("a2e_requests_open", "Requests that have no answer yet.", float64(open))
	p.gauge("a2e_requests_waiting", "Those of them that wait to begin.", float64(waiting))
	p.family("gauge", "a2e_build_info", "The version of this host.")
	p.sample("", 1, "version", m.opts.Version)
}

// page is a page of metrics on its way.
type page struct {
	open bool // as OpenMetrics
	text []byte
	name string // of the family
}

// family begins a family of samples. The name of a counter is without _total, which OpenMetrics
// has on its samples alone.
func (p *page) family(kind, name, help string) {
	p.name = name
	if kind == "counter" && !p.open {
		name += "_total"
	}
	p.text = fmt.Appendf(p.text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample adds a sample, with labels in pairs.
func (p *page) sample(suffix string, value float64, labels ...string) {
	p.text = append(append(p.text, p.name...), suffix...)
	for i := 0; i < len(labels); i += 2 {
		open := ","
		if i == 0 {
			open = "{"
		}
		text := strings.NewReplacer("\\", `\\`, "\n", `\n`, `"`, `\"`).Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD"))
		p.text = fmt.Appendf(p.text, `%s%s="%s"`, open, labels[i], text)
	}
	if len(labels) > 0 {
		p.text = append(p.text, '}')
	}
	p.text = append(append(append(p.text, ' '), number(value)...), '\n')
}

func (p *page) gauge(name, help string, value float64) {
	p.family("gauge", name, help)
	p.sample("", value)
}

func (p *page) counter(name, help string, value float64) {
	p.family("counter", name, help)
	p.sample("_total", value)
}

// number writes a value: OpenMetrics wants bounds with a point.
func number(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}
