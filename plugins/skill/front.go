package skill

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode"

	"a2e/host/yamltree"
	"a2e/protocol"
)

// How a skill is run.
const (
	kindInstructions = "instructions"
	kindRun          = "run"
	kindWasm         = "wasm"
	kindAgent        = "agent"
)

// Bounds of single values.
const (
	maxDescription = 1024  // bytes that the public format has for a description; longer ones only get a hint
	maxTurnsSaid   = 1000  // of max_turns
	maxSeconds     = 86400 // of timeout_seconds
	maxListed      = 256   // entries of a list
)

// front is what the front matter says.
type front struct {
	name, version, description string
	whenToUse, argumentHint    string
	category, icon, task       string
	triggers, tags             []string
	tools, toolkits, allowed   []string
	status                     protocol.SkillStatus
	inputs, outputs            *objectSchema // outputs nil = not said
	positional                 []string      // arguments in an order, for skills that are called with a line of words
	wordy                      bool          // says that it takes such a line
	maxTurns, timeout          int           // 0 = not said; seconds
	kind                       string
	file                       string // of kindRun and kindWasm, relative, with slashes
	fileLine                   int
	write, network             bool
	metadata                   map[string]any // values are jsontext.Value or strings
}

// knownKeys are those that have a meaning here, with _ for -.
func knownKeys() []string {
	return []string{
		"name", "description", "license", "compatibility", "allowed_tools", "metadata",
		"version", "triggers", "tools", "toolkits", "category", "task", "tags", "when_to_use", "argument_hint", "inputs", "outputs",
		"max_turns", "timeout_seconds", "run", "wasm", "agent", "write", "network", "status", "icon", "arguments",
		"author", "model", "user_invocable", "disable_model_invocation",
	}
}

// readFront reads the front matter of a skill in a folder of some name.
func readFront(d document, folder string, n *notes) *front {
	r := newReader(d.front, n)
	f := &front{metadata: map[string]any{}}
	f.name = r.name(folder)
	f.version = r.text("version", "1.0.0")
	if m, _ := r.value("metadata"); m.At("version") != nil && r.keys["version"].Value == nil { // where the public format has it
		f.version = cmp.Or(strings.TrimSpace(m.At("version").Text), f.version)
	}
	f.description = r.description(d.body)
	f.whenToUse = r.text("when_to_use", f.description)
	f.category, f.icon, f.task = r.text("category", ""), r.text("icon", ""), r.text("task", "")
	f.triggers, f.tags = r.list("triggers", ","), r.list("tags", ",")
	f.tools, f.toolkits, f.allowed = r.tools("tools"), r.tools("toolkits"), r.tools("allowed_tools")
	f.status = r.status()
	f.maxTurns, f.timeout = r.whole("max_turns", maxTurnsSaid), r.whole("timeout_seconds", maxSeconds)
	f.write, f.network = r.truth("write"), r.truth("network")
	r.kind(f)
	r.arguments(f)
	r.metadata(f)
	for _, tool := range f.allowed {
		if strings.Contains(tool, "(") {
			n.hint(r.keys["allowed_tools"].Line, "allowed-tools: the rule in %s cannot be kept here, so the skill gets no tool for it; that does not block it", quote(tool))
		}
	}
	r.rights(f)
	n.sort()
	return f
}

// rights tells which of them have no effect.
func (r *reader) rights(f *front) {
	switch scripted := f.kind == kindRun || f.kind == kindWasm; {
	case f.write && !scripted:
		r.hint(r.keys["write"].Line, "write: has an effect with run: and wasm: only")
	case f.network && !scripted:
		r.hint(r.keys["network"].Line, "network: has an effect with run: only")
	case f.network && f.kind == kindWasm:
		r.fail(r.keys["network"].Line, "network: a module has no network; leave that out, or use run:")
	}
}

func (r *reader) name(folder string) string {
	m, given := r.keys["name"]
	name := folder
	if _, ok := r.value("name"); ok {
		name = r.text("name", folder)
	} else {
		given = false
		r.hint(0, "there is no name; the skill is called as its folder, %s", quote(folder))
	}
	if err := checkName(name); err != nil {
		r.fail(m.Line, "name: %s %v; write lower-case letters, digits and hyphens", quote(name), err)
		return name
	}
	if given && !public(name) {
		r.hint(m.Line, "name: %s does not follow the public format: at most 64 lower-case letters, digits and single hyphens", quote(name))
	} else if given && folder != "." && name != folder {
		r.hint(m.Line, "name: the public format wants the name of the folder, %s", quote(folder))
	}
	return name
}

func (r *reader) description(body string) string {
	text := r.text("description", "")
	if text == "" {
		if text = paragraph(body); text == "" {
			r.fail(r.keys["description"].Line, "description: is missing; say what the skill does, and when to use it")
			return ""
		}
		r.hint(0, "there is no description; the beginning of the text stands for it")
	}
	if len(text) > maxDescription {
		r.hint(r.keys["description"].Line, "description: has %d bytes; the public format has at most %d", len(text), maxDescription)
	}
	return text
}

