//go:build unix

package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"a2e/host/guard/private"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/observe/event"
)

// signedLog is a log of several files whose entries are signed with a key.
type signedLog struct {
	*testing.T
	path string
	key  Key
}

const wallMoved = 4 // older files of the log, besides the newest one

// newSignedLog writes 60 entries, 12 into each file.
func newSignedLog(t *testing.T) *signedLog {
	t.Helper()
	dir := t.TempDir()
	l := &signedLog{T: t, path: filepath.Join(dir, "log", "audit.jsonl")}
	must.OK(t, os.MkdirAll(filepath.Dir(l.path), 0o700))
	l.key = KeyOf(l.path, filepath.Join(dir, "user"), "", "")
	for file := range wallMoved + 1 {
		must.OK(t, l.live(12*file, 12*file+12))
		for i := wallMoved; i > 0 && file < wallMoved; i-- {
			_ = os.Rename(fmt.Sprint(l.path, ".", i-1), fmt.Sprint(l.path, ".", i))
		}
		if file < wallMoved {
			must.OK(t, os.Rename(l.path, l.path+".1"))
		}
	}
	r := l.verify()
	must.That(t, r.OK() && r.Entries == 60 && r.Keyed && r.Signed == 60, "before the attack: %+v\n%s", r, r)
	return l
}

// live opens the log like a host and writes the entries from to to-1.
func (l *signedLog) live(from, to int) error {
	l.Helper()
	log := open(l.T, Options{Path: l.path, Key: l.key, Logger: func(string) {}})
	for i := from; i < to; i++ {
		log.Take(sample(i))
	}
	return log.Close()
}

func (l *signedLog) verify() Report {
	l.Helper()
	return must.Get(Verify(l.path, l.key))(l)
}

func (l *signedLog) names() []string {
	names := []string{l.path, l.key.File}
	for i := range wallMoved {
		names = append(names, l.path+"."+string(rune('1'+i)))
	}
	return names
}

func (l *signedLog) files() map[string][]byte {
	all := map[string][]byte{}
	for _, name := range l.names() {
		if raw, err := os.ReadFile(name); err == nil {
			all[name] = raw
		}
	}
	return all
}

func (l *signedLog) lines() [][]byte {
	raw := must.Get(os.ReadFile(l.path))(l)
	return bytes.Split(bytes.TrimSuffix(raw, []byte("\n")), []byte("\n"))
}

func (l *signedLog) put(path string, raw []byte) {
	l.Helper()
	must.OK(l, os.WriteFile(path, raw, 0o600))
}

func (l *signedLog) putLines(lines [][]byte) {
	l.Helper()
	l.put(l.path, append(bytes.Join(lines, []byte("\n")), '\n'))
}

func (l *signedLog) remove(path string) {
	l.Helper()
	must.OK(l, os.Remove(path))
}

// rehash computes the links of the lines again, as anybody without the key can.
func rehash(lines [][]byte) [][]byte {
	for i := 1; i < len(lines); i++ {
		at := bytes.LastIndex(lines[i], []byte(linkStart))
		prev := linkOf(lines[i-1])
		lines[i] = []byte(string(lines[i][:at]) + linkStart + string(prev[:]) + linkEnd)
	}
	return lines
}

// unsign removes the signatures from the lines.
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

