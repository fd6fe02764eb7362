package memory

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

func TestContract(t *testing.T) {
	opened := func(fields string) func(testing.TB, *hosttest.Pair) string {
		return func(t testing.TB, p *hosttest.Pair) string {
			var resp protocol.MemoryInitResponse
			p.Call(protocol.TypeMemoryInitReq, `{}`).Decode(t, &resp)
			return fmt.Sprintf(fields, resp.MemoryID)
		}
	}
	make := func(t testing.TB) host.Plugin { return pluginOn(t, file(t), DefaultOptions(), newClock()) }
	hosttest.Contract(t, make, []hosttest.Sample{
		{Type: protocol.TypeMemoryInitReq, Fields: `{"namespace":"n","scope":{"a":"b"},"metadata":{"x":1}}`},
		{Name: "a long namespace", Type: protocol.TypeMemoryInitReq, Fields: `{"namespace":"` + strings.Repeat("n",
			2000) + `"}`, Code: protocol.CodeSchemaViolation},
		{Type: protocol.TypeMemoryStoreReq, Make: opened(`{"memory_id":%q,"entries":[{"key":{"a":1},"content":{"x":[1,2]},"tier":"semantic"}]}`)},
		{Name: "no entries", Type: protocol.TypeMemoryStoreReq, Make: opened(`{"memory_id":%q}`)},
		{
			Name: "store in an unknown memory", Type: protocol.TypeMemoryStoreReq, Fields: `{"memory_id":"nope"}`,
			Code: protocol.CodeMemoryNotFound,
		},
		{Type: protocol.TypeMemoryRetrieveReq, Make: opened(`{"memory_id":%q,"query":"anything","tags":["t"],"keys":[{"a":1}]}`)},
		{
			Name: "retrieve from an unknown memory", Type: protocol.TypeMemoryRetrieveReq, Fields: `{"memory_id":"nope"}`,
			Code: protocol.CodeMemoryNotFound,
		},
		{
			Name: "an unknown tier", Type: protocol.TypeMemoryRetrieveReq,
			Make: opened(`{"memory_id":%q,"tier":"eternal"}`), Code: protocol.CodeSchemaViolation,
		},
		{
			Name: "a negative limit", Type: protocol.TypeMemoryRetrieveReq, Make: opened(`{"memory_id":%q,"limit":-1}`),
			Code: protocol.CodeSchemaViolation,
		},
		{
			Name: "too many tags", Type: protocol.TypeMemoryRetrieveReq,
			Make: opened(`{"memory_id":%q,"tags":["t"` + strings.Repeat(`,"t"`, 1000) + `]}`),
			Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypeMemoryForgetReq, Make: opened(`{"memory_id":%q,"keys":[{"a":1}]}`)},
		{
			Name: "forget in an unknown memory", Type: protocol.TypeMemoryForgetReq, Fields: `{"memory_id":"nope"}`,
			Code: protocol.CodeMemoryNotFound,
		},
	})
}

func TestEntriesComeBackAsTheyWere(t *testing.T) {
	c := newClock()
	a := newAgent(t, file(t), "ann", DefaultOptions(), c)
	for _, tier := range tiers() {
		resp := a.store(fmt.Sprintf(`{"key":{"b":9007199254740993,"a":"ü"},"content":{"n":1.10,"big":12345678901234567890,"list":[null,true]},"tier":%q,"tags":["z","a","z"],"source":"turn-1","score":0.5,"ttl":60}`, tier))
		must.That(t, len(resp.Errors) <= 0 && len(resp.Stored) == 1 &&
			string(resp.Stored[0].Raw()) == `{"b":9007199254740993,"a":"ü"}`, "%s: stored %+v", tier, resp)
		found := a.retrieve(fmt.Sprintf(`{"tier":%q,"keys":[{"a":"ü","b":9007199254740993}]}`, tier))
		must.That(t, found.Total == 1 && len(found.Entries) == 1, "%s: found %+v", tier, found)
		e := found.Entries[0]
		got := fmt.Sprintf("%s %s %v %v %v %v %v %v", e.Content, e.Tier, e.Tags, e.Source, e.Score, e.TTL, e.CreatedAt,
			e.UpdatedAt)
		want := fmt.Sprintf(`{"n":1.10,"big":12345678901234567890,"list":[null,true]} %s [a z] turn-1 0.5 60 1.8e+09 1.8e+09`, tier)
		assert.That(t, got == want, "%s: got\n%s, want\n%s", tier, got, want)
		if near := a.retrieve(fmt.Sprintf(`{"tier":%q,"keys":[{"a":"ü","b":9007199254740992}]}`,
			tier)); near.Total != 0 {
			t.Errorf("%s: a key that differs in the last digit found %s", tier, keys(near))
		}
	}
}

