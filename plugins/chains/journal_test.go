package chains

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/client"
)

// journalHostEnv is the variable that makes this test binary a host; its value is the folder with the host's state.
// With a name in journalMachineEnv, the leases of the host last one second, and on PostgreSQL it counts as a host of
// another machine.
const (
	journalHostEnv    = "A2E_TEST_CHAINS_HOST"
	journalMachineEnv = "A2E_TEST_CHAINS_MACHINE"
)

// journalHost runs the host of journalHostEnv. The host's tool act adds a line to a file.
func journalHost(dir, machine string) {
	fatal := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	s, err := stores.At(context.Background(), statePath(dir), filepath.Join(dir, "state"+machine), Part())
	fatal(err)
	p, err := New("chains", Options{}, host.Env{
		Workspace: dir, Log: zerolog.Nop(),
		Store: func(context.Context) (store.Store, error) { return s, nil },
	})
	fatal(err)
	p.again = 10 * time.Millisecond
	if machine != "" {
		p.journals.Lease = time.Second
	}
	h, err := host.New(host.Options{Plugins: []host.Plugin{p, actor(dir)}})
	fatal(err)
	fatal(errors.Join(h.Serve(os.Stdin, os.Stdout), s.Close()))
	os.Exit(0)
}

func statePath(dir string) string { return filepath.Join(dir, "state", store.FileName) }

// actor is a plugin with tools whose calls can be counted in the folder.
type actor string

func (actor) Info() host.PluginInfo {
	return host.PluginInfo{Name: "actor", Capability: protocol.CapTools}
}
func (actor) Close(context.Context) error { return nil }
func (a actor) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeToolCallReq, a.call)}
}

