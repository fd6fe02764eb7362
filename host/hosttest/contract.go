package hosttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/protocol"
)

// Sample is one request that a plugin must answer, for Contract.
type Sample struct {
	Name   string             // of the subtest; "" = the Type
	Type   protocol.Type      // of the request
	Fields string             // the request's own fields, a JSON object
	Code   protocol.ErrorCode // of the error that must answer it; "" = its response

	// Make returns the fields and replaces Fields. It may Call the host first, for
	// an id that the request needs. It is called for each request.
	Make func(t testing.TB, p *Pair) string
}

func (s *Sample) name() string {
	if s.Name != "" {
		return s.Name
	}
	return strings.ReplaceAll(string(s.Type), "/", "_")
}

func (s *Sample) fields(t testing.TB, p *Pair) string {
	if s.Make != nil {
		return s.Make(t, p)
	}
	return s.Fields
}

// verify compares an answer with the one that the sample expects.
func (s *Sample) verify(t testing.TB, m Message) {
	t.Helper()
	want := responseOf(s.Type)
	if s.Code != "" {
		want = protocol.TypeError
	}
	if m.Type != want || m.Code != s.Code {
		t.Errorf("%s was answered by %s %s, should be %s %s: %.500s", s.name(), m.Type, m.Code, want, s.Code, m.Line)
	}
}

func responseOf(req protocol.Type) protocol.Type {
	if info, ok := protocol.Lookup(req); ok {
		return info.Response
	}
	return protocol.Type(strings.TrimSuffix(string(req), "/req") + "/resp")
}

// Contract is the suite that every plugin must pass. newPlugin makes a new plugin
// that is not started. samples should have at least one request of each type that
// the plugin routes.
func Contract(t *testing.T, newPlugin func(t testing.TB) host.Plugin, samples []Sample) {
	c := &contract{newPlugin: newPlugin, samples: samples}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"info", c.info},
		{"routes", c.routes},
		{"samples", c.each},
		{"grease", c.grease},
		{"wrong_types", c.wrongTypes},
		{"missing_fields", c.missing},
		{"concurrent", c.concurrent},
		{"cancel", c.cancel},
		{"shutdown", c.shutdown},
		{"close", c.close},
	} {
		t.Run(part.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, before) }) // runs last: after the hosts have ended
			part.run(t)
		})
	}
}

type contract struct {
	newPlugin func(t testing.TB) host.Plugin
	samples   []Sample
}

// capabilities returns all capabilities that a plugin serves.
func capabilities(info host.PluginInfo) []protocol.Capability {
	return append([]protocol.Capability{info.Capability}, info.Also...)
}

// open starts a host with the plugin and a session that has its capabilities.
func (c *contract) open(t *testing.T) *Pair {
	t.Helper()
	plugin := c.newPlugin(t)
	p := New(t, host.Options{Plugins: []host.Plugin{plugin}})
	if m := p.Handshake(capabilities(plugin.Info())...); m.Get("/ok") != "true" {
		t.Fatalf("no session: %s", m.Line)
	}
	return p
}

func (c *contract) info(t *testing.T) {
	plugin := c.newPlugin(t)
	defer plugin.Close(t.Context())
	info := plugin.Info()
	if again := plugin.Info(); !reflect.DeepEqual(info, again) {
		t.Errorf("Info changed from %+v to %+v", info, again)
	}
	if info.Name == "" || info.Name != strings.TrimSpace(info.Name) {
		t.Errorf("the name %q is empty or has spaces around it", info.Name)
	}
	if _, err := json.Marshal(info.Metadata); err != nil {
		t.Errorf("the metadata do not encode: %v", err)
	}
	p := c.open(t)
	m := p.Handshake(info.Capability)
	if got := m.Get("/accepted_caps/0/metadata/name"); got != info.Name {
		t.Errorf("the handshake names %q, should be %q: %s", got, info.Name, m.Line)
	}
}

func (c *contract) routes(t *testing.T) {
	plugin := c.newPlugin(t)
	defer plugin.Close(t.Context())
	served := capabilities(plugin.Info())
	routed, sampled := map[protocol.Type]bool{}, map[protocol.Type]bool{}
	for _, s := range c.samples {
		sampled[s.Type] = true
	}
	for _, r := range plugin.Routes() {
		if routed[r.Type] {
			t.Errorf("%s is routed twice", r.Type)
		}
		routed[r.Type] = true
		info, ok := protocol.Lookup(r.Type)
		switch {
		case ok && !slices.Contains(served, info.Capability):
			t.Errorf("%s belongs to %q, the plugin serves %q", r.Type, info.Capability, served)
		case ok && info.Type != r.Type:
			t.Errorf("%s is another name of %s: route that", r.Type, info.Type)
		case ok && info.Direction != protocol.AgentRequest:
			t.Errorf("%s is not a request of the agent", r.Type)
		case r.Type != host.CatchAll && !sampled[r.Type]:
			t.Errorf("%s has no sample", r.Type)
		}
	}
	for _, info := range protocol.Types() {
		if slices.Contains(served, info.Capability) && info.Direction == protocol.AgentRequest && !routed[info.Type] {
			t.Errorf("%s is not routed", info.Type)
		}
	}
}

func (c *contract) each(t *testing.T) {
	p := c.open(t)
	for _, s := range c.samples {
		t.Run(s.name(), func(t *testing.T) {
			s.verify(t, p.Call(s.Type, s.fields(t, p)))
		})
	}
}

// strict reports whether requests of a type are refused for an unknown field.
func strict(t protocol.Type) bool {
	info, _ := protocol.Lookup(t)
	all := []protocol.Type{protocol.TypeChainReq, protocol.TypeMemoryRetrieveReq, protocol.TypeMemoryForgetReq}
	return slices.Contains(all, t) || info.Capability == protocol.CapPlanning
}

