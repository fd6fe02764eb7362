package chains

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// workspace returns a folder with files, by path.
func workspace(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

func TestSavedChains(t *testing.T) {
	dir := workspace(t, map[string]string{
		"chains/greet.yaml": `
description: Greets somebody.
initial_input: {greeting: hello, big: 12345678901234567890}
nodes:
  - node_id: say
    kind: tool
    name: echo
    input_map:
      text: join(' ', [input.greeting, input.name])
      big: input.big
`,
		"chains/each.yml": `
nodes:
  - {node_id: all, kind: map, items_path: input.names, map_node: one}
  - {node_id: one, kind: chain, name: greet, input_map: {name: item}}
`,
		"chains/json.json":  `{"nodes":[{"node_id":"a","kind":"tool","name":"echo","input":{"s":"\ud83d\ude00"}}]}`,
		"chains/fails.yaml": "nodes:\n- {node_id: a, kind: tool, name: fail}\n",
		"chains/goes.yaml": "nodes:\n- {node_id: a, kind: tool, name: fail, on_error: skip, next_node: b}\n- " +
			"{node_id: b, kind: tool, name: echo}\n",
		"chains/slow.yaml": "timeout: 1\nnodes:\n- {node_id: a, kind: tool, name: block}\n",
	})
	s := newStage(t, Options{}, dir)
	for _, tc := range []struct{ name, fields, outputs, message string }{
		{
			"preset and given", nodes(`"node_id":"c","kind":"chain","name":"greet","input":{"name":"ada"}`),
			`{"c":{"text":"hello ada","big":12345678901234567890}}`, "",
		},
		{
			"given wins", nodes(`"node_id":"c","kind":"chain","name":"greet","input":{"name":"ada","greeting":"hi"}`),
			`{"c":{"text":"hi ada","big":12345678901234567890}}`, "",
		},
		{
			"chain in a map in a chain", nodes(`"node_id":"c","kind":"chain","name":"each","input":{"names":["a","b"]}`,
				`"node_id":"d",`+toolEcho+`,"input_map":{"t":"c[1].text"}`),
			`{"c":[{"text":"hello a","big":12345678901234567890},{"text":"hello b","big":12345678901234567890}],"d":{"t":"hello b"}}`, "",
		},
		{"JSON", nodes(`"node_id":"c","kind":"chain","name":"json"`), `{"c":{"s":"` + "\U0001f600" + `"}}`, ""},
		{
			"fails", nodes(`"node_id":"c","kind":"chain","name":"fails"`), `{}`,
			`node "c": the saved chain "fails": node "a": tool "fail" failed`,
		},
		{
			"goes on", nodes(`"node_id":"c","kind":"chain","name":"goes"`), `{"c":{}}`,
			`node "c/a": tool "fail" failed: it is broken; the chain went on`,
		},
		{
			"its own timeout", nodes(`"node_id":"c","kind":"chain","name":"slow","on_error":"skip"`), `{"c":null}`,
			`the saved chain "slow" did not end within its timeout of 1s`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			res := s.run(tc.fields)
			got := strings.ReplaceAll(res.text(t), `\ud83d\ude00`, "\U0001f600")
			if message := ""; got != tc.outputs || res.Success != (tc.message == "") || res.Error != nil &&
				!strings.Contains(res.Error.Message, tc.message) {
				if res.Error != nil {
					message = res.Error.Message
				}
				t.Errorf("outputs %s, error %q; should be %s, %q", got, message, tc.outputs, tc.message)
			}
		})
	}
	id := s.Go(protocol.TypeChainReq, nodes(`"node_id":"c","kind":"chain","name":"greet","input":{"name":"x"}`))
	s.Answer(id)
	assert.Equal(t, strings.Join(s.events(id), ", "), "c start, c/say start, c/say done, c done", "events")
	counted := map[string]int{}
	for _, r := range s.shed.records {
		if !strings.HasPrefix(r.Component, "chain-") {
			counted[fmt.Sprint(r.Component, r.Success)]++
		}
	}
	assert.That(t, counted["greettrue"] == 5 && counted["eachtrue"] == 1 && counted["failsfalse"] == 1 &&
		counted["goesfalse"] == 1,
		"counted %v", counted)
}

