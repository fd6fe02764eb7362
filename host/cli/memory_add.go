package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/protocol"
	"a2e/protocol/client"
)

type memoryAddCmd struct {
	Words []string `arg:"" name:"key-text" help:"[KEY] TEXT: what to remember, or - for all of stdin. The key is a JSON object, or a word, which means {\"id\":WORD}; an entry with this key is replaced. Without it the entry gets a new one."`
	memoryOf
	Tier   string        `enum:"semantic,episodic" default:"semantic" placeholder:"TIER" help:"semantic, for all agents, or episodic, for the one of --agent. Default: ${default}."`
	Tag    []string      `sep:"none" placeholder:"TAG" help:"A tag; may be given several times."`
	Source string        `default:"a2e" placeholder:"TEXT" help:"Its source. Default: ${default}."`
	TTL    time.Duration `name:"ttl" placeholder:"TIME" help:"How long it is kept, such as 24h. Default: for ever."`
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