func (a actor) call(ctx context.Context, req *protocol.ToolCallRequest, _ host.Emitter) (*protocol.ToolCallResponse,
	error,
) {
	f, err := os.OpenFile(a.effects(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(string(req.Arguments.Raw()) + "\n")
	for again := req.ToolName != "act"; again && (ctx.Err() == nil || req.ToolName == "deaf"); {
		_, missing := os.Stat(filepath.Join(string(a), "open"))
		again = missing != nil
	}
	resp := &protocol.ToolCallResponse{}
	resp.Data.Success, resp.Data.Data = true, req.Arguments.Raw()
	return resp, errors.Join(err, f.Close(), ctx.Err())
}

func (a actor) effects() string { return filepath.Join(string(a), "effects") }

// counts returns how often each node called the tool.
func (a actor) counts() map[string]int {
	all := map[string]int{}
	for _, one := range a.acted() {
		name, _ := textOf(one, "id")
		all[name]++
	}
	return all
}

// acted returns the arguments of all calls of the tool.
func (a actor) acted() (all []protocol.Object) {
	text, _ := os.ReadFile(a.effects()) // there is no file before the first call
	for line := range strings.Lines(string(text)) {
		if obj, err := protocol.ParseObject([]byte(strings.TrimSpace(line))); err == nil {
			all = append(all, obj)
		}
	}
	return all
}

// startJournalHost starts a host in a process of its own.
func startJournalHost(t *testing.T, dir, machine string) (c *client.Client, kill func()) {
	t.Helper()
	cmd := exec.Command(must.Get(os.Executable())(t))
	cmd.Env = append(os.Environ(), journalHostEnv+"="+dir, journalMachineEnv+"="+machine)
	cmd.Stderr = os.Stderr
	c = must.Get(client.Spawn(t.Context(), cmd, client.Options{ExitWait: time.Minute}))(t)
	t.Cleanup(func() { _ = c.Close() }) // an error is expected if the host was killed
	must.Get(c.Handshake(t.Context(), "test", []protocol.Capability{protocol.CapChains, protocol.CapTools}, ""))(t)
	return c, func() { _ = cmd.Process.Kill() } // fails only if the process has ended
}

// killChain returns a chain of 51 calls of act, most of which must not be made twice: in rows that read each other, in
// a map and in a loop.
func killChain(t *testing.T, id string) (req *protocol.ChainRequest, idempotent map[string]bool) {
	t.Helper()
	idempotent = map[string]bool{}
	var list []map[string]any
	add := func(name string, fields map[string]any) {
		n := map[string]any{"node_id": name, "kind": "tool", "name": "act", "idempotent": len(list)%3 == 0}
		for key, val := range fields {
			n[key] = val
		}
		idempotent[name] = n["idempotent"] == true
		list = append(list, n)
	}
	add("n0", map[string]any{"input": map[string]any{"id": "n0"}})
	for i := 1; i < 40; i++ {
		name := fmt.Sprint("n", i)
		add(name, map[string]any{
			"input":     map[string]any{"id": name},
			"input_map": map[string]any{"before": fmt.Sprintf("n%d.id", max(0, i-1-i%3))},
		})
	}
	list = append(list,
		map[string]any{
			"node_id": "m", "kind": "map", "items_path": "['m0','m1','m2','m3','m4']", "map_node": "each",
			"deps": []string{"n39"},
		},
		map[string]any{"node_id": "each", "kind": "tool", "name": "act", "input_map": map[string]any{"id": "item"}},
		map[string]any{
			"node_id": "w", "kind": "while", "condition": "index < `5`", "max_iterations": 9,
			"input_map": map[string]any{"id": "join('', ['w', to_string(index)])"}, "deps": []string{"m"},
			"nodes": []any{map[string]any{
				"node_id": "in", "kind": "tool", "name": "act",
				"input_map": map[string]any{"id": "input.id"},
			}},
		},
	)
	add("end", map[string]any{"input": map[string]any{"id": "end"}, "input_map": map[string]any{
		"m": "m", "w": "w",
		"all": "[n39.before, n38.before, n0.id]",
	}})
	raw := must.Get(json.Marshal(map[string]any{"nodes": list, "chain_id": id, "resume": true},
		json.Deterministic(true)))(t)
	req = &protocol.ChainRequest{}
	must.OK(t, protocol.Decode(must.Get(protocol.ParseObject(raw))(t), nil, req))
	return req, idempotent
}

// TestKilledChainsGoOn kills hosts at random moments of their chains, and counts the effects of the nodes on disk. A
// node that may not run twice never does, all other nodes run, and the answer is the same as without a kill. If a
// refusal asks about nodes that had begun, the test looks up whether they acted.
func TestKilledChainsGoOn(t *testing.T) {
	kills := hosttest.Soak(t, "A2E_SOAK_CHAIN_KILLS", 30)
	within := 25 * time.Millisecond
	if stores.IsPostgres() { // each host counts as one of another machine, and waits for the end of a lease
		kills, within = kills/3, 250*time.Millisecond
	}
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	want, asked, chains, killed := "", 0, 0, 0
	for ; killed < kills; chains++ {
		dir := t.TempDir()
		req, idempotent := killChain(t, fmt.Sprint("chain ", chains))
		for {
			c, kill := startJournalHost(t, dir, fmt.Sprint(killed))
			if killed < kills && want != "" {
				defer time.AfterFunc(time.Duration(rng.Int64N(int64(within))), kill).Stop()
			}
			var resp protocol.ChainResponse
			err := c.Call(t.Context(), protocol.TypeChainReq, req, &resp)
			req.Resolve = protocol.Object{}
			if refused, ok := errors.AsType[*protocol.Error](err); ok {
				if stores.IsPostgres() && (strings.Contains(refused.Message, "runs right now") ||
					strings.Contains(refused.Message, "could not be read for")) {
					_ = c.Close()
					continue // until the lease of the killed host ends, or this machine is less busy
				}
				req.Resolve = lookedUp(t, refused, dir)
				asked++
				_ = c.Close() // the host may have been killed in between
				continue
			}
			if ended := c.Close(); err != nil {
				must.That(t, ended != nil || killed > 0, "%v", err)
				killed++
				checkEffects(t, dir, idempotent, false)
				continue
			}
			must.That(t, resp.Success, "%+v", resp.Error)
			if want == "" {
				want = string(resp.FinalOutput)
			}
			must.Equal(t, string(resp.FinalOutput), want)
			checkEffects(t, dir, idempotent, true)
			break
		}
	}
	t.Logf("seed %d: %d kills of %d chains, %d times nodes were unknown", seed, killed, chains, asked)
}

// checkEffects checks how often the nodes acted. whole = all of them must have acted.
func checkEffects(t *testing.T, dir string, idempotent map[string]bool, whole bool) {
	t.Helper()
	counts := actor(dir).counts()
	must.That(t, !whole || len(counts) == 51, "%d nodes acted", len(counts))
	for name, n := range counts {
		must.That(t, n == 1 || idempotent[name], "%s acted %d times", name, n)
	}
}

// lookedUp decides, as a person would, about the nodes that a refusal names.
func lookedUp(t *testing.T, refused *protocol.Error, dir string) protocol.Object {
	t.Helper()
	unknown, ok := refused.Detail["unknown"].([]any)
	must.That(t, ok && len(unknown) > 0, "%v", refused)
	decisions := map[string]any{}
	for _, path := range unknown {
		id := path.(string)
		if before, _, in := strings.Cut(id, "]"); in { // such as each[3] and w[3]/in
			id = strings.ReplaceAll(strings.ReplaceAll(before, "each[", "m"), "w[", "w")
		}
		decisions[path.(string)] = "run"
		for _, one := range actor(dir).acted() {
			if name, _ := textOf(one, "id"); name == id {
				decisions[path.(string)] = map[string]any{"output": jsontext.Value(one.Raw())}
			}
		}
	}
	raw := must.Get(json.Marshal(decisions))(t)
	return must.Get(protocol.ParseObject(raw))(t)
}

// newChain returns a request for a chain with a journal, with a timeout in seconds.
func newChain(t *testing.T, id string, timeout int, nodes ...string) *protocol.ChainRequest {
	t.Helper()
	req := &protocol.ChainRequest{ChainID: id, Journal: true, Timeout: timeout}
	for _, text := range nodes {
		req.Nodes = append(req.Nodes, must.Get(protocol.ParseObject([]byte(text)))(t))
	}
	return req
}

// resumed returns a request that resumes a chain.
func resumed(id string) *protocol.ChainRequest {
	return &protocol.ChainRequest{ChainID: id, Resume: true, Timeout: 60}
}

// TestJournalHasOneHost: a chain that one host runs cannot be run by another host. After its end from outside, the
// other host can continue it.
func TestJournalHasOneHost(t *testing.T) {
	dir := t.TempDir()
	first, _ := startJournalHost(t, dir, "")
	second, _ := startJournalHost(t, dir, "")
	gate := newChain(t, "gate", 60,
		`{"node_id":"g","kind":"tool","name":"gate","input":{"id":"g"}}`,
		`{"node_id":"e","kind":"tool","name":"act","input":{"id":"e"},"deps":["g"]}`)
	running := must.Get(first.Go(protocol.TypeChainReq, gate))(t)
	hosttest.Eventually(t, "the first node runs", func() bool { return actor(dir).counts()["g"] == 1 })
	resume := resumed("gate")
	var resp protocol.ChainResponse
	must.Fails(t, second.Call(t.Context(), protocol.TypeChainReq, resume, &resp), "runs right now")

	s := stores.Open(t, statePath(dir), Part())
	was := must.Get(CancelJournal(t.Context(), s, dir, "gate", false))(t)
	assert.That(t, was, "no host runs it")
	must.Fails(t, running.Wait(t.Context(), &resp), "cancelled by its journal")
	found := must.Get(Journals(t.Context(), s, dir, "gate", false))(t)
	assert.Equal(t, found[0].State, stateCancelled)
	assert.Slice(t, found[0].Unknown, []string{"g"})

	must.Fails(t, second.Call(t.Context(), protocol.TypeChainReq, gate, &resp), "has started and not ended")
	must.Fails(t, second.Call(t.Context(), protocol.TypeChainReq, resume, &resp), `"resolve": {"g": …}`)
	found = must.Get(Journals(t.Context(), s, dir, "gate", false))(t)
	for decision, words := range map[string]string{
		`{"g":{"output":8},"x":"run"}`: "not a node whose end is unknown",
		`{"x":"run"}`:                  "not a node whose end is unknown", `{"g":"maybe"}`: `"run" (once more)`,
	} {
		resume.Resolve = must.Get(protocol.ParseObject([]byte(decision)))(t)
		must.Fails(t, second.Call(t.Context(), protocol.TypeChainReq, resume, &resp), words)
	}
	left := must.Get(Journals(t.Context(), s, dir, "gate", true))(t)
	assert.That(t, left[0].UpdatedAt == found[0].UpdatedAt && left[0].Steps[0].State == "unknown",
		"a request that was refused changed it: %s, %v", left[0].Message, left[0].Steps)
	resume.Resolve = must.Get(protocol.ParseObject([]byte(`{"g":{"output":7}}`)))(t)
	must.OK(t, second.Call(t.Context(), protocol.TypeChainReq, resume, &resp))
	assert.That(t, resp.Success && fmt.Sprint(resp.Outputs["g"]) == "7" && resp.FromJournal == 1, "%+v", resp)
	assert.Equal(t, actor(dir).counts()["e"], 1)
	gate.Resume, gate.Nodes[1] = true, gate.Nodes[0]
	gate.Nodes = gate.Nodes[1:]
	must.Fails(t, second.Call(t.Context(), protocol.TypeChainReq, gate, &resp), "are not those that the chain")
}

// TestLostJournal: a host whose journal another host has taken over runs no further node.
func TestLostJournal(t *testing.T) {
	dir := t.TempDir()
	first, _ := startJournalHost(t, dir, "")
	gate := newChain(t, "gate", 60,
		`{"node_id":"g","kind":"tool","name":"gate","input":{"id":"g"},"idempotent":true}`,
		`{"node_id":"e","kind":"tool","name":"act","input":{"id":"e"},"deps":["g"]}`)
	running := must.Get(first.Go(protocol.TypeChainReq, gate))(t)
	hosttest.Eventually(t, "the first node runs", func() bool { return actor(dir).counts()["g"] == 1 })
	s := stores.Open(t, statePath(dir), Part())
	taken := func(until string) {
		must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec("UPDATE chains_journals SET owner = 'another', leased_until = unixepoch() " + until)
			return err
		}))
	}
	taken("+ 1000")
	var resp protocol.ChainResponse
	must.Fails(t, running.Wait(t.Context(), &resp), "another host has taken")
	resume := resumed("gate")
	must.Fails(t, first.Call(t.Context(), protocol.TypeChainReq, resume, &resp), "runs right now")
	assert.Equal(t, actor(dir).counts()["e"], 0)
	taken("- 1")
	must.OK(t, os.WriteFile(filepath.Join(dir, "open"), nil, 0o600))
	must.OK(t, first.Call(t.Context(), protocol.TypeChainReq, resume, &resp))
	assert.That(t, resp.Success && actor(dir).counts()["e"] == 1, "%+v", resp)
}

