package skill

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"golang.org/x/text/unicode/norm"

	"a2e/host/config/yamltree"
	"a2e/host/guard/wall"
	"a2e/protocol"
)

// Limits of the public format of Agent Skills, in characters; the depth is that of the YAML.
const (
	maxPublicName     = 64
	maxPublicAbout    = 1024
	maxCompatibility  = 500
	maxValidatedDepth = 200
)

// publicKeys returns the keys of the public format.
func publicKeys() []string {
	return []string{"allowed-tools", "compatibility", "description", "license", "metadata", "name"}
}

// Validate checks a skill against the public format of Agent Skills, with the same results as its
// reference validator: a skill without problems is valid. This check is stricter than that of this host,
// and valid skills also work here. path is the skill's folder or its SKILL.md. It returns an error if path
// is neither.
func Validate(path string) (CheckResult, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() && strings.EqualFold(filepath.Base(path), "skill.md") {
		path = filepath.Dir(path)
		info, err = os.Stat(path)
	}
	if err != nil {
		return CheckResult{}, err
	}
	if !info.IsDir() {
		return CheckResult{}, errors.New("this is not a folder; name the folder of a skill")
	}
	e := CheckResult{File: filepath.Join(path, "SKILL.md")}
	abs, err := filepath.Abs(path)
	if err != nil {
		return e, err
	}
	e.Name = filepath.Base(abs)
	var n diagnostics
	text, err := publicText(path, &e)
	if err != nil {
		n.fail(0, "%v", reason(err))
	} else {
		n.validate(text, filepath.Base(abs), &e)
	}
	e.Problems = n.problems
	return e, nil
}

// publicText reads the SKILL.md in dir, and sets e.File to its path.
func publicText(dir string, e *CheckResult) (string, error) {
	for _, name := range []string{"SKILL.md", "skill.md"} {
		file := filepath.Join(dir, name)
		info, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return "", err
		case !info.Mode().IsRegular():
			return "", errors.New("this is not a regular file")
		case info.Size() > maxSkillBytes:
			return "", fmt.Errorf("the file has %d bytes; at most %d are taken", info.Size(), maxSkillBytes)
		}
		e.File = file
		text, err := os.ReadFile(file)
		if err == nil && !utf8.Valid(text) {
			err = errors.New("there are bytes that are not UTF-8 in the file")
		}
		return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text)), err
	}
	return "", errors.New("there is no SKILL.md in the folder")
}

// validate checks the text of a SKILL.md; folder is the name of its folder.
func (n *diagnostics) validate(text, folder string, e *CheckResult) {
	if !strings.HasPrefix(text, "---") {
		n.fail(1, "the file does not begin with front matter, a line ---")
		return
	}
	parts := strings.SplitN(text, "---", 3) // the reference validator also splits within a line
	if len(parts) < 3 {
		n.fail(1, "the front matter has no end; put a line --- after it")
		return
	}
	root := n.publicYAML(parts[1])
	if root == nil {
		return
	}
	values := make(map[string]*yaml.Node, len(root.Content)/2)
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Tag == mergeTag {
			continue // merged keys do not count
		}
		values[key.Value] = value
		if !slices.Contains(publicKeys(), key.Value) {
			n.fail(key.Line, "the public format has no key %s; it has %s. What else belongs to the skill goes into "+
				"metadata", quote(key.Value), strings.Join(publicKeys(), ", "))
		}
	}
	n.publicName(values["name"], folder, e)
	n.publicAbout(values["description"])
	if c := values["compatibility"]; c != nil && c.Kind != yaml.ScalarNode {
		n.fail(c.Line, "compatibility: should be a text")
	} else if c != nil {
		n.within(c, "compatibility", maxCompatibility)
	}
	n.sort()
}

