package skill

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config/yamltree"
	"a2e/host/schema"
	"a2e/protocol"
)

const (
	checkEvery  = 500 * time.Millisecond // between checks of more than fewWatched paths
	fewWatched  = 500                    // paths: up to this number are checked for each request
	freshChange = 2 * time.Second        // a file this young may change again without a change of its time
	maxLogged   = 20                     // broken skills logged at one load
)

// library has the skills of all roots, as of the last check.
type library struct {
	roots []*root
	max   bounds
	now   func() time.Time
	log   zerolog.Logger

	mu         sync.Mutex
	repository *repository // nil until the first request; guarded by mu
	watched    [][]watched // by root; guarded by mu
	checked    time.Time   // guarded by mu
	settled    bool        // no watched path was younger than freshChange at the last load; guarded by mu
}

// repository is the result of one load. It does not change.
type repository struct {
	skills []*skill // by name
	byName map[string]*skill
	names  []string
	all    []*found              // also broken and shadowed skills, in the order of the roots
	shadow map[*found]string     // file of the earlier skill with the same name
	roots  map[*root]diagnostics // about whole roots
}

func newLibrary(roots []*root, now func() time.Time, log zerolog.Logger) *library {
	max := bounds{folders: 5000, names: 300_000, skills: 1000, bytes: 16 << 20}
	return &library{roots: roots, max: max, now: now, log: log}
}

// current returns the current skills. If the roots have very many paths, the result may be half a
// second old, unless fresh is true.
func (l *library) current(fresh bool) *repository {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.repository == nil {
		l.loadLocked()
		return l.repository
	}
	count := 0
	for _, w := range l.watched {
		count += len(w)
	}
	if !fresh && count > fewWatched && l.now().Sub(l.checked) < checkEvery {
		return l.repository
	}
	l.checked = l.now()
	if !l.settled || l.changedLocked() {
		l.loadLocked()
	}
	return l.repository
}

// changedLocked reports whether a watched path has changed.
func (l *library) changedLocked() bool {
	for i, root := range l.roots {
		top, err := root.open()
		if err != nil {
			if len(l.watched[i]) > 0 {
				return true
			}
			continue
		}
		same := len(l.watched[i]) > 0 && unchanged(top, l.watched[i])
		top.Close()
		if !same {
			return true
		}
	}
	return false
}

func unchanged(top *os.Root, all []watched) bool {
	for _, w := range all {
		info, err := top.Lstat(w.rel)
		if err != nil {
			info = nil
		}
		if !sameState(w.info, info) {
			return false
		}
	}
	return true
}

func sameState(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}

// loadLocked walks all roots.
func (l *library) loadLocked() {
	s := &repository{byName: map[string]*skill{}, shadow: map[*found]string{}, roots: map[*root]diagnostics{}}
	l.watched = make([][]watched, len(l.roots))
	begun, where := l.now(), map[string]string{}
	var tops []fs.FileInfo
	l.settled = true
	for i, root := range l.roots {
		w := &walk{root: root, max: l.max}
		if info := repeated(root, &tops); info != nil {
			w.hint(0, "the same folder is listed before; it counts once")
			w.watched = []watched{{".", info}}
		} else {
			w.run()
		}
		l.watched[i] = w.watched
		for _, x := range w.watched {
			if x.info != nil && begun.Sub(x.info.ModTime()).Abs() < freshChange {
				l.settled = false
			}
		}
		s.roots[root] = w.diagnostics
		for _, f := range w.found {
			s.add(f, where, l.max.skills)
		}
	}
	slices.SortFunc(s.skills, func(a, b *skill) int { return strings.Compare(a.name, b.name) })
	for _, one := range s.skills {
		s.names = append(s.names, one.name)
	}
	l.tellLocked(s)
	l.repository, l.checked = s, l.now()
}

// repeated returns the file info of a root that is the same folder as an earlier one, otherwise nil. It
// adds a new folder to tops.
func repeated(r *root, tops *[]fs.FileInfo) fs.FileInfo {
	top, err := r.open()
	if err != nil {
		return nil
	}
	defer top.Close()
	info, err := top.Lstat(".")
	if err != nil {
		return nil
	}
	if slices.ContainsFunc(*tops, func(other fs.FileInfo) bool { return os.SameFile(other, info) }) {
		return info
	}
	*tops = append(*tops, info)
	return nil
}

// add adds a skill that was found. where maps the names so far to their files; most is the maximum
// number of skills.
func (s *repository) add(f *found, where map[string]string, most int) {
	s.all = append(s.all, f)
	if f.skill == nil {
		return
	}
	if first, taken := where[f.name]; taken {
		s.shadow[f] = first
		return
	}
	if len(s.skills) >= most {
		f.fail(0, "there are more than %d skills; this one is left out", most)
		f.skill = nil
		return
	}
	where[f.name] = f.show
	s.byName[f.name] = f.skill
	s.skills = append(s.skills, f.skill)
}