// TestEndThatIsNotKept: a chain whose end could not be stored counts as the chain of a dead host, even if its host
// ended properly. As soon as the store works again, a host that still lives stores the end, and the chain no longer
// counts as running.
func TestEndThatIsNotKept(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "open"), nil, 0o600))
	s := stores.Open(t, statePath(dir), Part())
	do := func(query string) {
		must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error { _, err := tx.Exec(query); return err }))
	}
	const full = "CREATE TRIGGER full BEFORE UPDATE OF state ON chains_journals BEGIN SELECT RAISE(FAIL, 'the disk " +
		"is full'); END"
	do(full)
	first, _ := startJournalHost(t, dir, "")
	act := newChain(t, "act", 60,
		`{"node_id":"e","kind":"tool","name":"act","input":{"id":"e"}}`)
	var resp protocol.ChainResponse
	must.OK(t, first.Call(t.Context(), protocol.TypeChainReq, act, &resp))
	must.OK(t, first.Close())
	do("DROP TRIGGER full")
	second, _ := startJournalHost(t, dir, "")
	must.OK(t, second.Call(t.Context(), protocol.TypeChainReq, resumed("act"), &resp))
	assert.That(t, resp.Success && actor(dir).counts()["e"] == 1, "%+v, %v", resp, actor(dir).counts())
	do(full)
	act.ChainID = "late"
	must.OK(t, second.Call(t.Context(), protocol.TypeChainReq, act, &resp))
	state := func() string { return must.Get(Journals(t.Context(), s, dir, "late", false))(t)[0].State }
	assert.Equal(t, state(), stateRunning)
	do("DROP TRIGGER full")
	hosttest.Eventually(t, "the end is written", func() bool { return state() == stateDone })
}