// TestSavedChainsGiveMemoryBack: the memory that a saved chain held is free again when the chain ends.
func TestSavedChainsGiveMemoryBack(t *testing.T) {
	dir := workspace(t, map[string]string{"chains/large.yaml": "nodes:\n- {node_id: a, kind: tool, name: large, " +
		"input: {n: 60000}, next_node: b}\n- {node_id: b, kind: tool, name: echo}\n"})
	s := newStage(t, Options{MaxStateBytes: 100_000}, dir)
	res := s.run(nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1,2,3,4,5]`"+`","max_parallel":1,"map_node":"c"`,
		`"node_id":"c","kind":"chain","name":"large"`))
	got := res.text(t)
	assert.That(t, got == `{"m":[{},{},{},{},{}]}`, "%s, %+v", got, res.Error)
}

func TestSavedChainsThatAreWrong(t *testing.T) {
	call := func(name string) string { return "nodes:\n- {node_id: a, kind: chain, name: " + name + "}\n" }
	files := map[string]string{
		"chains/self.yaml":     call("self"),
		"chains/one.yaml":      call("two"),
		"chains/two.yaml":      call("one"),
		"chains/broken.yaml":   "nodes:\n- node_id: a\n  kind: tool\n  nme: echo\n",
		"chains/yaml.yaml":     "nodes: [\n",
		"chains/expr.yaml":     "nodes:\n- node_id: a\n  kind: tool\n  name: echo\n  input_map:\n    x: b.c\n",
		"chains/empty.yaml":    "",
		"chains/two docs.yaml": call("self"),
		"chains/docs.yaml":     call("self") + "---\n" + call("self"),
		"chains/cyclic.yaml":   "nodes:\n- {node_id: a, kind: tool, name: echo, next_node: a}\n",
		"chains/bomb.yaml":     bomb(),
		"chains/endless.yaml":  "nodes: &a [*a]\n",
		"chains/large.yaml":    "# " + strings.Repeat("x", maxFileBytes) + "\n" + call("self"),
		"chains/merge.yaml":    "x: &x {node_id: a}\nnodes:\n- {<<: *x, kind: tool}\n",
		"outside.yaml":         call("self"),
	}
	for i := range 10 {
		files[fmt.Sprintf("chains/deep%d.yaml", i)] = call(fmt.Sprint("deep", i+1))
	}
	dir := workspace(t, files)
	err := os.Symlink(filepath.Join(dir, "outside.yaml"), filepath.Join(dir, "chains", "inside.yaml"))
	must.That(t, err == nil || runtime.GOOS == "windows", "%v", err)
	secret := filepath.Join(t.TempDir(), "secret.yaml")
	must.OK(t, os.WriteFile(secret, []byte("secret: sesame\n"), 0o600))
	err = os.Symlink(secret, filepath.Join(dir, "chains", "link.yaml"))
	must.That(t, err == nil || runtime.GOOS == "windows", "%v", err)
	must.OK(t, os.Mkdir(filepath.Join(dir, "chains", "folder.yaml"), 0o700))
	s := newStage(t, Options{}, dir)
	for _, tc := range []struct{ name, code, message string }{
		{"self", "chain_cycle", "self → self"},
		{"one", "chain_cycle", "one → two → one"},
		{"cyclic", "chain_cycle", "a → a"},
		{"broken", "schema_violation", "broken.yaml:4: /nodes/0/nme: is not known"},
		{"yaml", "schema_violation", "not valid YAML"},
		{"expr", "schema_violation", "expr.yaml:6: /nodes/0/input_map"},
		{"empty", "schema_violation", "the file is empty"},
		{"docs", "schema_violation", "more than one document"},
		{"two docs", "schema_violation", "no saved chain may be called"},
		{"bomb", "schema_violation", "aliases stand for more"},
		{"endless", "schema_violation", "within its own anchor"},
		{"large", "schema_violation", "larger than"},
		{"merge", "schema_violation", "<< has no meaning"},
		{"deep0", "schema_violation", "more than 8 deep"},
		{"folder", "schema_violation", "not a regular file"},
		{"link", "schema_violation", "cannot be read"},
		{"inside", "schema_violation", "cannot be read"},
		{"../outside", "schema_violation", "no saved chain may be called"},
		{"..", "schema_violation", "no saved chain may be called"},
		{"/etc/passwd", "schema_violation", "no saved chain may be called"},
		{"nothing", "schema_violation", "there is no such chain in chains; there are: bomb, broken"},
		{"", "schema_violation", "is required"},
		{strings.Repeat("x", 1000), "schema_violation", "no saved chain may be called"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := s.Call(protocol.TypeChainReq, nodes(fmt.Sprintf(`"node_id":"c","kind":"chain","name":%q`, tc.name)))
			assert.That(t, string(m.Code) == tc.code && strings.Contains(m.Get("/message"), tc.message),
				"answered by %.1000s; should say %q", m.Line, tc.message)
			assert.That(t, !strings.Contains(string(m.Line), dir) && !strings.Contains(string(m.Line), "sesame"),
				"the answer tells too much: %s", m.Line)
		})
	}
	calls := s.shed.done()
	assert.That(t, len(calls) == 0, "something ran: %q", calls)
}

