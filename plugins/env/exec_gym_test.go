package env

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/schema"
	"a2e/protocol"
)

// gymFolder has the adapter for Gymnasium, and the virtual environment in which Gymnasium is installed.
const gymFolder = "../../testdata/gym"

func gymPython(t testing.TB) string {
	t.Helper()
	python, err := filepath.Abs(filepath.Join(gymFolder, "venv/bin/python3"))
	if err == nil {
		_, err = os.Stat(python)
	}
	must.That(t, err == nil, "Gymnasium is not installed (make tools does it): %v", err)
	return python
}

// newGymStage serves an environment of Gymnasium from a folder that has the adapter and nothing else. The Python
// interpreter is outside the workspace.
func newGymStage(t testing.TB, args ...string) *execStage {
	t.Helper()
	s := newExecStage(t, "", ExecOptions{Command: append([]string{gymPython(t), "gym_env.py"}, args...)})
	for _, name := range []string{"gym_env.py", "shapes.py"} {
		text := must.Get(os.ReadFile(filepath.Join(gymFolder, name)))(t)
		must.OK(t, os.WriteFile(filepath.Join(s.dir, name), text, 0o600))
	}
	return s
}

// gymReference runs Gymnasium without a host and returns its output.
func gymReference(t testing.TB, args ...string) []byte {
	t.Helper()
	return must.Get(exec.CommandContext(t.Context(), gymPython(t),
		append([]string{filepath.Join(gymFolder, "reference.py")}, args...)...).Output())(t)
}

// TestExecCartPole: 1,000 steps of CartPole have the same results as Gymnasium without a host, to the byte.
func TestExecCartPole(t *testing.T) {
	s := newGymStage(t, "CartPole-v1")
	var w *execWorld
	steps, episodes := 0, 0
	for line := range bytes.Lines(gymReference(t, "run", "1000")) {
		var want struct {
			Seed            *int64         `json:"seed"`
			Action          int            `json:"action"`
			Observation     jsontext.Value `json:"observation"`
			Reward          float64        `json:"reward"`
			Done, Truncated bool
		}
		must.OK(t, json.Unmarshal(line, &want, json.MatchCaseInsensitiveNames(true)))
		if want.Seed != nil {
			w = s.begin(*want.Seed, `{}`)
			episodes++
		} else {
			steps++
			out := s.act(w, fmt.Sprintf(`{"type":"act","value":%d}`, want.Action))
			must.That(t, out.Reward == want.Reward && out.Done == want.Done && out.Truncated == want.Truncated,
				"step %d: %+v, want %s", steps, out, line)
		}
		got := s.state(w, "observation")
		must.That(t, got == string(want.Observation), "episode %d, step %d: observation\n%s, want\n%s", episodes, steps,
			got, want.Observation)
	}
	assert.That(t, steps == 1000 && episodes >= 10, "%d steps in %d episodes", steps, episodes)
}

// gymValue returns the value of an action for shapes.py. Some words make the environment fail.
func gymValue(word string) string {
	return fmt.Sprintf(`{"pick":3,"push":[[0.5,0],[-2,1e9]],"same":[0.5,-1],"many":[1,4],"bits":[0,1,1],"pair":[1,[0,255]],"word":%q}`, word)
}

// TestExecGymShapes: an environment with every kind of space works, with pictures and with errors.
func TestExecGymShapes(t *testing.T) {
	s := newGymStage(t, "shapes:Shapes-v0", `{"start":"xyz"}`)
	gymSpaces(t, s)
	gymRenders(t, s, "screenshot")
	gymTroubles(t, s)
}

// gymSpaces checks that every kind of space has a schema that accepts the same values as the environment.
func gymSpaces(t *testing.T, s *execStage) {
	space, err := s.Space(t.Context())
	must.That(t, err == nil && strings.Join(space.Types, " ") == "act", "%v, %v", space.Types, err)
	w := s.begin(1, `{}`)
	got := s.state(w, "observation")
	assert.That(t, strings.Contains(got, `"word":"xyz"`), "made without its arguments: %s", got)
	action, state := compiled(t, space.Action), compiled(t, space.State)
	good := gymValue("ok")
	for _, tc := range []struct {
		value string
		fits  bool
	}{
		{good, true},
		{strings.Replace(good, `"pick":3`, `"pick":0`, 1), false},
		{strings.Replace(good, `"pick":3`, `"pick":2.5`, 1), false},
		{strings.Replace(good, `[[0.5,0]`, `[[-0.5,0]`, 1), false},
		{strings.Replace(good, `[0.5,-1]`, `[0.5]`, 1), false},
		{strings.Replace(good, `[1,4]`, `[1,5]`, 1), false},
		{strings.Replace(good, `[0,1,1]`, `[0,1,2]`, 1), false},
		{strings.Replace(good, `[1,[0,255]]`, `[1,[0,256]]`, 1), false},
		{strings.Replace(good, `[1,[0,255]]`, `[1]`, 1), false},
		{gymValue(""), false},
		{gymValue("abcde"), false},
		{strings.Replace(good, `"pick":3,`, ``, 1), false},
		{`5`, false},
		{`null`, false},
	} {
		for _, text := range []string{
			`{"type":"act","value":` + tc.value + `}`,
			`{"action_type":"act","payload":{"value":` + tc.value + `}}`,
		} {
			wrong := action.Check([]byte(text), "")
			assert.That(t, (wrong == nil) == tc.fits, "the schema to %s: %v", text, wrong)
			if tc.fits {
				s.act(w, text)
			} else {
				s.refused(w, text, protocol.CodeSchemaViolation)
			}
		}
	}
	out := s.act(w, `{"type":"act","value":`+good+`}`)
	assert.That(t, out.Reward == 0.5, "%+v", out)
	raw := must.Get(w.AppendState(t.Context(), nil))(t)
	wrong := state.Check(raw, "")
	assert.That(t, wrong == nil, "the state's schema to %s: %v", raw, wrong)
}

