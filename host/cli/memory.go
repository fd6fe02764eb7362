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

// memoryOf says whose memory a command is about.
type memoryOf struct {
	Agent     string            `default:"a2e" placeholder:"ID" help:"The agent id: episodic entries belong to one, semantic ones to all. Default: ${default}."`
	Namespace string            `default:"default" placeholder:"NAME" help:"The namespace; entries of other namespaces are not shown. Default: ${default}."`
	Scope     map[string]string `mapsep:"none" placeholder:"KEY=VALUE" help:"The scope with which the agent opened its memory; may be given several times."`
}

// with opens the memory as an agent does and hands its id to do.
func (m memoryOf) with(cmd *commands, sys *System, do func(ctx context.Context, c *client.Client, id string) error) error {
	return cmd.ask(sys, m.Agent, protocol.CapMemory, func(ctx context.Context, c *client.Client) error {
		var opened protocol.MemoryInitResponse
		req := &protocol.MemoryInitRequest{Namespace: m.Namespace, Scope: m.Scope}
		if err := c.Call(ctx, protocol.TypeMemoryInitReq, req, &opened); err != nil {
			return err
		}
		if !opened.Success {
			return errors.New("the host opened no memory")
		}
		return do(ctx, c, opened.MemoryID)
	})
}

// memorySelect says which entries of it.
type memorySelect struct {
	Tier   string   `enum:",episodic,semantic" default:"" placeholder:"TIER" help:"Only this tier: episodic or semantic."`
	Tag    []string `sep:"none" placeholder:"TAG" help:"Only entries with this tag; with several, with any of them."`
	AllTag []string `sep:"none" placeholder:"TAG" help:"Only entries with this tag; with several, with all of them."`
	Filter string   `placeholder:"JSON" help:"Only entries whose content fits, such as {\"user.age\":{\"gt\":30}}."`
	Source string   `placeholder:"TEXT" help:"Only entries of this source."`
	Folder string   `placeholder:"DIR" help:"Only entries that were last stored in this folder; . is this one."`
	Since  string   `placeholder:"TIME" help:"Only entries stored at this time or later: 2026-01-31, 2026-01-31T12:00:00Z, or 24h for a day ago."`
	Until  string   `placeholder:"TIME" help:"Only entries stored before this time."`
	Below  bool     `help:"Also the namespaces below the one of --namespace: users/7 is below users."`
}

// selection returns it as requests have it.
func (m memorySelect) selection(namespace string) (sel protocol.MemorySelection, err error) {
	sel = protocol.MemorySelection{Tier: protocol.MemoryTier(m.Tier), Tags: m.Tag, AllTags: m.AllTag, Source: m.Source}
	if m.Below {
		sel.NamespacePrefix = &namespace
	}
	if sel.Folder = m.Folder; m.Folder != "" && m.Folder != "." { // that is the workspace
		if sel.Folder, err = filepath.Abs(m.Folder); err != nil {
			return sel, err
		}
	}
	if m.Filter != "" {
		if sel.Filter, err = protocol.ParseObject([]byte(m.Filter)); err != nil {
			return sel, fail(exitUsage, fmt.Errorf(`--filter %s: it is a JSON object such as {"user.age":{"gt":30}}: %w`, oneLine(m.Filter), err))
		}
	}
	if sel.Since, err = timeOf("--since", m.Since); err != nil {
		return sel, err
	}
	sel.Until, err = timeOf("--until", m.Until)
	return sel, err
}

// timeOf returns the time of a flag in seconds since 1970; 0 = none was given.
func timeOf(flag, text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return float64(time.Now().Add(-ago).UnixMicro()) / 1e6, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil && at.Unix() > 0 {
			return float64(at.UnixMicro()) / 1e6, nil
		}
	}
	return 0, fail(exitUsage, fmt.Errorf("%s %s: it is a time after 1970 such as 2026-01-31, 2026-01-31T12:00:00Z, or 24h for a day ago", flag, oneLine(text)))
}

