package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/plugins"
	"a2e/plugins/memory"
	"a2e/protocol"
	"a2e/protocol/client"
)

type memoryCmd struct {
	Search     memorySearchCmd     `cmd:"" help:"Find entries by what they say, the best first."`
	Add        memoryAddCmd        `cmd:"" help:"Store an entry and print its key."`
	List       memoryListCmd       `cmd:"" help:"List entries, the newest first."`
	History    memoryHistoryCmd    `cmd:"" help:"Show the versions of an entry, the newest first."`
	Namespaces memoryNamespacesCmd `cmd:"" help:"List the namespaces that have entries."`
	Forget     memoryForgetCmd     `cmd:"" help:"Delete entries by key, tag, source, time or content."`
}

// memoryOf says which memory a command uses.
type memoryOf struct {
	sends
	Agent     string            `default:"a2e" placeholder:"ID" help:"The agent id: episodic entries belong to one, semantic ones to all. Default: ${default}."`
	Namespace string            `default:"default" placeholder:"NAME" help:"The namespace; entries of other namespaces are not shown. Default: ${default}."`
	Scope     map[string]string `mapsep:"none" placeholder:"KEY=VALUE" help:"The scope with which the agent opened its memory; may be given several times."`
}

// open makes the session open the memory before the request, as an agent does.
func (m memoryOf) open(x *exchange) {
	x.agent, x.namespace = m.Agent, m.Namespace
	x.without("agent", "namespace", "scope")
	x.begin = func(ctx context.Context, c *client.Client) error {
		var opened protocol.MemoryInitResponse
		req := &protocol.MemoryInitRequest{Namespace: m.Namespace, Scope: m.Scope}
		if err := c.Call(ctx, protocol.TypeMemoryInitReq, req, &opened); err != nil {
			return err
		}
		if !opened.Success {
			return errors.New("the host opened no memory")
		}
		x.members["memory_id"] = opened.MemoryID
		return nil
	}
}

// memorySelect says which entries of the memory to use.
type memorySelect struct {
	Tier   string   `enum:",episodic,semantic" default:"" placeholder:"TIER" help:"Only this tier: episodic or semantic."`
	Tag    []string `sep:"none" placeholder:"TAG" help:"Only entries with this tag; with several, with any of them."`
	AllTag []string `sep:"none" placeholder:"TAG" help:"Only entries with this tag; with several, with all of them."`
	Filter object   `placeholder:"JSON" help:"Only entries whose content fits, such as {\"user.age\":{\"gt\":30}}."`
	Source string   `placeholder:"TEXT" help:"Only entries of this source."`
	Folder string   `placeholder:"DIR" help:"Only entries that were last stored in this folder; . is this one."`
	Since  moment   `placeholder:"TIME" help:"Only entries stored since: 2026-01-31, 2026-01-31T12:00:00Z, or 24h."`
	Until  moment   `placeholder:"TIME" help:"Only entries stored before this time."`
	Below  bool     `help:"Also the namespaces below the one of --namespace: users/7 is below users."`
}

// choose completes the members of the request that select entries.
func (m memorySelect) choose(x *exchange, namespace string) (err error) {
	x.without("below")
	if m.Below {
		x.members["namespace_prefix"] = namespace
	}
	if m.Folder != "" && m.Folder != "." { // the host reads "." as the workspace
		x.members["folder"], err = filepath.Abs(m.Folder)
	}
	return err
}

// memoryPick says which entries to print, and how.
type memoryPick struct {
	memoryOf
	memorySelect
	Limit  int    `default:"20" help:"At most this many. Default: 20."`
	Cursor string `placeholder:"TEXT" help:"Continue where the same command ended before."`
	JSON   bool   `name:"json" help:"Print the entries as JSON."`
}

func (m memoryPick) fill(x *exchange) error {
	m.open(x)
	return m.choose(x, m.Namespace)
}

// printFound prints the entries that were found. On stderr it also mentions entries of other agents and namespaces.
func printFound(x *exchange) error {
	x.remarks()
	others, err := x.others()
	if err != nil && x.members["tier"] != string(protocol.TierSemantic) {
		return err
	}
	var more struct {
		Entries []jsontext.Value `json:"entries"`
		Total   int              `json:"total"`
		Cursor  string           `json:"next_cursor"`
	}
	if err := x.answer.Decode(&more); err == nil && more.Cursor != "" {
		say(x.sys.Err, "%d of %d entries; --limit gives more, --cursor %s the next ones",
			len(more.Entries), more.Total, more.Cursor)
	}
	err = printEntries(x, "SCORE", func(e memoryEntry) string { return strconv.FormatFloat(e.Score, 'f', 2, 64) })
	if others != "" {
		say(x.sys.Err, "other entries, which --agent and --namespace show: %s", others)
	}
	return err
}

// printVersions prints the versions of an entry.
func printVersions(x *exchange) error {
	x.remarks()
	return printEntries(x, "VERSION", func(e memoryEntry) string { return strconv.Itoa(e.Version) })
}

