package env

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
)

// pipe is a host to which a benchmark sends lines. It reads each answer as one line, without decoding it.
type pipe struct {
	in    *os.File
	lines *bufio.Reader
	done  chan error
}

func newPipe(b *testing.B, plugin host.Plugin) *pipe {
	b.Helper()
	h := must.Get(host.New(host.Options{Plugins: []host.Plugin{plugin}}))(b)
	in, w, err := os.Pipe()
	must.OK(b, err)
	out, answers, err := os.Pipe()
	must.OK(b, err)
	p := &pipe{w, bufio.NewReaderSize(out, 8<<20), make(chan error, 1)}
	go func() {
		p.done <- h.Serve(in, answers)
		answers.Close()
		in.Close()
	}()
	p.call(b, `{"a2e":"1.0","type":"handshake/req","id":"h","agent_id":"a","agent_caps":["env"]}`)
	return p
}

// call sends one line and returns the answer.
func (p *pipe) call(b *testing.B, line string) []byte {
	must.Get(io.WriteString(p.in, line+"\n"))(b)
	return must.Get(p.lines.ReadSlice('\n'))(b)
}

func (p *pipe) close(b *testing.B) {
	p.in.Close()
	go io.Copy(io.Discard, p.lines)
	if err := <-p.done; err != nil {
		b.Error(err)
	}
}

// BenchmarkSteps takes steps of the environments in memory within this process, one by one and in batches. A store
// takes in the experiences, as in a real host.
func BenchmarkSteps(b *testing.B) {
	for _, name := range []string{"counter", "gridworld"} {
		for _, batch := range []int{0, 1, 64, 1024} {
			what := fmt.Sprintf("%s/batch_%d", name, batch)
			if batch == 0 {
				what = name + "/sequential"
			}
			b.Run(what, func(b *testing.B) { benchSteps(b, name, batch) })
		}
	}
}

func benchSteps(b *testing.B, name string, batch int) {
	plugin := must.Get(New("env", Options{Env: name}, benchEnv(b)))(b)
	action := map[string]string{"counter": `{"type":"noop"}`, "gridworld": `{"type":"up"}`}[name]
	takeSteps(b, plugin, name, action, batch)
}

func benchEnv(b *testing.B) host.Env {
	s := stores.Open(b, b.TempDir()+"/"+store.FileName, Part())
	b.Cleanup(func() { s.Close() })
	return host.Env{Now: time.Now, Store: func(context.Context) (store.Store, error) { return s, nil }}
}

// takeSteps measures steps with one action: in one episode, or in batches of several episodes if batch is not 0.
func takeSteps(b *testing.B, plugin host.Plugin, name, action string, batch int) {
	p := newPipe(b, plugin)
	defer p.close(b)
	var ids []string
	for i := range max(batch, 1) {
		answer := p.call(b, fmt.Sprintf(`{"a2e":"1.0","type":"env/reset/req","id":"r%d","env_name":%q,"seed":%d}`, i,
			name, i))
		_, rest, _ := bytes.Cut(answer, []byte(`"episode_id":"`))
		ids = append(ids, `"`+string(rest[:36])+`"`)
	}
	line := fmt.Sprintf(`{"a2e":"1.0","type":"env/step/req","id":"s","episode_id":%s,"action":%s}`, ids[0], action)
	if batch > 0 {
		line = fmt.Sprintf(`{"a2e":"1.0","type":"env/batch_step/req","id":"s","episode_ids":[%s],"actions":[%s]}`,
			strings.Join(ids, ","), strings.Join(slices.Repeat([]string{action}, batch), ","))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += max(batch, 1) {
		if answer := p.call(b, line); !bytes.Contains(answer[:80], []byte(`step/resp`)) {
			b.Fatalf("%.500s", answer)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "steps/s")
}

// BenchmarkExecSteps takes steps of a program through a bare pipe to it, and through a host in between, one by one and
// in batches. The difference in steps/s is the cost of the host.
func BenchmarkExecSteps(b *testing.B) {
	const add = `{"type":"add","value":0}`
	b.Run("bare", func(b *testing.B) {
		dir := b.TempDir()
		program := must.Get(filepath.Abs("testdata/exec_env.py"))(b)
		cmd := exec.Command("python3", program, "serve")
		cmd.Dir = dir
		in := must.Get(cmd.StdinPipe())(b)
		out := bufio.NewReader(must.Get(cmd.StdoutPipe())(b))
		must.OK(b, cmd.Start())
		call := func(line string) {
			must.Get(io.WriteString(in, line+"\n"))(b)
			must.Get(out.ReadSlice('\n'))(b)
		}
		call(`{"type":"env/reset/req","id":"r","env_name":"exec","seed":1,"options":{}}`)
		for b.Loop() {
			call(`{"type":"env/step/req","id":"s","episode_id":"e0","action":` + add + `}`)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "steps/s")
		in.Close()
		must.OK(b, cmd.Wait())
	})
	for _, batch := range []int{0, 1, 8} {
		b.Run(fmt.Sprintf("host/batch_%d", batch), func(b *testing.B) {
			var o Options
			o.setDefaults()
			plugin := newPlugin("env", newExecStage(b, "serve", ExecOptions{}).external, o, benchEnv(b))
			takeSteps(b, plugin, "exec", add, batch)
		})
	}
}
