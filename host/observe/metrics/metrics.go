// Package metrics counts the requests that hosts answer, for Prometheus.
package metrics

import (
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"a2e/host/observe/event"
	"a2e/protocol"
)

// Options say what is measured besides requests.
type Options struct {
	Version   string                     // version of this program
	Sessions  func() int                 // number of sessions
	Processes func() int                 // number of running processes
	Load      func() (open, waiting int) // unanswered requests, and those of them that have not begun
}

// Metrics counts requests: it is an event.Sink, and an http.Handler that serves the page. It is safe
// for concurrent use.
type Metrics struct {
	http.Handler
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec

	mu    sync.Mutex
	types map[string]map[string]bool // and their outcomes, which are used as labels; guarded by mu
	pairs int                        // number of pairs of type and outcome; guarded by mu
}

const (
	maxPairs = 1000    // pairs of type and outcome: clients must not be able to make more
	other    = "other" // replaces further types and outcomes
	maxLabel = 100     // bytes
)

// New returns a Metrics that has counted nothing.
func New(o Options) *Metrics {
	m := &Metrics{types: make(map[string]map[string]bool)}
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "a2e_requests_total", Help: "Requests that were answered.",
	}, []string{"type", "outcome"})
	m.durations = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "a2e_request_duration_seconds", Help: "Time from a request to its answer.",
		Buckets: []float64{.0001, .001, .005, .025, .1, .5, 1, 5, 10, 60, 600},
	}, []string{"type"})
	page := prometheus.NewRegistry()
	open := func() int { n, _ := o.Load(); return n }
	waiting := func() int { _, n := o.Load(); return n }
	page.MustRegister(
		m.requests, m.durations, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		gauge("a2e_sessions", "Sessions over HTTP.", o.Sessions),
		gauge("a2e_processes", "Child processes that run, without what they start themselves.", o.Processes),
		gauge("a2e_requests_open", "Requests that have no answer yet.", open),
		gauge("a2e_requests_waiting", "Those of them that wait to begin.", waiting),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "a2e_build_info", Help: "The version of this host.",
			ConstLabels: prometheus.Labels{"version": o.Version},
		}, func() float64 { return 1 }),
	)
	m.Handler = promhttp.HandlerFor(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := page.Gather()
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return f.GetName() == twice }), err
	}), promhttp.HandlerOpts{EnableOpenMetrics: true})
	return m
}

// twice is a counter whose name in OpenMetrics is also the name of a gauge; because of that, readers refuse the page.
const twice = "go_memstats_alloc_bytes_total"

func gauge(name, help string, value func() int) prometheus.Collector {
	opts := prometheus.GaugeOpts{Name: name, Help: help}
	return prometheus.NewGaugeFunc(opts, func() float64 { return float64(value()) })
}

// Take implements event.Sink.
func (m *Metrics) Take(e event.Event) {
	name, outcome := m.labels(e)
	m.requests.WithLabelValues(name, outcome).Inc()
	m.durations.WithLabelValues(name).Observe(e.Duration.Seconds())
}

// labels returns the labels of an event. A client may send any type, so a type that the protocol does
// not have becomes a label only after a request of it succeeded.
func (m *Metrics) labels(e event.Event) (name, outcome string) {
	name, outcome = strings.ToValidUTF8(e.Type, "\uFFFD"), strings.ToValidUTF8(e.Outcome(), "\uFFFD")
	_, known := protocol.Lookup(protocol.Type(name))
	foreign := !known && e.ErrorCode != ""
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.types[name] == nil && (foreign || m.pairs >= maxPairs || len(name) > maxLabel || name == "") {
		name = other
	}
	if m.types[name] == nil {
		m.types[name] = make(map[string]bool)
	}
	if !m.types[name][outcome] && (m.pairs >= maxPairs || len(outcome) > maxLabel) {
		outcome = other
	}
	if !m.types[name][outcome] {
		m.types[name][outcome] = true
		m.pairs++
	}
	return name, outcome
}
