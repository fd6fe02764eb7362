//go:build unix

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/private"
)

// sealedLog is a log with a key, of several files, and what an attacker has kept of it.
type sealedLog struct {
	*testing.T
	path    string
	sealing Sealing
	older   map[string][]byte // all files at an earlier time
}

const wallRotated = 4 // files that the log has beside the newest, all of them

// newSealedLog writes 60 entries in two lives of a host; those of the first one are older.
func newSealedLog(t *testing.T) *sealedLog {
	t.Helper()
	dir := t.TempDir()
	l := &sealedLog{T: t, path: filepath.Join(dir, "log", "audit.jsonl")}
	l.sealing = SealingOf(l.path, filepath.Join(dir, "user"), "", "")
	must.OK(t, os.MkdirAll(filepath.Dir(l.path), 0o700))
	// The folder is there from now on, so that both lives find the same names.
	l.sealing = SealingOf(l.path, filepath.Join(dir, "user"), "", "")
	l.live(0, 30)
	l.older = l.files()
	l.live(30, 60)
	r := l.verify()
	must.That(t, r.OK() && (r.Entries == 60 || r.Anchor != "") && r.Sealed != nil && r.Sealed.Count == 60 && r.Sealed.Beyond == 0, "before the attack: %+v\n%s", r, r)
	return l
}

// live writes entries as one host.
func (l *sealedLog) live(from, to int) error {
	l.Helper()
	log := open(l.T, Options{Path: l.path, MaxBytes: 5000, Backups: wallRotated, Sealing: l.sealing, Logger: func(string) {}})
	for i := from; i < to; i++ {
		log.Record(sample(i))
	}
	return log.Close()
}

func (l *sealedLog) verify() Report {
	l.Helper()
	return must.Get(Verify(l.path, l.sealing))(l)
}

func (l *sealedLog) names() []string {
	names := []string{l.path, l.sealing.SealFile, l.sealing.KeyFile}
	for i := range wallRotated {
		names = append(names, l.path+"."+string(rune('1'+i)))
	}
	return names
}

func (l *sealedLog) files() map[string][]byte {
	all := map[string][]byte{}
	for _, name := range l.names() {
		if raw, err := os.ReadFile(name); err == nil {
			all[name] = raw
		}
	}
	return all
}

func (l *sealedLog) lines() [][]byte {
	raw := must.Get(os.ReadFile(l.path))(l)
	return bytes.Split(bytes.TrimSuffix(raw, []byte("\n")), []byte("\n"))
}

func (l *sealedLog) put(path string, raw []byte) {
	l.Helper()
	must.OK(l, os.WriteFile(path, raw, 0o600))
}

func (l *sealedLog) putLines(lines [][]byte) {
	l.Helper()
	l.put(l.path, append(bytes.Join(lines, []byte("\n")), '\n'))
}

func (l *sealedLog) remove(path string) {
	l.Helper()
	must.OK(l, os.Remove(path))
}

// rehash makes the links of the lines anew, as whoever has no key can.
func rehash(lines [][]byte) [][]byte {
	for i := 1; i < len(lines); i++ {
		at := bytes.LastIndex(lines[i], []byte(linkStart))
		prev := linkOf(lines[i-1])
		lines[i] = []byte(string(lines[i][:at]) + linkStart + string(prev[:]) + linkEnd)
	}
	return lines
}

// unsign takes the signatures off.
func unsign(lines [][]byte) [][]byte {
	for i := range lines {
		at, link := bytes.LastIndex(lines[i], []byte(numberStart)), bytes.LastIndex(lines[i], []byte(linkStart))
		lines[i] = slices.Concat(lines[i][:at], lines[i][link:])
	}
	return rehash(lines)
}

func edit(line []byte) []byte {
	return bytes.Replace(line, []byte(`"success":`), []byte(`"success": `), 1)
}

