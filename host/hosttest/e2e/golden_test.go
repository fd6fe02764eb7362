package e2e_test

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

var update = flag.Bool("update", false, "write the golden sessions of the binary anew")

// TestGoldenRPC plays the conversations of testdata/sessions/rpc with the program itself, over pipes. Each is a txtar
// file: prose, files of the workspace such as a2e.yaml, and the session, whose lines mean
//
//	> text    the client sends a line, and waits for its answer if there is one
//	! await X the client waits for a line with X in it
//	! touch X an empty file X is put into the workspace
//	! restart the client ends the host, and starts a new one
//	! eof     the client closes its end
//	< text    the host sends a line; its ids and times are replaced
//	= text    the host has ended
//
// Ids that the host makes are written ID1, ID2 … in the order of their first mention, in the lines of the host and in
// those of the client.
func TestGoldenRPC(t *testing.T) { playSessions(t, "rpc", playRPC) }

// playSessions plays the conversations of a folder of testdata/sessions, and compares the sessions with those in the
// files.
func playSessions(t *testing.T, folder string, play func(t *testing.T, files []txtar.File, session []byte) []byte) {
	files, err := filepath.Glob(filepath.Join(root, "testdata/sessions", folder, "*.txtar"))
	must.That(t, err == nil && len(files) != 0, "no sessions: %v", err)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive := must.Get(txtar.ParseFile(file))(t)
			last := len(archive.Files) - 1
			must.That(t, len(bytes.TrimSpace(archive.Comment)) != 0 && last >= 0 &&
				archive.Files[last].Name == "session",
				"%s should be prose, files of the workspace and a file `session`", file)
			got := play(t, archive.Files[:last], archive.Files[last].Data)
			if *update {
				archive.Files[last].Data = got
				must.OK(t, os.WriteFile(file, txtar.Format(archive), 0o644))
			}
			assert.Diff(t, strings.Split(string(archive.Files[last].Data), "\n"), strings.Split(string(got), "\n"))
		})
	}
}

// scene is one session while it is played.
type scene struct {
	t    *testing.T
	dir  string
	host *live
	out  bytes.Buffer
	ids  []string // made by the host: ID1, ID2 …
}

// scenePatience bounds the time that a step waits for the host.
const scenePatience = time.Minute

func playRPC(t *testing.T, files []txtar.File, session []byte) []byte {
	s := &scene{t: t, dir: workDir(t)}
	for _, f := range files {
		put(t, s.dir, block{mark: "with: " + f.Name, text: string(f.Data)})
		if f.Name == "a2e.yaml" {
			writeConfig(t, s.dir, string(f.Data))
		}
	}
	s.host = start(t, s.dir)
	for line := range strings.Lines(string(session)) {
		s.step(strings.TrimSuffix(line, "\n"))
	}
	assert.That(t, s.host == nil, "end the script with `! eof`")
	return s.out.Bytes()
}

func (s *scene) step(line string) {
	s.t.Helper()
	if strings.HasPrefix(line, "<") || strings.HasPrefix(line, "=") {
		return // old lines of the host; until writes the new ones
	}
	fmt.Fprintln(&s.out, line)
	switch {
	case strings.HasPrefix(line, "> "):
		s.host.send(s.named(line[2:]))
		if awaited := answerTo(s.named(line[2:])); awaited != nil {
			s.until(line, awaited)
		}
	case strings.HasPrefix(line, "! await "):
		s.until(line, func(got string) bool { return strings.Contains(got, s.named(line[8:])) })
	case strings.HasPrefix(line, "! touch "):
		put(s.t, s.dir, block{mark: "with: " + line[8:]})
	case line == "! eof", line == "! restart":
		s.host.stdin.Close()
		s.until(line, nil)
		fmt.Fprintf(&s.out, "= exit status %d\n", s.host.exit())
		s.host = nil
		if line == "! restart" {
			s.host = start(s.t, s.dir)
		}
	case line != "" && !strings.HasPrefix(line, "#"):
		s.t.Fatalf("what is %q?", line)
	}
}

