package memory

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// contents stores entries 0, 1, … in the semantic tier.
func (a *agent) contents(all ...string) {
	for i, content := range all {
		resp := a.store(fmt.Sprintf(`{"key":{"n":%d},"content":%s,"tier":"semantic"}`, i, content))
		must.That(a.t, len(resp.Errors) <= 0, "%s: %q", content, resp.Errors)
	}
}

func TestFilter(t *testing.T) {
	a := newAgent(t, file(t), "ann", DefaultOptions(), newClock())
	a.contents(`{"v":9007199254740993}`, `{"v":"9007199254740993"}`, `{"v":null}`, `{}`, `{"v":[{"id":1},{"id":2}]}`,
		`{"a.b":{"c":1.50}}`, `{"v":{"y":2,"x":1}}`, `"text"`, `{"v":1e400}`, `{"v":true,"":1}`, `{"v":-0.0}`,
		`{"w":1E2,"a.b":0}`, `{"w":"Rome, It\u0061ly","a.b":0}`, `{"long":"`+strings.Repeat("a ",
			2*maxWords)+`","w":"Rome, Italy","a.b":0}`)
	for filter, want := range map[string]string{
		`{"v":9007199254740993}`:                      `{"n":0}`,
		`{"v":9007199254740992}`:                      ``,
		`{"v":{"gt":9007199254740992,"lt":1e300}}`:    `{"n":0}`,
		`{"v":{"$gte":9007199254740993.0}}`:           `{"n":8} {"n":0}`,
		`{"v":{"lt":1}}`:                              `{"n":10}`,
		`{"v":0}`:                                     `{"n":10}`,
		`{"v":{"gt":"9"}}`:                            `{"n":1}`,
		`{"v":null}`:                                  `{"n":2}`,
		`{"v":{"exists":true},"v.0":{"exists":true}}`: `{"n":4}`,
		`{"v.1.id":2}`:                                `{"n":4}`,
		`{"v.01.id":2}`:                               ``,
		`{"v.2":{"exists":true}}`:                     ``,
		`{"a\\.b.c":1.5}`:                             `{"n":5}`,
		`{"a.b.c":1.5}`:                               ``,
		`{"v":{"eq":{"x":1,"y":2.0}}}`:                `{"n":6}`,
		`{"v":{"in":[null,true,10e399]}}`:             `{"n":9} {"n":8} {"n":2}`,
		`{"v":[{"id":1},{"id":2}]}`:                   `{"n":4}`,
		`{"v":{"in":[]}}`:                             ``,
		`{"w":100}`:                                   `{"n":11}`,
		`{"w":{"in":["rome","Rome, Italy",100.0]}}`:   `{"n":13} {"n":12} {"n":11}`,
		`{"w":"Rome Italy"}`:                          ``,
		`{"v":{"ne":null},"v.y":{"ne":2},"a\\.b":{"exists":false},"v.id":{"exists":false}}`: `{"n":10} {"n":9} {"n":8} {"n":7} {"n":4} {"n":3} {"n":1} {"n":0}`,
	} {
		a.want("filter", `{"limit":20,"filter":`+filter+`}`, want)
	}
}

