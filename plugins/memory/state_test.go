package memory

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"a2e/host"
	agents "a2e/host/agent"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/protocol"
)

// TestExportAndImport: an empty store that imports an export answers as the first store does.
func TestExportAndImport(t *testing.T) {
	from, to, c := file(t), file(t), newClock()
	a := newAgent(t, from, "ann", DefaultOptions(), c)
	a.store(one(1, "semantic", "the deploy key is in the vault"),
		`{"key":{"n":2},"content":[1.50,{"x":null}],"tags":["b","a"],"source":"s","score":0.25,"ttl":3600}`)
	a.id = a.open(`{"namespace":"other","scope":{"project":"x"}}`)
	a.store(one(3, "episodic", "a former version"))
	a.store(one(3, "episodic", "of another memory"))
	export := func(st store.Store) string {
		var out strings.Builder
		must.OK(t, st.Export(t.Context(), &out))
		return out.String()
	}
	text := export(from)
	counts, err := to.Import(t.Context(), strings.NewReader(text), store.Merge)
	must.That(t, err == nil && counts["memory.entry"] == 3, "imported %v, %v", counts, err)
	got := export(to)
	assert.That(t, got == text, "the import exports\n%s\nnot\n%s", got, text)
	must.Get(to.Import(t.Context(), strings.NewReader(text), store.Merge))(t)
	must.OK(t, to.Read(t.Context(), func(tx *store.Tx) error {
		var wrong int
		_, err := tx.Get(`SELECT count(*) FROM memory_spaces s WHERE entries <> (SELECT count(*) FROM memory_entries
			WHERE space = s.id) OR entries = 0
			OR bytes <> (SELECT sum(bytes) FROM memory_entries
			WHERE space = s.id) OR past_bytes <> (SELECT coalesce(sum(bytes), 0) FROM memory_history
			WHERE space = s.id)`, nil, &wrong)
		assert.Equal(t, wrong, 0, "spaces that count wrong")
		return err
	}))
	b := newAgent(t, to, "ann", DefaultOptions(), c)
	b.want("all", `{}`, `{"n":1} {"n":2}`)
	b.want("search", `{"query":"deployment keys"}`, `{"n":1}`)
	b.id = b.open(`{"namespace":"other","scope":{"project":"x"}}`)
	b.want("the other memory", `{}`, `{"n":3}`)
	b.want("its history", `{"history":true,"keys":[{"n":3}]}`, `{"n":3} {"n":3}`)
	for _, broken := range []string{
		`{"kind":"memory.entry","record":{"namespace":"n","key":"k","content":1}}`,
		`{"kind":"memory.entry","record":{"namespace":"n","key":{},"content":1,"tier":"odd"}}`,
		`{"kind":"memory.unknown","record":{}}`, `{"kind":"memory.model","record":{"name":"one","size":3}}` + "\n" +
			`{"kind":"memory.model","record":{"name":"another","size":3}}`,
	} {
		if _, err := to.Import(t.Context(), strings.NewReader(`{"a2e_state":1,"parts":["memory"]}`+"\n"+broken),
			store.Merge); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("line %d",
			2+strings.Count(broken, "\n"))) {
			t.Errorf("%s gave %v", broken, err)
		}
	}
}

// TestVeryManyExpiredEntries: all expired entries are removed, even if they are too many for one
// transaction.
func TestVeryManyExpiredEntries(t *testing.T) {
	c := newClock()
	st := file(t)
	a := newAgent(t, st, "ann", DefaultOptions(), c)
	a.store(one(-1, "semantic", "it stays"), `{"key":{"n":7},"content":"it goes","tier":"semantic","ttl":1}`)
	const columns = "space, sent, tags, source, weight, ttl, created_at, updated_at, expires_at, bytes, content"
	if err := st.Write(t.Context(), func(tx *store.Tx) error { // to store so many by requests takes long
		_, err := tx.Exec("INSERT INTO memory_entries (key, "+columns+") WITH RECURSIVE more(n) AS (SELECT 1 UNION "+
			"ALL SELECT n + 1 FROM more WHERE n < CAST($1 AS BIGINT))"+
			" SELECT '{\"more\":' || n || '}', "+columns+" FROM memory_entries, more WHERE ttl = 1", purgeBatch+50)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if resp := a.retrieve(`{}`); resp.Total != purgeBatch+52 {
		t.Fatalf("%d entries", resp.Total)
	}
	c.advance(time.Minute)
	n := a.forget(`{"keys":[{"n":7}],"tier":"semantic"}`)
	assert.That(t, n == 0, "forgot %d expired entries", n)
	if resp := a.want("after", `{}`, `{"n":-1}`); resp.Total != 1 {
		t.Errorf("total is %d", resp.Total)
	}
}

func TestScopesOfChildAgents(t *testing.T) {
	st, c := file(t), newClock()
	probe := &hosttest.Probe{}
	parent := newAgent(t, st, "parent", DefaultOptions(), c, probe)
	parent.store(one(1, "episodic", "the launch code is red"), one(2, "working", "today is sunny"))
	parent.store(one(1, "episodic", "the launch code is blue"), one(2, "working", "today is rainy"),
		one(3, "semantic", "water is wet"))
	set := func(child string, scope protocol.MemoryScope) error {
		probe.Do = func(ctx context.Context) error {
			memory := host.First[agents.MemoryScoper](host.ServicesOf(ctx))
			must.That(t, memory != nil, "the host has no plugin that scopes memory")
			return memory.ScopeMemory(ctx, child, scope)
		}
		parent.Call(hosttest.TypeProbe, `{}`)
		return probe.Err
	}
	for child, scope := range map[string]protocol.MemoryScope{
		"sharing": protocol.MemoryShared,
		"alone":   protocol.MemoryIsolated, "copying": protocol.MemorySnapshot,
	} {
		if err := set(child, scope); err != nil {
			t.Fatalf("%s: %v", child, err)
		}
	}
	sharing, alone, copying := newAgent(t, st, "sharing", DefaultOptions(), c),
		newAgent(t, st, "alone", DefaultOptions(), c), newAgent(t, st, "copying", DefaultOptions(), c)
	sharing.want("shared", `{"tier":"episodic"}`, `{"n":1}`)
	alone.want("isolated", `{"tier":"episodic"}`, ``)
	copying.want("snapshot", `{"tier":"episodic"}`, `{"n":2} {"n":1}`)
	copying.want("their history", `{"history":true,"keys":[{"n":1},{"n":2}]}`, `{"n":1} {"n":1} {"n":2} {"n":2}`)
	copying.want("snapshot, searched", `{"query":"launch code","tier":"episodic"}`, `{"n":1}`)
	for _, child := range []*agent{sharing, alone, copying} {
		child.want("the semantic tier is all agents'", `{"tier":"semantic"}`, `{"n":3}`)
	}
	sharing.store(one(10, "episodic", "by the sharing child"))
	copying.store(one(11, "episodic", "by the copying child"))
	copying.forget(`{"keys":[{"n":1}]}`)
	parent.want("the parent", `{"tier":"episodic"}`, `{"n":10} {"n":1}`)
	must.OK(t, set("sharing", protocol.MemoryIsolated))
	sharing.want("isolated after all", `{"tier":"episodic"}`, ``)
	for _, wrong := range []struct {
		child string
		scope protocol.MemoryScope
	}{{"", protocol.MemoryShared}, {"parent", protocol.MemoryIsolated}, {"x", "borrowed"}} {
		if err := set(wrong.child, wrong.scope); err == nil {
			t.Errorf("%+v gave no error", wrong)
		}
	}
}