// bomb returns a YAML file in which each line stands for ten times the content of the line before.
func bomb() string {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	return text
}

func TestParseFileNumbers(t *testing.T) {
	f := must.Get(ParseFile("x.yaml", []byte("initial_input: {a: 12345678901234567890, b: 1.10, c: 0x10, d: .5, e: "+
		"true, f: ~, g: 2020-01-02, h: 'text', i: 1e3, j: 0o17}\nnodes: []\n")))(t)
	want := `{"a":12345678901234567890,"b":1.10,"c":16,"d":0.5,"e":true,"f":null,"g":"2020-01-02","h":"text","i":1e3,"j":15}`
	assert.Equal(t, string(f.Request.InitialInput.Raw()), want)
	_, err := ParseFile("x.yaml", []byte("initial_input: {a: .nan}\nnodes: []\n"))
	assert.That(t, err != nil && strings.Contains(err.Error(), "x.yaml: line 1"), "of a number that JSON does not "+
		"have: %v", err)
}

func TestNewRefusesAFolderElsewhere(t *testing.T) {
	for _, path := range []string{"..", "/etc", "a/../../b"} {
		_, err := New("chains", Options{ChainsPath: path}, host.Env{})
		assert.That(t, err != nil && strings.Contains(err.Error(), "chains_path"), "%s: %v", path, err)
	}
}

// TestSavedChainsAreBoundedTogether: the saved chains that a request runs are bounded together, not only each one
// alone.
func TestSavedChainsAreBoundedTogether(t *testing.T) {
	work := t.TempDir()
	for _, name := range []string{"one", "two"} {
		text := `{"nodes":[{"node_id":"a","kind":"tool","name":"echo","input":{"text":"` + strings.Repeat("x", 1000) +
			`"}}]}`
		must.OK(t, os.MkdirAll(filepath.Join(work, "chains"), 0o755),
			os.WriteFile(filepath.Join(work, "chains", name+".json"), []byte(text), 0o644))
	}
	l := &planner{
		ctx: t.Context(), plugin: newPlugin(t, Options{}, work), saved: map[string]*plan{}, left: 100,
		room: 1500,
	}
	must.Get(l.load("one", "/x"))(t)
	_, err := l.load("one", "/x")
	assert.That(t, err == nil, "it was read already: %v", err)
	_, err = l.load("two", "/x")
	assert.That(t, err != nil && strings.Contains(err.Error(), "bytes together"), "%v", err)
}
