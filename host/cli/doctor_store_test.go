package cli_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// storeReport is what `a2e doctor --json` says of the store.
type storeReport struct {
	OK       bool           `json:"ok"`
	Path     string         `json:"path"`
	Exists   bool           `json:"exists"`
	Bytes    int64          `json:"bytes"`
	Parts    map[string]int `json:"parts"`
	Model    string         `json:"model"`
	Problems []string       `json:"problems"`
	Advice   string         `json:"advice"`
}

func doctorOfStore(t *testing.T, dir string, code int) (r storeReport, text string) {
	t.Helper()
	out := run(t, dir, nil, "doctor", "--json").want(t, code, "")
	var d struct {
		OK    bool         `json:"ok"`
		Store *storeReport `json:"store"`
	}
	if err := json.Unmarshal([]byte(out.stdout), &d); err != nil || d.Store == nil {
		t.Fatalf("%v in %s", err, out.stdout)
	}
	if d.OK != (code == 0) || d.Store.OK != (code == 0) || d.Store.Problems == nil || d.Store.Parts == nil {
		t.Errorf("with exit status %d: ok %t, %+v", code, d.OK, d.Store)
	}
	out = run(t, dir, nil, "doctor").want(t, code, "")
	_, text, found := strings.Cut(out.stdout, "\nstore\n")
	if !found {
		t.Fatalf("no section on the store:\n%s", out.stdout)
	}
	text, _, _ = strings.Cut(text, "\n\n")
	return *d.Store, text
}

func TestDoctorWithoutAStore(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	r, text := doctorOfStore(t, dir, 0)
	if r.Exists || r.Bytes != 0 || !strings.HasSuffix(r.Path, filepath.FromSlash("/"+storeFile)) {
		t.Errorf("%+v", r)
	}
	if !regexp.MustCompile(`^  ok  /.*/state/state\.db \(does not exist yet; it is made when it is needed\)$`).MatchString(text) {
		t.Errorf("got %q", text)
	}
	if _, err := os.Stat(filepath.Join(dir, "state")); err == nil {
		t.Error("doctor made the folder")
	}
	writeConfig(t, dir, "nonsense: 1\n")
	if out := run(t, dir, nil, "doctor").want(t, 3, ""); strings.Contains(out.stdout, "\nstore\n") {
		t.Errorf("without a config it looked at some store:\n%s", out.stdout)
	}
}

func TestDoctorOfAGoodStore(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	remember(t, dir, "w1", entry("a", "semantic", "something to embed"))
	r, text := doctorOfStore(t, dir, 0)
	if !r.Exists || r.Bytes < 4096 || r.Parts["memory"] < 1 || r.Parts["planning"] < 1 || r.Model == "" {
		t.Errorf("%+v", r)
	}
	for _, want := range []string{`(?m)^  ok +/.*/state/state\.db \(\d+ KiB\)$`, `(?m)^  part +memory, version \d+$`, `(?m)^  part +planning, version \d+$`,
		`(?m)^  vectors +made with ` + regexp.QuoteMeta(r.Model) + `$`} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no line %q in:\n%s", want, text)
		}
	}
	writeConfig(t, dir, stateConfig+"plugins: [{name: m, type: memory, metadata: {embeddings: {url: 'http://127.0.0.1:1/v1', model: other}}}]\n")
	r, text = doctorOfStore(t, dir, 1)
	if len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "a2e state reembed") || !strings.Contains(text, "a2e state reembed") {
		t.Errorf("%+v", r)
	}
	writeConfig(t, dir, stateConfig+"plugins: [{name: t, type: tools}]\n")
	if r, _ = doctorOfStore(t, dir, 0); r.Model != "" {
		t.Errorf("without a memory it names the model %q", r.Model)
	}
}

// withChecksum makes a changed first page one that a host would have written.
func withChecksum(file []byte) []byte {
	content, castagnoli := file[:4096-8], crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(make([]byte, 8), castagnoli), castagnoli, content)
	other := crc32.Update(crc32.ChecksumIEEE(make([]byte, 8)), crc32.IEEETable, content)
	for i := range 4 {
		file[4096-8+i], file[4096-4+i] = byte(sum>>(24-8*i)), byte(other>>(24-8*i))
	}
	return file
}

// A file that cannot be used is told with advice, and stays as it is.
func TestDoctorOfABadStore(t *testing.T) {
	t.Parallel()
	const pageSize, userVersion = 4096, 60 // and where SQLite's header has them
	good := stateDir(t)
	var entries []string
	for i := range 200 {
		entries = append(entries, entry(fmt.Sprint(i), "semantic", strings.Repeat("many words ", 50)+fmt.Sprint(i)))
	}
	remember(t, good, "w1", entries...)
	store, err := os.ReadFile(filepath.Join(good, storeFile))
	if err != nil || len(store) < 20*pageSize {
		t.Fatalf("%v, %d bytes", err, len(store))
	}
	for _, c := range []struct {
		name    string
		spoil   func(file []byte) []byte
		problem string
		advice  string
	}{
		{"another kind of file", func([]byte) []byte { return bytes.Repeat([]byte("some text\n"), 1000) }, "no a2e store", "move the file away"},
		{"newer", func(f []byte) []byte { f[userVersion+3] = 99; return withChecksum(f) }, "newer a2e", "use the newer"},
		{"damaged inside", func(f []byte) []byte {
			for p := 5 * pageSize; p < len(f); p += 4 * pageSize {
				copy(f[p:], bytes.Repeat([]byte{0xa5}, 256))
			}
			return f
		}, "", "state export"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := stateDir(t)
			spoilt := c.spoil(bytes.Clone(store))
			must(t, os.Mkdir(filepath.Join(dir, "state"), 0o700))
			must(t, os.WriteFile(filepath.Join(dir, storeFile), spoilt, 0o600))
			r, text := doctorOfStore(t, dir, 1)
			if !r.Exists || !slices.ContainsFunc(r.Problems, func(p string) bool { return strings.Contains(p, c.problem) }) || !strings.Contains(r.Advice, c.advice) {
				t.Errorf("%+v", r)
			}
			if !strings.Contains(text, "  wrong ") || !strings.Contains(text, "  advice  "+r.Advice) || strings.Contains(text, "  ok ") {
				t.Errorf("the text:\n%s", text)
			}
			if now, err := os.ReadFile(filepath.Join(dir, storeFile)); err != nil || !bytes.Equal(now, spoilt) {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}