// tellLocked logs the skills that are broken and were not at the last load.
func (l *library) tellLocked(s *repository) {
	before := map[string]bool{}
	if l.repository != nil {
		for _, f := range l.repository.all {
			if len(f.problems) > 0 {
				before[f.show+f.problems[0].Text] = true
			}
		}
	}
	logged := 0
	for _, f := range s.all {
		if len(f.problems) == 0 || before[f.show+f.problems[0].Text] {
			continue
		}
		if logged++; logged > maxLogged {
			l.log.Warn().Msg("more skills are broken; `a2e skills check` lists them")
			return
		}
		first := f.problems[0]
		l.log.Warn().Str("skill", f.folder).Str("file", f.show).Int("line", first.Line).
			Msg("broken skill: " + first.Text)
	}
}

// CheckResult is the result of checking one SKILL.md or a whole folder of skills.
type CheckResult struct {
	File       string       // path, relative if the folder was named so
	Folder     bool         // File is a folder of skills
	Name       string       // of the skill, or of its folder if it is broken; "" for a folder of skills
	Kind       string       // instructions, run, wasm or agent; "" for a broken skill
	Problems   []Diagnostic // why it cannot be used
	Hints      []Diagnostic // parts that have no effect, or another one than expected
	ShadowedBy string       // the file of an earlier skill with the same name; "" = none
}

// Check checks all skills that a plugin with these options would find, in the order of their
// priority. The error says which option is wrong.
func Check(opts Options, env host.Env) ([]CheckResult, error) {
	roots, err := rootsOf(opts, env)
	if err != nil {
		return nil, err
	}
	return check(roots), nil
}

// CheckFolder checks one folder: a skill, or a folder of skills.
func CheckFolder(path string) ([]CheckResult, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, errors.New("this is not a folder; name the folder of a skill, or one with skills in it")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return check([]*root{{source: sourceSystem, base: abs, rel: ".", show: path, named: true}}), nil
}

func check(roots []*root) []CheckResult {
	s := newLibrary(roots, time.Now, zerolog.Nop()).current(true)
	var all []CheckResult
	for _, root := range roots {
		if n := s.roots[root]; len(n.problems)+len(n.hints) > 0 {
			all = append(all, CheckResult{File: root.show, Folder: true, Problems: n.problems, Hints: n.hints})
		}
	}
	for _, f := range s.all {
		e := CheckResult{File: f.show, Name: f.name, Problems: f.problems, Hints: f.hints, ShadowedBy: s.shadow[f]}
		if f.skill != nil {
			e.Kind = f.skill.front.kind
		}
		if len(f.problems) > 0 {
			e.Name = f.folder
		}
		all = append(all, e)
	}
	return all
}

// reader reads the keys of front matter, and records what is wrong with them.
type reader struct {
	*diagnostics
	keys map[string]yamltree.Member // by name, with _ for -
}

// newReader returns a reader for the keys of a mapping.
func newReader(m *yamltree.Node, n *diagnostics) *reader {
	r := &reader{diagnostics: n, keys: map[string]yamltree.Member{}}
	known := knownKeys()
	for _, e := range m.Members {
		name := strings.ReplaceAll(e.Key, "-", "_")
		if first, twice := r.keys[name]; twice {
			n.fail(e.Line, "the key %s appears twice, as %s in line %d; keep one", quote(e.Key), quote(first.Key),
				first.Line)
			continue
		}
		r.keys[name] = e
		if !slices.Contains(known, name) {
			says := schema.DidYouMean(e.Key, known)
			if says == "" {
				says = "it is ignored"
			}
			n.hint(e.Line, "the key %s has no meaning here; %s", quote(e.Key), says)
		}
	}
	return r
}

// value returns the value of a key, unless it is empty.
func (r *reader) value(key string) (*yamltree.Node, bool) {
	m, ok := r.keys[key]
	return m.Value, ok && !m.Value.Null()
}

// text reads a scalar as text, numbers and booleans as they are written. otherwise is the default.
func (r *reader) text(key, otherwise string) string {
	v, ok := r.value(key)
	if !ok {
		return otherwise
	}
	if v.Kind != yamltree.Scalar {
		r.fail(v.Line, "%s: must be a string, not %s", key, v.What())
		return otherwise
	}
	return strings.TrimSpace(v.Text)
}