func compiled(t *testing.T, of map[string]any) *schema.Schema {
	t.Helper()
	return must.Get(schema.Compile(of, 1000))(t)
}

// gymTroubles checks that an error in the environment is an answer, and that the program goes on.
func gymTroubles(t *testing.T, s *execStage) {
	w := s.begin(1, `{}`)
	if e := s.refused(w, `{"type":"act","value":`+gymValue("fail")+`}`,
		protocol.CodeRuntimeError); !strings.Contains(e.Message, "the motor is broken") {
		t.Error(e)
	}
	e := s.refused(w, `{"type":"act","value":`+gymValue("void")+`}`, protocol.CodeRuntimeError)
	assert.Contains(t, e.Message, "the step gave the reward nan; should be a finite number",
		"a reward that is not a number")
	s.act(w, `{"type":"act","value":`+gymValue("nan")+`}`)
	got := s.state(w, "observation")
	assert.That(t, strings.Contains(got, `"push":[[0.0,null],[null,1.0]]`), "no numbers: %s", got)
	_, err := s.Reset(t.Context(), Reset{Options: execObject(t, `{"level":3}`)})
	if e := execCode(t, err, protocol.CodeResetDenied); !strings.Contains(e.Message, "no such options") {
		t.Error(e)
	}
	_, err = s.Reset(t.Context(), Reset{Seed: -1})
	execCode(t, err, protocol.CodeResetDenied)
	assert.That(t, !strings.Contains(s.log.String(), "skipped a line") && strings.Contains(s.log.String(),
		"a library that prints"), "what a library prints should go to stderr:\n%s", s.log)
	must.OK(t, w.Close(t.Context()))
	if again := s.begin(1, `{}`); again.id == w.id { // the same object of Gymnasium, but another episode
		t.Errorf("two episodes are %s", w.id)
	}
}

// gymRenders checks the pictures and texts of an environment against the mode of its default rendering.
func gymRenders(t *testing.T, s *execStage, usual string) {
	w := s.begin(1, `{}`)
	for mode, want := range map[string]string{w.Modes()[0]: usual, "text": "text"} {
		raw, err := w.Render(t.Context(), mode)
		must.OK(t, err)
		var pic struct{ Mode, Mime, Data, Text string }
		if err := json.Unmarshal(raw, &pic, json.MatchCaseInsensitiveNames(true)); err != nil || pic.Mode != want {
			t.Errorf("mode %s: %s, %v", mode, raw, err)
		}
		if pic.Mode == "text" {
			assert.That(t, pic.Text != "", "mode %s: no text", mode)
			continue
		}
		data, err := base64.StdEncoding.DecodeString(pic.Data)
		must.That(t, err == nil && pic.Mime == "image/png", "%s, %v", pic.Mime, err)
		img := must.Get(png.Decode(bytes.NewReader(data)))(t)
		// The bytes of the picture count up: 3 bytes for each pixel, 4 pixels in a row.
		r, g, b, _ := img.At(2, 1).RGBA()
		size := img.Bounds().Size()
		assert.That(t, size.X == 4 && size.Y == 3 && r>>8 == 18 && g>>8 == 19 && b>>8 == 20,
			"picture of %v with %d %d %d at 2,1", size, r>>8, g>>8, b>>8)
	}
}

func TestExecGymWithoutPictures(t *testing.T) {
	gymRenders(t, newGymStage(t, "shapes:Letters-v0"), "text")
}

func TestExecGymNoSuchThing(t *testing.T) {
	_, err := newGymStage(t, "NoSuchThing-v0").Reset(t.Context(), Reset{})
	e := execCode(t, err, "")
	assert.That(t, strings.Contains(e.Message, "NoSuchThing"), "%v", e)
}

// TestExecGymREADME: the README shows a pipe to the adapter that works without the host.
func TestExecGymREADME(t *testing.T) {
	text := must.Get(os.ReadFile("README.md"))(t)
	gymConfig(t, string(text))
	_, block, ok := strings.Cut(string(text), "<!-- gym pipe -->\n```sh\n")
	script, shown, ok2 := strings.Cut(block, "```\n\n```json\n")
	want, _, ok3 := strings.Cut(shown, "```\n")
	must.That(t, ok && ok2 && ok3, "the README has no pipe with its output")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir = gymFolder
	out := must.Get(cmd.Output())(t)
	got := gymSettle(string(out))
	assert.That(t, got == gymSettle(want), "the pipe prints\n%s\nthe README shows\n%s", out, want)
}