// memoryPick says which entries are printed, and how.
type memoryPick struct {
	memoryOf
	memorySelect
	Limit  int    `default:"20" help:"At most this many. Default: 20."`
	Cursor string `placeholder:"TEXT" help:"Continue where the same command ended before."`
	JSON   bool   `name:"json" help:"Print the entries as JSON."`
}

// print asks for entries and prints them.
func (m memoryPick) print(cmd *commands, sys *System, req *protocol.MemoryRetrieveRequest) (err error) {
	if req.MemorySelection, err = m.selection(m.Namespace); err != nil {
		return err
	}
	req.Limit, req.Cursor = m.Limit, m.Cursor
	var found memoryAnswer
	err = m.ask(cmd, sys, req, &found)
	if err != nil {
		return err
	}
	others, err := m.others(cmd, sys)
	if err != nil && m.Tier != string(protocol.TierSemantic) {
		return err
	}
	if found.NextCursor != "" {
		say(sys.Err, "%d of %d entries; --limit gives more, --cursor %s the next ones", len(found.Entries), found.Total, found.NextCursor)
	}
	if m.JSON {
		err = printJSON(sys.Out, found.Entries)
	} else {
		err = printEntries(sys, "SCORE", found.Entries)
	}
	if others != "" {
		say(sys.Err, "other entries, which --agent and --namespace show: %s", others)
	}
	return err
}

// memoryAnswer is what the commands take from an answer.
type memoryAnswer struct {
	Entries    []jsontext.Value           `json:"entries"`
	Total      int                        `json:"total"`
	NextCursor string                     `json:"next_cursor"`
	Namespaces []protocol.MemoryNamespace `json:"namespaces"`
	Detail     map[string]any             `json:"detail"`
}

// ask sends a request and tells what its answer remarks.
func (m memoryOf) ask(cmd *commands, sys *System, req *protocol.MemoryRetrieveRequest, found *memoryAnswer) error {
	err := m.with(cmd, sys, func(ctx context.Context, c *client.Client, id string) error {
		req.MemoryID = id
		return c.Call(ctx, protocol.TypeMemoryRetrieveReq, req, found)
	})
	for _, name := range slices.Sorted(maps.Keys(found.Detail)) {
		say(sys.Err, "note: %s: %s", oneLine(name), oneLine(wirePhrases().Replace(fmt.Sprint(found.Detail[name]))))
	}
	return err
}

// usualAgent is whose memory the commands show where nothing is said.
const usualAgent = "a2e"

// others tells which agents have entries beside the one asked for, and is an error where that
// one was named and has none.
func (m memoryOf) others(cmd *commands, sys *System) (others string, err error) {
	var all []memory.Owner
	cfg, err := cmd.load(sys, func(string) {}) // ask tells the warnings
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
		if o.Agent != m.Agent || o.Namespace != m.Namespace {
			words = append(words, fmt.Sprintf("%s (%d in %s)", oneLine(o.Agent), o.Entries, oneLine(o.Namespace)))
		}
	}
	if m.Agent != usualAgent && len(names) > 0 && !slices.Contains(names, m.Agent) {
		return "", fail(exitFailed, unknown("agent with entries of its own called", m.Agent, slices.Compact(names)))
	}
	if more := len(words) - maxOffered; more > 0 {
		words = append(words[:maxOffered], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", "), nil
}

// memoryEntry is what the table shows of an entry.
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

// printEntries prints a line each, which begins with the entry's SCORE or VERSION.
func printEntries(sys *System, first string, entries []jsontext.Value) error {
	if len(entries) == 0 {
		say(sys.Err, "no entry")
		return nil
	}
	var t table
	t.header(first, "TIER", "WRITTEN", "KEY", "TAGS", "FOLDER", "CONTENT")
	now := time.Now()
	for _, raw := range entries {
		var e memoryEntry
		if err := json.Unmarshal(raw, &e); err != nil {
			return fmt.Errorf("an entry cannot be read: %w", err)
		}
		number := strconv.FormatFloat(e.Score, 'f', 2, 64)
		if first == "VERSION" {
			number = strconv.Itoa(e.Version)
		}
		t.row(number, e.Tier, shortTime(e.UpdatedAt, now), string(e.Key), strings.Join(e.Tags, ","), e.Folder,
			textOf(e.Content))
	}
	return t.show(sys)
}

