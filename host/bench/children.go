package bench

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"a2e/host/sandbox"
)

// childCase is the one case that measures this program instead of a target: what
// each of its ways to start a child costs, from the call to the reaped child.
const childCase = "child"

// leastChildren is how often a child is started at least, in each way.
const leastChildren = 20

// thinking is a pause between two starts, as an agent makes it and far longer: it
// is enough for the launcher to have a spare one ready.
const thinking = 30 * time.Millisecond

// childStart is the cost of one way to start a child.
type childStart struct {
	How     string   `json:"how"`
	Millis  float64  `json:"ms"`      // median over the starts
	Times   float64  `json:"times"`   // of os/exec in the same round; the median over rounds
	Missing []string `json:"missing"` // what the machine lacks of this way

	launcher *sandbox.Launcher // nil for os/exec
	pause    time.Duration     // before each start
	took     []float64
}

// benchChildren runs childCase.
func benchChildren(ctx context.Context, r *runner, rep *report) (err error) {
	rep.Children, err = startChildren(ctx, max(leastChildren, r.opts.Starts), r.dir)
	return err
}

// smallest gives the program that does least.
func smallest() (string, error) {
	path, err := exec.LookPath("true")
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// startChildren starts the smallest program n times in each way, all ways in
// turn within each round, one child at a time. dir is a folder to work in.
func startChildren(ctx context.Context, n int, dir string) ([]*childStart, error) {
	path, err := smallest()
	if err != nil {
		return nil, err
	}
	ways := []*childStart{{How: "os/exec"}, {How: "sandbox: off"}, {How: "sandbox: best_effort"}, {How: "the same after a pause", pause: thinking}}
	for i, mode := range []sandbox.Mode{sandbox.Off, sandbox.BestEffort} {
		l, err := sandbox.New(sandbox.Options{Mode: mode, Workspace: dir})
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ways[i+1].launcher = l
	}
	ways[3].launcher = ways[2].launcher
	for round := range n + 1 {
		for _, w := range ways {
			time.Sleep(w.pause)
			begin := time.Now()
			if err := w.once(ctx, path, dir); err != nil {
				return nil, fmt.Errorf("%s: %w", w.How, err)
			}
			if round > 0 { // the first one also finds out what the machine offers
				w.took = append(w.took, time.Since(begin).Seconds()*1e3)
			}
		}
	}
	for _, w := range ways {
		w.sum(ways[0].took)
	}
	return ways, nil
}

// once starts one child and waits for its end.
func (w *childStart) once(ctx context.Context, path, dir string) error {
	if w.launcher == nil {
		cmd := exec.CommandContext(ctx, path)
		cmd.Dir = dir
		return cmd.Run()
	}
	p, err := w.launcher.Command(ctx, sandbox.Policy{Path: path, Dir: dir})
	if err != nil {
		return err
	}
	state, err := p.Wait()
	if err == nil && state != (sandbox.State{}) {
		err = fmt.Errorf("%s ended with %s", path, state)
	}
	return err
}

// sum makes the figures of what was measured; base is os/exec.
func (w *childStart) sum(base []float64) {
	times := make([]float64, len(w.took))
	for i := range w.took {
		times[i] = w.took[i] / base[i]
	}
	w.Times, w.Missing = median(times), []string{}
	w.Millis = median(append([]float64{}, w.took...)) // median sorts
	if w.launcher == nil {
		return
	}
	for _, f := range w.launcher.Findings() {
		if !f.OK && !f.Optional {
			w.Missing = append(w.Missing, f.Name)
		}
	}
}

// writeChildren prints a line for each way.
func (r *report) writeChildren(w io.Writer) error {
	if len(r.Children) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nstart of a child by this program\tmedian\ttimes os/exec\t\n")
	for _, c := range r.Children {
		missing := ""
		if len(c.Missing) > 0 {
			missing = "without " + strings.Join(c.Missing, ", ")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.How, format(c.Millis, "ms"), ratioText(c.Times), missing)
	}
	return t.Flush()
}