// TestWallAuditRewritten: whoever may write the log's folder, and has neither key nor seal,
// changes nothing that the check does not find; also not when a host writes again before.
// Without a key, cutting the end and making the hashes anew passed.
func TestWallAuditRewritten(t *testing.T) {
	attempts := map[string]func(l *sealedLog, s [][]byte){
		"the last line cut": func(l *sealedLog, s [][]byte) { l.putLines(s[:len(s)-1]) },
		"the last line cut to a half": func(l *sealedLog, s [][]byte) {
			l.put(l.path, bytes.Join(s, []byte("\n"))[:len(bytes.Join(s, []byte("\n")))-20])
		},
		"the newest file emptied":          func(l *sealedLog, s [][]byte) { l.put(l.path, nil) },
		"the newest file removed":          func(l *sealedLog, s [][]byte) { l.remove(l.path) },
		"cut and hashed anew":              func(l *sealedLog, s [][]byte) { l.putLines(rehash(s[:len(s)-2])) },
		"a field changed":                  func(l *sealedLog, s [][]byte) { s[1] = edit(s[1]); l.putLines(s) },
		"a field changed, hashed anew":     func(l *sealedLog, s [][]byte) { s[1] = edit(s[1]); l.putLines(rehash(s)) },
		"the last entry changed":           func(l *sealedLog, s [][]byte) { s[len(s)-1] = edit(s[len(s)-1]); l.putLines(s) },
		"a line deleted, hashed anew":      func(l *sealedLog, s [][]byte) { l.putLines(rehash(slices.Delete(s, 1, 2))) },
		"lines swapped":                    func(l *sealedLog, s [][]byte) { s[0], s[1] = s[1], s[0]; l.putLines(s) },
		"lines swapped, hashed anew":       func(l *sealedLog, s [][]byte) { s[1], s[2] = s[2], s[1]; l.putLines(rehash(s)) },
		"a line put in, hashed anew":       func(l *sealedLog, s [][]byte) { l.putLines(rehash(slices.Insert(s, 1, edit(s[1])))) },
		"a line doubled":                   func(l *sealedLog, s [][]byte) { l.putLines(slices.Insert(s, 1, s[1])) },
		"a line doubled, hashed anew":      func(l *sealedLog, s [][]byte) { l.putLines(rehash(slices.Insert(s, 1, s[1]))) },
		"the last line doubled":            func(l *sealedLog, s [][]byte) { l.putLines(append(s, s[len(s)-1])) },
		"a line added":                     func(l *sealedLog, s [][]byte) { l.putLines(rehash(append(s, edit(s[0])))) },
		"an unsigned line added":           func(l *sealedLog, s [][]byte) { l.putLines(rehash(append(s, unsign([][]byte{s[0]})...))) },
		"the signatures taken off the end": func(l *sealedLog, s [][]byte) { l.putLines(rehash(append(s[:1], unsign(s[1:])...))) },
		"a signature from another entry": func(l *sealedLog, s [][]byte) {
			s[1] = slices.Concat(s[1][:len(s[1])-150], s[2][len(s[2])-150:])
			l.putLines(rehash(s))
		},
		"an older file in place of all":   func(l *sealedLog, s [][]byte) { l.put(l.path, l.older[l.path]) },
		"the oldest rotated file removed": func(l *sealedLog, s [][]byte) { l.remove(l.path + ".4") },
		"a rotated file removed":          func(l *sealedLog, s [][]byte) { l.remove(l.path + ".2") },
		"all rotated files removed": func(l *sealedLog, s [][]byte) {
			for i := range wallRotated {
				l.remove(l.path + "." + string(rune('1'+i)))
			}
		},
		"rotated files swapped": func(l *sealedLog, s [][]byte) {
			a, b := l.files()[l.path+".1"], l.files()[l.path+".2"]
			l.put(l.path+".1", b)
			l.put(l.path+".2", a)
		},
		"a rotated file cut": func(l *sealedLog, s [][]byte) {
			a := l.files()[l.path+".1"]
			l.put(l.path+".1", a[:bytes.IndexByte(a, '\n')+1])
		},
		"a rotated file in the newest place": func(l *sealedLog, s [][]byte) { l.put(l.path, l.files()[l.path+".1"]) },
		"the older log whole": func(l *sealedLog, s [][]byte) {
			for _, name := range l.names() {
				if strings.HasPrefix(name, l.path) {
					l.remove(name)
					if raw := l.older[name]; raw != nil {
						l.put(name, raw)
					}
				}
			}
		},
		"the seal deleted":                      func(l *sealedLog, s [][]byte) { l.remove(l.sealing.SealFile) },
		"the seal deleted and the end cut":      func(l *sealedLog, s [][]byte) { l.remove(l.sealing.SealFile); l.putLines(s[:1]) },
		"the seal emptied":                      func(l *sealedLog, s [][]byte) { l.put(l.sealing.SealFile, nil) },
		"the seal's count lowered, the end cut": func(l *sealedLog, s [][]byte) { l.lowerSeal(); l.putLines(s[:len(s)-1]) },
		"the seal of another key": func(l *sealedLog, s [][]byte) {
			by, _ := newSigner(strings.Repeat("k", 32))
			l.forgeSeal(by, s)
			l.putLines(s[:1])
		},
		"the key replaced":                       func(l *sealedLog, s [][]byte) { l.put(l.sealing.KeyFile, []byte(strings.Repeat("k", 64))) },
		"the key deleted":                        func(l *sealedLog, s [][]byte) { l.remove(l.sealing.KeyFile) },
		"the key deleted and all signatures off": func(l *sealedLog, s [][]byte) { l.remove(l.sealing.KeyFile); l.putLines(unsign(s)) },
	}
	for name, attack := range attempts {
		t.Run(name, func(t *testing.T) {
			l := newSealedLog(t)
			attack(l, l.lines())
			r := l.verify()
			must.That(t, !r.OK(), "the check says\n%s", r)
			t.Log(r.Broken.Kind, r.Broken.Message)
			if err := l.live(60, 63); err != nil {
				t.Logf("the host wrote no more: %v", err)
			}
			if r, err := Verify(l.path, l.sealing); err == nil && r.OK() {
				t.Fatalf("a host wrote again, and the check says\n%s", r)
			}
		})
	}
}