// TestEndBeforeItsChain: a host that ends before one of its chains, because a tool does not stop, counts as dead for
// this chain.
func TestEndBeforeItsChain(t *testing.T) {
	dir := t.TempDir()
	first, _ := startJournalHost(t, dir, "")
	deaf := newChain(t, "deaf", 1,
		`{"node_id":"g","kind":"tool","name":"deaf","input":{"id":"g"},"idempotent":true}`)
	var resp protocol.ChainResponse
	must.Fails(t, first.Call(t.Context(), protocol.TypeChainReq, deaf, &resp), "timeout")
	must.OK(t, first.Close())
	must.OK(t, os.WriteFile(filepath.Join(dir, "open"), nil, 0o600))
	second, _ := startJournalHost(t, dir, "")
	must.OK(t, second.Call(t.Context(), protocol.TypeChainReq, resumed("deaf"), &resp))
	assert.That(t, resp.Success, "%+v", resp)
}

// TestJournalOfAnID: with the option Journal, a chain id that no journal can have is refused, because its export could
// not be imported.
func TestJournalOfAnID(t *testing.T) {
	s := cacheStage(t, Options{Journal: true}, t.TempDir(), filepath.Join(t.TempDir(), store.FileName))
	for _, id := range []string{"a\nb", "a\x00b", strings.Repeat("x", 129)} {
		raw := must.Get(json.Marshal(id))(t)
		m := s.Call(protocol.TypeChainReq, fmt.Sprintf(`{"chain_id":%s,%s`, raw,
			nodes(`"node_id":"a",` + toolEcho)[1:]))
		assert.Equal(t, m.Get("/code"), "schema_violation", "%q", id)
	}
}

