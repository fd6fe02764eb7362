package env

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image/png"
	"regexp"
	"strings"
	"testing"

	"a2e/protocol"
)

func gridOf(t testing.TB, opts GridworldOptions, seed int64) *gridWorld {
	t.Helper()
	g, err := newGridworld(opts)
	if err != nil {
		t.Fatal(err)
	}
	w, err := g.Reset(t.Context(), Reset{Seed: &seed})
	if err != nil {
		t.Fatal(err)
	}
	return w.(*gridWorld)
}

// Each cell of each maze can be reached, walls have two sides, and the goal is not where one begins.
func TestMazes(t *testing.T) {
	shapes := map[string]bool{}
	for _, size := range [][2]int{{2, 2}, {2, 64}, {8, 8}, {64, 64}, {5, 3}} {
		for seed := range int64(20) {
			m := gridOf(t, GridworldOptions{Width: size[0], Height: size[1]}, seed).maze
			if m.width != size[0] || m.height != size[1] || len(m.open) != size[0]*size[1] || m.goal == 0 || m.distance[m.goal] != 0 {
				t.Fatalf("%v, seed %d: %+v", size, seed, m)
			}
			for at := range m.open {
				if int(m.distance[at]) >= len(m.open) {
					t.Errorf("%v, seed %d: cell %d is %d from the goal", size, seed, at, m.distance[at])
				}
				for d := up; d < directions; d++ {
					if to := m.beside(at, d); to < 0 && m.isOpen(at, d) || to >= 0 && m.isOpen(at, d) != m.isOpen(to, d.back()) {
						t.Errorf("%v, seed %d: cell %d, %v", size, seed, at, d)
					}
				}
			}
			if size[0] == 8 {
				shapes[fmt.Sprint(m.open)] = true
			}
		}
	}
	if len(shapes) != 20 {
		t.Errorf("20 seeds gave %d mazes", len(shapes))
	}
}

// Who follows the suggestions reaches the goal on the shortest way.
func TestSuggestionsLeadToTheGoal(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{Env: "gridworld", Gridworld: GridworldOptions{Width: 12, Height: 9}}, Env{}))
	for seed := range 5 {
		first := s.reset(fmt.Sprintf(`{"env_name":"gridworld","seed":%d}`, seed))
		id := first.EpisodeID
		want := int(gridOf(t, GridworldOptions{Width: 12, Height: 9}, int64(seed)).maze.distance[0])
		total, steps := 0.0, 0
		for done := false; !done; steps++ {
			m := s.Call(protocol.TypeEnvPlanReq, fmt.Sprintf(`{"episode_id":%q}`, id))
			o := s.step(id, m.Get("/suggested_actions/0/type"))
			done, total = o.Done, total+*o.Reward
			if done && fmt.Sprint(o.State["position"]) != fmt.Sprint(o.State["goal"]) {
				t.Errorf("it ended at %v, the goal is %v", o.State["position"], o.State["goal"])
			}
		}
		if steps != want || total < 0.999-0.01*float64(want-1) || total > 1.001-0.01*float64(want-1) {
			t.Errorf("seed %d: %d steps of %d, reward %g", seed, steps, want, total)
		}
		if m := s.Call(protocol.TypeEnvPlanReq, fmt.Sprintf(`{"episode_id":%q}`, id)); m.Get("/suggested_actions/0/type") != "" {
			t.Errorf("a suggestion after the end: %s", m.Line)
		}
	}
}

// Slips go to the sides, as often as the options say.
func TestSlippery(t *testing.T) {
	w := gridOf(t, GridworldOptions{Slippery: 0.3, Width: 3, Height: 3}, 4)
	for i := range w.maze.open { // no inner walls
		w.maze.open[i] = 0
		for d := up; d < directions; d++ {
			if w.maze.beside(i, d) >= 0 {
				w.maze.open[i] |= 1 << d
			}
		}
	}
	w.maze.goal = -1
	went := map[int]int{}
	for range 10_000 {
		w.at = 4
		if _, err := w.Step(t.Context(), Action{Type: "up"}); err != nil {
			t.Fatal(err)
		}
		went[w.at]++
	}
	if went[1] < 6_700 || went[1] > 7_300 || went[3] < 1_300 || went[5] < 1_300 || went[7] != 0 {
		t.Errorf("up led to %v", went)
	}
}

func TestGridRender(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{Env: "gridworld", Gridworld: GridworldOptions{Width: 4, Height: 3}}, Env{}))
	id := s.reset(`{"env_name":"gridworld","seed":7}`).EpisodeID
	for mode, text := range map[string]*regexp.Regexp{
		"text": regexp.MustCompile(`^┌─[─┬]{14}┐\n│ ● (?s:.*)★(?s:.*)┘\n$`),
		"ansi": regexp.MustCompile(`^(\+---){4}\+\n\| A (?s:.*)G(?s:.*)(\+---){4}\+\n$`),
	} {
		m := s.Call(protocol.TypeEnvRenderReq, fmt.Sprintf(`{"episode_id":%q,"mode":%q}`, id, mode))
		if got := m.Get("/render/text"); m.Get("/render/mode") != mode || !text.MatchString(got) || strings.Count(got, "\n") != 7 {
			t.Errorf("%s:\n%s", mode, got)
		}
	}
	for _, mode := range []string{"", `,"mode":"rgb_array"`, `,"mode":"hologram"`} {
		m := s.Call(protocol.TypeEnvRenderReq, fmt.Sprintf(`{"episode_id":%q%s}`, id, mode))
		raw, err := base64.StdEncoding.DecodeString(m.Get("/render/data"))
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(bytes.NewReader(raw))
		if err != nil || m.Get("/render/mime") != "image/png" {
			t.Fatalf("%v: %.200s", err, m.Line)
		}
		if b := img.Bounds(); b.Dx() != 4*cellPixels+1 || b.Dy() != 3*cellPixels+1 {
			t.Errorf("%v", b)
		}
		if red, _, blue, _ := img.At(cellPixels/2, cellPixels/2).RGBA(); blue>>8 != 0xd6 || red>>8 != 0x1f {
			t.Errorf("no agent in the first cell: %x %x", red, blue)
		}
	}
}

// The mazes of a seed are the same in every build: what was learned in one holds in the next.
func TestAMazeOfOld(t *testing.T) {
	w := gridOf(t, GridworldOptions{Width: 5, Height: 4}, 42)
	if got := "\n" + w.draw(asciiLetters()); got != mazeOf42 {
		t.Errorf("the maze of seed 42 is now%s", got)
	}
}

// A saved maze that does not fit is refused.
func TestBrokenSavedMazes(t *testing.T) {
	g, err := newGridworld(GridworldOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seed := int64(1)
	good, err := gridOf(t, GridworldOptions{}, seed).Save()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Restore(t.Context(), Reset{Seed: &seed}, good); err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{{`"at":0`, `"at":64`}, {`"at":0`, `"at":-1`}, {`"width":8`, `"width":1000000`}, {`"chance":"`, `"chance":"x`}, {`{`, `[`}} {
		bad := strings.Replace(string(good), change[0], change[1], 1)
		if bad == string(good) {
			t.Fatalf("%s has no %s", good, change[0])
		}
		if _, err := g.Restore(t.Context(), Reset{Seed: &seed}, []byte(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

const mazeOf42 = `
+---+---+---+---+---+
| A     |     G     |
+---+   +   +---+   +
|   |   |       |   |
+   +   +---+   +   +
|       |           |
+   +---+   +---+   +
|           |       |
+---+---+---+---+---+
`
