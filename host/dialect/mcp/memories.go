package mcp

import (
	"context"
	"net/url"
	"strings"

	"a2e/host"
	"a2e/protocol"
)

const (
	maxMemories   = 200 // of each tier that are listed, the newest
	maxMemoryName = 80  // bytes
)

// memories gives the newest entries of each tier; none where no plugin has a memory.
func (s *server) memories(ctx context.Context) (all []*resource, err error) {
	for _, tier := range []protocol.MemoryTier{protocol.TierWorking, protocol.TierEpisodic, protocol.TierSemantic} {
		entries, err := s.retrieve(ctx, &protocol.MemoryRetrieveRequest{Tier: tier, Limit: maxMemories})
		if isMissing(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, &resource{URI: memoryURI(e.Tier, e.Key), described: described{
				Name: memoryName(e.Key), MIMEType: memoryMIME(&e),
				Description: strings.Join(append([]string{string(e.Tier) + " memory"}, e.Tags...), ", "),
			}})
		}
	}
	return all, nil
}

func (s *server) retrieve(ctx context.Context, req *protocol.MemoryRetrieveRequest) ([]protocol.MemoryEntry, error) {
	var init protocol.MemoryInitResponse
	if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeMemoryInitReq, &protocol.MemoryInitRequest{Namespace: "default"}, &init, nil); err != nil {
		return nil, err
	}
	req.MemoryID = init.MemoryID
	var resp protocol.MemoryRetrieveResponse
	err := host.ServicesOf(ctx).Call(ctx, protocol.TypeMemoryRetrieveReq, req, &resp, nil)
	return resp.Entries, err
}

func memoryURI(tier protocol.MemoryTier, key protocol.Object) string {
	return memoryScheme + string(tier) + "/" + url.PathEscape(string(key.Raw()))
}

// memoryName gives a key of one text as that text, any other as JSON.
func memoryName(key protocol.Object) string {
	name := string(key.Raw())
	if key.Len() == 1 {
		if text, ok := key.Value(0).Str(); ok {
			name = text
		}
	}
	if len(name) > maxMemoryName {
		name = strings.ToValidUTF8(name[:maxMemoryName], "") + "…"
	}
	return name
}

func memoryMIME(e *protocol.MemoryEntry) string {
	if e.Content.Kind() == '"' {
		return mimeText
	}
	return mimeJSON
}

// readMemory gives one entry.
func (s *server) readMemory(ctx context.Context, uri string) (*resourceText, error) {
	tier, escaped, _ := strings.Cut(strings.TrimPrefix(uri, memoryScheme), "/")
	text, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, rpcErrorf(codeResourceNotFound, "the key in the URI is not escaped as it should be")
	}
	key, err := protocol.ParseObject([]byte(text))
	if err != nil {
		return nil, rpcErrorf(codeResourceNotFound, `the URI should be memory://TIER/KEY, where KEY is the entry's key as JSON, such as {"name":"x"}, percent-encoded`)
	}
	switch t := protocol.MemoryTier(tier); t {
	case protocol.TierWorking, protocol.TierEpisodic, protocol.TierSemantic:
		entries, err := s.retrieve(ctx, &protocol.MemoryRetrieveRequest{Tier: t, Keys: []protocol.Object{key}, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(entries) == 0 {
			return nil, rpcErrorf(codeResourceNotFound, "the %s memory has no entry of this key", tier)
		}
		text := string(entries[0].Content)
		if entries[0].Content.Kind() == '"' {
			text = textOf(entries[0].Content)
		}
		return &resourceText{MIMEType: memoryMIME(&entries[0]), Text: &text}, nil
	}
	return nil, rpcErrorf(codeResourceNotFound, "the tiers of the memory are working, episodic and semantic")
}
