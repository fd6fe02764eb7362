package host_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// serve returns the answers of a host with a lab to a whole input, by req_id.
func serve(t testing.TB, in io.Reader) map[string][]string {
	t.Helper()
	h := must.Get(host.New(host.Options{Plugins: []host.Plugin{newLab()}, Limits: host.Limits{LineBytes: 5000}}))(t)
	var out bytes.Buffer
	must.OK(t, h.Serve(in, &out))
	answers := map[string][]string{}
	for line := range bytes.Lines(out.Bytes()) {
		obj, err := protocol.ParseObject(line)
		must.That(t, err == nil, "%v: %s", err, line)
		id, _ := obj.Get("req_id")
		answers[string(id)] = append(answers[string(id)], string(normal(bytes.TrimSpace(line))))
	}
	return answers
}

// TestAnySplit: the answers are the same for every way to split the input into reads.
func TestAnySplit(t *testing.T) {
	var in strings.Builder
	in.WriteString("\ufeff" + hosttest.Request(protocol.TypeHandshakeReq, "hs", `{"agent_caps":["tools"]}`) +
		"\r\n \r\n\n")
	for i := range 20 {
		args := fmt.Sprintf(`{"k":%d,"text":"é\ud83d\ude00%s"}`, i, strings.Repeat("x", i*100))
		in.WriteString(hosttest.Request(protocol.TypeToolCallReq, fmt.Sprint("c", i),
			`{"streaming":true,`+tool("stream", args)[1:]) + "\n")
		in.WriteString(hosttest.Request(protocol.TypePing, fmt.Sprint("p", i), "") + "\n{broken\n")
	}
	in.WriteString(`{"type":"ping","id":"long","pad":"` + strings.Repeat("y", 6000) + "\"}\n")
	in.WriteString(hosttest.Request(protocol.TypePing, "last", ""))
	want := serve(t, strings.NewReader(in.String()))
	must.That(t, len(want) == 44 && len(want[`"c3"`]) == 7 && len(want[`""`]) == 20 && len(want[`"long"`]) == 1 &&
		len(want[`"last"`]) == 1,
		"%d ids; c3: %d, broken: %d, long: %q", len(want), len(want[`"c3"`]), len(want[`""`]), want[`"long"`])
	same := func(t testing.TB, src io.Reader) {
		t.Helper()
		got := serve(t, src)
		for id := range want {
			must.That(t, slices.Equal(got[id], want[id]), "%s was answered by %q, should be %q", id, got[id], want[id])
		}
		must.Equal(t, len(got), len(want), "… ids were answered")
	}
	same(t, iotest.OneByteReader(strings.NewReader(in.String())))
	same(t, iotest.HalfReader(strings.NewReader(in.String())))
	same(t, iotest.DataErrReader(strings.NewReader(in.String())))
	for seed := range uint64(24) {
		random := rand.New(rand.NewPCG(seed, 0))
		biggest := []int{2, 50, 500, 5000}[seed%4]
		same(t, &pieces{in.String(), func() int { return random.IntN(biggest) }})
	}
}

// pieces is a reader that returns its text in pieces of the sizes that next chooses; 0 is allowed.
type pieces struct {
	text string
	next func() int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.next())], p.text)
	p.text = p.text[n:]
	return n, nil
}

// TestEveryTypeUnderstood sends each agent→host message of samples.ndjson to a host without plugins. Messages that
// need a capability are answered capability_missing, and all others that have an answer get it.
func TestEveryTypeUnderstood(t *testing.T) {
	schemas := hosttest.Schemas(t)
	tested := 0
	for line := range bytes.Lines(hosttest.ReadTestdata(t, "wire/samples.ndjson")) {
		obj := must.Get(protocol.ParseObject(line))(t)
		name := obj.Text("type")
		schema := schemas[protocol.Type(name)]
		if !schema.Direction.FromAgent() {
			continue
		}
		tested++
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			p := hosttest.New(t, host.Options{})
			m := p.Handshake("streaming")
			must.Equal(t, m.Get("/ok"), "true", "no session: %s", m.Line)
			p.Send(strings.TrimSpace(string(line)))
			text := obj.Text("id")
			switch {
			case name == string(protocol.TypeShutdown):
				assert.OK(t, p.WaitEnd())
			case schema.Capability != "":
				m := p.Answer(text)
				wantCode(t, m, protocol.CodeCapabilityMissing)
				assert.Equal(t, m.Get("/capability_name"), string(schema.Capability), "capability_name is …: %s",
					m.Line)
			default:
				m := p.Answer(text)
				assert.That(t, m.Type != protocol.TypeError, "answered by %s", m.Line)
			}
		})
	}
	assert.Equal(t, tested, 68, "… types, should be 68")
}
