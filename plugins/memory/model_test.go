package memory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

// known is an entry of the plain model.
type known struct {
	tier, key       string
	n               any // the content's field n: nil = none
	tags            []string
	source          string
	version, stored int // stored is the second in which the entry was stored
}

func (k known) id() string { return k.tier + k.key }

// conditions has filters on n, each with a function of the same meaning.
var conditions = map[string]func(n any) bool{
	`{"n":2}`:                            func(n any) bool { return n == 2 },
	`{"n":{"eq":"b"}}`:                   func(n any) bool { return n == "b" },
	`{"n":{"ne":2}}`:                     func(n any) bool { return n != 2 },
	`{"n":{"$gt":1}}`:                    func(n any) bool { i, ok := n.(int); return ok && i > 1 },
	`{"n":{"lte":1.0}}`:                  func(n any) bool { i, ok := n.(int); return ok && i <= 1 },
	`{"n":{"gte":"b"}}`:                  func(n any) bool { s, ok := n.(string); return ok && s >= "b" },
	`{"n":{"gt":0,"lt":3}}`:              func(n any) bool { i, ok := n.(int); return ok && i > 0 && i < 3 },
	`{"n":{"in":[0,"a","2"]}}`:           func(n any) bool { return n == 0 || n == "a" || n == "2" },
	`{"n":{"exists":false}}`:             func(n any) bool { return n == nil },
	`{"n":{"exists":true},"m":{"ne":1}}`: func(n any) bool { return n != nil },
}

// TestAgainstAModel: in all tiers, what an agent stores, changes, forgets, finds and pages through is
// the same as in a plain model of a map and a loop.
func TestAgainstAModel(t *testing.T) {
	t.Parallel()
	c := newClock()
	a := newAgent(t, file(t), "ann", DefaultOptions(), c)
	runs := 0
	property.Check(t, func(r *rapid.T) {
		runs++
		m := &plainModel{a: a, c: c, entries: map[string]known{}}
		a.id = a.open(fmt.Sprintf(`{"namespace":"run/%d"}`, runs))
		r.Repeat(map[string]func(*rapid.T){
			"store":    m.store,
			"forget":   m.forget,
			"retrieve": m.retrieve,
			"page":     m.page,
			"":         func(*rapid.T) {},
		})
	})
}

type plainModel struct {
	a       *agent
	c       *clock
	entries map[string]known
	seconds int
}

// newest returns the entries for which holds is true, the newest first.
func (m *plainModel) newest(holds func(known) bool) (all []known) {
	for k := range maps.Values(m.entries) {
		if holds(k) {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b known) int { return cmp.Compare(b.stored, a.stored) })
	return all
}

func (m *plainModel) store(r *rapid.T) {
	m.seconds++
	m.c.advance(time.Second)
	k := known{
		tier:    rapid.SampledFrom([]string{"working", "episodic", "semantic"}).Draw(r, "tier"),
		key:     rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(r, "key"),
		n:       rapid.SampledFrom([]any{nil, 0, 1, 2, 3, "a", "b", "2"}).Draw(r, "n"),
		source:  rapid.SampledFrom([]string{"", "s", "t"}).Draw(r, "source"),
		tags:    rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 3, rapid.ID).Draw(r, "tags"),
		version: 1, stored: m.seconds,
	}
	was, there := m.entries[k.id()]
	content := map[string]any{}
	if k.n != nil {
		content["n"] = k.n
	}
	fields := map[string]any{
		"key": map[string]string{"k": k.key}, "tier": k.tier, "tags": k.tags, "source": k.source,
		"content": content,
	}
	if there {
		k.version = was.version + 1
	}
	if rapid.Bool().Draw(r, "merge") {
		fields["merge"] = true
		if there && k.n == nil {
			k.n = was.n
		}
		if rapid.Bool().Draw(r, "without tags") {
			delete(fields, "tags")
			k.tags = was.tags
		}
	}
	refused := false
	if rapid.Bool().Draw(r, "if_version") {
		version := rapid.IntRange(0, 3).Draw(r, "version")
		fields["if_version"] = version
		refused = version != was.version
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		r.Fatal(err)
	}
	resp := m.a.store(string(raw))
	switch {
	case refused && (len(resp.Errors) != 1 || !strings.Contains(resp.Errors[0], "version_conflict") ||
		fmt.Sprint(resp.Detail["conflicts"].([]any)[0].(map[string]any)["version"]) != fmt.Sprint(was.version)):
		r.Fatalf("%s at version %d was answered %+v", raw, was.version, resp)
	case refused:
	case len(resp.Versions) != 1 || resp.Versions[0] != k.version:
		r.Fatalf("%s gave %+v, should be version %d", raw, resp, k.version)
	default:
		m.entries[k.id()] = k
	}
}

