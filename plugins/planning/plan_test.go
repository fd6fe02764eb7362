package planning

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

func TestCreate(t *testing.T) {
	s := newStage(t, newFile(t))
	usual := []string{"backlog", "todo", "in_progress", "done"}
	long := strings.Repeat("é", maxColumn)
	for name, tc := range map[string]struct {
		fields string
		name   string
		want   []string
	}{
		"nothing given":   {`{}`, "default", usual},
		"empty":           {`{"name":"","columns":[],"description":""}`, "default", usual},
		"null":            {`{"name":null,"columns":null}`, "default", usual},
		"columns":         {`{"name":"n","columns":["z","a"," b "]}`, "n", []string{"z", "a", " b "}},
		"longest column":  {fields(t, "columns", []string{long}), "default", []string{long}},
		"strange columns": {`{"columns":["\u0000","\"","😀"]}`, "default", []string{"\x00", `"`, "😀"}},
	} {
		t.Run(name, func(t *testing.T) {
			var resp protocol.PlanCreateResponse
			s.ask(protocol.TypePlanCreateReq, tc.fields, &resp)
			if !resp.Success || !slices.Equal(resp.Columns, tc.want) || strings.Trim(resp.PlanID, "0123456789abcdef") != "" {
				t.Errorf("%+v", resp)
			}
			var boards []map[string]any
			if err := json.Unmarshal([]byte(s.boards(resp.PlanID)), &boards); err != nil || len(boards) != 1 || boards[0]["name"] != tc.name {
				t.Errorf("the board is %v, %v", boards, err)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	s := newStage(t, newFile(t))
	many := make([]string, maxColumns+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for name, tc := range map[string]struct{ fields, path, says string }{
		"empty column":     {`{"columns":["a",""]}`, "/columns/1", "empty"},
		"blank column":     {`{"columns":[" \t"]}`, "/columns/0", "empty"},
		"double column":    {`{"columns":["a","b","a"]}`, "/columns/2", "/columns/0"},
		"long column":      {fields(t, "columns", []string{strings.Repeat("é", maxColumn+1)}), "/columns/0", "at most 100"},
		"many columns":     {fields(t, "columns", many), "/columns", "at most 50"},
		"long name":        {fields(t, "name", strings.Repeat("n", maxName+1)), "/name", "at most 1000"},
		"long description": {fields(t, "description", strings.Repeat("d", maxDescription+1)), "/description", "at most 100000"},
	} {
		t.Run(name, func(t *testing.T) {
			path, message := s.refused(protocol.TypePlanCreateReq, tc.fields)
			if path != tc.path || !strings.Contains(message, tc.says) {
				t.Errorf("%q: %s", path, message)
			}
		})
	}
	var list protocol.PlanListResponse
	if s.ask(protocol.TypePlanListReq, `{}`, &list); len(list.Plans) != 0 {
		t.Errorf("a refused plan was kept: %v", list.Plans)
	}
}

func TestList(t *testing.T) {
	s := newStage(t, newFile(t))
	if m := s.Call(protocol.TypePlanListReq, `{}`); m.Get("/plans") != "[]" {
		t.Errorf("without plans: %s", m.Line)
	}
	before := float64(time.Now().UnixMicro()) / 1e6
	first := s.plan("name", "same", "description", "d")
	second := s.plan("name", "same", "columns", []string{"x"})
	s.task(first, "a")
	s.task(first, "b")
	var list struct {
		Plans []map[string]any `json:"plans"`
	}
	s.ask(protocol.TypePlanListReq, `{}`, &list)
	if len(list.Plans) != 2 || first == second {
		t.Fatalf("%v", list.Plans)
	}
	after := float64(time.Now().UnixMicro()) / 1e6
	if at := list.Plans[0]["created_at"].(float64); at < before || at > after {
		t.Errorf("created_at is %f, should be from %f to %f", at, before, after)
	}
	for _, p := range list.Plans {
		delete(p, "created_at")
	}
	want := fmt.Sprintf(`[map[columns:[backlog todo in_progress done] description:d name:same plan_id:%s tasks:2] map[columns:[x] description: name:same plan_id:%s tasks:0]]`, first, second)
	if got := fmt.Sprint(list.Plans); got != want {
		t.Errorf("plans\n%s\nshould be\n%s", got, want)
	}
}

func TestBoard(t *testing.T) {
	s := newStage(t, newFile(t))
	if got := s.boards(""); got != "[]" {
		t.Errorf("boards of no plan: %s", got)
	}
	plan := s.plan("name", "n", "description", "d", "columns", []string{"z", "a", "m"})
	other := s.plan()
	second, third := s.task(plan, "second", "status", "m"), s.task(plan, "third", "status", "m")
	s.update(plan, second, "assignee", "me")
	var boards []struct {
		PlanID string           `json:"plan_id"`
		Tasks  map[string][]row `json:"tasks"`
	}
	text := s.boards(plan)
	if err := json.Unmarshal([]byte(text), &boards); err != nil || len(boards) != 1 {
		t.Fatalf("%v in %s", err, text)
	}
	tasks := boards[0].Tasks
	if len(tasks) != 3 || tasks["z"] == nil || tasks["a"] == nil || len(tasks["m"]) != 2 || tasks["m"][0].TaskID != second || tasks["m"][1].TaskID != third {
		t.Errorf("the tasks are %v", tasks)
	}
	if tasks["m"][0].Assignee != "me" {
		t.Errorf("the changed task is %+v", tasks["m"][0])
	}
	if !strings.Contains(text, `"columns":["z","a","m"],"description":"d","name":"n"`) || !strings.Contains(text, `"tasks":{"z":[],"a":[],"m":[{`) {
		t.Errorf("the columns are not in their order: %s", text)
	}
	if got := s.boards("x"); got != "[]" {
		t.Errorf("boards of an unknown plan: %s", got)
	}
	boards = nil
	if err := json.Unmarshal([]byte(s.boards("")), &boards); err != nil || len(boards) != 2 || boards[0].PlanID != plan || boards[1].PlanID != other {
		t.Errorf("all boards: %v, %v", boards, err)
	}
}