// line reads a text of one line. It refuses control characters.
func (r *reader) line(key string) string {
	text := r.text(key, "")
	if strings.ContainsFunc(text, unicode.IsControl) {
		r.fail(r.keys[key].Line, "%s: there are control characters in it", key)
		return ""
	}
	return text
}

// list reads a list of texts, or one text that it splits at the separators.
func (r *reader) list(key, separators string) []string {
	v, ok := r.value(key)
	if !ok {
		return nil
	}
	if v.Kind != yamltree.Scalar {
		return r.texts(key, v)
	}
	var all []string
	for part := range strings.FieldsFuncSeq(v.Text, func(c rune) bool { return strings.ContainsRune(separators, c) }) {
		if part = strings.TrimSpace(part); part != "" && len(all) < maxListed {
			all = append(all, part)
		}
	}
	return all
}

// texts reads the entries of a list.
func (r *reader) texts(key string, v *yamltree.Node) (all []string) {
	switch {
	case v.Kind != yamltree.List:
		r.fail(v.Line, "%s: must be a list of strings, not %s", key, v.What())
		return nil
	case len(v.Items) > maxListed:
		r.fail(v.Line, "%s: has %d entries; at most %d are taken", key, len(v.Items), maxListed)
		return nil
	}
	for _, item := range v.Items {
		if name := item.At("name"); name != nil && name.Kind == yamltree.Scalar { // some write {name: …}
			item = name
		}
		if item.Kind != yamltree.Scalar || item.Null() {
			r.fail(item.Line, "%s: each entry must be a string, not %s", key, item.What())
			continue
		}
		if text := strings.TrimSpace(item.Text); text != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// tools reads names of tools: a list, or a text such as "Read, Bash(git add:*) Grep".
func (r *reader) tools(key string) []string {
	v, ok := r.value(key)
	if !ok {
		return nil
	}
	if v.Kind != yamltree.Scalar {
		return r.texts(key, v)
	}
	depth := 0
	words := strings.FieldsFunc(v.Text, func(c rune) bool {
		switch c {
		case '(':
			depth++
		case ')':
			depth = max(depth-1, 0)
		}
		return depth == 0 && (c == ',' || unicode.IsSpace(c))
	})
	if len(words) > maxListed {
		r.fail(v.Line, "%s: names %d tools; at most %d are taken", key, len(words), maxListed)
		return nil
	}
	var all []string
	for _, word := range words {
		if word[0] == '(' && len(all) > 0 { // "Bash (git:*)": the rule belongs to the tool before it
			all[len(all)-1] += word
			continue
		}
		if !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}

// truth reads true or false; a missing key is false.
func (r *reader) truth(key string) bool {
	v, ok := r.value(key)
	if !ok {
		return false
	}
	if v.Kind == yamltree.Scalar {
		switch strings.ToLower(v.Text) {
		case "true", "yes":
			return true
		case "false", "no":
			return false
		}
	}
	r.fail(v.Line, "%s: should be true or false", key)
	return false
}

// whole reads a whole number from 1 to most; it returns 0 for a missing key.
func (r *reader) whole(key string, most int) int {
	v, ok := r.value(key)
	if !ok {
		return 0
	}
	if v.Kind == yamltree.Scalar {
		if f, err := strconv.ParseFloat(v.Text, 64); err == nil && f == float64(int(f)) && f >= 1 &&
			f <= float64(most) {
			return int(f)
		}
	}
	r.fail(v.Line, "%s: should be a whole number of 1 to %d", key, most)
	return 0
}

// maxNameBytes is the length of the longest name of a skill, in bytes.
const maxNameBytes = 128

// checkName returns why a text cannot be the name of a skill, or nil. The name is part of
// skill://NAME/FILE and of messages to people, so it may not have characters with a special meaning
// there or invisible ones.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case len(name) > maxNameBytes:
		return fmt.Errorf("has %d bytes; at most %d are taken", len(name), maxNameBytes)
	case name == "." || name == "..":
		return errors.New("is the name of a folder above")
	case strings.TrimSpace(name) != name:
		return errors.New("begins or ends with a space")
	case strings.ContainsAny(name, `/\`):
		return errors.New("has a slash; a name is not a path")
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return fmt.Errorf("has the character U+%04X, which cannot be seen", r)
		}
	}
	return nil
}

// public reports whether a name follows the public format.
func public(name string) bool {
	if len(name) > 64 || strings.Contains(name, "--") || strings.Trim(name, "-") != name {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') &&
			r != '-'
	})
}

// quote returns a foreign text for a message: in quotes, and cut to 80 bytes.
func quote(text string) string {
	const most = 80
	if len(text) <= most {
		return strconv.Quote(text)
	}
	return strconv.Quote(protocol.Head(text, most)) + "…"
}