// gymConfig checks that the config in the README loads and names all options of exec.
func gymConfig(t *testing.T, text string) {
	t.Helper()
	_, block, _ := strings.Cut(text, "<!-- gym config -->\n```yaml\n")
	block, _, _ = strings.Cut(block, "```\n")
	path := filepath.Join(t.TempDir(), "a2e.yaml")
	must.OK(t, os.WriteFile(path, []byte(block), 0o600))
	cfg, warnings, err := config.Load(config.Source{Path: path, Dir: filepath.Dir(path), Available: []string{"env"}})
	must.That(t, err == nil && len(warnings) <= 0 && len(cfg.Plugins) == 1, "%v, %v", warnings, err)
	var opts Options
	err = cfg.Plugins[0].Options.Decode(&opts)
	assert.That(t, err == nil && opts.Env == "exec" && opts.Exec.EnvName == "CartPole-v1", "%+v, %v", opts, err)
	for _, field := range reflect.VisibleFields(reflect.TypeFor[ExecOptions]()) {
		assert.That(t, strings.Contains(block, " "+field.Tag.Get("yaml")+":"), "the README does not show %s",
			field.Tag.Get("yaml"))
	}
}

// gymSettle removes the times from messages.
func gymSettle(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		head, rest, found := strings.Cut(line, `"created_at":`)
		if _, tail, ok := strings.Cut(rest, ","); found && ok {
			line = head + tail
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// TestExecOverTheWire: a program works over the wire as well: with many episodes, with steps in a batch, and with a
// clear error for the agent when the program dies.
func TestExecOverTheWire(t *testing.T) {
	stage := newGymStage(t, "CartPole-v1", `{"max_episode_steps":3}`)
	stage.opts.EnvName = "CartPole-v1"
	plugin := must.Get(New("gym", Options{Env: "exec", Exec: stage.opts}, host.Env{
		Workspace: stage.dir,
		Launcher:  stage.env.Launcher,
	}))(t)
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
	p.Handshake(protocol.CapEnv)
	var ids, actions []string
	for seed := range 20 {
		var began protocol.EnvResetResponse
		p.Call(protocol.TypeEnvResetReq, fmt.Sprintf(`{"env_name":"CartPole-v1","seed":%d}`, seed%2)).Decode(t, &began)
		ids, actions = append(ids, strconv.Quote(began.Obs.EpisodeID)), append(actions, `{"type":"act","value":1}`)
	}
	var batch protocol.EnvBatchStepResponse
	p.Call(protocol.TypeEnvBatchStepReq, fmt.Sprintf(`{"episode_ids":[%s],"actions":[%s]}`, strings.Join(ids, ","),
		strings.Join(actions, ","))).Decode(t, &batch)
	must.That(t, len(batch.Results) == 20, "%d results", len(batch.Results))
	for i, r := range batch.Results {
		same, other := fmt.Sprint(batch.Results[i%2].Obs.State), fmt.Sprint(batch.Results[1-i%2].Obs.State)
		got := fmt.Sprint(r.Obs.State)
		assert.That(t, got == same && got != other && *r.Obs.Reward == 1 && r.Obs.StepNum == 1, "result %d: %+v", i,
			r.Obs)
	}
	for action, code := range map[string]protocol.ErrorCode{
		`{"type":"jump"}`:                               protocol.CodeUnknownAction,
		`{"type":"act","value":2}`:                      protocol.CodeSchemaViolation,
		`{"type":"act"}`:                                protocol.CodeSchemaViolation,
		`{"action_type":"act","payload":{"value":"x"}}`: protocol.CodeSchemaViolation,
	} {
		m := p.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%s,"action":%s}`, ids[0], action))
		assert.That(t, m.Code == code, "%s: %s", action, m.Line)
	}
	for i := range 3 { // the first of the three steps was taken in the batch
		var step protocol.EnvStepResponse
		m := p.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%s,"action":{"action_type":"act","payload":{"value":1.0}}}`, ids[1]))
		if i == 2 {
			assert.That(t, m.Code == protocol.CodeEpisodeDone, "a step after the last: %s", m.Line)
			break
		}
		m.Decode(t, &step)
		assert.That(t, !step.Obs.Done && step.Obs.Truncated == (i == 1), "step %d: %+v", i+2, step.Obs)
	}
	external := plugin.env.(*external)
	external.child.Kill(errors.New("the test ends it"))
	<-external.child.Done()
	var e protocol.Error
	m := p.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%s,"action":%s}`, ids[0], actions[0]))
	if m.Decode(t, &e); e.Code != protocol.CodeRuntimeError || !e.Retryable || !strings.Contains(e.Message,
		"the test ends it") {
		t.Errorf("the step after its end: %s", m.Line)
	}
}