// again returns a request that continues a chain; more has further fields.
func again(id, more string) string {
	return fmt.Sprintf(`{"chain_id":%q,"resume":true%s}`, id, more)
}

// begun returns a request for a chain with a journal.
func begun(id string, list ...string) string {
	return fmt.Sprintf(`{"chain_id":%q,"journal":true,%s`, id, nodes(list...)[1:])
}

// TestResumeAfterFailure: a failed chain continues at the node that failed, inside any kind of node, and nodes that
// have ended are not called again.
func TestResumeAfterFailure(t *testing.T) {
	echo := func(id string) string { return fmt.Sprintf(`"node_id":%q,`, id) + toolEcho }
	broken := func(fails int, more string) string { return flaky("x", fails, "tool_error", more) }
	body := func(fails int) string {
		return `"nodes":[{` + echo("p") + `},{` + broken(fails, `,"deps":["p"]`) + `}]`
	}
	for name, tc := range map[string]struct {
		list    []string
		outputs string
		calls   string // numbers of calls of flaky and echo together, one for each run of the chain
	}{
		"row": {
			[]string{echo("a"), broken(1, `,"deps":["a"]`), echo("b") + `,"deps":["x"]`},
			`{"a":{},"b":{},"x":{"call":2}}`, "2 2",
		},
		"map": {[]string{`"node_id":"m","kind":"map","items_path":"` + "`[1,2,3]`" +
			`","max_parallel":1,"map_node":"x"`, broken(2, "")}, `{"m":[{"call":3},{"call":4},{"call":5}]}`, "1 1 3"},
		"loop": {[]string{`"node_id":"l","kind":"while","condition":"index < ` + "`3`" + `","max_iterations":5,` +
			body(1)}, `{"l":{"call":4}}`, "2 5"},
		"retried": {
			[]string{`"node_id":"l","kind":"while","condition":"index < ` + "`1`" +
				`","max_iterations":5,"retry":{"max_attempts":2,"backoff":0,"on":["tool_error"]},` + body(3)},
			`{"l":{"call":4}}`, "4 1 1",
		},
		"further": {[]string{`"node_id":"l","kind":"while","condition":"index < ` + "`1`" +
			`","max_iterations":5,"retry":{"max_attempts":2,"backoff":0,"on":["tool_error"]},"nodes":[{` +
			broken(1, "") + `},{` + echo("p") + `,"deps":["x"]},{` + flaky("y", 2, "tool_error", `,"deps":["p"]`) +
			`}]`}, `{"l":{"call":3}}`, "4 1 1"},
		"caught": {
			[]string{broken(1, `,"catch":"h"`), echo("h"), flaky("y", 1, "tool_error", `,"deps":["h"]`)},
			`{"h":{},"x":null,"y":{"call":2}}`, "3 1",
		},
		"tolerant": {
			[]string{broken(9, `,"on_error":"skip"`), flaky("y", 1, "tool_error", "")},
			`{"x":null,"y":{"call":2}}`, "2 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := cacheStage(t, Options{MaxParallel: 1}, t.TempDir(), filepath.Join(t.TempDir(), store.FileName))
			m := s.Call(protocol.TypeChainReq, begun("c", tc.list...))
			var calls []string
			for before := 0; ; {
				now := len(s.shed.done())
				calls = append(calls, fmt.Sprint(now-before))
				before = now
				if m.Get("/error/message") == "" || strings.HasSuffix(m.Get("/error/message"), "went on") {
					break
				}
				must.That(t, len(calls) < 9, "%s", m.Line)
				m = s.Call(protocol.TypeChainReq, again("c", ""))
			}
			res := s.read(m)
			assert.That(t, res.text(t) == tc.outputs && strings.Join(calls, " ") == tc.calls,
				"outputs %s after calls %v; should be %s, %s", res.text(t), calls, tc.outputs, tc.calls)
			m = s.Call(protocol.TypeChainReq, begun("c", tc.list...))
			assert.That(t, m.Type == protocol.TypeChainResp, "what is done cannot be begun anew: %s", m.Line)
		})
	}
}