// publicYAML reads front matter, which begins in the first line, or returns nil if the public format does not
// allow it.
func (n *diagnostics) publicYAML(text string) *yaml.Node {
	if at := strings.IndexFunc(text, unprintable); at >= 0 {
		n.fail(1+strings.Count(text[:at], "\n"), "there is a control character in the front matter")
		return nil
	}
	rules := yamltree.Rules{Depth: maxValidatedDepth}
	text = strings.NewReplacer("\u0085", "\u00a0", "\u2028", "\u00a0", "\u2029",
		"\u00a0").Replace(text) // these do not end a line in YAML 1.2
	root, err := rules.Load([]byte(text))
	switch {
	case err != nil:
		n.failYAML(err, 0)
		return nil
	case root == nil || strings.HasPrefix(strings.TrimLeft(text, "\n"), "..."):
		n.fail(1, "the front matter is empty")
		return nil
	case !n.plainYAML(root):
		return nil
	case root.Kind != yaml.MappingNode:
		n.fail(root.Line, "the front matter is not a mapping such as \"name: my-skill\"")
		return nil
	}
	// with tabMark for each tab, the YAML stays valid only if all tabs are in quotes, blocks, comments or plain text
	if at := strings.IndexByte(text, '\t'); at >= 0 {
		marked, err := rules.Load([]byte(strings.ReplaceAll(text, "\t", tabMark)))
		if err != nil || markedPlain(marked) {
			n.fail(1+strings.Count(text[:at], "\n"), "there is a tab outside of quotes; write spaces")
			return nil
		}
	}
	return root
}

// tabMark replaces a tab to find out where tabs are.
const tabMark = "\ue000"

// markedPlain reports whether a scalar without quotes has a tabMark.
func markedPlain(v *yaml.Node) bool {
	return v.Kind == yaml.ScalarNode && v.Style == 0 && strings.Contains(v.Value, tabMark) ||
		slices.ContainsFunc(v.Content, markedPlain)
}

// unprintable reports whether YAML does not allow a character.
func unprintable(r rune) bool {
	switch {
	case r == '\t', r == '\n', r == 0x85, r >= ' ' && r <= '~', r >= 0xa0 && r <= 0xfffd, r >= 0x10000:
		return false
	}
	return true
}

// within adds a problem if a text has more than most characters.
func (n *diagnostics) within(v *yaml.Node, key string, most int) {
	if count := utf8.RuneCountInString(v.Value); count > most {
		n.fail(v.Line, "%s: has %d characters; the public format has at most %d", key, count, most)
	}
}

// plainYAML reports whether the YAML has only what the public format allows, and otherwise adds a problem.
// Not allowed are flow style, anchors, tags, duplicate keys, and sibling mappings with different indentation.
func (n *diagnostics) plainYAML(v *yaml.Node) bool {
	what := ""
	switch {
	case v.Kind == yaml.AliasNode || v.Anchor != "":
		what = "an anchor or alias"
	case v.Style&yaml.TaggedStyle != 0:
		what = "a tag"
	case v.Kind != yaml.ScalarNode && v.Style&yaml.FlowStyle != 0:
		what = "a list or mapping in brackets"
	}
	if what != "" {
		n.fail(v.Line, "there is %s, which the public format does not take; write it out, or put quotes around it "+
			"if it is meant as text", what)
		return false
	}
	column, seen := 0, map[string]bool{}
	for i, child := range v.Content {
		if !n.plainYAML(child) {
			return false
		}
		if v.Kind != yaml.MappingNode {
			continue
		}
		switch key := i%2 == 0; {
		case key && (child.Kind != yaml.ScalarNode || seen[child.Value]):
			n.fail(child.Line, "the key %s appears twice, or is not a text", quote(child.Value))
			return false
		case key && child.Tag == mergeTag && !mergeable(v.Content[i+1]):
			n.fail(child.Line, "<< should have a mapping, or a list of some; put quotes around it if it is meant as text")
			return false
		case key:
			seen[child.Value] = true
		case child.Kind == yaml.MappingNode && column != 0 && child.Column != column:
			n.fail(child.Line, "the mapping is not indented as the one before it")
			return false
		case child.Kind == yaml.MappingNode:
			column = child.Column
		}
	}
	return true
}

// mergeTag is the tag of a key << without quotes.
const mergeTag = "!!merge"

// mergeable reports whether a value can be the value of <<.
func mergeable(v *yaml.Node) bool {
	return v.Kind == yaml.MappingNode || v.Kind == yaml.SequenceNode && !slices.ContainsFunc(v.Content,
		func(c *yaml.Node) bool { return c.Kind != yaml.MappingNode })
}