// TestWallAuditRewritten: whoever can write in the log's folder, but has no key, can change nothing between the first
// entry and the last without being found, not even if a host writes again before the check.
func TestWallAuditRewritten(t *testing.T) {
	attempts := map[string]func(l *signedLog, s [][]byte){
		"a field changed":              func(l *signedLog, s [][]byte) { s[1] = edit(s[1]); l.putLines(s) },
		"a field changed, hashed anew": func(l *signedLog, s [][]byte) { s[1] = edit(s[1]); l.putLines(rehash(s)) },
		"the last entry changed": func(l *signedLog,
			s [][]byte,
		) {
			s[len(s)-1] = edit(s[len(s)-1])
			l.putLines(s)
		},
		"a line deleted, hashed anew": func(l *signedLog,
			s [][]byte,
		) {
			l.putLines(rehash(slices.Delete(s, 1, 2)))
		},
		"lines swapped": func(l *signedLog, s [][]byte) { s[0], s[1] = s[1], s[0]; l.putLines(s) },
		"lines swapped, hashed anew": func(l *signedLog, s [][]byte) {
			s[1], s[2] = s[2],
				s[1]
			l.putLines(rehash(s))
		},
		"a line put in, hashed anew": func(l *signedLog,
			s [][]byte,
		) {
			l.putLines(rehash(slices.Insert(s, 1, edit(s[1]))))
		},
		"a line doubled": func(l *signedLog, s [][]byte) { l.putLines(slices.Insert(s, 1, s[1])) },
		"a line doubled, hashed anew": func(l *signedLog,
			s [][]byte,
		) {
			l.putLines(rehash(slices.Insert(s, 1, s[1])))
		},
		"the last line doubled": func(l *signedLog, s [][]byte) { l.putLines(append(s, s[len(s)-1])) },
		"a line added": func(l *signedLog,
			s [][]byte,
		) {
			l.putLines(rehash(append(s, edit(s[0]))))
		},
		"an unsigned line added": func(l *signedLog,
			s [][]byte,
		) {
			l.putLines(rehash(append(s, unsign([][]byte{s[0]})...)))
		},
		"the signatures taken off the end": func(l *signedLog,
			s [][]byte,
		) {
			l.putLines(rehash(append(s[:1], unsign(s[1:])...)))
		},
		"a signature from another entry": func(l *signedLog, s [][]byte) {
			s[1] = slices.Concat(s[1][:len(s[1])-150], s[2][len(s[2])-150:])
			l.putLines(rehash(s))
		},
		"a moved file removed": func(l *signedLog, s [][]byte) { l.remove(l.path + ".2") },
		"moved files swapped": func(l *signedLog, s [][]byte) {
			a, b := l.files()[l.path+".1"], l.files()[l.path+".2"]
			l.put(l.path+".1", b)
			l.put(l.path+".2", a)
		},
		"a moved file cut": func(l *signedLog, s [][]byte) {
			a := l.files()[l.path+".1"]
			l.put(l.path+".1", a[:bytes.IndexByte(a, '\n')+1])
		},
		"a moved file in the newest place": func(l *signedLog, s [][]byte) { l.put(l.path, l.files()[l.path+".1"]) },
		"the key replaced": func(l *signedLog, s [][]byte) {
			l.put(l.key.File,
				[]byte(strings.Repeat("k", 64)))
		},
	}
	for name, attack := range attempts {
		t.Run(name, func(t *testing.T) {
			l := newSignedLog(t)
			attack(l, l.lines())
			r := l.verify()
			must.That(t, !r.OK(), "the check says\n%s", r)
			t.Log(r.Broken.Kind, r.Broken.Message)
			if err := l.live(60, 63); err != nil {
				t.Logf("the host wrote no more: %v", err)
			}
			if r, err := Verify(l.path, l.key); err == nil && r.OK() {
				t.Fatalf("a host wrote again, and the check says\n%s", r)
			}
		})
	}
}

// TestWallAuditUnsafeFiles: the host does not write through a link, a second name or a pipe that stands in place of
// one of its files, because somebody else could choose where it writes.
func TestWallAuditUnsafeFiles(t *testing.T) {
	places := map[string]func(*signedLog) string{
		"log":  func(l *signedLog) string { return l.path },
		"lock": func(l *signedLog) string { return l.path + lockFileName },
		"key":  func(l *signedLog) string { return l.key.File },
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
				l := newSignedLog(t)
				victim := filepath.Join(filepath.Dir(l.path), "victim")
				content := []byte(strings.Repeat("0123456789abcdef", 4) + "\n")
				l.put(victim, content)
				_ = os.Remove(where(l))
				must.OK(t, attack(t, victim, where(l)))
				err := l.live(60, 61)
				lost, ok := errors.AsType[*event.LostError](err)
				assert.That(t, ok && lost.Events == 1 && errors.Is(err, private.ErrUnsafe),
					"the host's log ended with %v", err)
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
		l := newSignedLog(t)
		must.OK(t, os.Chmod(l.key.File, 0o644))
		assert.Is(t, l.live(60, 61), private.ErrUnsafe, "the host's log ended with")
		_, err := Verify(l.path, l.key)
		assert.That(t, errors.Is(err, private.ErrUnsafe), "the check gave %v", err)
	})
	t.Run("folder/others may write", func(t *testing.T) {
		l := newSignedLog(t)
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

// TestFormerLog: a log of an older version, which had a seal and its own rotation, is checked and continued.
func TestFormerLog(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "key"} {
		raw := must.Get(os.ReadFile(filepath.Join("testdata/former", name)))(t)
		must.OK(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
	}
	l := &signedLog{T: t, path: filepath.Join(dir, "audit.jsonl"), key: Key{File: filepath.Join(dir, "key")}}
	r := l.verify()
	must.That(t, r.OK() && r.Entries == 8 && r.Signed == 8, "as it was: %s", r)
	must.OK(t, l.live(0, 2))
	r = l.verify()
	must.That(t, r.OK() && r.Entries == 10 && r.Signed == 10 && len(r.Files) == 3, "continued: %s", r)
}

// TestKeyForOldLog: a log that was begun without a key continues with a key, and the check accepts it all the time.
func TestKeyForOldLog(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	chain(t, path, 5)
	key := KeyOf(path, filepath.Join(dir, "user"), "", "")
	r, err := Verify(path, key)
	must.That(t, err == nil && r.OK() && r.Entries == 5 && strings.Contains(r.String(), "has no key"),
		"an old log: %v, %s", err, r)
	l := &signedLog{T: t, path: path, key: key}
	must.OK(t, l.live(5, 6))
	must.OK(t, l.live(6, 8))
	r = l.verify()
	must.That(t, r.OK() && r.Signed == 3 && r.Entries == 8 && strings.Contains(r.String(),
		"the 5 entries before the key"), "%s", r)
}