func TestStoringAKeyAgainReplaces(t *testing.T) {
	c := newClock()
	a := newAgent(t, file(t), "ann", DefaultOptions(), c)
	a.store(`{"key":{"x":1,"y":2.0},"content":"alpha first","tier":"semantic","tags":["old"]}`,
		one(2, "semantic", "other"))
	c.advance(time.Minute)
	a.store(`{"key":{ "y":2, "x":1 },"content":"beta second","tier":"semantic","tags":["new"]}`)
	resp := a.want("newest first", `{"tier":"semantic"}`, `{"y":2,"x":1} {"n":2}`)
	e := resp.Entries[0]
	if string(e.Content) != `"beta second"` || e.CreatedAt != 1_800_000_000 || e.UpdatedAt != 1_800_000_060 ||
		resp.Total != 2 {
		t.Errorf("got %s %v %v, total %d", e.Content, e.CreatedAt, e.UpdatedAt, resp.Total)
	}
	a.want("the old tag is gone", `{"tags":["old"]}`, ``)
	a.want("the old words are gone", `{"query":"alpha"}`, ``)
	a.want("the new ones are there", `{"query":"beta"}`, `{"y":2,"x":1}`)
}

func TestBadEntriesAreRefusedAndGoodOnesStored(t *testing.T) {
	a := newAgent(t, file(t), "ann", DefaultOptions(), newClock())
	big := strings.Repeat("x", DefaultOptions().MaxEntryBytes)
	for entry, reason := range map[string]string{
		`{"content":1,"tier":"semantic"}`:                                          "key should be an object",
		`{"key":"k","content":1,"tier":"semantic"}`:                                "key should be an object",
		`{"key":{"k":1},"tier":"semantic"}`:                                        "content is missing",
		`{"key":{"k":1},"content":1,"tier":"forever"}`:                             `no tier "forever"; there are working, episodic, semantic`,
		`{"key":{"k":1},"content":1,"tier":7}`:                                     "tier should be a string",
		`{"key":{"k":1},"content":1,"tags":"t"}`:                                   "tags should be a list of strings",
		`{"key":{"k":1},"content":1,"tags":[1]}`:                                   "tags should be a list of strings",
		`{"key":{"k":1},"content":1,"tags":[""]}`:                                  "1 to 256 bytes",
		`{"key":{"k":1},"content":1,"score":1.5}`:                                  "from 0 to 1",
		`{"key":{"k":1},"content":1,"score":"high"}`:                               "score should be a number",
		`{"key":{"k":1},"content":1,"ttl":-1}`:                                     "ttl is -1",
		`{"key":{"k":1},"content":"` + big + `"}`:                                  "max_entry_bytes allows 1048576",
		`{"key":{"k":"` + strings.Repeat("k", 5000) + `"},"content":1}`:            "4096 are allowed",
		`{"key":{"k":1},"content":1,"source":"` + strings.Repeat("s", 2000) + `"}`: "1024 are allowed",
	} {
		resp := a.store(one(1, "semantic", "good"), entry, one(2, "working", "good"))
		if len(resp.Stored) != 2 || len(resp.Errors) != 1 || !strings.HasPrefix(resp.Errors[0], "entries[1]: ") ||
			!strings.Contains(resp.Errors[0], reason) {
			t.Errorf("%.80s: stored %v, errors %.200q; want %q", entry, resp.Stored, resp.Errors, reason)
		}
	}
	for _, nulls := range []string{`{"key":{"k":2},"content":null,"tags":null,"source":null,"score":null,"ttl":null,"tier":"episodic"}`, `{"key":{},"content":[]}`} {
		if resp := a.store(nulls); len(resp.Stored) != 1 {
			t.Errorf("%s was refused: %q", nulls, resp.Errors)
		}
	}
}

