package skill

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"a2e/host/config/yamltree"
	"a2e/protocol"
)

// document has the parts of a SKILL.md.
type document struct {
	front *yamltree.Node // nil = it cannot be used
	body  string         // the text after the front matter, with \n line ends
}

// split splits the text of a SKILL.md into its parts. Problems go to n.
func split(text []byte, n *diagnostics) (d document) {
	switch {
	case bytes.HasPrefix(text, []byte("\xff\xfe")), bytes.HasPrefix(text, []byte("\xfe\xff")):
		n.fail(1, "the file is in UTF-16; save it as UTF-8")
		return d
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 || r == 0 {
			what := "bytes that are not UTF-8"
			if r == 0 {
				what = "a NUL character"
			}
			n.fail(1+bytes.Count(text[:at], []byte("\n")), "there are %s in the file; a SKILL.md is text in UTF-8",
				what)
			return d
		}
		at += size
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	if strings.TrimRight(first, " \t") != "---" {
		n.hint(1, "there is no front matter; begin the file with a line ---, name: and description:, and another "+
			"line ---")
		none := &yamltree.Node{Kind: yamltree.Mapping, Position: yamltree.Position{Line: 1}}
		return document{front: none, body: strings.TrimSpace(string(text))}
	}
	front, body, ok := cutFront(rest)
	switch {
	case !ok:
		n.fail(1, "the front matter has no end; put a line --- after it")
		return d
	case len(front) > maxFrontBytes:
		n.fail(1, "the front matter has %d bytes; at most %d are taken", len(front), maxFrontBytes)
		return d
	}
	return document{front: parseFront([]byte(front), 2, n), body: strings.TrimSpace(body)}
}

// cutFront cuts a text at the line that ends the front matter. ok reports whether there is such a line.
func cutFront(text string) (front, body string, ok bool) {
	at := 0
	for line := range strings.Lines(text) {
		if bare := strings.TrimRight(line, " \t\n"); bare == "---" || bare == "..." {
			return text[:at], text[at+len(line):], true
		}
		at += len(line)
	}
	return "", "", false
}

// paragraph returns the first paragraph of Markdown that is not a heading, on one line.
func paragraph(body string) string {
	for part := range strings.SplitSeq(body, "\n\n") {
		var lines []string
		for line := range strings.Lines(part) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		if len(lines) > 0 {
			return protocol.Head(strings.Join(lines, " "), maxDescription)
		}
	}
	return ""
}

// Limits of front matter.
const (
	maxFrontBytes = 64 << 10
	maxDepth      = 32
	maxAliased    = 1000     // values that aliases may add
	maxAliasedLen = 64 << 10 // bytes of text that aliases may add
	maxNotes      = 50       // of one file
	maxQuoted     = 500      // lines of invalid front matter; with more lines quoteLines does nothing
)

// Diagnostic is a problem or a hint about a file.
type Diagnostic struct {
	Line int // from 1; 0 = the file as a whole
	Text string
}

// in returns the diagnostic with its place in a file.
func (n Diagnostic) in(file string) string {
	if n.Line > 0 {
		file = "line " + strconv.Itoa(n.Line) + " of " + file
	}
	return file + ": " + n.Text
}

// diagnostics collects the diagnostics of one SKILL.md.
type diagnostics struct {
	problems []Diagnostic // the skill cannot be used
	hints    []Diagnostic // the skill can be used, but a part has no effect
}

func (n *diagnostics) fail(line int, format string, args ...any) {
	n.problems = noted(n.problems, line, format, args)
}

func (n *diagnostics) hint(line int, format string, args ...any) {
	n.hints = noted(n.hints, line, format, args)
}

// sort sorts the diagnostics by line.
func (n *diagnostics) sort() {
	byLine := func(a, b Diagnostic) int { return a.Line - b.Line }
	slices.SortStableFunc(n.problems, byLine)
	slices.SortStableFunc(n.hints, byLine)
}

func noted(all []Diagnostic, line int, format string, args []any) []Diagnostic {
	if len(all) >= maxNotes {
		return all
	}
	return append(all, Diagnostic{line, fmt.Sprintf(format, args...)})
}

// parseFront reads front matter that begins in line of its file. If it cannot be used, parseFront
// returns nil and adds the problems to n.
func parseFront(text []byte, line int, n *diagnostics) *yamltree.Node {
	rules := yamltree.Rules{
		Depth: maxDepth, Aliased: maxAliased, AliasedBytes: maxAliasedLen, LinesBefore: line - 1,
		Name: quote,
	}
	doc, err := rules.Load(text)
	if err != nil {
		again, lines := quoteLines(text, &rules)
		var second error
		if doc, second = rules.Load(again); len(lines) == 0 || second != nil {
			n.failYAML(err, line-1)
			return nil
		}
		for _, l := range lines {
			n.hint(l+line-1, "the value is not valid YAML and is read as a text; put it in quotes")
		}
	}
	if doc == nil {
		return &yamltree.Node{Kind: yamltree.Mapping, Position: yamltree.Position{Line: line}}
	}
	read, wrong := rules.Read(doc)
	for _, w := range wrong {
		n.fail(w.Line, "%s", w.Message)
	}
	if read == nil {
		return nil
	}
	switch {
	case read.Null():
		return &yamltree.Node{Kind: yamltree.Mapping, Position: yamltree.Position{Line: line}}
	case read.Kind != yamltree.Mapping:
		n.fail(read.Line, "the front matter is %s; it should be a mapping such as \"name: my-skill\"", read.What())
		return nil
	}
	return read
}

// quoteLines puts quotes around the values of top-level lines that are not valid YAML by
// themselves, such as `argument-hint: [file] [line]` and `description: Note: it is slow`, which
// are common in public skills. It returns the numbers of the changed lines, from 1.
func quoteLines(text []byte, rules *yamltree.Rules) (again []byte, changed []int) {
	lines := strings.SplitAfter(string(text), "\n")
	if len(lines) > maxQuoted {
		return nil, nil
	}
	for i, line := range lines {
		bare := strings.TrimRight(line, "\r\n")
		key, value, ok := strings.Cut(bare, ":")
		value = strings.TrimSpace(value)
		if !ok || value == "" || strings.ContainsFunc(key, noKey) || strings.IndexByte(`|>'"{&*!`, value[0]) >= 0 {
			continue // a value that begins like this is meant as YAML
		}
		if value[0] == '[' && strings.ReplaceAll(key, "-", "_") != "argument_hint" {
			continue
		}
		if i+1 < len(lines) && strings.TrimLeft(lines[i+1], " \t") != lines[i+1] {
			continue // the value continues in the next line
		}
		if _, err := rules.Load([]byte(bare)); err == nil {
			continue
		}
		lines[i] = key + ": '" + strings.ReplaceAll(value, "'", "''") + "'" + line[len(bare):]
		changed = append(changed, i+1)
	}
	return []byte(strings.Join(lines, "")), changed
}

func noKey(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
}

// failYAML adds a problem for text that is not valid YAML; before is the number of lines before the text.
func (n *diagnostics) failYAML(err error, before int) {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		n.fail(before+1, "not valid YAML: %s", err)
		return
	}
	line := max(at.Mark.Line, 1)
	if at.ContextMark.Line > 0 && strings.Contains(at.Message, "end of stream") {
		line = at.ContextMark.Line // the beginning of the unfinished element
	}
	n.fail(line+before, "not valid YAML: %.200s", at.Message)
}