// selection draws the conditions of a request, and a function of the same meaning.
func (m *plainModel) selection(r *rapid.T) (fields map[string]any, holds func(known) bool) {
	fields = map[string]any{}
	var all []func(known) bool
	pick := func(name string, value any, hold func(known) bool) {
		if rapid.IntRange(0, 3).Draw(r, name) == 0 {
			fields[name] = value
			all = append(all, hold)
		}
	}
	tier := rapid.SampledFrom([]string{"working", "episodic", "semantic"}).Draw(r, "of tier")
	tags := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z", "none"}), 1, 2, rapid.ID).Draw(r,
		"of tags")
	filter := rapid.SampledFrom(slices.Sorted(maps.Keys(conditions))).Draw(r, "of filter")
	when := rapid.IntRange(0, m.seconds).Draw(r, "when")
	has := func(k known) func(string) bool { return func(tag string) bool { return slices.Contains(k.tags, tag) } }
	pick("tier", tier, func(k known) bool { return k.tier == tier })
	pick("tags", tags, func(k known) bool { return slices.ContainsFunc(tags, has(k)) })
	pick("all_tags", tags, func(k known) bool {
		return !slices.ContainsFunc(tags,
			func(tag string) bool { return !has(k)(tag) })
	})
	pick("keys", []any{map[string]string{"k": "a"}, map[string]string{"k": "b"}},
		func(k known) bool { return k.key < "c" })
	pick("source", "s", func(k known) bool { return k.source == "s" })
	pick("filter", jsontext.Value(filter), func(k known) bool { return conditions[filter](k.n) })
	now := float64(m.c.Now().Unix())
	pick("since", now-float64(when), func(k known) bool { return k.stored >= m.seconds-when })
	pick("until", now-float64(when), func(k known) bool { return k.stored < m.seconds-when })
	return fields, func(k known) bool {
		return !slices.ContainsFunc(all, func(hold func(known) bool) bool { return !hold(k) })
	}
}

func encoded(r *rapid.T, fields map[string]any) string {
	raw, err := json.Marshal(fields)
	if err != nil {
		r.Fatal(err)
	}
	return string(raw)
}

func (m *plainModel) forget(r *rapid.T) {
	fields, holds := m.selection(r)
	_, tier := fields["tier"]
	if len(fields) == 0 || len(fields) == 1 && tier {
		if rapid.IntRange(0, 5).Draw(r, "all") > 0 {
			if n := m.a.forget(encoded(r, fields)); n != 0 {
				r.Fatalf("%v forgot %d", fields, n)
			}
			return
		}
		fields["all"], fields["confirm"] = true, true
	}
	gone := m.newest(holds)
	if n := m.a.forget(encoded(r, fields)); n != len(gone) {
		r.Fatalf("%v forgot %d entries, should be %d", fields, n, len(gone))
	}
	for _, k := range gone {
		delete(m.entries, k.id())
	}
}

func (m *plainModel) same(r *rapid.T, what any, got []protocol.MemoryEntry, want []known) {
	ids := func(k known) string {
		return fmt.Sprintf("%s %s v%d %v", k.tier, k.key, k.version, slices.Sorted(slices.Values(k.tags)))
	}
	var a, b []string
	for _, e := range got {
		var key struct{ K string }
		if err := json.Unmarshal(e.Key.Raw(), &key, json.MatchCaseInsensitiveNames(true)); err != nil {
			r.Fatal(err)
		}
		a = append(a, ids(known{tier: string(e.Tier), key: key.K, version: e.Version, tags: e.Tags}))
	}
	for _, k := range want {
		b = append(b, ids(k))
	}
	must.That(r, slices.Equal(a, b), "%v gave\n%q, should be\n%q", what, a, b)
}

func (m *plainModel) retrieve(r *rapid.T) {
	fields, holds := m.selection(r)
	all := m.newest(holds)
	limit, offset := rapid.IntRange(0, 6).Draw(r, "limit"), rapid.IntRange(0, 3).Draw(r, "offset")
	fields["limit"], fields["offset"] = limit, offset
	resp := m.a.retrieve(encoded(r, fields))
	must.That(r, resp.Total == len(all), "%v: total is %d, should be %d", fields, resp.Total, len(all))
	all = all[min(offset, len(all)):]
	m.same(r, fields, resp.Entries, all[:min(limit, len(all))])
	more := limit > 0 && limit < len(all)
	must.That(r, more == (resp.NextCursor != ""), "%v of %d gave the cursor %q", fields, len(all), resp.NextCursor)
}

// page reads all pages while entries are stored.
func (m *plainModel) page(r *rapid.T) {
	fields, holds := m.selection(r)
	before := m.newest(holds)
	var got []protocol.MemoryEntry
	for cursor := ""; ; {
		fields["limit"] = rapid.IntRange(1, 3).Draw(r, "limit")
		if cursor != "" {
			fields["cursor"] = cursor
		}
		resp := m.a.retrieve(encoded(r, fields))
		got = append(got, resp.Entries...)
		if cursor = resp.NextCursor; cursor == "" {
			break
		}
		delete(fields, "cursor")
		m.store(r)
	}
	stayed := slices.DeleteFunc(before, func(k known) bool { return m.entries[k.id()].stored != k.stored })
	seen := map[string]bool{}
	got = slices.DeleteFunc(got, func(e protocol.MemoryEntry) bool {
		id := fmt.Sprint(e.Tier, e.Key, e.Version)
		twice := seen[id]
		if seen[id] = true; twice {
			r.Fatalf("%s was given twice", id)
		}
		return !slices.ContainsFunc(stayed, func(k known) bool {
			return k.tier == string(e.Tier) && fmt.Sprintf(`{"k":%q}`, k.key) == string(e.Key.Raw())
		})
	})
	m.same(r, fields, got, stayed)
}
