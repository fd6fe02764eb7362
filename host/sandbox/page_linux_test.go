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

// TestPage holds all pages against the tests: each one that they name is there, also as a
// part of TestEscapes.
func TestPage(t *testing.T) {
	tests, pages := make(map[string]bool), make(map[string]string)
	function := regexp.MustCompile(`(?m)^func (Test\w+)`)
	must(t, filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "node_modules" || d.Name() == "venv" || d.Name() == ".git") {
			return fs.SkipDir
		}
		isPage := d.Name() == "README.md"
		if !isPage && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if isPage {
			pages[path] = string(text)
		}
		for _, m := range function.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
		return err
	}))
	all, named := escapes(), 0
	for name, page := range pages {
		for _, m := range regexp.MustCompile("`(Test\\w+)(?:/([^`]+))?`").FindAllStringSubmatch(page, -1) {
			named++
			part := m[2] == "" || slices.ContainsFunc(all, func(e escape) bool { return e.name == m[2] })
			if !tests[m[1]] || !part {
				t.Errorf("%s names %s, which is not there", name, m[0])
			}
		}
	}
	if named < 40 {
		t.Errorf("the pages name %d tests", named)
	}
}