// until writes the lines of the host up to the awaited one, or up to the end of the output if awaited is nil.
func (s *scene) until(step string, awaited func(string) bool) {
	s.t.Helper()
	host := s.host.cmd.Process
	late := time.AfterFunc(scenePatience, func() { _ = host.Kill() })
	defer late.Stop()
	for {
		text, err := s.host.stdout.ReadString('\n')
		if text != "" {
			fmt.Fprintf(&s.out, "< %s\n", s.settled(strings.TrimSuffix(text, "\n")))
		}
		switch {
		case err == io.EOF && awaited == nil:
			return
		case err != nil:
			s.t.Fatalf("%s: %v; so far:\n%s", step, err, s.out.String())
		case awaited != nil && awaited(text):
			return
		}
	}
}

// answerTo returns a function that recognizes the answer to a line of the client, or nil if there is no answer to
// wait for.
func answerTo(line string) func(string) bool {
	obj, err := protocol.ParseObject([]byte(line))
	if err != nil {
		return nil
	}
	id, ok := obj.Get("id")
	if kind := id.Kind(); kind == '{' || kind == '[' || kind == 't' || kind == 'f' {
		return nil // not a valid id: the answer has null
	}
	if _, request := obj.Get("method"); ok && request {
		head := `{"jsonrpc":"2.0","id":` + string(id) + `,`
		return func(got string) bool { return strings.HasPrefix(got, head) }
	}
	if _, request := obj.Get("type"); ok && request {
		return func(got string) bool {
			return strings.Contains(got, `"req_id":`+string(id)) && !strings.Contains(got, `/event"`)
		}
	}
	return nil
}

// madeIDs matches the ids that a host makes.
func madeIDs() *regexp.Regexp {
	return regexp.MustCompile(`[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
}

// settled replaces the parts of a line of the host that differ from run to run.
func (s *scene) settled(line string) string {
	line = regexp.MustCompile(`"id":"[0-9a-f]{32}","ts":[0-9.]+`).ReplaceAllString(line, `…`)
	line = madeIDs().ReplaceAllStringFunc(line, func(id string) string {
		for i, known := range s.ids {
			if known == id {
				return fmt.Sprintf("ID%d", i+1)
			}
		}
		s.ids = append(s.ids, id)
		return fmt.Sprintf("ID%d", len(s.ids))
	})
	for _, r := range [][2]string{
		{`\d{4}-\d\d-\d\dT[0-9:.]+Z`, `TIME`},
		{`"(uptime_seconds|duration_ms|created_at)":[0-9.]+`, `"$1":0`},
		{`"(tokens|tokens_spent)":\d+`, `"$1":0`},                                    // other tests check estimates
		{`,"sandbox_missing":\[[^\]]*\]`, ``},                                        // depends on the machine
		{`"uptime_seconds":0,"version":"[^"]*"`, `"uptime_seconds":0,"version":"…"`}, // depends on the program
	} {
		line = regexp.MustCompile(r[0]).ReplaceAllString(line, r[1])
	}
	return strings.ReplaceAll(line, s.dir, "/WORKSPACE")
}

// named replaces ID1, ID2 … in a line of the client by the host's ids.
func (s *scene) named(line string) string {
	return regexp.MustCompile(`\bID\d+\b`).ReplaceAllStringFunc(line, func(name string) string {
		var n int
		_, err := fmt.Sscanf(name, "ID%d", &n)
		must.That(s.t, err == nil && n >= 1 && n <= len(s.ids), "there is no %s yet in %s", name, line)
		return s.ids[n-1]
	})
}

// TestGoldenFleet plays the conversations of testdata/sessions/fleet as TestGoldenRPC plays those of rpc. Each begins
// with the command line that starts the host:
//
//	$ a2e worker
func TestGoldenFleet(t *testing.T) { playSessions(t, "fleet", playFleet) }