// remarks prints the remarks in the detail of the answer.
func (x *exchange) remarks() {
	var said struct {
		Detail map[string]any `json:"detail"`
	}
	_ = x.answer.Decode(&said) // without a detail there are no remarks
	for _, name := range slices.Sorted(maps.Keys(said.Detail)) {
		say(x.sys.Err, "note: %s: %s", oneLine(name), oneLine(wirePhrases().Replace(fmt.Sprint(said.Detail[name]))))
	}
}

// usualAgent is the default of --agent.
const usualAgent = "a2e"

// others returns which other agents and namespaces have entries. It returns an error if --agent
// names an agent that has no entries, while others have some.
func (x *exchange) others() (others string, err error) {
	var all []memory.Owner
	cfg, err := x.cmd.load(x.sys, func(string) {}) // ask prints the warnings
	if err != nil {
		return "", err
	}
	if plugins.StateKept(cfg) {
		s, err := plugins.OpenState(context.Background(), cfg)
		if err != nil {
			return "", err
		}
		defer s.Close()
		if all, err = memory.Owners(context.Background(), s); err != nil {
			return "", err
		}
	}
	var names, words []string
	for _, o := range all {
		names = append(names, o.Agent)
		if o.Agent != x.agent || o.Namespace != x.namespace {
			words = append(words, fmt.Sprintf("%s (%d in %s)", oneLine(o.Agent), o.Entries, oneLine(o.Namespace)))
		}
	}
	if x.agent != usualAgent && len(names) > 0 && !slices.Contains(names, x.agent) {
		return "", fail(exitFailed, unknown("agent with entries of its own called", x.agent, slices.Compact(names)))
	}
	if more := len(words) - maxOffered; more > 0 {
		words = append(words[:maxOffered], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", "), nil
}

// memoryEntry has the fields of an entry that the table shows.
type memoryEntry struct {
	Key       jsontext.Value `json:"key"`
	Content   jsontext.Value `json:"content"`
	Tier      string         `json:"tier"`
	Tags      []string       `json:"tags"`
	Score     float64        `json:"score"`
	Version   int            `json:"version"`
	UpdatedAt float64        `json:"updated_at"` // seconds since 1970
	Folder    string         `json:"folder"`
}

// printEntries prints a line for each entry. The first column has this title and the result of first.
func printEntries(x *exchange, title string, first func(memoryEntry) string) error {
	now := time.Now()
	columns := []string{title, "TIER", "WRITTEN", "KEY", "TAGS", "FOLDER", "CONTENT"}
	return printRows(x, "entries", "no entry", columns, func(e memoryEntry) []string {
		tags := strings.Join(e.Tags, ",")
		return []string{first(e), e.Tier, shortTime(e.UpdatedAt, now), string(e.Key), tags, e.Folder, textOf(e.Content)}
	})
}

// shortTime formats seconds since 1970 as short local time: with the hour in the current year,
// otherwise with the year.
func shortTime(seconds float64, now time.Time) string {
	t := time.Unix(int64(seconds), 0).In(now.Location())
	if t.Year() == now.Year() {
		return t.Format("01-02 15:04")
	}
	return t.Format(time.DateOnly)
}

// textOf returns the text of a JSON string, or any other value as JSON.
func textOf(v jsontext.Value) string {
	var text string
	if v.Kind() == '"' && json.Unmarshal(v, &text) == nil {
		return text
	}
	return string(v)
}

type memorySearchCmd struct {
	Query string `arg:"" help:"Words to search for."`
	memoryPick
	MinScore float64 `default:"0" least:"0" placeholder:"X" help:"Only entries of at least this relevance, 0 to 1."`
}

func (s memorySearchCmd) fill(x *exchange) error {
	if strings.TrimSpace(s.Query) == "" {
		return fail(exitUsage, errors.New("there is nothing to search for; `a2e memory list` lists all entries"))
	}
	if !(s.MinScore >= 0 && s.MinScore <= 1) {
		return fail(exitUsage, fmt.Errorf("--min-score %v: it is a number from 0 to 1", s.MinScore))
	}
	return s.memoryPick.fill(x)
}

type memoryListCmd struct {
	memoryPick
}

type memoryHistoryCmd struct {
	Key object `arg:"" help:"The key of the entry, a JSON object."`
	memoryOf
	Tier string `enum:",episodic,semantic" default:"" placeholder:"TIER" help:"Only this tier: episodic or semantic."`
	JSON bool   `name:"json" help:"Print the versions as JSON."`
}

func (h memoryHistoryCmd) fill(x *exchange) error {
	x.members["keys"] = []object{h.Key}
	h.open(x)
	return nil
}

type memoryNamespacesCmd struct {
	memoryOf
	Depth int  `placeholder:"N" help:"Only this many levels of each name; deeper ones are counted in their parent."`
	Limit int  `default:"1000" help:"At most this many. Default: 1000."`
	JSON  bool `name:"json" help:"Print them as JSON."`
}

func (n memoryNamespacesCmd) fill(x *exchange) error {
	n.open(x)
	return nil
}

// printNamespaces prints the namespaces of the scope, sorted by name.
func printNamespaces(x *exchange) error {
	x.remarks()
	var found struct {
		Namespaces []jsontext.Value `json:"namespaces"`
		Total      int              `json:"total"`
	}
	if err := x.answer.Decode(&found); err == nil && found.Total > len(found.Namespaces) {
		say(x.sys.Err, "and %d more; --limit gives more", found.Total-len(found.Namespaces))
	}
	columns := []string{"ENTRIES", "NAMESPACE"}
	return printRows(x, "namespaces", "no namespace", columns, func(one protocol.MemoryNamespace) []string {
		return []string{strconv.Itoa(one.Entries), one.Namespace}
	})
}

type memoryForgetCmd struct {
	memoryOf
	memorySelect
	Key []object `sep:"none" placeholder:"JSON" help:"The key of an entry, a JSON object; may be repeated."`
	All bool     `help:"All entries of the memory, of the tier if one is given."`
	Yes bool     `help:"Confirm that all of them are deleted."`
}

func (f memoryForgetCmd) fill(x *exchange) error {
	some := len(f.Key)+len(f.Tag)+len(f.AllTag)+f.Filter.Len() > 0 || f.Source+f.Folder != "" || f.Since+f.Until > 0
	switch {
	case f.All && some:
		return fail(exitUsage, errors.New("--all forgets everything: give --all or what to forget, not both"))
	case f.All && !f.Yes:
		return fail(exitUsage, errors.New("this deletes all entries of the memory; confirm with --all --yes"))
	case !f.All && !some:
		return fail(exitUsage, errors.New("say what to forget, with --key, --tag, --all-tag, --filter, --source, "+
			"--folder, --since, --until or --all"))
	case !f.All:
		delete(x.members, "confirm")
	}
	f.open(x)
	return f.choose(x, f.Namespace)
}

// printForgotten prints how many entries were deleted.
func printForgotten(x *exchange) error {
	deleted, _ := x.answer.Field("deleted")
	_, err := x.others()
	if err != nil && string(deleted) == "0" && x.members["tier"] != string(protocol.TierSemantic) {
		return err
	}
	_, err = fmt.Fprintf(x.sys.Out, "%s deleted\n", deleted)
	return err
}

type memoryAddCmd struct {
	Words []string `arg:"" name:"key-text" help:"[KEY] TEXT: what to remember, or - for all of stdin. The key is a JSON object, or a word, which means {\"id\":WORD}; an entry with this key is replaced. Without it the entry gets a new one."`
	memoryOf
	Tier   string        `enum:"semantic,episodic" default:"semantic" placeholder:"TIER" help:"semantic, for all agents, or episodic, for the one of --agent. Default: ${default}."`
	Tag    []string      `sep:"none" placeholder:"TAG" help:"A tag; may be given several times."`
	Source string        `default:"a2e" placeholder:"TEXT" help:"Its source. Default: ${default}."`
	TTL    time.Duration `name:"ttl" placeholder:"TIME" help:"How long it is kept, such as 24h. Default: forever."`
}

func (m memoryAddCmd) fill(x *exchange) error {
	key := uuid.NewString()
	switch len(m.Words) {
	case 1:
	case 2:
		key = m.Words[0]
	default:
		return fail(exitUsage, fmt.Errorf("memory add takes [KEY] TEXT, and these are %d words; quote the text",
			len(m.Words)))
	}
	content := m.Words[len(m.Words)-1]
	if content == "-" {
		text, err := io.ReadAll(x.sys.In)
		if err != nil {
			return err
		}
		content = strings.TrimSuffix(string(text), "\n")
	}
	if strings.TrimSpace(content) == "" {
		return fail(exitUsage, errors.New("there is nothing to remember: the text is empty"))
	}
	if !strings.HasPrefix(key, "{") {
		key = string(append(protocol.AppendString([]byte(`{"id":`), key), '}'))
	} else if _, err := protocol.ParseObject([]byte(key)); err != nil {
		return fail(exitUsage, fmt.Errorf("the key %s: %w", oneLine(key), err))
	}
	entry := map[string]any{
		"key": jsontext.Value(key), "content": content, "tier": m.Tier,
		"tags": append([]string{}, m.Tag...), "source": m.Source,
	}
	if m.TTL > 0 {
		entry["ttl"] = m.TTL.Seconds()
	}
	if _, err := json.Marshal(entry); err != nil { // a text may be invalid UTF-8
		return fail(exitUsage, fmt.Errorf("the text: %w", err))
	}
	x.members = map[string]any{"entries": []any{entry}}
	m.open(x)
	return nil
}

// printStored prints the key of the entry.
func printStored(x *exchange) error {
	var stored protocol.MemoryStoreResponse
	switch err := x.answer.Decode(&stored); {
	case err != nil:
		return err
	case len(stored.Errors) > 0:
		return errors.New(stored.Errors[0])
	case len(stored.Stored) == 0:
		return errors.New("the host stored no entry")
	}
	_, err := fmt.Fprintf(x.sys.Out, "%s\n", escapeUnseen(stored.Stored[0].Raw()))
	return err
}
