package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPage holds the page and the README against the tests: each one that they name is
// there, also as a part of TestEscapes.
func TestPage(t *testing.T) {
	tests := make(map[string]bool)
	function := regexp.MustCompile(`(?m)^func (Test\w+)`)
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "node_modules" || d.Name() == "venv" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	must(t, err)
	all := escapes()
	for _, name := range []string{"README.md", filepath.Join("..", "..", "README.md")} {
		page, err := os.ReadFile(name)
		must(t, err)
		named := regexp.MustCompile("`(Test\\w+)(?:/([^`]+))?`").FindAllStringSubmatch(string(page), -1)
		if len(named) < 20 {
			t.Errorf("%s names %d tests", name, len(named))
		}
		for _, m := range named {
			part := m[2] == "" || slices.ContainsFunc(all, func(e escape) bool { return e.name == m[2] })
			if !tests[m[1]] || !part {
				t.Errorf("%s names %s, which is not there", name, m[0])
			}
		}
	}
}
