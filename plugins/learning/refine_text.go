package learning

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/protocol"
)

// Bounds of texts, in bytes.
const (
	maxDescription = 4 << 10
	maxOverride    = 32 << 10 // of any other text
	maxOriginal    = 64 << 10 // of the text that is replaced, which is stored too
)

// textValue is the value of a text in learning_settings.
type textValue struct {
	Original string `json:"original"` // the text that this one replaces; no other text is replaced
	Text     string `json:"text"`
}

// override returns the text in the form that the host applies.
func (v *textValue) override() host.Text {
	return host.Text{Of: sha256.Sum256([]byte(v.Original)), To: v.Text}
}

// textTargets lists the texts that can be changed, limited to a kind or name if they are not "".
func textTargets(kind, name string) (all []target) {
	for _, t := range []target{
		{Kind: host.KindTool, Name: host.TextDescription},
		{Kind: host.KindSkill, Name: host.TextInstructions},
		{Kind: host.KindPrompt, Name: host.TextDescription},
		{Kind: host.KindPrompt, Name: host.TextPrompt},
	} {
		if (kind == "" || kind == t.Kind) && (name == "" || name == t.Name) {
			t.Target = targetText
			all = append(all, t)
		}
	}
	return all
}

// checkText returns an error if the text is not allowed for the target.
func (t target) checkText(text string) error {
	limit := maxOverride
	if t.Name == host.TextDescription {
		limit = maxDescription
	}
	switch {
	case len(textTargets(t.Kind, t.Name)) != 1:
		return fmt.Errorf("a %.64s has no text %.64q that can be changed", t.Kind, t.Name)
	case strings.TrimSpace(text) == "":
		return errors.New("the text is empty; null reverts the change of a text")
	case len(text) > limit:
		return fmt.Errorf("the text has %d bytes; at most %d are allowed", len(text), limit)
	}
	for _, r := range text {
		if hidden(r) {
			return fmt.Errorf("the text has the character %U, which cannot be seen; only line breaks and tabs are "+
				"allowed of such", r)
		}
	}
	return nil
}

// hidden reports whether a character is invisible, so that a text could say more than its
// reader sees. Line breaks, tabs and characters that join letters or emoji are allowed.
func hidden(r rune) bool {
	switch {
	case r == '\n', r == '\t', r == '\u200c', r == '\u200d', unicode.Is(unicode.Prepended_Concatenation_Mark, r):
		return false
	case r >= 0xE0000 && r <= 0xE0FFF, r == '\u115f', r == '\u1160', r == '\u3164',
		r == '\uffa0': // tags, selectors; fillers
		return true
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Cs, unicode.Zl, unicode.Zp)
}

// readTexts finds the components' own texts that the edits of a proposal are about, and
// completes edits that name their text only in part. It asks other plugins.
func (p *Plugin) readTexts(ctx context.Context, pr *proposal) error {
	found := p.originals(ctx)
	for _, e := range pr.Edits {
		if e.Target != targetText || e.wrong != nil {
			continue
		}
		if !p.opts.RefineTexts {
			e.refuse("no text can be changed here, as the option refine_texts of the plugin %q says", p.name)
			continue
		}
		if err := e.readText(found); err != nil {
			return err
		}
		var text string
		if e.original == nil || e.To.Kind() != '"' || json.Unmarshal(e.To, &text) != nil {
			continue
		}
		if err := e.checkText(text); err != nil {
			e.refuse("%s", err)
		} else if n := len(*e.original); n > maxOriginal {
			e.refuse("the text to change has %d bytes; at most %d can be", n, maxOriginal)
		} else if p.env.Secrets != nil && p.env.Secrets.Text(text) != text {
			e.refuse("the text holds a secret of this host")
		}
	}
	return nil
}

// readText finds the one text that an edit can be about.
func (e *edit) readText(from *originals) error {
	var there []target
	for _, t := range textTargets(e.Kind, e.Name) {
		t.Component = e.Component
		text, ok, err := from.text(t)
		if err != nil {
			return err
		}
		if ok {
			there = append(there, t)
			e.original = &text
		}
	}
	switch len(there) {
	case 1:
		e.target = there[0]
	case 0:
		e.original = nil
		e.refuse("no text of %.128q can be changed; there are the description of a tool, the instructions of a skill, "+
			"and the description and, where it takes no arguments, the text of a prompt, which is called "+
			"SERVER__PROMPT", e.Component)
	default:
		e.original = nil
		e.refuse("%.128q has several texts; name one by `kind` and `name`: %s of a %s, %s of a %s", e.Component,
			there[0].Name, there[0].Kind, there[1].Name, there[1].Kind)
	}
	return nil
}

