package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/plugins"
	"a2e/plugins/memory"
	"a2e/protocol"
	"a2e/protocol/client"
)

type memoryCmd struct {
	Search memorySearchCmd `cmd:"" help:"Find entries by what they say, the best first."`
	List   memoryListCmd   `cmd:"" help:"List entries, the newest first."`
	Forget memoryForgetCmd `cmd:"" help:"Delete entries by key or by tag."`
}

// memoryOf says whose memory a command is about.
type memoryOf struct {
	Agent     string            `default:"a2e" placeholder:"ID" help:"The agent id: episodic entries belong to one, semantic ones to all. Without it: ${default}."`
	Namespace string            `default:"default" placeholder:"NAME" help:"The namespace; entries of others are not seen. Without it: ${default}."`
	Scope     map[string]string `mapsep:"none" placeholder:"KEY=VALUE" help:"The scope, as the agent opened its memory with; may be given several times."`
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

// memoryPick says which entries of it.
type memoryPick struct {
	memoryOf
	Tier  string   `enum:",episodic,semantic" default:"" placeholder:"TIER" help:"Only this tier: episodic or semantic."`
	Tag   []string `sep:"none" placeholder:"TAG" help:"Only entries with this tag; with several, with any of them."`
	Limit int      `default:"20" help:"How many at most; 20 when not given."`
	JSON  bool     `name:"json" help:"Print the entries as JSON."`
}

// print asks for entries and prints them.
func (m memoryPick) print(cmd *commands, sys *System, query string, minScore float64) error {
	var found struct {
		Entries []jsontext.Value `json:"entries"`
		Total   int              `json:"total"`
		Detail  map[string]any   `json:"detail"`
	}
	err := m.with(cmd, sys, func(ctx context.Context, c *client.Client, id string) error {
		return c.Call(ctx, protocol.TypeMemoryRetrieveReq, &protocol.MemoryRetrieveRequest{
			MemoryID: id, MemorySelection: protocol.MemorySelection{Tags: m.Tag, Tier: protocol.MemoryTier(m.Tier)}, Query: query, Limit: m.Limit, MinScore: minScore,
		}, &found)
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(found.Detail)) {
		say(sys.Err, "note: %s: %s", oneLine(name), oneLine(fmt.Sprint(found.Detail[name])))
	}
	others, err := m.others(cmd, sys)
	if err != nil && m.Tier != string(protocol.TierSemantic) {
		return err
	}
	if n := len(found.Entries); n < found.Total {
		say(sys.Err, "%d of %d entries; --limit gives more", n, found.Total)
	}
	if m.JSON {
		err = printJSON(sys.Out, found.Entries)
	} else {
		err = printEntries(sys, found.Entries)
	}
	if others != "" {
		say(sys.Err, "other entries, which --agent and --namespace show: %s", others)
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
	if _, err := os.Stat(plugins.StatePath(cfg)); err == nil {
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
	UpdatedAt float64        `json:"updated_at"` // seconds since 1970
}

// printEntries prints a line each.
func printEntries(sys *System, entries []jsontext.Value) error {
	if len(entries) == 0 {
		say(sys.Err, "no entry")
		return nil
	}
	var t table
	t.row("SCORE", "TIER", "WRITTEN", "KEY", "TAGS", "CONTENT")
	now, columns := time.Now(), sys.columns()
	for _, raw := range entries {
		var e memoryEntry
		if err := json.Unmarshal(raw, &e); err != nil {
			return fmt.Errorf("an entry cannot be read: %w", err)
		}
		t.row(strconv.FormatFloat(e.Score, 'f', 2, 64), e.Tier, shortTime(e.UpdatedAt, now),
			cut(oneLine(string(e.Key)), columns/4), cut(oneLine(strings.Join(e.Tags, ",")), columns/8), textOf(e.Content))
	}
	return t.print(sys.Out, columns)
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
	return s.print(cmd, sys, s.Query, s.MinScore)
}

type memoryListCmd struct {
	memoryPick
}

// Run lists entries.
func (l memoryListCmd) Run(cmd *commands, sys *System) error { return l.print(cmd, sys, "", 0) }

type memoryForgetCmd struct {
	memoryOf
	Tier string   `enum:"episodic,semantic" default:"episodic" placeholder:"TIER" help:"The tier: episodic or semantic. Without it: ${default}."`
	Key  []string `sep:"none" placeholder:"JSON" help:"The key of an entry, a JSON object; may be given several times."`
	Tag  []string `sep:"none" placeholder:"TAG" help:"All entries with this tag; may be given several times."`
}

// Run deletes entries and prints how many there were.
func (f memoryForgetCmd) Run(cmd *commands, sys *System) error {
	switch {
	case len(f.Key)+len(f.Tag) == 0:
		return fail(exitUsage, errors.New("say what to forget, with --key or --tag"))
	case len(f.Key) > 0 && len(f.Tag) > 0:
		return fail(exitUsage, errors.New("say what to forget with --key or with --tag, not both"))
	}
	var keys []protocol.Object
	for _, text := range f.Key {
		key, err := protocol.ParseObject([]byte(text))
		if err != nil {
			return fail(exitUsage, fmt.Errorf("--key %s: %w", oneLine(text), err))
		}
		keys = append(keys, key)
	}
	var forgot protocol.MemoryForgetResponse
	err := f.with(cmd, sys, func(ctx context.Context, c *client.Client, id string) error {
		return c.Call(ctx, protocol.TypeMemoryForgetReq, &protocol.MemoryForgetRequest{
			MemoryID: id, MemorySelection: protocol.MemorySelection{Keys: keys, Tags: f.Tag, Tier: protocol.MemoryTier(f.Tier)},
		}, &forgot)
	})
	if err != nil {
		return err
	}
	if _, err := f.others(cmd, sys); err != nil && forgot.Deleted == 0 && f.Tier == string(protocol.TierEpisodic) {
		return err
	}
	_, err = fmt.Fprintf(sys.Out, "%d deleted\n", forgot.Deleted)
	return err
}
