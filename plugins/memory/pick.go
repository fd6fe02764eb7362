package memory

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/state/store"
	"a2e/protocol"
)

// maxTagFilter is the most tags that one request may name.
const maxTagFilter = 1_000

// pick is the selection of entries that a request makes.
type pick struct {
	name      name
	sess      *host.Session
	now       float64
	tiers     []protocol.MemoryTier
	prefix    *string          // of namespaces; nil = only the namespace of name
	names     map[int64]string // namespaces of the spaces looked at, by signed id
	keys      []string
	tags      []string // any of them
	allTags   []string
	source    string
	folder    string // see stored
	since     float64
	until     float64
	minWeight float64
	filter    []condition
}

// picked checks the selection of a request and returns it.
func (p *Plugin) picked(n name, sess *host.Session, sel *protocol.MemorySelection) (*pick, error) {
	w := &pick{
		name: n, sess: sess, now: p.now(), names: make(map[int64]string), prefix: sel.NamespacePrefix,
		tags: sel.Tags, source: sel.Source, since: sel.Since, until: sel.Until,
		folder: wall.CanonicalIn(p.env.Workspace, sel.Folder),
	}
	switch {
	case len(sel.Keys) > maxBatch:
		return nil, protocol.Wrong("/keys", "has %d keys; send at most %d in one request", len(sel.Keys), maxBatch)
	case len(sel.Tags) > maxTagFilter:
		return nil, protocol.Wrong("/tags", "has %d tags; send at most %d in one request", len(sel.Tags), maxTagFilter)
	case len(sel.AllTags) > maxTagFilter:
		return nil, protocol.Wrong("/all_tags", "has %d tags; send at most %d in one request", len(sel.AllTags),
			maxTagFilter)
	case sel.Since < 0:
		return nil, protocol.Wrong("/since", "is %v; it should be seconds since 1970", sel.Since)
	case sel.Until < 0:
		return nil, protocol.Wrong("/until", "is %v; it should be seconds since 1970", sel.Until)
	case w.prefix != nil && len(*w.prefix) > maxNamespace:
		return nil, protocol.Wrong("/namespace_prefix", "has %d bytes; %d are allowed", len(*w.prefix), maxNamespace)
	}
	var err error
	if w.tiers, err = tiersOf(sel.Tier); err != nil {
		return nil, err
	}
	if w.filter, err = parseFilter(sel.Filter); err != nil {
		return nil, err
	}
	w.allTags = slices.Compact(slices.Sorted(slices.Values(sel.AllTags)))
	for i, key := range sel.Keys {
		c, err := canonical(jsontext.Value(key.Raw()))
		if err != nil {
			return nil, protocol.Wrong(fmt.Sprintf("/keys/%d", i), "%v", err)
		}
		w.keys = append(w.keys, c)
	}
	return w, nil
}

// bounded reports whether the selection has a condition other than tier and namespace.
func (w *pick) bounded() bool {
	return len(w.keys)+len(w.tags)+len(w.allTags)+len(w.filter) > 0 || w.source+w.folder != "" ||
		w.since > 0 || w.until > 0 || w.minWeight > 0
}

// space is a tier of a memory, of one owner.
type space struct {
	id        int64
	namespace string
	tier      protocol.MemoryTier
	entries   int
}