func playFleet(t *testing.T, files []txtar.File, session []byte) []byte {
	s := &scene{t: t, dir: workDir(t)}
	for _, f := range files {
		put(t, s.dir, block{mark: "with: " + f.Name, text: string(f.Data)})
		if f.Name == "a2e.yaml" {
			writeConfig(t, s.dir, string(f.Data))
		}
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
	assert.That(t, s.host == nil, "end the script with `! eof`")
	return s.out.Bytes()
}

// TestJSONRPCClient: a TypeScript client that was written only from the description of the protocol works with the
// program over pipes, with a model that follows a script. The client checks the answers of the host, this test the
// requests to the model.
func TestJSONRPCClient(t *testing.T) {
	t.Parallel()
	peers, err := filepath.Abs(filepath.Join(root, "testdata/peers"))
	if err == nil {
		_, err = os.Stat(filepath.Join(peers, "node_modules", "typescript"))
	}
	must.OK(t, err)
	dir, js := workDir(t), t.TempDir()
	if out, err := command(t, peers, "node", "node_modules/typescript/bin/tsc", "rpc.ts", "--outDir", js, "--target",
		"es2022", "--module", "es2022", "--moduleResolution", "bundler", "--types", "node",
		"--strict").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must.OK(t, os.WriteFile(filepath.Join(js, "package.json"), []byte(`{"type":"module"}`), 0o600))
	model := llm.New(t)
	model.Answer(func(r *llm.Request) llm.Reply {
		switch said := r.Last("user"); {
		case said == "look [Image 1]" && r.Rounds() == 0:
			return llm.Reply{
				Thoughts: []string{"**Look", " closely**"}, Text: []string{"I ", "see "},
				Calls: []llm.Call{{Name: "echo", Arguments: `{"text":"seen"}`}},
			}
		case said == "look [Image 1]":
			return llm.Text("it.")
		case said == "steer me":
			return llm.Reply{Text: []string{"half"}, Stall: true}
		case said == "to the left":
			return llm.Text("left ", "then")
		case said == "one":
			return llm.Reply{Text: []string{"par"}, Stall: true}
		default:
			return llm.Text(said, "!")
		}
	})
	writeConfig(t, dir, `state_dir: `+filepath.Join(js, "state")+`
plugins:
  - {name: tools, type: tools}
  - {name: agents, type: multi_agent, metadata: {workers: [{name: brain, llm: {url: "`+model.URL+`", model: test}}]}}
`)
	cmd := command(t, dir, "node", filepath.Join(js, "rpc.js"), filepath.Join(dir, "a2e"))
	var said, wrong bytes.Buffer
	cmd.Stderr = &wrong
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.OK(t, err)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if said.WriteString(lines.Text() + "\n"); lines.Text() == "! release" {
			model.Release()
		}
	}
	if err := cmd.Wait(); err != nil || !strings.HasSuffix(said.String(), "done\n") {
		t.Fatalf("%v: %s%s", err, said.String(), wrong.String())
	}
	asked := model.Requests()
	first, third := asked[0], asked[2]
	if user := first.Messages[len(first.Messages)-1]; first.Effort != "high" || len(user.Images) != 1 ||
		user.Images[0] != "data:image/png;base64,cGl4ZWw=" ||
		first.Header.Get("Authorization") != "Bearer sk-of-the-typescript-client" {
		t.Errorf("the model was asked %s with %q", first.Body, first.Header)
	}
	assert.That(t, len(third.Messages) == 4 && third.Messages[2].Text == "I see \n\nit." &&
		len(third.Messages[1].Images) == 1,
		"of what was said before the model was told %s", third.Body)
	if info, err := os.Stat(filepath.Join(js, "state", "llm-keys.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the key: %v %v", info, err)
	}
}