// TestOneOfTwoTiersFails: a refused request leaves nothing, even if one of its tiers was written
// without an error.
func TestOneOfTwoTiersFails(t *testing.T) {
	st := file(t)
	a := newAgent(t, st, "ann", DefaultOptions(), newClock())
	must.OK(t, st.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec("CREATE UNIQUE INDEX one_at_a_time ON memory_entries (created_at)")
		return err
	}))
	m := a.Call(protocol.TypeMemoryStoreReq, a.with(`{"entries":[`+one(1, "episodic", "red kite")+","+one(2, "semantic",
		"red pool")+`]}`))
	assert.Equal(t, m.Code, protocol.CodeRuntimeError, "%s", m.Line)
	a.want("what a refused request left", `{"query":"red"}`, "")
}

// TestIsolation: the entries of one agent or memory must not be seen, found, counted or forgotten by
// another.
func TestIsolation(t *testing.T) {
	st, c := file(t), newClock()
	ann, bob := newAgent(t, st, "ann", DefaultOptions(), c), newAgent(t, st, "bob", DefaultOptions(), c)
	for i, tier := range tiers() {
		ann.store(one(i+1, string(tier), "secret plan"))
		c.advance(time.Second)
	}
	ann.want("ann", `{}`, `{"n":3} {"n":2} {"n":1}`)
	if resp := ann.retrieve(`{"query":"secret plan"}`); resp.Total != 3 {
		t.Errorf("ann finds %s in her three tiers", keys(resp))
	}
	bob.want("the semantic tier is shared at once", `{"query":"secret plan"}`, `{"n":3}`)
	bob.want("also without a query", `{}`, `{"n":3}`)
	if n := bob.forget(`{"keys":[{"n":1},{"n":2}],"tier":""}`); n != 0 {
		t.Errorf("bob forgot %d entries of ann", n)
	}
	for _, other := range []string{
		`{"namespace":"n"}`, `{"scope":{"project":"x"}}`,
		`{"namespace":"n","scope":{"project":"x"}}`,
	} {
		id := ann.id
		ann.id = ann.open(other)
		assert.That(t, ann.id != id, "%s has the id of the default memory", other)
		ann.want("another memory", `{}`, ``)
		ann.want("another memory", `{"query":"secret plan"}`, ``)
		if n := ann.forget(`{"keys":[{"n":3}],"tier":"semantic"}`); n != 0 {
			t.Errorf("%s: forgot %d entries of another memory", other, n)
		}
		ann.id = id
	}
	again := ann.open(`{"namespace":"default","scope":{}}`)
	assert.That(t, again == ann.id, "the same memory has the ids %s and %s", ann.id, again)
}

func TestTheWorkingTierDiesWithItsSession(t *testing.T) {
	st, c := file(t), newClock()
	ann := newAgent(t, st, "ann", DefaultOptions(), c)
	ann.store(one(1, "working", "draft"), one(2, "episodic", "fact"))
	ann.handshake("ann")
	ann.want("the next session", `{}`, `{"n":2}`)
	ann.want("the next session", `{"query":"draft"}`, ``)
	assert.That(t, len(ann.plugin.working) == 0, "the old session's tier is still held")
	later := newAgent(t, st, "ann", DefaultOptions(), c)
	later.want("another host", `{}`, `{"n":2}`)
}