// shortTime returns seconds since 1970 as local time in few columns: as ls does, with
// the hour or with the year.
func shortTime(seconds float64, now time.Time) string {
	t := time.Unix(int64(seconds), 0).In(now.Location())
	if t.Year() == now.Year() {
		return t.Format("01-02 15:04")
	}
	return t.Format(time.DateOnly)
}

// textOf is a text itself, and anything else as JSON.
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

// Run searches as the agent's memory/retrieve/req does.
func (s memorySearchCmd) Run(cmd *commands, sys *System) error {
	if strings.TrimSpace(s.Query) == "" {
		return fail(exitUsage, errors.New("there is nothing to search for; `a2e memory list` lists all entries"))
	}
	if !(s.MinScore >= 0 && s.MinScore <= 1) {
		return fail(exitUsage, fmt.Errorf("--min-score %v: it is a number from 0 to 1", s.MinScore))
	}
	return s.print(cmd, sys, &protocol.MemoryRetrieveRequest{Query: s.Query, MinScore: s.MinScore})
}

type memoryListCmd struct {
	memoryPick
}

// Run lists entries.
func (l memoryListCmd) Run(cmd *commands, sys *System) error {
	return l.print(cmd, sys, &protocol.MemoryRetrieveRequest{})
}

type memoryHistoryCmd struct {
	Key string `arg:"" help:"The key of the entry, a JSON object."`
	memoryOf
	Tier string `enum:",episodic,semantic" default:"" placeholder:"TIER" help:"Only this tier: episodic or semantic."`
	JSON bool   `name:"json" help:"Print the versions as JSON."`
}

// Run prints the versions of an entry.
func (h memoryHistoryCmd) Run(cmd *commands, sys *System) error {
	key, err := protocol.ParseObject([]byte(h.Key))
	if err != nil {
		return fail(exitUsage, fmt.Errorf("%s: %w", oneLine(h.Key), err))
	}
	var found memoryAnswer
	req := &protocol.MemoryRetrieveRequest{History: true, Limit: 10_000}
	req.Keys, req.Tier = []protocol.Object{key}, protocol.MemoryTier(h.Tier)
	if err := h.ask(cmd, sys, req, &found); err != nil {
		return err
	}
	if h.JSON {
		return printJSON(sys.Out, found.Entries)
	}
	return printEntries(sys, "VERSION", found.Entries)
}

type memoryNamespacesCmd struct {
	memoryOf
	Depth int  `placeholder:"N" help:"Only this many levels of each name; deeper ones are counted in their parent."`
	Limit int  `default:"1000" help:"At most this many. Default: 1000."`
	JSON  bool `name:"json" help:"Print them as JSON."`
}

// Run prints the namespaces of the scope, by name.
func (n memoryNamespacesCmd) Run(cmd *commands, sys *System) error {
	var found memoryAnswer
	req := &protocol.MemoryRetrieveRequest{ListNamespaces: true, MaxDepth: n.Depth, Limit: n.Limit}
	if err := n.ask(cmd, sys, req, &found); err != nil {
		return err
	}
	if more := found.Total - len(found.Namespaces); more > 0 {
		say(sys.Err, "and %d more; --limit gives more", more)
	}
	return list(sys, n.JSON, found.Namespaces, "no namespace", []string{"ENTRIES", "NAMESPACE"}, func(one protocol.MemoryNamespace) []string {
		return []string{strconv.Itoa(one.Entries), one.Namespace}
	})
}

type memoryForgetCmd struct {
	memoryOf
	memorySelect
	Key []string `sep:"none" placeholder:"JSON" help:"The key of an entry, a JSON object; may be given several times."`
	All bool     `help:"All entries of the memory, of the tier if one is given."`
	Yes bool     `help:"Confirm that all of them are deleted."`
}