// How a skill is run.
const (
	kindInstructions = "instructions"
	kindRun          = "run"
	kindWasm         = "wasm"
	kindAgent        = "agent"
)

// Limits of single values.
const (
	maxDescription = 1024  // bytes of a description in the public format; longer ones only get a hint
	maxTurnsSaid   = 1000  // largest max_turns
	maxSeconds     = 86400 // largest timeout_seconds
	maxListed      = 256   // entries of a list
)

// front has the values of the front matter.
type front struct {
	name, version, description string
	whenToUse, argumentHint    string
	category, icon, task       string
	triggers, tags             []string
	tools, toolkits, allowed   []string
	status                     protocol.SkillStatus
	inputs, outputs            *objectSchema // outputs nil = not set
	positional                 []string      // names of the words, for skills that are called with a line of words
	wordy                      bool          // the skill takes a line of words
	maxTurns, timeout          int           // timeout in seconds; 0 = not set
	kind                       string
	file                       string // of kindRun and kindWasm, relative, with slashes
	fileLine                   int
	write, network             bool
	metadata                   map[string]any // values are jsontext.Value or strings
}

// knownKeys returns the keys of front matter that this host knows, with _ for -.
func knownKeys() []string {
	return []string{
		"name", "description", "license", "compatibility", "allowed_tools", "metadata",
		"version", "triggers", "tools", "toolkits", "category", "task", "tags", "when_to_use", "argument_hint",
		"inputs", "outputs",
		"max_turns", "timeout_seconds", "run", "wasm", "agent", "write", "network", "status", "icon", "arguments",
		"author", "model", "user_invocable", "disable_model_invocation",
	}
}