func TestFiltersAreANDed(t *testing.T) {
	c := newClock()
	a := newAgent(t, file(t), "ann", DefaultOptions(), c)
	for i, tags := range []string{`["red"]`, `["red","blue"]`, `["blue"]`, `["green"]`, `[]`} {
		a.store(fmt.Sprintf(`{"key":{"n":%d},"content":"a note about colours","tier":"semantic","tags":%s,"score":%v}`,
			i, tags, float64(i)/4))
		c.advance(time.Second)
	}
	a.store(`{"key":{"n":1},"content":"a note about colours","tier":"episodic","tags":["red"]}`)
	for _, x := range []struct {
		fields, keys string
		total        int
	}{
		{`{"tier":"semantic"}`, `{"n":4} {"n":3} {"n":2} {"n":1} {"n":0}`, 5},
		{`{"tier":"semantic","limit":2}`, `{"n":4} {"n":3}`, 5},
		{`{"tier":"semantic","limit":0}`, ``, 5},
		{`{"tags":["red"],"tier":"semantic"}`, `{"n":1} {"n":0}`, 2},
		{`{"tags":["red"]}`, `{"n":1} {"n":1} {"n":0}`, 3},
		{`{"tags":["red","blue"],"tier":"semantic"}`, `{"n":2} {"n":1} {"n":0}`, 3},
		{`{"tags":["red","blue"],"tier":"semantic","limit":1}`, `{"n":2}`, 3},
		{`{"tags":["nothing"]}`, ``, 0},
		{`{"keys":[{"n":1},{"n":2},{"n":9}],"tier":"semantic"}`, `{"n":2} {"n":1}`, 2},
		{`{"keys":[{"n":1},{"n":2}],"tags":["red"],"tier":"semantic"}`, `{"n":1}`, 1},
		{`{"keys":[{"n":1}]}`, `{"n":1} {"n":1}`, 2},
		{`{"keys":[{"n":1}],"query":"colour","tier":"semantic"}`, `{"n":1}`, 1},
		{`{"keys":[{"n":1}],"query":"zebra crossing","tier":"semantic"}`, ``, 0},
		{`{"tags":["green"],"query":"colours"}`, `{"n":3}`, 1},
		{`{"tags":["green"],"query":"zebra"}`, ``, 0},
		{`{"tier":"semantic","min_score":0.5}`, `{"n":4} {"n":3} {"n":2}`, 3},
		{`{"tier":"semantic","min_score":0.5,"tags":["blue"]}`, `{"n":2}`, 1},
	} {
		resp := a.want("filters", x.fields, x.keys)
		assert.That(t, resp.Total == x.total, "%s: total is %d, want %d", x.fields, resp.Total, x.total)
	}
}

func TestExpiredEntriesAreNeverServed(t *testing.T) {
	for _, tier := range tiers() {
		c := newClock()
		a := newAgent(t, file(t), "ann", DefaultOptions(), c)
		a.store(fmt.Sprintf(`{"key":{"n":1},"content":"short lived","tags":["t"],"tier":%q,"ttl":10}`, tier),
			fmt.Sprintf(`{"key":{"n":2},"content":"long lived","tags":["t"],"tier":%q}`, tier))
		c.advance(9 * time.Second)
		a.want("before", `{}`, `{"n":2} {"n":1}`)
		c.advance(time.Second)
		for _, fields := range []string{
			`{}`, `{"tags":["t"]}`, `{"query":"lived"}`, `{"query":"lived","tags":["t"]}`,
			`{"keys":[{"n":1},{"n":2}]}`, `{"min_score":0.1}`,
		} {
			resp := a.want("after", fields, `{"n":2}`)
			assert.That(t, resp.Total == 1, "%s %s: total is %d", tier, fields, resp.Total)
		}
		n := a.forget(fmt.Sprintf(`{"keys":[{"n":1}],"tier":%q}`, tier))
		assert.That(t, n == 0, "forgot %d expired entries", n)
	}
}

func TestForget(t *testing.T) {
	c := newClock()
	a := newAgent(t, file(t), "ann", DefaultOptions(), c)
	for i, tags := range []string{`["red"]`, `["red","blue"]`, `["blue"]`, `[]`} {
		a.store(fmt.Sprintf(`{"key":{"n":%d},"content":"alpha","tags":%s}`, i, tags))
	}
	c.advance(time.Second)
	a.store(`{"key":{"n":0},"content":"alpha","tier":"working","tags":["red"]}`)
	for _, x := range []struct {
		fields  string
		deleted int
		left    string
	}{
		{`{}`, 0, `{"n":0} {"n":3} {"n":2} {"n":1} {"n":0}`},
		{`{"keys":[{"n":1}],"tags":["green"]}`, 0, `{"n":0} {"n":3} {"n":2} {"n":1} {"n":0}`},
		{`{"keys":[{"n":1},{"n":2}],"tags":["red"]}`, 1, `{"n":0} {"n":3} {"n":2} {"n":0}`},
		{`{"tags":["red"],"tier":"episodic"}`, 1, `{"n":0} {"n":3} {"n":2}`},
		{`{"keys":[{"n":3}]}`, 1, `{"n":0} {"n":2}`},
		{`{"tags":["red","blue"]}`, 2, ``},
	} {
		n := a.forget(x.fields)
		assert.That(t, n == x.deleted, "%s deleted %d, want %d", x.fields, n, x.deleted)
		a.want("after "+x.fields, `{}`, x.left)
	}
	a.want("nothing is found of what was forgotten", `{"query":"alpha"}`, ``)
}