// publicName checks the name of a skill; folder is the name of its folder.
func (n *diagnostics) publicName(v *yaml.Node, folder string, e *CheckResult) {
	switch {
	case v == nil:
		n.fail(0, "name: is missing")
		return
	case v.Kind != yaml.ScalarNode || strings.TrimSpace(v.Value) == "":
		n.fail(v.Line, "name: should be a text that is not empty")
		return
	}
	name := norm.NFKC.String(strings.TrimSpace(v.Value))
	e.Name = name
	if count := utf8.RuneCountInString(name); count > maxPublicName {
		n.fail(v.Line, "name: has %d characters; the public format has at most %d", count, maxPublicName)
	}
	if why := publicFlaw(name); why != "" {
		n.fail(v.Line, "name: %s %s", quote(name), why)
	}
	if norm.NFKC.String(folder) != name {
		n.fail(v.Line, "name: %s should be the name of the folder, %s", quote(name), quote(folder))
	}
}

// publicFlaw returns what is wrong with a name in the public format; "" = nothing.
func publicFlaw(name string) string {
	switch {
	case name != strings.ToLower(name):
		return "should be in lower case"
	case strings.Trim(name, "-") != name:
		return "should not begin or end with a hyphen"
	case strings.Contains(name, "--"):
		return "should have no two hyphens side by side"
	case strings.ContainsFunc(name, func(r rune) bool {
		return r != '-' && !unicode.IsLetter(r) &&
			!unicode.IsNumber(r)
	}):
		return "should have letters, digits and hyphens only"
	}
	return ""
}

// publicAbout checks the description.
func (n *diagnostics) publicAbout(v *yaml.Node) {
	switch {
	case v == nil:
		n.fail(0, "description: is missing; say what the skill does, and when to use it")
	case v.Kind != yaml.ScalarNode || strings.TrimSpace(v.Value) == "":
		n.fail(v.Line, "description: should be a text that is not empty")
	default:
		n.within(v, "description", maxPublicAbout)
	}
}

// NewSkill writes a template of a skill into a new folder name below base/rel, and returns the path of
// its SKILL.md. It makes missing parent folders, does not follow links out of base, and does not change
// existing files.
func NewSkill(base, rel, name, about string) (string, error) {
	var n diagnostics
	switch count := utf8.RuneCountInString(about); {
	case name == "" || utf8.RuneCountInString(name) > maxPublicName:
		return "", fmt.Errorf("the name %s should have 1 to %d characters", quote(name), maxPublicName)
	case publicFlaw(name) != "" || norm.NFKC.String(name) != name:
		return "", fmt.Errorf("the name %s %s; write it as in pdf-forms", quote(name), publicFlaw(name))
	case count > maxPublicAbout:
		return "", fmt.Errorf("the description has %d characters; the public format has at most %d", count,
			maxPublicAbout)
	}
	if about = strings.TrimSpace(about); about == "" {
		about = "Say here what the skill does, and when to use it."
	}
	quoted := strings.ReplaceAll(string(protocol.AppendString(nil, about)), "---",
		`-\u002d-`) // --- would end the front matter
	text := fmt.Sprintf("---\nname: %q\ndescription: %s\n---\n\n# %s\n\nSay here what to do, step by step. Files "+
		"beside this one, such as\nscripts/ and references/, belong to the skill.\n", name, quoted, name)
	if n.validate(text, name, &CheckResult{}); n.problems != nil {
		return "", errors.New(n.problems[0].Text)
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(wall.AsDir(base))
	if err != nil {
		return "", err
	}
	defer root.Close()
	if err := root.MkdirAll(rel, 0o755); err != nil {
		return "", err
	}
	dir := filepath.Join(rel, name)
	if err := root.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("%s is there already; nothing was changed", filepath.Join(base, dir))
	} else if err != nil {
		return "", err
	}
	doc := filepath.Join(dir, "SKILL.md")
	return filepath.Join(base, doc), root.WriteFile(doc, []byte(text), 0o644)
}
