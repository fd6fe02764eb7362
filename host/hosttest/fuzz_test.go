package hosttest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestEveryFuzzTargetIsRun: the Makefile names each fuzz target of the project, and no other.
func TestEveryFuzzTargetIsRun(t *testing.T) {
	root := must.Get(hosttest.Root())(t)
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)
	var there []string
	for _, top := range []string{"host", "plugins", "protocol"} {
		must.OK(t, filepath.WalkDir(filepath.Join(root, top), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			dir, _ := filepath.Rel(root, filepath.Dir(path))
			for _, match := range target.FindAllSubmatch(text, -1) {
				there = append(there, filepath.ToSlash(dir)+":"+string(match[1]))
			}
			return err
		}))
	}
	run := regexp.MustCompile(`[\w/]+:Fuzz\w+`).FindAllString(string(must.Get(os.ReadFile(filepath.Join(root,
		"Makefile")))(t)), -1)
	slices.Sort(there)
	slices.Sort(run)
	assert.Equal(t, strings.Join(run, " "), strings.Join(there, " "), "make fuzz runs")
}
