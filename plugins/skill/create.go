package skill

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"a2e/protocol"
)

// NewSkill writes a skill to begin with into a folder of its name below base/rel, and returns the path of
// its SKILL.md. What is missing on the way is made, and no link leads out of base. Nothing that
// is there is changed.
func NewSkill(base, rel, name, about string) (string, error) {
	var n notes
	switch count := utf8.RuneCountInString(about); {
	case name == "" || utf8.RuneCountInString(name) > maxPublicName:
		return "", fmt.Errorf("the name %s should have 1 to %d characters", quote(name), maxPublicName)
	case publicFlaw(name) != "" || norm.NFKC.String(name) != name:
		return "", fmt.Errorf("the name %s %s; write it as in pdf-forms", quote(name), publicFlaw(name))
	case count > maxPublicAbout:
		return "", fmt.Errorf("the description has %d characters; the public format has at most %d", count, maxPublicAbout)
	}
	if about = strings.TrimSpace(about); about == "" {
		about = "Say here what the skill does, and when to use it."
	}
	quoted := strings.ReplaceAll(string(protocol.AppendString(nil, about)), "---", `-\u002d-`) // which would end the front matter
	text := fmt.Sprintf("---\nname: %q\ndescription: %s\n---\n\n# %s\n\nSay here what to do, step by step. Files beside this one, such as\nscripts/ and references/, belong to the skill.\n", name, quoted, name)
	if n.validate(text, name, &Entry{}); n.problems != nil {
		return "", errors.New(n.problems[0].Text)
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(asDir(base))
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
