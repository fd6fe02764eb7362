package skill

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
)

// Entry is what there is to say of one SKILL.md, or of a whole folder of skills.
type Entry struct {
	File       string // its path, as the folders were named
	Folder     bool   // File is a folder of skills
	Name       string // of the skill; "" = it cannot be told
	Kind       string // instructions, run, wasm or agent; "" for a broken one
	Problems   []Note // why it cannot be used
	Hints      []Note // what of it has no effect, or not the one it may be meant to have
	ShadowedBy string // the file of the skill that has the name; "" = this one
}

// Check looks at all skills that a plugin with these options would find, in the order in
// which they win names. The error says which option does not fit.
func Check(opts Options, env Env) ([]Entry, error) {
	roots, err := rootsOf(opts, env)
	if err != nil {
		return nil, err
	}
	return check(roots), nil
}

// CheckFolder looks at one folder: a skill, or a folder of skills.
func CheckFolder(path string) ([]Entry, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, errors.New("this is no folder; name the folder of a skill, or one with skills in it")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return check([]*root{{source: sourceSystem, base: abs, rel: ".", show: path, named: true}}), nil
}

func check(roots []*root) []Entry {
	s := newLibrary(roots, time.Now, zerolog.Nop()).current(true)
	var all []Entry
	for _, root := range roots {
		if n := s.roots[root]; len(n.problems)+len(n.hints) > 0 {
			all = append(all, Entry{File: root.show, Folder: true, Problems: n.problems, Hints: n.hints})
		}
	}
	for _, f := range s.all {
		e := Entry{File: f.show, Name: f.name, Problems: f.problems, Hints: f.hints, ShadowedBy: s.shadow[f]}
		if f.skill != nil {
			e.Kind = f.skill.front.kind
		}
		all = append(all, e)
	}
	return all
}
