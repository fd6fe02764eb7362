package worker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"a2e/host/agent"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// TestContract: a worker that reads its brief as text is told how to write its answer. A program that opts out, a fleet
// worker and a turn of a conversation are not told.
func TestContract(t *testing.T) {
	t.Parallel()
	wordy := shell("wordy", "cat")
	wordy.Contract = nil
	s := newStage(t, wordy, shell("plain", "cat"), fake(t, "fleet"))
	task := brief("t", "done")
	task.Deadline = time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
	task.Task.TokenBudget = 5000
	for worker, wants := range map[string]map[fleet.ReplySchema]string{
		"wordy": {"": "a plain text", fleet.ReplyStructured: "a short text", fleet.ReplyJSON: "a JSON value"},
		"plain": {"": ""}, "fleet": {"": ""},
	} {
		task.Worker = worker
		for schema, want := range wants {
			task.Task.ReplySchema = schema
			got := s.do(task).Summary
			if worker == "fleet" {
				got = "done"
				assert.Contains(t, s.notes("lines")[0], `"brief":"done"`)
			}
			if want == "" && got != "done" || want != "" && !(strings.Contains(got, "ANSWER is "+want) &&
				strings.Contains(got, "spend 5000 tokens") &&
				strings.Contains(got, "before "+task.Deadline) && strings.HasSuffix(strings.TrimSuffix(got, `"}`),
				"done")) {
				t.Errorf("%s, %s: %s", worker, schema, got)
			}
		}
	}
	task.Worker, task.Talk = "wordy", &agent.Talk{}
	got := s.do(task).Summary
	assert.That(t, got == `{"text":"done"}` || got == "done", "%v", got)
}

// TestContractOfAPriority: the contract says how much to verify, differently for each priority, and asks for the pull
// request and the tokens.
func TestContractOfAPriority(t *testing.T) {
	t.Parallel()
	wordy := shell("wordy", "cat")
	wordy.Contract = nil
	s := newStage(t, wordy)
	seen := map[string]bool{}
	for _, p := range []fleet.Priority{
		fleet.PriorityLow, fleet.PriorityNormal, fleet.PriorityHigh,
		fleet.PriorityUrgent,
	} {
		task := brief("t", "done")
		task.Task.Priority = p
		got := s.do(task).Summary
		_, how, ok := strings.Cut(got, "- The priority is "+string(p)+": ")
		how, _, _ = strings.Cut(how, "\n")
		assert.That(t, ok && how != "" && !seen[how], "%s: %s", p, got)
		seen[how] = true
		assert.Contains(t, got, `"pr": URL}, "tokens_spent": NUMBER}`)
	}
	assert.Contains(t, s.do(brief("t", "done")).Summary, "The priority is normal: ")
}

// TestContractStandsInThePage: the README shows the contract word for word.
func TestContractStandsInThePage(t *testing.T) {
	t.Parallel()
	task := &task{WorkerTask: brief("t", "")}
	task.Task.ReplySchema, task.Task.TokenBudget, task.Task.Priority = fleet.ReplyProse, 5000, fleet.PriorityHigh
	page := must.Get(os.ReadFile("../README.md"))(t)
	assert.Contains(t, string(page), task.contract("2026-11-23T15:04:05Z"), "README.md should have this as a block")
}

// TestTalkStandsInTheBrief: the brief of a program has the conversation that its task continues.
func TestTalkStandsInTheBrief(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("a", `cat`))
	must.OK(t, os.WriteFile(filepath.Join(s.dir, "a.png"), []byte("x"), 0o600))
	long := strings.Repeat("x", maxEarlier)
	for name, c := range map[string]struct {
		talk agent.Talk
		want string
	}{
		"nothing": {agent.Talk{}, "do it"},
		"messages": {
			agent.Talk{Earlier: []agent.Said{{Role: "user", Text: "hi"}, {Role: "assistant", Text: "ho"}}},
			"The conversation so far, the oldest message first:\n\n[user]\nhi\n\n[assistant]\nho\n\n[user, now]\ndo it",
		},
		"long ones": {
			agent.Talk{Earlier: []agent.Said{
				{Role: "user", Text: "first"},
				{Role: "user", Text: long},
				{Role: "user", Text: long},
				{Role: "user", Text: long},
				{Role: "user", Text: long},
			}},
			"The conversation so far, the oldest message first (1 earlier ones are left out):\n\n" +
				strings.Repeat("[user]\n"+long[:maxEarlier/4]+"… (cut)\n\n", 4) + "[user, now]\ndo it",
		},
		"images": {
			agent.Talk{Images: []agent.Image{
				{Name: "a.png", MIME: "image/png", Data: []byte("x")},
				{Name: "../b", MIME: "image/gif"},
			}},
			"do it\n\nImages, as files in the workspace:\n- a.png (image/png, 1 bytes)\n- ../b (image/gif, 0 bytes, " +
				"which is not a file here)",
		},
	} {
		task := brief("id", "do it")
		task.Talk = &c.talk
		assert.Equal(t, strings.TrimSpace(s.do(task).Summary), c.want, "%s", name)
	}
}