// Run deletes entries and prints how many there were.
func (f memoryForgetCmd) Run(cmd *commands, sys *System) error {
	sel, err := f.selection(f.Namespace)
	some := len(f.Key)+len(f.Tag)+len(f.AllTag)+sel.Filter.Len() > 0 || f.Source+f.Folder+f.Since+f.Until != ""
	switch {
	case err != nil:
		return err
	case f.All && some:
		return fail(exitUsage, errors.New("--all forgets everything: give --all or what to forget, not both"))
	case f.All && !f.Yes:
		return fail(exitUsage, errors.New("this deletes all entries of the memory; confirm with --all --yes"))
	case !f.All && !some:
		return fail(exitUsage, errors.New("say what to forget, with --key, --tag, --all-tag, --filter, --source, "+
			"--folder, --since, --until or --all"))
	}
	for _, text := range f.Key {
		key, err := protocol.ParseObject([]byte(text))
		if err != nil {
			return fail(exitUsage, fmt.Errorf("--key %s: %w", oneLine(text), err))
		}
		sel.Keys = append(sel.Keys, key)
	}
	var forgot protocol.MemoryForgetResponse
	err = f.with(cmd, sys, func(ctx context.Context, c *client.Client, id string) error {
		return c.Call(ctx, protocol.TypeMemoryForgetReq, &protocol.MemoryForgetRequest{
			MemoryID: id, MemorySelection: sel, All: f.All, Confirm: f.Yes && f.All,
		}, &forgot)
	})
	if err != nil {
		return err
	}
	if _, err := f.others(cmd, sys); err != nil && forgot.Deleted == 0 && f.Tier != string(protocol.TierSemantic) {
		return err
	}
	_, err = fmt.Fprintf(sys.Out, "%d deleted\n", forgot.Deleted)
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

// addedEntry is an entry as memory/store/req has it.
type addedEntry struct {
	Key     jsontext.Value `json:"key"`
	Content string         `json:"content"`
	Tier    string         `json:"tier"`
	Tags    []string       `json:"tags"`
	Source  string         `json:"source"`
	TTL     float64        `json:"ttl,omitzero"` // seconds
}

// Run stores the entry and prints its key.
func (m memoryAddCmd) Run(cmd *commands, sys *System) error {
	e := addedEntry{Tier: m.Tier, Tags: append([]string{}, m.Tag...), Source: m.Source, TTL: m.TTL.Seconds()}
	key := uuid.NewString()
	switch len(m.Words) {
	case 1:
	case 2:
		key = m.Words[0]
	default:
		return fail(exitUsage, fmt.Errorf("memory add takes [KEY] TEXT, and these are %d words; quote the text", len(m.Words)))
	}
	if e.Content = m.Words[len(m.Words)-1]; e.Content == "-" {
		text, err := io.ReadAll(sys.In)
		if err != nil {
			return err
		}
		e.Content = strings.TrimSuffix(string(text), "\n")
	}
	if strings.TrimSpace(e.Content) == "" {
		return fail(exitUsage, errors.New("there is nothing to remember: the text is empty"))
	}
	if e.Key = jsontext.Value(key); !strings.HasPrefix(key, "{") {
		e.Key = append(protocol.AppendString([]byte(`{"id":`), key), '}')
	} else if _, err := protocol.ParseObject(e.Key); err != nil {
		return fail(exitUsage, fmt.Errorf("the key %s: %w", oneLine(key), err))
	}
	raw, err := json.Marshal(e)
	if err != nil { // a text that is no UTF-8
		return fail(exitUsage, fmt.Errorf("the text: %w", err))
	}
	entry, err := protocol.ParseObject(raw)
	if err != nil {
		return err
	}
	var resp protocol.MemoryStoreResponse
	err = m.with(cmd, sys, func(ctx context.Context, c *client.Client, id string) error {
		return c.Call(ctx, protocol.TypeMemoryStoreReq, &protocol.MemoryStoreRequest{MemoryID: id, Entries: []protocol.Object{entry}}, &resp)
	})
	if err == nil && len(resp.Errors) > 0 {
		err = errors.New(resp.Errors[0])
	}
	return printID(sys, string(escapeUnseen(e.Key)), err)
}