// lowerSeal writes a smaller count into the seal.
func (l *sealedLog) lowerSeal() {
	l.Helper()
	var s map[string]any
	must.OK(l, json.Unmarshal(l.files()[l.sealing.SealFile], &s))
	s["count"] = 59
	raw, _ := json.Marshal(s)
	l.put(l.sealing.SealFile, raw)
}

// forgeSeal writes a seal with a key of the attacker's.
func (l *sealedLog) forgeSeal(by *signer, lines [][]byte) {
	l.Helper()
	at, _ := signatureIn(lines[0])
	must.OK(l, (seal{Count: at.number, Oldest: 1, Last: linkOf(lines[0]).String()}).write(l.sealing.SealFile, by, time.Now()))
}

// TestWallAuditOlderSeal: a seal kept from before lets nothing more be cut than was written
// since; the log itself still goes further, which is no alarm (a host may have been killed
// before it sealed).
func TestWallAuditOlderSeal(t *testing.T) {
	l := newSealedLog(t)
	s := l.lines()
	l.put(l.sealing.SealFile, l.older[l.sealing.SealFile])
	t.Run("beyond it nothing is proved, which the report says", func(t *testing.T) {
		r := l.verify()
		must.That(t, r.OK() && r.Sealed.Count == 30 && r.Sealed.Beyond == 30 && strings.Contains(r.String(), "30 entries after it"),
			"%s", r)
	})
	t.Run("what is beyond it is signed all the same", func(t *testing.T) {
		l.T = t
		l.putLines(rehash(slices.Insert(slices.Clone(s), 1, edit(s[1]))))
		r := l.verify()
		must.That(t, !r.OK(), "%s", r)
	})
	t.Run("and cut below it is cut", func(t *testing.T) {
		l.T = t
		l.remove(l.path)
		for i := range 3 {
			l.remove(l.path + "." + string(rune('1'+i)))
		}
		r := l.verify()
		must.That(t, !r.OK(), "%s", r)
	})
}