func TestRefusedRequests(t *testing.T) {
	a := newAgent(t, file(t), "ann", DefaultOptions(), newClock())
	a.contents(`{"v":1}`, `{"v":2}`, `{"v":3}`)
	page := a.retrieve(`{"limit":1}`).NextCursor
	other := "A" // one of 64 cursors already has A at this place
	if page[9] == 'A' {
		other = "B"
	}
	forged := page[:9] + other + page[10:]
	deep := strings.Repeat("a.", 600) + "a"
	for _, x := range []struct {
		typ          protocol.Type
		fields, path string
		says         string
	}{
		{protocol.TypeMemoryRetrieveReq, `{"filtr":{"v":1}}`, "/filtr", `did you mean "filter"?`},
		{protocol.TypeMemoryForgetReq, `{"tags":["x"],"all_tag":["y"]}`, "/all_tag", `"all_tags"`},
		{protocol.TypeMemoryForgetReq, `{"query":"x"}`, "/query", "no such field"},
		{protocol.TypeMemoryRetrieveReq, `{"filter":{"v":{"gtt":1}}}`, "/filter/v/gtt", `"gt" or "gte"`},
		{protocol.TypeMemoryRetrieveReq, `{"filter":{"v":{}}}`, "/filter/v", "eq, ne, gt, gte, lt, lte, in, exists"},
		{protocol.TypeMemoryRetrieveReq, `{"filter":{"v":{"gt":true}}}`, "/filter/v/gt", "a number or a string"},
		{protocol.TypeMemoryRetrieveReq, `{"filter":{"v":{"in":1}}}`, "/filter/v/in", "a list"},
		{protocol.TypeMemoryRetrieveReq, `{"filter":{"v":{"exists":1}}}`, "/filter/v/exists", "true or false"},
		{protocol.TypeMemoryRetrieveReq, `{"filter":{"a..b":1}}`, "/filter/a..b", "empty name"},
		{protocol.TypeMemoryRetrieveReq, `{"filter":{"a\\b":1}}`, `/filter/a\b`, `lone \`},
		{
			protocol.TypeMemoryRetrieveReq, `{"filter":{"` + deep + `":1}}`, "/filter/" + deep[:maxPath],
			"1024 are allowed",
		},
		{protocol.TypeMemoryRetrieveReq, `{"filter":[1]}`, "/filter", ""},
		{protocol.TypeMemoryRetrieveReq, `{"since":-1}`, "/since", "seconds since 1970"},
		{protocol.TypeMemoryRetrieveReq, `{"offset":10001}`, "/offset", "cursor"},
		{protocol.TypeMemoryRetrieveReq, `{"offset":1,"cursor":"` + page + `"}`, "/offset", "cursor"},
		{protocol.TypeMemoryRetrieveReq, `{"cursor":"` + page + `","tags":["x"]}`, "/cursor", "another request"},
		{protocol.TypeMemoryRetrieveReq, `{"cursor":"` + forged + `"}`, "/cursor", "not a cursor of this host"},
		{protocol.TypeMemoryRetrieveReq, `{"cursor":"?"}`, "/cursor", "not a cursor of this host"},
		{protocol.TypeMemoryRetrieveReq, `{"history":true}`, "/history", "1 to 20 keys"},
		{protocol.TypeMemoryRetrieveReq, `{"list_namespaces":true,"tags":["x"]}`, "/list_namespaces", "alone"},
		{protocol.TypeMemoryRetrieveReq, `{"max_depth":1}`, "/max_depth", "list_namespaces"},
		{protocol.TypeMemoryForgetReq, `{"filter":{"$or":[{"v":1},{"v":2}]}}`, "/filter/$or", "all conditions"},
		{
			protocol.TypeMemoryStoreReq, `{"if_version":7,"entries":[{"key":{"n":0},"content":1}]}`, "/if_version",
			"in each of the entries",
		},
		{
			protocol.TypeMemoryStoreReq, `{"namespace":"x","entries":[{"key":{"n":0},"content":1}]}`, "/namespace",
			`"default"`,
		},
		{protocol.TypeMemoryForgetReq, `{"all":true}`, "/confirm", "should be true"},
		{protocol.TypeMemoryForgetReq, `{"confirm":true}`, "/confirm", "all: true"},
		{protocol.TypeMemoryForgetReq, `{"all":true,"confirm":true,"tags":["x"]}`, "/all", "does not go with"},
	} {
		m := a.Call(x.typ, a.with(x.fields))
		if m.Code != protocol.CodeSchemaViolation || m.Problem() != x.path || !strings.Contains(m.Get("/message"),
			x.says) {
			t.Errorf("%s %.80s was answered %.400s, should blame %.80s: %s", x.typ, x.fields, m.Line, x.path, x.says)
		}
	}
	n := a.forget(`{"filter":{}}`)
	assert.That(t, n == 0, "an empty filter deleted %d", n)
	for _, typo := range []string{"ifversion", "if_verison", "marge", "dedup", "namespace"} {
		resp := a.store(`{"key":{"n":0},"content":1,"` + typo + `":"1"}`)
		assert.That(t, len(resp.Stored) <= 0, "%s was overlooked", typo)
	}
}

// TestVersions: of several writers that expect one version, one succeeds, in each tier. The history has
// the former versions.
func TestVersions(t *testing.T) {
	opts := DefaultOptions()
	opts.Versions = 3
	c := newClock()
	a := newAgent(t, file(t), "ann", opts, c)
	for _, tier := range tiers() {
		store := func(more string) protocol.MemoryStoreResponse {
			c.advance(time.Second)
			return a.store(fmt.Sprintf(`{"key":{"n":1},"tier":%q,%s}`, tier, more))
		}
		past := fmt.Sprintf(`{"history":true,"keys":[{"n":1}],"tier":%q}`, tier)
		store(`"content":{"a":{"b":1,"big":12345678901234567890},"c":[1]},"tags":["t"],"source":"s","if_version":0`)
		if resp := store(`"content":0,"if_version":0`); len(resp.Errors) != 1 ||
			!strings.Contains(resp.Errors[0], "the entry has version 1") {
			t.Errorf("%s: %+v", tier, resp)
		}
		store(`"content":{"a":{"b":null,"x":{"y":null,"z":2}},"c":3},"merge":true,"if_version":1`)
		e := a.retrieve(past).Entries[0]
		if got := fmt.Sprintf("%s %v %s %d", e.Content, e.Tags, e.Source,
			e.Version); got != `{"a":{"big":12345678901234567890,"x":{"z":2}},"c":3} [t] s 2` {
			t.Errorf("%s: merged to %s", tier, got)
		}
		store(`"tags":["u"],"merge":true`)
		if resp := store(`"merge":true,"score":7`); len(resp.Errors) != 1 {
			t.Errorf("%s: a bad score was merged: %+v", tier, resp)
		}
		store(`"content":4,"version":2,"namespace":"default","score":null`) // an entry with the members that an answer has
		store(`"content":5`)
		var got []string
		for _, e := range a.retrieve(past).Entries {
			got = append(got, fmt.Sprint(e.Version, e.Tags))
		}
		want := "[5 [] 4 [] 3 [u] 2 [t]]"
		assert.That(t, fmt.Sprint(got) == want, "%s: the history is %v, should be %s", tier, got, want)
		if resp := a.retrieve(strings.TrimSuffix(past, "}") + `,"limit":1,"offset":1}`); resp.Total != 4 ||
			resp.Entries[0].Version != 4 {
			t.Errorf("%s: a part of it: %+v", tier, resp)
		}
		a.forget(fmt.Sprintf(`{"keys":[{"n":1}],"tier":%q}`, tier))
		store(`"content":1`)
		if resp := a.retrieve(past); resp.Total != 1 || resp.Entries[0].Version != 1 {
			t.Errorf("%s: after it was forgotten: %+v", tier, resp)
		}
		if resp := a.store(fmt.Sprintf(`{"key":{"n":2},"tier":%q,"merge":true}`, tier)); len(resp.Errors) != 1 {
			t.Errorf("%s: nothing was merged with nothing: %+v", tier, resp)
		}
	}
}

// TestReadsWhileStored: a reader finds an entry at any moment at which another host stores it again.
func TestReadsWhileStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	writer := newAgent(t, openFile(t, path), "ann", DefaultOptions(), newClock())
	reader := newAgent(t, openFile(t, path), "ann", DefaultOptions(), newClock())
	writer.contents(`0`)
	var writing sync.WaitGroup
	var done atomic.Bool
	writing.Go(func() {
		defer done.Store(true)
		for range 300 {
			writer.contents(`0`)
		}
	})
	for !done.Load() {
		if resp := reader.retrieve(`{"keys":[{"n":0}]}`); len(resp.Entries) != 1 || resp.Total != 1 {
			t.Errorf("an entry that is stored again is missing: %+v", resp)
			break
		}
	}
	writing.Wait()
}

func TestDedupe(t *testing.T) {
	a := newAgent(t, file(t), "ann", DefaultOptions(), newClock())
	a.store(`{"key":{"n":1},"content":{"fact":"The user prefers dark mode in all of his editors","since":2021}}`)
	for content, duplicate := range map[string]bool{
		`{"fact":"the user prefers the dark mode in all of his editors.","since":2021}`: true,
		`{"fact":"The user prefers dark mode in all of his editors","since":2022}`:      false,
		`{"fact":"The user prefers light mode in all of his editors","since":2021}`:     false,
		`{"fact":"Editors in all of dark prefers his user the mode","since":2021}`:      false,
		`{"fact":"The user prefers dark mode","since":2021}`:                            false,
		`{"fact":"The user prefers dark mode in all of his editors","since":"never"}`:   false,
		`{"since":2021,"fact":"the user prefers dark mode, in all of his editors"}`:     true,
		`{"since":"The user prefers dark mode in all of his editors","fact":2021}`:      false,
		`{}`: false,
	} {
		for _, tier := range []string{"episodic", "semantic"} {
			resp := a.store(fmt.Sprintf(`{"key":{"n":2},"tier":%q,"content":%s,"dedupe":true}`, tier, content))
			want := duplicate && tier == "episodic"
			assert.That(t, (len(resp.Errors) == 1) == want && (!want ||
				strings.Contains(fmt.Sprint(resp.Detail["duplicates"]), "of:map[n:1]")), "%s in the %s tier: %+v",
				content, tier, resp)
			a.forget(`{"keys":[{"n":2}]}`)
		}
	}
	for _, c := range []struct {
		first, same string
		others      []string
	}{
		{"The deployment is allowed since version 1.5.", "deployment IS allowed, since version 1.5", []string{
			"the deployment is not allowed since version 1.5", "the deployment isn't allowed since version 1.5",
			"the deployment is allowed since version 15", "is the deployment allowed since version 1.5?",
		}},
		{
			"Alice reports to Bob before the release on 2026-11-26", "alice reports to bob before release on 2026-11-26.",
			[]string{
				"Bob reports to Alice before the release on 2026-11-26", "Alice reports to Bob after the release on " +
					"2026-11-26", "Alice reported to Bob before the release on 2026-11-26",
				"Alice reports to Rob before the release on 2026-11-26", "Alice reports to Bob before the release on " +
					"2026-11-27",
			},
		},
		{"the limit of the queue is -5", "The limit of the queue is -5!", []string{
			"the limit of the queue is 5",
			"the limits of the queue is -5", "the limit of the queue is 10²", "the limit of the queue is 102",
		}},
		{
			"Das Deployment ist am Freitag erlaubt", "das deployment ist am freitag erlaubt.",
			[]string{
				"Das Deployment ist am Freitag nicht erlaubt", "Das Deployment ist am Freitag kein erlaubt",
				"Das Deployment war am Freitag erlaubt",
			},
		},
		{
			"Der Hund beißt den Mann in der Straße", "der hund beisst den mann in der STRASSE",
			[]string{"Den Hund beißt der Mann in der Straße", "Der Mann beißt den Hund in der Straße"},
		},
		{"Die Aufgabe ist schon gefordert", "die Aufgabe ist schon gefordert!", []string{"Die Aufgabe ist schön " +
			"gefordert", "Die Aufgabe ist schon gefördert"}},
		{"Маша любит Ваню с 2019 года", "маша любит ваню с 2019 года.", []string{
			"Машу любит Ваня с 2019 года",
			"Маша не любит Ваню с 2019 года", "Ваня любит Машу с 2019 года", "Маша любит Ваню с 2020 года",
			"Маша любила Ваню с 2019 года",
		}},
		{"النشر مسموح به قبل الساعة 5", "النشر مسموح به، قبل الساعة 5.", []string{
			"النشر غير مسموح به قبل الساعة 5",
			"النشر مسموح به بعد الساعة 5", "النشر مسموح به قبل الساعة 6",
		}},
		{"部署在周五是允许的", "部署在周五是允许的。", []string{"部署在周五是不允许的", "部署在周六是允许的"}},
		{"वह कल काम करेगा", "वह कल काम करेगा।", []string{"वह काल काम करेगा", "वह कल काम नहीं करेगा"}},
	} {
		for i, text := range append([]string{c.first, c.same}, c.others...) {
			resp := a.store(fmt.Sprintf(`{"key":{"n":%d},"content":%q,"dedupe":true}`, 10+i, text))
			assert.That(t, (len(resp.Errors) == 1) == (i == 1), "%q beside %q: %+v", text, c.first, resp)
			a.forget(fmt.Sprintf(`{"keys":[{"n":%d}]}`, max(11, 10+i)))
		}
		a.forget(`{"keys":[{"n":10}]}`)
	}
	same := `"content":"one request says the same thing twice","dedupe":true}`
	if resp := a.store(`{"key":{"n":3},`+same, `{"key":{"n":4},`+same, `{"key":{"n":3},`+same); len(resp.Stored) != 2 ||
		len(resp.Errors) != 1 {
		t.Errorf("one request: %+v", resp)
	}
}

func TestNamespaces(t *testing.T) {
	c := newClock()
	a := newAgent(t, file(t), "ann", DefaultOptions(), c)
	for i, name := range []string{"users/1/notes", "users/1", "users", "users2", "other"} {
		a.id = a.open(fmt.Sprintf(`{"namespace":%q}`, name))
		a.store(one(i, string(tiers()[i%3]), "tea with milk"))
		c.advance(time.Second)
	}
	elsewhere := a.open(`{"namespace":"users/9","scope":{"x":"y"}}`)
	for _, x := range []struct{ fields, keys string }{
		{`{"namespace_prefix":"users"}`, `{"n":2} {"n":1} {"n":0}`},
		{`{"namespace_prefix":"users/1"}`, `{"n":1} {"n":0}`},
		{`{"namespace_prefix":"user"}`, ``},
		{`{"namespace_prefix":""}`, `{"n":4} {"n":3} {"n":2} {"n":1} {"n":0}`},
		{`{"namespace_prefix":"users/","tier":"working"}`, `{"n":0}`},
	} {
		resp := a.want("a prefix", x.fields, x.keys)
		for _, e := range resp.Entries {
			assert.That(t, e.Namespace != nil && *e.Namespace != "", "%s: an entry has no namespace", x.fields)
		}
	}
	if resp := a.retrieve(`{"namespace_prefix":"users","query":"milk tea"}`); resp.Total != 3 {
		t.Errorf("a search below a prefix found %d", resp.Total)
	}
	list := func(fields string) string {
		resp := a.retrieve(`{"list_namespaces":true` + fields + `}`)
		out := fmt.Sprint(resp.Namespaces, resp.Total)
		if resp.NextCursor != "" {
			out += fmt.Sprint(a.retrieve(`{"list_namespaces":true` + fields + `,"cursor":"` + resp.NextCursor +
				`"}`).Namespaces)
		}
		return out
	}
	for fields, want := range map[string]string{
		``:                              `[{other 1} {users 1} {users/1 1} {users/1/notes 1} {users2 1}] 5`,
		`,"max_depth":1`:                `[{other 1} {users 3} {users2 1}] 3`,
		`,"namespace_prefix":"users/1"`: `[{users/1 1} {users/1/notes 1}] 2`,
		`,"limit":2,"max_depth":1`:      `[{other 1} {users 3}] 3[{users2 1}]`,
		`,"tier":"semantic"`:            `[{users 1}] 1`,
	} {
		if got := list(fields); got != want {
			t.Errorf("%s lists %s, should be %s", fields, got, want)
		}
	}
	n := a.forget(`{"namespace_prefix":"users","all":true,"confirm":true}`)
	assert.That(t, n == 3, "forgot %d below users", n)
	a.id = elsewhere
	if got := list(``); got != "[] 0" {
		t.Errorf("another scope has %s", got)
	}
}

