package e2e_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/postgres"
	"a2e/host/hosttest/stores"
)

// TestOnPostgres: the tests of kept data pass with the state on a server as well.
func TestOnPostgres(t *testing.T) {
	t.Setenv(hosttest.Built, filepath.Dir(hosttest.Program(t, "a2e")))
	stores.OnPostgres(t, "^Test(FourHosts|HostsSee|StepsOutlive|PlanByHand|PlanBoard|LearnStats|LearnFrom|LearnExportOfR|StateMoves|StateImportThat|ChainRun$|ChainJournal|DispatchIsKilled|DispatchResumes|RestoredSession|LookingLeaves|GoldenRPC|GoldenFleet|EnvByHand|MemoryAdd|MemoryForget|MemoryTells|MemoryList|[A-Za-z]+OfThisFolder)")
}

// TestEnginesAreAlike: a session gets the same answers on both engines, and its state moves from each engine to the
// other and back without a changed byte.
func TestEnginesAreAlike(t *testing.T) {
	t.Parallel()
	server := postgres.Start(t)
	folder := func(schema string) string {
		dir := workDir(t)
		config := durableConfig + "  - {name: learning, type: learning}\n  - {name: env, type: env, metadata: {env: " +
			"gridworld}}\n"
		if schema != "" {
			config += "state: " + server.URL(postgres.Superuser) + "&schema=" + schema + "\n"
		}
		writeConfig(t, dir, config)
		return dir
	}
	file, table := folder(""), folder("first")
	want, got := alikeSession(t, file), alikeSession(t, table)
	assert.Diff(t, want, got)
	for _, way := range [][]string{{file, folder("second"), folder("")}, {table, folder(""), folder("third")}} {
		text := exported(t, way[0])
		must.That(t, strings.Count(text, "\n") > 10 && len(text) > 700_000, "the export has only %d bytes in %d lines",
			len(text), strings.Count(text, "\n"))
		for _, dir := range way[1:] {
			run(t, dir, []byte(text), "state", "import", "-").want(t, 0, "")
			must.That(t, exported(t, dir) == text, "the export has changed on its way to %s", dir)
		}
	}
}