// TestWallAuditUnsafeFiles: a link, a second name or a pipe in the place of one of the files
// had the host write where somebody else chose.
func TestWallAuditUnsafeFiles(t *testing.T) {
	places := map[string]func(*sealedLog) string{
		"log":  func(l *sealedLog) string { return l.path },
		"lock": func(l *sealedLog) string { return l.path + lockFileName },
		"key":  func(l *sealedLog) string { return l.sealing.KeyFile },
	}
	kinds := map[string]func(t *testing.T, victim, at string) error{
		"a link":             func(_ *testing.T, victim, at string) error { return os.Symlink(victim, at) },
		"a link to nothing":  func(_ *testing.T, victim, at string) error { return os.Symlink(victim+"-new", at) },
		"a second name":      func(_ *testing.T, victim, at string) error { return os.Link(victim, at) },
		"a folder":           func(_ *testing.T, _, at string) error { return os.Mkdir(at, 0o700) },
		"a pipe":             func(_ *testing.T, _, at string) error { return unix.Mkfifo(at, 0o600) },
		"others may write":   func(_ *testing.T, _, at string) error { return writeOpen(at, 0o666) },
		"the group may, too": func(_ *testing.T, _, at string) error { return writeOpen(at, 0o660) },
	}
	for place, where := range places {
		for kind, attack := range kinds {
			t.Run(place+"/"+kind, func(t *testing.T) {
				t.Parallel()
				l := newSealedLog(t)
				victim := filepath.Join(filepath.Dir(l.path), "victim")
				content := []byte(strings.Repeat("0123456789abcdef", 4) + "\n")
				l.put(victim, content)
				_ = os.Remove(where(l))
				must.OK(t, attack(t, victim, where(l)))
				err := l.live(60, 61)
				lost, ok := errors.AsType[*LostError](err)
				assert.That(t, ok && lost.Entries == 1 && errors.Is(err, private.ErrUnsafe), "the host's log ended with %v", err)
				if got, err := os.ReadFile(victim); err != nil || !bytes.Equal(got, content) {
					t.Errorf("the other file is now %q, %v", got, err)
				}
				if _, err := os.Lstat(victim + "-new"); err == nil {
					t.Error("a file was made at the link's end")
				}
			})
		}
	}
	t.Run("key/others may read", func(t *testing.T) {
		l := newSealedLog(t)
		must.OK(t, os.Chmod(l.sealing.KeyFile, 0o644))
		assert.Is(t, l.live(60, 61), private.ErrUnsafe, "the host's log ended with")
		_, err := Verify(l.path, l.sealing)
		assert.That(t, errors.Is(err, private.ErrUnsafe), "the check gave %v", err)
	})
	t.Run("seal/a link", func(t *testing.T) { // it is put in the place of the link, not written through it
		l := newSealedLog(t)
		victim := filepath.Join(filepath.Dir(l.path), "victim")
		l.put(victim, l.files()[l.sealing.SealFile])
		l.remove(l.sealing.SealFile)
		must.OK(t, os.Symlink(victim, l.sealing.SealFile))
		before := l.files()[l.sealing.SealFile]
		r := l.verify()
		assert.That(t, !r.OK(), "the check followed it: %s", r)
		_ = l.live(60, 61)
		now, _ := os.ReadFile(victim)
		assert.That(t, bytes.Equal(now, before), "the link's end was written: %s", now)
	})
	t.Run("folder/others may write", func(t *testing.T) {
		l := newSealedLog(t)
		must.OK(t, os.Chmod(filepath.Dir(l.path), 0o777))
		assert.Is(t, l.live(60, 61), private.ErrUnsafe, "the host's log ended with")
	})
}

func writeOpen(path string, mode os.FileMode) error {
	if err := os.WriteFile(path, []byte(strings.Repeat("0123456789abcdef", 4)), 0o600); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// TestSealedLogOfBefore: a log without a key goes on with one, and is good all the time; so is
// one of several hosts at once, and of hosts that ended between entry and seal.
func TestSealedLogOfBefore(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	chain(t, path, 5)
	sealing := SealingOf(path, filepath.Join(dir, "user"), "", "")
	r, err := Verify(path, sealing)
	must.That(t, err == nil && r.OK() && r.Entries == 5 && strings.Contains(r.String(), "has no key"), "an old log: %v, %s", err, r)
	l := &sealedLog{T: t, path: path, sealing: sealing}
	must.OK(t, l.live(5, 6))
	before, _ := os.ReadFile(sealing.SealFile)
	must.OK(t, l.live(6, 8))
	if r := l.verify(); !r.OK() || r.Signed != 3 || r.Entries != 8 || r.Sealed.Count != 3 || !strings.Contains(r.String(), "the 5 entries before the key") {
		t.Fatalf("%s", r)
	}
	l.put(sealing.SealFile, before) // as a host leaves it that was killed behind an entry
	must.OK(t, l.live(8, 9))
	r = l.verify()
	must.That(t, r.OK() && r.Sealed.Count == 4 && r.Sealed.Beyond == 0, "%s", r)
}