// originals are the components' own texts. Each list is asked for once.
type originals struct {
	ctx      context.Context
	services *host.Services
	tools    map[string]string         // descriptions by name; nil = not asked yet
	prompts  map[string]map[string]any // rows by the name of the component; nil = not asked yet
}

func (p *Plugin) originals(ctx context.Context) *originals {
	return &originals{ctx: host.WithoutOverrides(ctx), services: p.services}
}

// text returns the own text of a target; false = there is none.
func (o *originals) text(t target) (text string, ok bool, err error) {
	switch t.Kind {
	case host.KindTool:
		if o.tools == nil {
			err = o.listTools()
		}
		text, ok = o.tools[t.Component]
		return text, ok, err
	case host.KindSkill:
		text, ok = o.services.Instructions(t.Component)
		return text, ok, nil
	}
	if o.prompts == nil {
		err = o.listPrompts()
	}
	row := o.prompts[t.Component]
	if row == nil || err != nil {
		return "", false, err
	}
	if t.Name == host.TextDescription {
		text, ok = row["description"].(string)
		return text, ok, nil
	}
	if args, _ := row["arguments"].([]any); len(args) > 0 {
		return "", false, nil
	}
	var resp protocol.MCPPromptGetResponse
	if err := o.ask(protocol.TypeMCPPromptGetReq, map[string]any{"name": row["name"], "server_id": row["server_id"]},
		&resp); err != nil {
		return "", false, err
	}
	text, ok = resp.SingleText()
	return text, ok, nil
}

func (o *originals) listTools() error {
	o.tools = map[string]string{}
	var resp protocol.ToolListResponse
	err := o.ask(protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &resp)
	for _, def := range resp.Tools {
		o.tools[def.Name] = def.Description
	}
	return err
}

// maxPages bounds how many pages of a list of prompts are read.
const maxPages = 100

func (o *originals) listPrompts() error {
	o.prompts = map[string]map[string]any{}
	cursor := ""
	for range maxPages {
		var resp protocol.MCPPromptListResponse
		if err := o.ask(protocol.TypeMCPPromptListReq, map[string]any{"cursor": cursor}, &resp); err != nil {
			return err
		}
		for _, row := range resp.Prompts {
			server, _ := row["server_id"].(string)
			name, _ := row["name"].(string)
			o.prompts[protocol.MCPName(server, name)] = row
		}
		if cursor = resp.NextCursor; cursor == "" {
			break
		}
	}
	return nil
}

// ask asks other plugins; if none serves such requests, resp stays empty.
func (o *originals) ask(t protocol.Type, req, resp any) error {
	err := o.services.Call(o.ctx, t, req, resp, nil)
	if refused, ok := errors.AsType[*protocol.Error](err); ok && refused.Code == protocol.CodeCapabilityMissing {
		return nil
	}
	return err
}

// showEffects adds to the entries of a history whether the texts have an effect.
func (p *Plugin) showEffects(ctx context.Context, entries []map[string]any) {
	from := p.originals(host.WithKnown(ctx))
	for _, entry := range entries {
		edits, _ := entry["edits"].([]map[string]any)
		for _, e := range edits {
			if e["target"] == targetText && e["in_force"] == true {
				e["effect"] = p.effect(from, target{
					targetText, e["kind"].(string), e["component"].(string),
					e["name"].(string),
				})
			}
		}
	}
}

// showTexts adds to the records of components which of their texts are changed, and whether the change has
// an effect.
func (p *Plugin) showTexts(ctx context.Context, records []map[string]any) {
	from := p.originals(host.WithKnown(ctx))
	for _, r := range records {
		kind, _ := r["kind"].(string)
		name, _ := r["component_name"].(string)
		texts := map[string]any{}
		for _, t := range textTargets(kind, "") {
			t.Component = name
			if effect := p.effect(from, t); effect != "" {
				texts[t.Name] = effect
			}
		}
		if len(texts) > 0 {
			r["texts"] = texts
		}
	}
}

// effect says whether the changed text of a target has an effect; "" = the text is not changed.
func (p *Plugin) effect(from *originals, t target) string {
	o := p.Overrides(t.Kind)[t.Component]
	if o == nil {
		return ""
	}
	made, ok := o.Texts[t.Name]
	if !ok {
		return ""
	}
	switch text, there, err := from.text(t); {
	case err != nil:
		return "not known: " + err.Error()
	case !there:
		return "none: there is no such text at present"
	case made.Of != sha256.Sum256([]byte(text)):
		return "none: the text that it was made for has changed"
	}
	return "in effect"
}