func TestRefreshTTL(t *testing.T) {
	for _, tier := range tiers() {
		c := newClock()
		a := newAgent(t, file(t), "ann", DefaultOptions(), c)
		a.store(fmt.Sprintf(`{"key":{"n":1},"content":"read often","tier":%q,"ttl":10}`, tier),
			fmt.Sprintf(`{"key":{"n":2},"content":"read often","tier":%q,"ttl":10}`, tier))
		c.advance(6 * time.Second)
		e := a.retrieve(`{"keys":[{"n":1}],"refresh_ttl":true}`).Entries[0]
		assert.That(t, e.ExpiresAt == 1_800_000_016 && e.Version == 1 && e.UpdatedAt == 1_800_000_000, "%s: %+v", tier,
			e)
		c.advance(6 * time.Second)
		a.want("the one that was read lives on", `{"query":"often","refresh_ttl":true}`, `{"n":1}`)
		c.advance(9 * time.Second)
		a.want("and on", `{}`, `{"n":1}`)
	}
}

// TestSearchPages: all pages of a search together have the entries of one large page.
func TestSearchPages(t *testing.T) {
	a := newAgent(t, file(t), "ann", DefaultOptions(), newClock())
	for i := range 30 {
		a.store(fmt.Sprintf(`{"key":{"n":%d},"content":{"text":"tea number %d","even":%t},"tier":%q}`, i, i, i%2 == 0,
			tiers()[i%3]))
	}
	for _, fields := range []string{`{"query":"tea"}`, `{"query":"tea","filter":{"even":true}}`} {
		whole := a.retrieve(strings.TrimSuffix(fields, "}") + `,"limit":100}`)
		seen := map[string]bool{}
		for cursor := ""; ; {
			resp := a.retrieve(strings.TrimSuffix(fields, "}") + `,"limit":4,"cursor":"` + cursor + `"}`)
			for _, e := range resp.Entries {
				if seen[string(e.Key.Raw())] {
					t.Errorf("%s came twice", e.Key.Raw())
				}
				seen[string(e.Key.Raw())] = true
			}
			if cursor = resp.NextCursor; cursor == "" {
				break
			}
			a.store(one(100+len(seen), "semantic", "tea that came meanwhile"))
			a.forget(fmt.Sprintf(`{"keys":[{"n":%d}]}`, 100+len(seen)))
		}
		for _, e := range whole.Entries {
			if !seen[string(e.Key.Raw())] {
				t.Errorf("%s: %s is on no page", fields, e.Key.Raw())
			}
		}
	}
}

