package proc

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// wire is a host on real pipes, whose output is not checked.
type wire struct {
	b   *testing.B
	in  *os.File
	out *bufio.Reader
}

func newWire(b *testing.B) *wire {
	b.Helper()
	h := must.Get(host.New(host.Options{Plugins: []host.Plugin{newPlugin(b, "procs", b.TempDir(),
		DefaultOptions())}}))(b)
	hostIn, in := pipe(b)
	out, hostOut := pipe(b)
	served := make(chan error, 1)
	go func() {
		served <- h.Serve(hostIn, hostOut)
		hostOut.Close()
	}()
	b.Cleanup(func() {
		in.Close()
		_, _ = io.Copy(io.Discard, out)
		must.OK(b, <-served)
		hostIn.Close()
		out.Close()
	})
	w := &wire{b, in, bufio.NewReaderSize(out, 1<<20)}
	w.send(protocol.TypeHandshakeReq, "hello", `{"agent_id":"a","agent_caps":["proc"]}`)
	w.until(`"handshake/resp"`)
	return w
}

func pipe(b *testing.B) (r, w *os.File) {
	b.Helper()
	r, w, err := os.Pipe()
	must.OK(b, err)
	return r, w
}

func (w *wire) send(typ protocol.Type, id, fields string) {
	_, err := io.WriteString(w.in, hosttest.Request(typ, id, fields)+"\n")
	must.OK(w.b, err)
}

// until reads up to the line that contains text, and passes the lines before it to each.
func (w *wire) until(text string, each ...func(line []byte)) {
	for {
		line, err := w.out.ReadSlice('\n')
		if must.OK(w.b, err); bytes.Contains(line, []byte(text)) {
			return
		}
		for _, do := range each {
			do(line)
		}
	}
}

// report reports the median and the 99th percentile of times in milliseconds.
func report(b *testing.B, name string, times []time.Duration) {
	slices.Sort(times)
	ms := func(i int) float64 { return float64(times[i]) / 1e6 }
	b.ReportMetric(ms(len(times)/2), name+"-p50-ms")
	b.ReportMetric(ms(len(times)*99/100), name+"-p99-ms")
}

// BenchmarkOutput measures the output of a process in lines of 80 bytes, for an agent that reads all of
// it and pings every 10 ms.
func BenchmarkOutput(b *testing.B) {
	w := newWire(b)
	const size = 64 << 20
	var asked time.Time
	var pongs []time.Duration
	waits, events := false, 0
	b.SetBytes(size)
	for b.Loop() {
		w.send(protocol.TypeProcSpawnReq, "flood", fields(b, "cmd",
			[]string{"bash", "-c", "yes " + strings.Repeat("x", 79) + " | head -c 67108864"}))
		w.until(`"data":{"code":0}`, func(line []byte) {
			switch {
			case waits && bytes.Contains(line[:min(len(line), 200)], []byte(`"pong"`)):
				pongs, waits = append(pongs, time.Since(asked)), false
			case !waits && time.Since(asked) > 10*time.Millisecond:
				asked, waits = time.Now(), true
				w.send(protocol.TypePing, "ping", `{}`)
			}
			events++
		})
	}
	b.ReportMetric(float64(events)/float64(b.N), "events/op")
	if len(pongs) > 0 {
		report(b, "ping", pongs)
	}
}

// BenchmarkSpawn measures the time from a spawn request to its answer. The pauses let the host prepare
// the launcher for the next child, as the pauses of an agent do.
func BenchmarkSpawn(b *testing.B) {
	w := newWire(b)
	var times []time.Duration
	for b.Loop() {
		begun := time.Now()
		w.send(protocol.TypeProcSpawnReq, "spawn", `{"cmd":["echo"]}`)
		w.until(`"proc/spawn/resp"`)
		times = append(times, time.Since(begun))
		b.StopTimer()
		w.until(`"data":{"code":0}`)
		time.Sleep(30 * time.Millisecond)
		b.StartTimer()
	}
	report(b, "spawn", times)
}