func (r *reader) status() protocol.SkillStatus {
	text := r.line("status")
	for _, s := range []protocol.SkillStatus{protocol.SkillCreated, protocol.SkillBlocked, protocol.SkillPublished, protocol.SkillArchived} {
		if strings.EqualFold(text, string(s)) {
			return s
		}
	}
	if text != "" {
		r.hint(r.keys["status"].Line, "status: %s has no meaning here; it is one of Created, Blocked, Published and Archived", quote(text))
	}
	return protocol.SkillPublished
}

// kind reads how the skill is run.
func (r *reader) kind(f *front) {
	f.kind = kindInstructions
	for _, key := range []string{kindRun, kindWasm, kindAgent} {
		v, ok := r.value(key)
		if !ok {
			continue
		}
		if key == kindAgent {
			if v.Kind != yamltree.Scalar || v.Tag != "!!bool" {
				r.hint(v.Line, "agent: the name of an agent of another host has no meaning here; true makes the skill a loop of a model and tools")
				continue
			}
			if !r.truth(key) {
				continue
			}
		}
		if f.kind != kindInstructions {
			r.fail(r.keys[key].Line, "%s: stands beside %s: keep one of run, wasm and agent", key, f.kind)
			continue
		}
		if f.kind = key; key != kindAgent {
			f.file, f.fileLine = r.path(key), r.keys[key].Line
		}
	}
}

// path reads the path of a file in the skill's folder.
func (r *reader) path(key string) string {
	v, line := r.keys[key].Value, r.keys[key].Line
	text := v.Text
	short := path.Clean(text)
	switch {
	case v.Kind != yamltree.Scalar || text == "":
		r.fail(line, "%s: should be the name of a file in the skill's folder, such as scripts/main.py", key)
		return ""
	case strings.ContainsAny(text, `\:`), strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }):
		r.fail(line, "%s: %s has characters that a path here may not have; write it with / between the folders", key, quote(text))
		return ""
	case path.IsAbs(text), !fs.ValidPath(short), short == ".":
		r.fail(line, "%s: %s leads out of the skill's folder; name a file in it, such as scripts/main.py", key, quote(text))
		return ""
	}
	return short
}

// arguments reads inputs, outputs, and the ways in which public skills take a line of words.
func (r *reader) arguments(f *front) {
	hint, hinted := r.value("argument_hint")
	if hinted {
		f.wordy = true
		if hint.Kind == yamltree.List { // [file] is a list in YAML
			f.argumentHint = "[" + strings.Join(r.texts("argument_hint", hint), ", ") + "]"
		} else {
			f.argumentHint = r.text("argument_hint", "")
		}
	}
	f.positional = r.list("arguments", " ,\t")
	f.wordy = f.wordy || f.positional != nil
	inputs, given := r.value("inputs")
	switch {
	case given && f.positional != nil:
		r.hint(r.keys["arguments"].Line, "arguments: has no effect beside inputs")
		f.positional = nil
		fallthrough
	case given:
		f.inputs = r.schema("inputs", inputs)
	}
	if f.inputs == nil {
		f.inputs = looseInputs(f.positional, f.argumentHint)
	}
	if outputs, ok := r.value("outputs"); ok {
		f.outputs = r.schema("outputs", outputs)
	}
	if f.argumentHint == "" && given {
		f.argumentHint = f.inputs.hint()
	}
}

// metadata takes over what is only told to the agent.
func (r *reader) metadata(f *front) {
	if v, ok := r.value("metadata"); ok {
		if v.Kind != yamltree.Mapping {
			r.fail(v.Line, "metadata: must be a mapping, not %s", v.What())
		} else {
			for _, m := range v.Members {
				r.keep(f, m.Key, m.Value)
			}
		}
	}
	for _, key := range []string{"license", "compatibility", "author", "model", "user_invocable", "disable_model_invocation"} {
		if v, ok := r.value(key); ok {
			r.keep(f, key, v)
		}
	}
	if len(f.allowed) > 0 {
		f.metadata["allowed_tools"] = f.allowed
	}
}

// keep takes one entry over. The names that the host itself tells something under are its own.
func (r *reader) keep(f *front, key string, v *yamltree.Node) {
	if slices.Contains([]string{"kind", "uri", "blocked_reason", "unknown_tools", "routing_weight", "task", "brief"}, key) {
		r.hint(v.Line, "metadata: %s is what this host uses itself; the entry is left out", key)
		return
	}
	value, err := v.JSON()
	if err != nil {
		r.fail(v.Line, "%s: %v", key, err)
		return
	}
	f.metadata[key] = value
}