// olderStore returns the path of a store of an older version, whose semantic tier has entries with these
// contents. Their keys are {"n":1} and so on.
func olderStore(t *testing.T, version int, contents ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), store.FileName)
	old := stores.Open(t, path, stores.Older(t, Part(), version))
	must.OK(t, old.Write(t.Context(), func(tx *store.Tx) error {
		n, err := nameOf("default", nil)
		if err != nil {
			return err
		}
		space, err := openSpace(tx, n, protocol.TierSemantic, "")
		for i, content := range contents {
			if err == nil {
				_, err = tx.Exec(`INSERT INTO memory_entries (space, key, sent, tags, source, weight, ttl, created_at, updated_at, bytes, content)
					VALUES ($1, $2, $2, '[]', '', 1, 0, 1, 2, 10, $3)`, space, fmt.Sprintf(`{"n":%d}`, i+1), content)
			}
		}
		return err
	}))
	must.OK(t, old.Close())
	return path
}

// TestStoreOfTheVersionBefore: entries that were stored before versions existed have version 1.
func TestStoreOfTheVersionBefore(t *testing.T) {
	a := newAgent(t, openFile(t, olderStore(t, 1, `{"v":1}`)), "ann", DefaultOptions(), newClock())
	a.store(`{"key":{"n":1},"tier":"semantic","content":{"w":2},"merge":true,"if_version":1}`)
	resp := a.retrieve(`{"keys":[{"n":1}],"history":true}`)
	assert.That(t, resp.Total == 2 && resp.Entries[0].Version == 2 &&
		string(resp.Entries[0].Content) == `{"v":1,"w":2}` && resp.Entries[1].UpdatedAt == 2, "%+v", resp)
}