// spaces returns the spaces of the tiers that are not empty and belong to the memory or, with a prefix, to a
// namespace at or below it.
func (p *Plugin) spaces(tx *store.Tx, w *pick, among []protocol.MemoryTier) (all []space, err error) {
	for _, tier := range among {
		owner, err := p.owner(tx, tier, w.sess)
		if err != nil {
			return nil, err
		}
		query := "SELECT s.id, n.namespace, s.entries FROM memory_spaces s JOIN memory_names n USING (memory_id) " +
			"WHERE s.tier = $1 AND s.owner = $2 AND s.entries > 0 AND "
		args := []any{string(tier), owner}
		if w.prefix == nil {
			query, args = query+"s.memory_id = $3", append(args, w.name.id)
		} else {
			query, args = query+"n.scope = $3", append(args, w.name.scope)
		}
		err = tx.Each(query, args, func(scan func(...any) error) error {
			s := space{tier: tier}
			err := scan(&s.id, &s.namespace, &s.entries)
			if w.prefix == nil || isBelow(s.namespace, *w.prefix) {
				all = append(all, s)
				w.names[signed(tier, s.id)] = s.namespace
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// isBelow reports whether a namespace is the prefix or below it: users/7 is below users, users2 is not.
func isBelow(namespace, prefix string) bool {
	rest, ok := strings.CutPrefix(namespace, strings.TrimSuffix(prefix, "/"))
	return prefix == "" || ok && (rest == "" || rest[0] == '/')
}

// maxScan is how many contents one request compares with its filter.
const maxScan = 100_000

// idList is a list of ids found in some spaces, the largest (newest) first.
type idList struct {
	ids   []int64
	total int   // number of matches, also those beyond ids
	end   int64 // > 0: entries below this id were not looked at, as there are too many
}

// ids returns up to n selected entries with ids below below; 0 = no bound. Without count it stops as
// soon as it has n entries, and total is not complete.
func (w *pick) ids(tx *store.Tx, spaces []space, below int64, n int, count bool) (all idList, err error) {
	if below == 0 {
		below = math.MaxInt64
	}
	sum := 0
	for _, s := range spaces {
		sum += s.entries
	}
	for _, s := range spaces {
		budget := maxScan
		if sum > maxScan {
			budget = max(1, int(float64(maxScan)*float64(s.entries)/float64(sum)))
		}
		var here idList
		if len(w.filter) > 0 {
			here, err = w.filtered(tx, s, below, n, budget, count)
		} else {
			here, err = w.indexed(tx, s, below, n, count)
		}
		if err != nil {
			return all, err
		}
		all.ids = append(all.ids, here.ids...)
		all.total += here.total
		all.end = max(all.end, here.end)
	}
	slices.SortFunc(all.ids, func(a, b int64) int { return cmp.Compare(b, a) })
	all.ids = all.ids[:min(n, len(all.ids))]
	if all.end > 0 { // ids of other spaces below end come in a later call
		all.ids = slices.DeleteFunc(all.ids, func(id int64) bool { return id < all.end })
	}
	return all, nil
}

// where returns the FROM and WHERE clauses for the selected entries of a space, and the column of their
// id. The clauses leave out the filter and do not exclude expired entries.
func (w *pick) where(s space) (id, query string, args store.Args) {
	args = store.Args{s.id}
	conditions := ""
	add := func(condition string, values ...any) {
		var parameters []any
		for _, v := range values {
			parameters = append(parameters, args.Add(v))
		}
		conditions += " AND " + fmt.Sprintf(condition, parameters...)
	}
	anyOf, allOf := w.tags, w.allTags
	if len(anyOf) == 1 && len(allOf) == 0 {
		anyOf, allOf = nil, anyOf
	}
	if len(allOf) == 1 { // one tag: memory_tags lists its entries in order
		args.Add(allOf[0])
	} else if len(allOf) > 1 {
		add("e.id IN (SELECT entry FROM memory_tags WHERE space = $1 AND tag IN (SELECT value FROM json_each(%s)) "+
			"GROUP BY entry HAVING count(*) = %s)", store.JSON(allOf), len(allOf))
	}
	if len(anyOf) > 0 {
		add("e.id IN (SELECT entry FROM memory_tags WHERE space = $1 AND tag IN (SELECT value FROM json_each(%s)))",
			store.JSON(anyOf))
	}
	if len(w.keys) > 0 {
		add("substr(e.key, 1, 500) IN (SELECT substr(value, 1, 500) FROM json_each(%[1]s)) AND e.key IN (SELECT "+
			"value FROM json_each(%[1]s))", store.JSON(w.keys))
	}
	if w.source != "" {
		add("e.source = %s AND e.source <> ''", w.source)
	}
	if w.folder != "" {
		add("e.folder = %s AND e.folder <> ''", w.folder)
	}
	if w.since > 0 {
		add("e.updated_at >= %s", w.since)
	}
	if w.until > 0 {
		add("e.updated_at < %s", w.until)
	}
	if w.minWeight > 0 {
		add("e.weight >= %s", w.minWeight)
	}
	switch {
	case len(w.keys) > 0 && len(allOf) != 1: // + keeps SQLite from using the order of ids instead of the keys
		return "+e.id", " FROM memory_entries e WHERE e.space = $1" + conditions, args
	case len(allOf) != 1:
		return "e.id", " FROM memory_entries e WHERE e.space = $1" + conditions, args
	case conditions == "" && len(w.filter) == 0:
		return "g.entry", " FROM memory_tags g WHERE g.space = $1 AND g.tag = $2", args
	}
	return "g.entry", " FROM memory_tags g JOIN memory_entries e ON e.id = +g.entry WHERE g.space = $1 AND g.tag = " +
		"$2" + conditions, args
}

// indexed returns the selected entries of a space for a selection without a filter, which SQL finds.
func (w *pick) indexed(tx *store.Tx, s space, below int64, n int, count bool) (found idList, err error) {
	id, where, args := w.where(s)
	all := slices.Clone(args)
	query := "SELECT " + id + where + " AND " + id + " < " + all.Add(below) + " ORDER BY " + id + " DESC LIMIT " +
		"" + all.Add(n)
	found.ids, err = store.Column[int64](tx, query, all...)
	if err != nil {
		return found, err
	}
	if !count {
		return found, nil
	}
	if !w.bounded() {
		found.total = s.entries
		return found, nil
	}
	_, err = tx.Get("SELECT count(*)"+where, args, &found.total)
	return found, err
}

// filtered compares the contents of up to budget entries of a space with the filter.
func (w *pick) filtered(tx *store.Tx, s space, below int64, n, budget int, count bool) (found idList, err error) {
	column, where, args := w.where(s)
	if where, args, err = w.narrow(tx, s, below, where, args); err != nil {
		return found, err
	}
	looked := 0
	var last int64
	query := "SELECT e.id, e.content" + where + " AND (e.expires_at IS NULL OR e.expires_at > " + args.Add(w.now) +
		") AND " + column + " < " + args.Add(below) + " ORDER BY " + column + " DESC LIMIT " + args.Add(budget+1)
	err = tx.Each(query, args, func(scan func(...any) error) error {
		var id int64
		var content []byte
		if err := scan(&id, &content); err != nil {
			return err
		}
		if looked++; looked > budget || !count && len(found.ids) == n {
			found.end = last
			return errEnough
		}
		last = id
		if meets(content, w.filter) {
			if found.total++; len(found.ids) < n {
				found.ids = append(found.ids, id)
			}
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return found, err
}

// maxNarrow is the most entries with the words of a filter for which narrow adds its condition.
const maxNarrow = 5_000

// narrow adds a condition that leaves out entries without the words in a filter's values, if few
// entries have them. Entries that the index may not have completely stay in: large ones, and those with
// exponents in numbers.
func (w *pick) narrow(tx *store.Tx, s space, below int64, where string, args store.Args) (string, store.Args, error) {
	match, numbers := matchOf(s.id, w.filter)
	if match == "" {
		return where, args, nil
	}
	ids, err := inText.Find(tx, below, maxNarrow+1, match)
	if err != nil || len(ids[0]) > maxNarrow {
		return where, args, err
	}
	where += " AND e.id IN (SELECT CAST(value AS BIGINT) FROM json_each(" + args.Add(store.JSON(ids[0])) +
		") UNION ALL SELECT id FROM memory_entries WHERE space = $1 AND bytes > 8192"
	if numbers {
		where += " UNION ALL SELECT id FROM memory_entries WHERE space = $1 AND glob('*[0-9][eE][-+0-9]*', content)"
	}
	return where + ")", args, nil
}

// errEnough ends a scan of rows early.
var errEnough = errors.New("enough was looked at")

// fits reports whether an entry that a search found is selected. It does not compare keys.
func (w *pick) fits(r *row) bool {
	has := func(tag string) bool { return slices.Contains(r.Tags, tag) }
	switch {
	case len(w.tags) > 0 && !slices.ContainsFunc(w.tags, has):
		return false
	case slices.ContainsFunc(w.allTags, func(tag string) bool { return !has(tag) }):
		return false
	case w.source != "" && r.Source != w.source, w.folder != "" && r.folder != w.folder:
		return false
	case r.updated < w.since, w.until > 0 && r.updated >= w.until:
		return false
	}
	return meets(r.Content, w.filter)
}