// alikeSession plays a session and returns the answers without ids and times.
func alikeSession(t *testing.T, dir string) (answers []string) {
	t.Helper()
	big := strings.Repeat(`wörd \u0000 \ud83d\ude00 `, 40_000)
	hostile := "nul \\u0000 emoji \U0001f600 bidi \u202egnp\u202c last \\udbff\\udffe quote ' \\\" ; DROP -- " +
		"\\\\u0000 $$ ? $1"
	known, idText := map[string]string{}, regexp.MustCompile(`"(memory_id|plan_id|task_id|episode_id)":"([^"]+)"`)
	volatile := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{12,32}\b|\b\d{10}(\.\d+)?\b|20\d\d-\d\d-\d\dT[0-9:.]+Z|"(wait|duration|took|elapsed|avg_duration|p95_duration)_ms":[0-9.e-]+`)
	l := start(t, dir)
	for i, request := range []string{
		`{"type":"handshake/req","agent_id":"a","agent_caps":["memory","planning","learning","env","tools"]`,
		`{"type":"memory/init/req","namespace":"default"`,
		`{"type":"memory/store/req","memory_id":"$memory_id","entries":[` + entry("e", "episodic", "what happened",
			"x") + `,` + entry("s", "semantic", "the river runs to the sea", "water", "x") +
			`,{"key":{"id":"H"},"tier":"semantic","content":"H","tags":["H"]},{"key":{"id":"big"},"tier":"semantic","content":"BIG","tags":[]}]`,
		`{"type":"memory/store/req","memory_id":"$memory_id","entries":[` + entry("s", "semantic",
			"the river runs into the sea", "water") + `]`,
		`{"type":"memory/retrieve/req","memory_id":"$memory_id","query":"rivers","limit":2`,
		`{"type":"memory/retrieve/req","memory_id":"$memory_id","tags":["H"],"limit":5`,
		`{"type":"memory/retrieve/req","memory_id":"$memory_id","keys":[{"id":"H"},{"id":"none"}],"limit":5`,
		`{"type":"memory/retrieve/req","memory_id":"$memory_id","query":"' OR 1=1 -- \u0000","limit":2`,
		`{"type":"memory/forget/req","memory_id":"$memory_id","keys":[{"id":"e"}],"tier":"episodic"`,
		`{"type":"planning/plan/create","name":"H"`,
		`{"type":"planning/task/add","plan_id":"$plan_id","title":"H","priority":"urgent","metadata":{"k":[1,"H"]}`,
		`{"type":"planning/task/add","plan_id":"$plan_id","title":"later","deps":["$task_id"]`,
		`{"type":"planning/task/update","plan_id":"$plan_id","task_id":"$task_id","action":"claim","force":true,"owner":"o","lease":60`,
		`{"type":"planning/task/list","plan_id":"$plan_id"`,
		`{"type":"planning/task/list","plan_id":"$plan_id","ready":true`,
		`{"type":"planning/plan/list"`, `{"type":"planning/plan/board","plan_id":"$plan_id"`,
		`{"type":"planning/task/list","plan_id":"none' or ''='"`,
		`{"type":"tool/call/req","tool_name":"glob","arguments":{"pattern":"*.none"}`,
		`{"type":"learn/feedback/req","feedbacks":[{"feedback_id":"f1","polarity":"positive","score":0.5,"confidence":1,"dimension":"tone","source":"human","model_version":"H"}]`,
		`{"type":"learn/experience/req","experiences":[{"experience_id":"x1","action":{"component_name":"glob"},"reward":0.25,"state":{"H":"H"}}]`,
		`{"type":"learn/stats/req"`, `{"type":"learn/adapt/req","strategy":"softmax"`,
		`{"type":"learn/stats/req","history":true`,
		`{"type":"env/reset/req","env_name":"gridworld","seed":7`,
		`{"type":"env/step/req","episode_id":"$episode_id","action":{"type":"up"}`,
		`{"type":"env/exp/list/req","episode_id":"$episode_id"`,
		`{"type":"env/observe/req","episode_id":"none"`,
	} {
		id := fmt.Sprint("q", i)
		for name, value := range known {
			request = strings.ReplaceAll(request, "$"+name, value)
		}
		request = strings.NewReplacer(`"H"`, `"`+hostile+`"`, `"BIG"`, `"`+big+`"`).Replace(request)
		l.send(request + `,"id":"` + id + `"}`)
		text := string(must.Get(json.Marshal(l.answer(id), json.Deterministic(true)))(t))
		for _, found := range idText.FindAllStringSubmatch(text, -1) {
			known[found[1]] = found[2]
		}
		answers = append(answers, strings.ReplaceAll(volatile.ReplaceAllString(text, "…"), dir, "DIR"))
	}
	l.stdin.Close()
	assert.Equal(t, l.exit(), 0, l.stderr.String())
	return answers
}

// TestDoctorOfServerAway: doctor does not report a state as fine if its server cannot be reached.
func TestDoctorOfServerAway(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "plugins: []\nstate: postgres://nobody@/postgres?host="+t.TempDir()+"\n")
	out := run(t, dir, nil, "doctor").want(t, 1, "")
	assert.That(t, strings.Contains(out.stdout, "server of the state cannot be reached") &&
		!regexp.MustCompile(`ok +postgres:`).MatchString(out.stdout), "%s", out.stdout)
}

// TestAddressWithoutMeaning: an address of a server with a part that would have no effect stops each command, and its
// password is not shown.
func TestAddressWithoutMeaning(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for address, says := range map[string]string{
		`postgres://u:hunter-2@h/d?schema=a";x`:         "c.yaml:2:8: state has parameters that cannot be read",
		`postgres://u:hunter-2@h/d?schema=a&schema=b`:   `state has the parameter "schema" twice`,
		`postgres://u:hunter-2@h/d?sslmode=require#top`: "state has a #",
	} {
		writeFile(t, dir, "c.yaml", "plugins: []\nstate: '"+address+"'\n")
		for _, command := range []string{"check", "serve"} {
			o := run(t, dir, nil, "-c", "c.yaml", command).want(t, 3, says)
			assert.That(t, !strings.Contains(o.stdout+o.stderr, "hunter-2"), "%s shows the password: %s%s", command,
				o.stdout, o.stderr)
		}
	}
	run(t, dir, nil, "-c", "/dev/null", "fleet", "ls", "--fleet", `postgres://u:hunter-2@h/d?fleet=a;b`).want(t, 2,
		"cannot be read")
}
