package mcp

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"a2e/plugins/tools"
)

// publish makes the tools of all servers the plugin's own. It tells whether that changed
// what the agent sees. A name that two servers would give is the first one's, those of the
// config before those of the agent; the other's is withheld.
func (p *Plugin) publish() (news bool) {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	owner := make(map[string]string)
	var all []tools.Tool
	for _, s := range p.all() {
		s.mu.Lock()
		s.withheld = slices.DeleteFunc(slices.Clone(s.withheld), func(w Withheld) bool { return w.collides })
		for _, b := range s.tools {
			name := b.tool.Def.Name
			if other := owner[name]; other != "" {
				why := "would have the name " + name + ", which a tool of the server " + other + " has"
				s.withheld = append(s.withheld, Withheld{Tool: b.name, Reason: why, collides: true})
				continue
			}
			owner[name] = s.opts.ID
			all = append(all, b.tool)
		}
		s.logWithheldLocked()
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b tools.Tool) int { return cmp.Compare(a.Def.Name, b.Def.Name) })
	if err := p.set.Replace(all); err != nil {
		p.env.Log.Error().Err(err).Str("plugin", p.name).Msg("the tools of the MCP servers could not be taken in")
		return false
	}
	seen := summary(all)
	news = seen != p.seen
	p.seen = seen
	return news
}

// summary tells two lists of tools apart by what the agent sees of them.
func summary(all []tools.Tool) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, t := range all {
		for _, text := range []string{t.Def.Name, t.Denied, t.Def.Description, string(t.Detail.InputSchema)} {
			fmt.Fprintf(h, "%d:%s", len(text), text)
		}
	}
	h.Sum(sum[:0])
	return sum
}
