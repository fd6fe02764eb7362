package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// TestGoldenFleet plays the conversations of testdata/sessions/fleet as TestGoldenRPC does
// those of its own. They begin with the command line:
//
//	$ a2e worker   the host is started
func TestGoldenFleet(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "testdata/sessions/fleet/*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no sessions: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			last := len(archive.Files) - 1
			if len(bytes.TrimSpace(archive.Comment)) == 0 || last < 0 || archive.Files[last].Name != "session" {
				t.Fatalf("%s should be prose, files of the workspace and a file `session`", file)
			}
			got := playFleet(t, archive.Files[:last], archive.Files[last].Data)
			if *update {
				archive.Files[last].Data = got
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(strings.Split(string(archive.Files[last].Data), "\n"), strings.Split(string(got), "\n")); diff != "" {
				t.Errorf("the session differs (-want +got); -update takes it over\n%s", diff)
			}
		})
	}
}

func playFleet(t *testing.T, files []txtar.File, session []byte) []byte {
	s := &scene{t: t, dir: workDir(t)}
	for _, f := range files {
		put(t, s.dir, block{mark: "with: " + f.Name, text: string(f.Data)})
	}
	for line := range strings.Lines(string(session)) {
		line = strings.TrimSuffix(line, "\n")
		words := strings.Fields(line)
		if len(words) > 1 && words[0] == "$" && words[1] == "a2e" {
			fmt.Fprintln(&s.out, line)
			s.host = start(t, s.dir, words[2:]...)
			continue
		}
		s.step(line)
	}
	if s.host != nil {
		t.Error("end the script with `! eof`")
	}
	return s.out.Bytes()
}