// TestFolders: entries and versions have the folder in which they were stored, and requests can select
// by it. Entries of the version before have no folder.
func TestFolders(t *testing.T) {
	st, c, top := openFile(t, olderStore(t, 6, `"old soup"`, `"old soup"`)), newClock(), t.TempDir()
	in := func(folder string) *agent {
		a := newAgent(t, st, "ann", DefaultOptions(), c)
		a.plugin.env.Workspace = filepath.Join(top, folder)
		return a
	}
	a, b := in("a"), in("b")
	a.store(`{"key":{"n":2},"tier":"semantic","content":"new soup","folder":"/elsewhere"}`, one(3, "episodic", "soup"),
		one(4, "working", "soup"))
	b.store(one(3, "episodic", "more soup"), one(5, "semantic", "soup"))
	a.want("all", `{}`, `{"n":5} {"n":3} {"n":2} {"n":4} {"n":1}`)
	a.want("of this folder", `{"folder":"."}`, `{"n":2} {"n":4}`)
	a.want("of the other", `{"folder":"../b"}`, `{"n":5} {"n":3}`)
	a.want("by its path", fmt.Sprintf(`{"folder":%q,"tier":"semantic"}`, filepath.Join(top, "b")), `{"n":5}`)
	a.want("of none", `{"folder":"c"}`, ``)
	b.want("searched", `{"query":"soup","folder":"../a","tier":"semantic"}`, `{"n":2}`)
	b.want("filtered", `{"filter":{"v":{"exists":false}},"folder":"../a"}`, `{"n":2}`)
	told := ""
	for _, e := range b.retrieve(`{"keys":[{"n":3},{"n":2},{"n":1}],"history":true}`).Entries {
		told += fmt.Sprint(" ", string(e.Key.Raw()), "=", e.Folder)
	}
	assert.Equal(t, strings.ReplaceAll(told, top, ""), ` {"n":3}=/b {"n":3}=/a {"n":2}=/a {"n":2}= {"n":1}=`)
	var forgot protocol.MemoryForgetResponse
	b.Call(protocol.TypeMemoryForgetReq, fmt.Sprintf(`{"memory_id":%q,"folder":"."}`, b.id)).Decode(t, &forgot)
	assert.Equal(t, forgot.Deleted, 2, "entries forgotten")
	a.want("what is left", `{}`, `{"n":2} {"n":4} {"n":1}`)
}