func TestLimitsOfTheTiers(t *testing.T) {
	opts := DefaultOptions()
	opts.WorkingLimit, opts.EpisodicLimit, opts.SemanticLimit = 2, 3, 4
	for tier, limit := range map[string]int{"working": 2, "episodic": 3, "semantic": 4} {
		c := newClock()
		a := newAgent(t, file(t), "ann", opts, c)
		for i := range limit - 1 {
			a.store(one(i, tier, "x"))
		}
		mixed := a.store(one(50, tier, "fits"), one(51, tier, "does not"), one(50, tier, "fits again"))
		if len(mixed.Stored) != 2 || len(mixed.Errors) != 1 || !strings.Contains(mixed.Errors[0], "memory_full") ||
			!strings.Contains(mixed.Errors[0], tier+"_limit") {
			t.Errorf("%s: a mixed batch gave %+v", tier, mixed)
		}
		full := a.Call(protocol.TypeMemoryStoreReq, a.with(`{"entries":[`+one(99, tier, "x")+`]}`))
		assert.That(t, full.Code == protocol.CodeMemoryFull, "%s: a full tier answered %s", tier, full.Line)
		other := a.id
		a.id = a.open(`{"namespace":"another"}`)
		if full := a.Call(protocol.TypeMemoryStoreReq,
			a.with(`{"entries":[`+one(99, tier, "x")+`]}`)); full.Code != protocol.CodeMemoryFull {
			t.Errorf("%s: another namespace got around the limit: %s", tier, full.Line)
		}
		a.id = other
		n := a.forget(fmt.Sprintf(`{"keys":[{"n":0}],"tier":%q}`, tier))
		must.That(t, n == 1, "forgot %d", n)
		if resp := a.store(fmt.Sprintf(`{"key":{"n":99},"content":1,"tier":%q,"ttl":5}`, tier)); len(resp.Stored) != 1 {
			t.Errorf("%s: no room after forget: %+v", tier, resp)
		}
		c.advance(6 * time.Second)
		if resp := a.store(one(100, tier, "x")); len(resp.Stored) != 1 {
			t.Errorf("%s: what has expired still takes room: %+v", tier, resp)
		}
	}
}

func TestEverythingSurvivesARestart(t *testing.T) {
	path, c := filepath.Join(t.TempDir(), store.FileName), newClock()
	st := openFile(t, path)
	a := newAgent(t, st, "ann", DefaultOptions(), c)
	a.store(one(1, "episodic", "the deploy key lives in the vault"), one(2, "semantic", "lunch is at noon"))
	a.Close()
	must.OK(t, st.Close())
	later := newAgent(t, openFile(t, path), "ann", DefaultOptions(), c)
	later.want("all", `{}`, `{"n":2} {"n":1}`)
	later.want("search", `{"query":"where are deployment keys"}`, `{"n":1}`)
	// an id from the former host is still valid
	fresh := pluginOn(t, openFile(t, path), DefaultOptions(), c)
	n, err := fresh.find(t.Context(), a.id)
	assert.That(t, err == nil && n.namespace == "default", "find gave %+v, %v", n, err)
}

// TestAnyQueryIsSafe: any text is a valid query: nothing in it is an operator, and nothing causes an
// error.
func TestAnyQueryIsSafe(t *testing.T) {
	a := newAgent(t, file(t), "ann", DefaultOptions(), newClock())
	a.store(one(1, "semantic", `C++ "quoted" NEAR(a b) AND OR NOT col:umn * ^ - 'it''s' x`), one(2, "working", "AND"))
	for _, query := range []string{
		`"`, `""`, `'`, `*`, `^`, `-`, `:`, `(`, `)`, `{}`, `a AND`, `OR`, `NOT x`, `NEAR(a b, 2)`, `words:x`,
		`"unbalanced`, `x" OR "y`, "nul\x00byte", ` `, "\n\t",
		`'; DROP TABLE memory_entries; --`, `%`, `_`, `1x1x`, "日本語のテキスト", "😀😀", "e\u0301", "\u202e",
		strings.Repeat("a ", 2000), strings.Repeat("word", 500), strings.Repeat("x", 1<<20),
		strings.Repeat(`" `, 1<<19),
	} {
		raw := must.Get(json.Marshal(query))(t)
		resp := a.retrieve(`{"query":` + string(raw) + `}`)
		assert.That(t, resp.Total == len(resp.Entries), "%.30q: total %d of %d", query, resp.Total, len(resp.Entries))
		for i, e := range resp.Entries {
			assert.That(t, e.Score > 0 && e.Score <= 1 && (i <= 0 || e.Score <= resp.Entries[i-1].Score),
				"%.30q: scores are not from 1 down to 0: %v", query, e.Score)
		}
	}
	a.want("still there", `{"query":"quoted column"}`, `{"n":1}`)
}