// readFront reads the front matter of a skill; folder is the name of its folder.
func readFront(d document, folder string, n *diagnostics) *front {
	r := newReader(d.front, n)
	f := &front{metadata: map[string]any{}}
	f.name = r.name(folder)
	f.version = r.text("version", "1.0.0")
	if m, _ := r.value("metadata"); m.At("version") != nil &&
		r.keys["version"].Value == nil { // the public format has the version in metadata
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
			n.hint(r.keys["allowed_tools"].Line, "allowed-tools: the rule in %s cannot be kept here, so the skill "+
				"gets no tool for it; that does not block it", quote(tool))
		}
	}
	r.rights(f)
	n.sort()
	return f
}

// rights adds diagnostics for write and network where they have no effect or are not possible.
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
		r.hint(0, "there is no name; the skill gets that of its folder, %s", quote(folder))
	}
	if err := checkName(name); err != nil {
		r.fail(m.Line, "name: %s %v; write lower-case letters, digits and hyphens", quote(name), err)
		return folder
	}
	if given && !public(name) {
		r.hint(m.Line, "name: %s does not follow the public format: at most 64 lower-case letters, digits and "+
			"single hyphens", quote(name))
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
		r.hint(0, "there is no description; the beginning of the text is used instead")
	}
	if len(text) > maxDescription {
		r.hint(r.keys["description"].Line, "description: has %d bytes; the public format has at most %d", len(text),
			maxDescription)
	}
	return text
}

func (r *reader) status() protocol.SkillStatus {
	text := r.line("status")
	for _, s := range []protocol.SkillStatus{
		protocol.SkillCreated, protocol.SkillBlocked, protocol.SkillPublished,
		protocol.SkillArchived,
	} {
		if strings.EqualFold(text, string(s)) {
			return s
		}
	}
	if text != "" {
		r.hint(r.keys["status"].Line, "status: %s has no meaning here; it is one of Created, Blocked, Published and "+
			"Archived", quote(text))
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
				r.hint(v.Line, "agent: the name of an agent of another host has no meaning here; true makes the "+
					"skill a loop of a model and tools")
				continue
			}
			if !r.truth(key) {
				continue
			}
		}
		if f.kind != kindInstructions {
			r.fail(r.keys[key].Line, "%s: cannot be combined with %s: keep one of run, wasm and agent", key, f.kind)
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
		r.fail(line, "%s: %s has characters that a path here may not have; write it with / between the folders", key,
			quote(text))
		return ""
	case path.IsAbs(text), !fs.ValidPath(short), short == ".":
		r.fail(line, "%s: %s leads out of the skill's folder; name a file in it, such as scripts/main.py", key,
			quote(text))
		return ""
	}
	return short
}

// arguments reads inputs, outputs, and the keys by which public skills take a line of words.
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

// metadata copies values that are only passed on to the agent.
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
	for _, key := range []string{
		"license", "compatibility", "author", "model", "user_invocable",
		"disable_model_invocation",
	} {
		if v, ok := r.value(key); ok {
			r.keep(f, key, v)
		}
	}
	if len(f.allowed) > 0 {
		f.metadata["allowed_tools"] = f.allowed
	}
}

// keep copies one entry of the metadata. It refuses the names that the host itself uses.
func (r *reader) keep(f *front, key string, v *yamltree.Node) {
	if slices.Contains([]string{"kind", "uri", "blocked_reason", "unknown_tools", "routing_weight", "task", "brief"},
		key) {
		r.hint(v.Line, "metadata: %s is reserved by this host; the entry is left out", key)
		return
	}
	value, err := v.JSON()
	if err != nil {
		r.fail(v.Line, "%s: %v", key, err)
		return
	}
	f.metadata[key] = value
}
