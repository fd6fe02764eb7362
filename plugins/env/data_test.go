package env

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// dataStage returns a host whose workspace, sources and baseline have files, and the path of the workspace.
func dataStage(t *testing.T, opts DataOptions) (s *stage, workspace string) {
	t.Helper()
	workspace = t.TempDir()
	for name, text := range map[string]string{
		"orders.csv": "id,amount\n1,A\n", "blob": "\xff\x00\xfe", "tree/a.txt": "a", "tree/sub/b.csv": "b\n",
		"own/secret": "s",
	} {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(workspace, name)), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(workspace, name), []byte(text), 0o644))
	}
	must.OK(t, os.Symlink("/etc", filepath.Join(workspace, "out")))
	must.OK(t, os.WriteFile(filepath.Join(workspace, "corpus.tar"), tarOf(t, "x/one.txt", "1", "two.txt", "22"), 0o644))
	must.OK(t, os.WriteFile(filepath.Join(workspace, "evil.tar"), tarOf(t, "fine", "1", "../evil", "2"), 0o644))
	e := host.Env{Workspace: workspace, Wall: &wall.Wall{Hidden: []string{wall.Real(filepath.Join(workspace, "own"))}}}
	return newStage(t, pluginOf(t, Options{Data: opts}, e)), workspace
}

func tarOf(t *testing.T, files ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		must.OK(t, w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Mode: 0o644}))
		must.Get(w.Write([]byte(files[i+1])))(t)
	}
	must.OK(t, w.Close())
	return out.Bytes()
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// data sends one request and returns its answer. For an error, the answer has only the member "error", with the code
// and the whole line.
func (s *stage) data(typ protocol.Type, fields string) map[string]any {
	s.t.Helper()
	m := s.Call(typ, fields)
	if m.Code != "" {
		return map[string]any{"error": string(m.Code) + ": " + string(m.Line)}
	}
	all := map[string]any{}
	must.OK(s.t, json.Unmarshal(m.Line, &all))
	return all
}

// uris returns the uris of the items below the data root.
func (s *stage) uris(fields string) (all []string) {
	s.t.Helper()
	var resp protocol.EnvDataGetResponse
	s.Call(protocol.TypeEnvDataGetReq, fields).Decode(s.t, &resp)
	for _, item := range resp.Items {
		all = append(all, item["uri"].(string))
	}
	return all
}

// TestDataOfTwoTasks: of two tasks in turn, the second finds the baseline and no files of the first. The data requests
// disturb no episode.
func TestDataOfTwoTasks(t *testing.T) {
	baseline := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(baseline, "base.txt"), []byte("pristine"), 0o644))
	s, workspace := dataStage(t, DataOptions{Baseline: baseline})
	episode := s.begin("counter")
	for _, task := range []string{"one", "two"} {
		reset := s.data(protocol.TypeEnvDataResetReq, `{}`)
		must.That(t, reset["ok"] == true && reset["restored"] == 1.0 && reset["data_root"] == "/workspace/data",
			"the reset gave %v", reset)
		add := s.data(protocol.TypeEnvDataAddReq, `{"parts":[{"src":"orders.csv","dest":"`+task+`.csv","uri":"orders","checksum":"`+sumOf("id,amount\n1,A\n")+`","size_bytes":14,"mime":"text/csv","extra":1},`+
			`{"src":"missing","dest":"m"},{"src":"orders.csv","dest":"corrupt.csv","checksum":"sha256:`+strings.Repeat("0", 64)+`"}]}`)
		must.That(t, add["ok"] == false && add["added"] == 1.0 && len(add["errors"].([]any)) == 2, "the parts gave %v",
			add)
		want := []any{map[string]any{
			"uri": "orders", "dest": task + ".csv", "size_bytes": 14.0,
			"checksum": sumOf("id,amount\n1,A\n"), "mime": "text/csv",
		}}
		assert.Diff(t, want, add["staged"])
		assert.Slice(t, s.uris(`{}`), []string{"base.txt", task + ".csv"})
	}
	must.OK(t, os.WriteFile(filepath.Join(workspace, "data", "base.txt"), []byte("changed"), 0o644))
	if s.data(protocol.TypeEnvDataResetReq, `{"scope":"baseline"}`); len(s.uris(`{}`)) != 2 ||
		s.step(episode, "inc").StepNum != 1 {
		t.Error("scope baseline took something away, or the episode was disturbed")
	}
	text := must.Get(os.ReadFile(filepath.Join(workspace, "data", "base.txt")))(t)
	assert.That(t, string(text) == "pristine", "the baseline is %q", text)
}