// grease adds fields that no version knows: they must change nothing, or be refused for strict types.
func (c *contract) grease(t *testing.T) {
	p := c.open(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, s := range c.samples {
		t.Run(s.name(), func(t *testing.T) {
			for range 5 {
				m := p.Call(s.Type, withGrease(random, s.fields(t, p)))
				if !strict(s.Type) || !strings.HasPrefix(m.Problem(), "/x-") {
					s.verify(t, m)
				}
			}
		})
	}
}

// withGrease puts unknown fields before and after an object's members.
func withGrease(random *rand.Rand, fields string) string {
	inner := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(fields), "{"), "}")
	if strings.TrimSpace(inner) != "" {
		inner += ","
	}
	values := []string{
		`null`, `true`, `-0.5e3`, `"\u0000\ud83d\ude00"`, `[[],{}]`,
		`{"type":"ping","id":[{"timeout":"x"}]}`, `18446744073709551616`,
	}
	grease := func() string {
		return fmt.Sprintf(`"x-%x":%s`, random.Uint64(), values[random.IntN(len(values))])
	}
	return "{" + grease() + "," + inner + grease() + "}"
}

// wrongTypes sends every sample with each field set to a value of another JSON type.
func (c *contract) wrongTypes(t *testing.T) {
	p := c.open(t)
	all := Schemas(t)
	for _, s := range c.samples {
		schema := all[s.Type]
		if schema == nil || s.Code != "" {
			continue
		}
		for name, wrong := range schema.wrongValues() {
			t.Run(s.name()+"/"+name, func(t *testing.T) {
				m := p.Call(s.Type, replaced(t, s.fields(t, p), name, wrong))
				if m.Code != protocol.CodeSchemaViolation {
					t.Fatalf("%q: %s was answered by %.500s", name, wrong, m.Line)
				}
				if path := m.Problem(); !strings.HasPrefix(path+"/", "/"+name+"/") {
					t.Errorf("%q: %s is blamed on %q: %s", name, wrong, path, m.Line)
				}
			})
		}
	}
}

// missing sends every sample without each of its required fields.
func (c *contract) missing(t *testing.T) {
	p := c.open(t)
	for _, s := range c.samples {
		info, ok := protocol.Lookup(s.Type)
		if !ok || s.Code != "" {
			continue
		}
		for _, name := range info.Required {
			t.Run(s.name()+"/"+name, func(t *testing.T) {
				m := p.Call(s.Type, replaced(t, s.fields(t, p), name, ""))
				if m.Code != protocol.CodeSchemaViolation || m.Problem() != "/"+name {
					t.Errorf("without %q it was answered by %.500s", name, m.Line)
				}
			})
		}
	}
}

// replaced returns fields with one member set to another value, or left out when
// value is "".
func replaced(t testing.TB, fields, name, value string) string {
	t.Helper()
	members := map[string]jsontext.Value{}
	if fields != "" {
		if err := json.Unmarshal([]byte(fields), &members); err != nil {
			t.Fatalf("%v in %s", err, fields)
		}
	}
	delete(members, name)
	if value != "" {
		members[name] = jsontext.Value(value)
	}
	b, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// flood sends n requests at once, of all samples in turn, and returns the sample
// of each id.
func (c *contract) flood(t *testing.T, p *Pair, n int) map[string]*Sample {
	var lines []string
	flying := map[string]*Sample{}
	for i := range n {
		s := &c.samples[i%len(c.samples)]
		id := p.NewID()
		flying[id] = s
		lines = append(lines, Request(s.Type, id, s.fields(t, p)))
	}
	var all sync.WaitGroup
	for part := range 10 {
		all.Go(func() {
			for i := part; i < n; i += 10 {
				p.Send(lines[i])
			}
		})
	}
	all.Wait()
	return flying
}

func (c *contract) concurrent(t *testing.T) {
	p := c.open(t)
	for id, s := range c.flood(t, p, 60) {
		s.verify(t, p.Answer(id))
	}
}

// cancel cancels requests while they run or wait: each must be answered once, with its
// usual answer or as cancelled.
func (c *contract) cancel(t *testing.T) {
	p := c.open(t)
	flying := c.flood(t, p, 30)
	for id := range flying {
		p.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	}
	for id, s := range flying {
		if m := p.Answer(id); m.Code != protocol.CodeCancelled {
			s.verify(t, m)
		}
	}
	for _, s := range c.samples { // no cancelled request has left a lock: the plugin still answers
		s.verify(t, p.Call(s.Type, s.fields(t, p)))
	}
}

// shutdown ends the host after many requests: all requests sent before must be answered.
func (c *contract) shutdown(t *testing.T) {
	p := c.open(t)
	flying := c.flood(t, p, 30)
	p.Go(protocol.TypeShutdown, `{"timeout":10}`)
	if err := p.WaitEnd(); err != nil {
		t.Errorf("Serve gave %v", err)
	}
	for id, s := range flying {
		if n := len(p.Answers(id)); n != 1 {
			t.Errorf("%s was answered %d times", s.name(), n)
		}
	}
}

func (c *contract) close(t *testing.T) {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	plugin := c.newPlugin(t)
	if s, ok := plugin.(host.Starter); ok {
		if err := s.Start(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	for range 2 {
		if err := plugin.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if ctx.Err() != nil {
		t.Errorf("Close took %v", time.Since(begun))
	}
	unused := c.newPlugin(t)
	if err := unused.Close(ctx); err != nil {
		t.Errorf("Close of a plugin that was never started: %v", err)
	}
}