// TestVeryCommonWords: a search for words of very many entries looks at a bounded number of them, and
// still finds the best.
func TestVeryCommonWords(t *testing.T) {
	a := newAgent(t, file(t), "ann", DefaultOptions(), newClock())
	for i := 0; i <= maxCandidates; i += 160 {
		var entries []string
		for j := range 160 {
			entries = append(entries, one(i+j, "semantic", "common words everywhere"))
		}
		a.store(entries...)
	}
	a.store(one(9999, "semantic", "common words everywhere and one needle"))
	if resp := a.retrieve(`{"query":"common"}`); len(resp.Entries) != 10 {
		t.Errorf("a common word found %d entries", len(resp.Entries))
	}
	resp := a.retrieve(`{"query":"common needle everywhere"}`)
	if len(resp.Entries) == 0 || string(resp.Entries[0].Key.Raw()) != `{"n":9999}` {
		t.Errorf("the needle is not first: %s", keys(resp))
	}
}

// TestEntriesOfAnOlderVersion: entries that an older version stored without keys, or with fewer, are
// found by their words at once, and by similar words after some requests.
func TestEntriesOfAnOlderVersion(t *testing.T) {
	for _, gone := range []string{"rowid > 0", "rowid < 0"} {
		t.Run(gone, func(t *testing.T) { entriesOfAnOlderVersion(t, gone) })
	}
}

func entriesOfAnOlderVersion(t *testing.T, gone string) {
	st, c := file(t), newClock()
	newAgent(t, st, "ann", DefaultOptions(), c).store(one(1, "semantic", "the postgres connection pool"),
		one(2, "semantic", "a red kite"))
	must.OK(t, st.Write(t.Context(), func(tx *store.Tx) error {
		for _, q := range []string{
			"DELETE FROM memory_forms WHERE " + gone, "INSERT INTO memory_unkeyed SELECT max(id) FROM memory_entries",
			"INSERT INTO memory_vectors (entry, space, sketch, vector) SELECT id, space, secret, secret FROM " +
				"memory_entries, memory_secret",
		} {
			if _, err := tx.Exec(q); err != nil {
				return err
			}
		}
		return nil
	}))
	a := newAgent(t, st, "ann", DefaultOptions(), c)
	a.want("its words", `{"query":"connections"}`, `{"n":1}`)
	a.want("misspelt", `{"query":"conection"}`, `{"n":1}`)
	a.retrieve(`{"query":"kite"}`)
	must.OK(t, st.Read(t.Context(), func(tx *store.Tx) error {
		if found, err := tx.Get("SELECT 1 FROM memory_unkeyed UNION SELECT 1 FROM memory_vectors", nil,
			new(int)); found || err != nil {
			t.Errorf("something still waits, %v", err)
		}
		return nil
	}))
}

// TestIndexesAreMerged: the index segments of many requests are merged in the background, and all
// entries are found.
func TestIndexesAreMerged(t *testing.T) {
	st := file(t)
	a := newAgent(t, st, "ann", DefaultOptions(), newClock())
	for i := range 60 {
		a.store(one(i, "semantic", fmt.Sprintf("postgres pool %c", 'a'+i%26)))
	}
	segments := 0
	poll.Eventually(t, "few segments are left", func() bool {
		if stores.IsPostgres() {
			return true // PostgreSQL has no such segments
		}
		must.OK(t, st.Read(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Get("SELECT (SELECT count(DISTINCT segid) FROM memory_forms_idx) + (SELECT count(DISTINCT "+
				"segid) FROM memory_text_idx)", nil, &segments)
			return err
		}))
		return segments <= 8
	})
	resp := a.retrieve(`{"query":"postgrs","limit":100}`)
	assert.That(t, len(resp.Entries) == 60, "%d entries are found", len(resp.Entries))
}