func TestDataAdd(t *testing.T) {
	s, workspace := dataStage(t, DataOptions{MaxFiles: 4, MaxBytes: 30000})
	must.OK(t, os.WriteFile(filepath.Join(workspace, "big"), make([]byte, 30001), 0o644))
	for name, entry := range map[string]string{
		"mark.tar": ".a2e-data", "deep.tar": "d/d/d/d/x",
		"long.tar": strings.Repeat("d/", 2100) + "x", "twice.tar": "x/../two",
	} {
		must.OK(t, os.WriteFile(filepath.Join(workspace, name), tarOf(t, "two", "2", entry, "1"), 0o644))
	}
	for _, c := range []struct{ part, want string }{ // want: the files that are there afterwards, or !ERROR|FILES
		{`{"src":"orders.csv"}`, "orders.csv"},
		{`{"src":"orders.csv","dest":"sub"},{"src":"tree","dest":"./"}`, `!"sub": no folder can be made|sub`},
		{`{"src":"tree/a.txt","dest":"t/a"},{"src":"orders.csv","dest":"t"}`, `!"t": a folder is there|t/a`},
		{`{"src":"mark.tar","dest":"./"}`, "!host's own"},
		{`{"src":"deep.tar","dest":"d/"}`, "!data.max_files"},
		{`{"src":"long.tar","dest":"d/"}`, "!longer than 4096 bytes"},
		{`{"src":"twice.tar","dest":"d/"}`, `!"two": file exists`},
		{`{"src":"/workspace/orders.csv"}`, "!src lies outside"},
		{`{"src":"` + workspace + `/orders.csv","dest":"in/"}`, "in/orders.csv"},
		{`{"src":"tree"}`, "tree/a.txt tree/sub/b.csv"},
		{`{"src":"tree","dest":"./"}`, "a.txt sub/b.csv"},
		{`{"src":"corpus.tar","dest":"corpus/","checksum":"` +
			sumOf(string(tarOf(t, "x/one.txt", "1", "two.txt", "22"))) + `"}`, "corpus/two.txt corpus/x/one.txt"},
		{`{"src":"corpus.tar"}`, "corpus.tar"},
		{`{"src":"evil.tar","dest":"e/"}`, "!leads out of the data root"},
		{`{}`, "!src is missing"},
		{`{"src":"../x"}`, "!src lies outside"},
		{`{"src":"/etc/passwd"}`, "!src lies outside"},
		{`{"src":"out/passwd"}`, "!escapes"},
		{`{"src":"own/secret"}`, "!belongs to the host"},
		{`{"src":".","dest":"d"}`, "!src holds the data root"},
		{`{"src":"orders.csv","dest":"../x"}`, "!dest leads out"},
		{`{"src":"orders.csv","dest":"/x"}`, "!dest leads out"},
		{`{"src":"orders.csv","dest":".a2e-data"}`, "!host's own"},
		{`{"src":"orders.csv","size_bytes":3}`, "!size mismatch"},
		{`{"src":"orders.csv","checksum":"md5:1"}`, "!checksum should be"},
		{`{"src":"tree","checksum":"` + sumOf("") + `"}`, "!checksum is of one file"},
		{`{"src":"big"}`, "!data.max_bytes"},
	} {
		s.data(protocol.TypeEnvDataResetReq, `{}`)
		add := s.data(protocol.TypeEnvDataAddReq, `{"parts":[`+c.part+`]}`)
		if want, wrong := strings.CutPrefix(c.want, "!"); wrong {
			want, _, _ := strings.Cut(want, "|")
			errs, _ := add["errors"].([]any)
			assert.That(t, len(errs) == 1 && strings.Contains(errs[0].(string), want), "%s gave %v, should be "+
				"refused with %q", c.part, add, want)
			_, c.want, _ = strings.Cut(c.want, "|")
		}
		got := strings.Join(s.uris(`{}`), " ")
		assert.That(t, got == c.want, "%s left %q, should be %q: %v", c.part, got, c.want, add)
	}
}

func TestDataGet(t *testing.T) {
	s, _ := dataStage(t, DataOptions{})
	if got := s.data(protocol.TypeEnvDataGetReq, `{}`); got["ok"] != true || len(got["items"].([]any)) != 0 {
		t.Errorf("without a data root there is %v", got)
	}
	s.data(protocol.TypeEnvDataAddReq, `{"parts":[{"src":"orders.csv"},{"src":"blob"},{"src":"tree"}],"data_root":"/workspace/data"}`)
	s.data(protocol.TypeEnvDataAddReq, `{"parts":[{"src":"orders.csv"}],"data_root":"/workspace/data/task"}`)
	for query, want := range map[string]string{
		``: "blob orders.csv task/orders.csv tree/a.txt tree/sub/b.csv", `*.csv`: "orders.csv task/orders.csv " +
			"tree/sub/b.csv", `tree/*`: "tree/a.txt",
		`tree/**`: "tree/a.txt tree/sub/b.csv", `order`: "orders.csv task/orders.csv", `none`: "",
		`{blob,tree/a}*`: "blob tree/a.txt",
	} {
		assert.Equal(t, strings.Join(s.uris(`{"query":"`+query+`"}`), " "), want, "%q found", query)
	}
	if got := s.uris(`{"data_root":"/workspace/data/task"}`); len(got) != 1 || got[0] != "orders.csv" {
		t.Errorf("the folder below has %v", got)
	}
	got := s.data(protocol.TypeEnvDataGetReq, `{"query":"*b*","include_content":true,"max_bytes":3}`)
	want := []any{
		map[string]any{
			"uri": "blob", "dest": "blob", "size_bytes": 3.0, "checksum": sumOf("\xff\x00\xfe"),
			"mime": "application/octet-stream", "base64": base64.StdEncoding.EncodeToString([]byte("\xff\x00\xfe")),
		},
		map[string]any{
			"uri": "tree/sub/b.csv", "dest": "tree/sub/b.csv", "size_bytes": 2.0, "checksum": sumOf("b\n"),
			"mime": "text/csv; charset=utf-8", "content": "b\n",
		},
	}
	assert.Diff(t, want, got["items"])
	assert.Equal(t, got["truncated"], false)
	got = s.data(protocol.TypeEnvDataGetReq, `{"query":"orders","include_content":true,"max_bytes":3}`)
	item := got["items"].([]any)[0].(map[string]any)
	assert.That(t, item["content"] == nil && item["checksum"] == sumOf("id,amount\n1,A\n") && got["truncated"] == true,
		"a file that is too long gave %v", got)
}

func TestDataRequestsThatAreRefused(t *testing.T) {
	s, workspace := dataStage(t, DataOptions{})
	must.OK(t, os.Mkdir(filepath.Join(workspace, "data"), 0o755))
	for _, c := range []struct{ typ, fields, want string }{
		{"reset", `{}`, "reset_denied: "},
		{"reset", `{"scope":"some"}`, "/scope"},
		{"reset", `{"data_root":"/etc"}`, "/data_root"},
		{"reset", `{"data_root":"/workspace/data/../x"}`, "/data_root"},
		{"add", `{"parts":[` + strings.Repeat(`{},`, 1000) + `{}]}`, "/parts"},
		{"get", `{"max_bytes":-1}`, "/max_bytes"},
		{"get", `{"query":"[a"}`, "/query"},
	} {
		got, _ := s.data(protocol.Type("env/data/"+c.typ+"/req"), c.fields)["error"].(string)
		assert.That(t, strings.Contains(got, c.want), "%s %.60s: %q, should tell of %s", c.typ, c.fields, got, c.want)
	}
	must.OK(t, os.Remove(filepath.Join(workspace, "data")))
	must.OK(t, os.Symlink("own", filepath.Join(workspace, "data")))
	got, _ := s.data(protocol.TypeEnvDataAddReq, `{"parts":[{"src":"orders.csv"}]}`)["error"].(string)
	assert.That(t, strings.Contains(got, "belongs to the host"), "a data root in the host's own folder: %q", got)
	for _, root := range []string{".", "..", workspace} {
		_, err := New("e", Options{Data: DataOptions{Root: root}}, host.Env{Workspace: workspace})
		assert.Fails(t, err, "data.root", "root %s", root)
	}
	plain := pluginOf(t, Options{Env: "gridworld"}, host.Env{Workspace: workspace})
	other := must.Get(New("other", Options{Data: DataOptions{Root: "theirs"}}, host.Env{Workspace: workspace}))(t)
	if got := newStage(t, plain, other).data(protocol.TypeEnvDataResetReq, `{}`); got["ok"] != true ||
		!pathExists(filepath.Join(workspace, "theirs")) {
		t.Errorf("the plugin whose config has a data root was not asked: %v", got)
	}
	own := filepath.Join(t.TempDir(), "deep", "root")
	s, _ = dataStage(t, DataOptions{Root: own, Sources: []string{workspace}})
	killed := filepath.Join(own, dataOwn+"-x") // a folder in which a killed host had begun to stage
	putFile(t, filepath.Join(killed, "half"), "")
	putFile(t, filepath.Join(own, "mine", "closed", "x"), "")
	must.OK(t, os.Chmod(filepath.Join(own, "mine", "closed"), 0))
	if got := s.data(protocol.TypeEnvDataResetReq, `{"data_root":"`+own+`"}`); got["ok"] != true ||
		len(s.uris(`{}`)) != 0 || pathExists(killed) {
		t.Errorf("the config's data root was not emptied: %v", got)
	}
}
