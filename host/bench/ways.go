package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// ways are several ways to do something. They take turns.
type ways struct {
	Ways []*way `json:"ways"`
}

// way is one of them.
type way struct {
	What  string  `json:"what"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Times float64 `json:"times"` // its median, of that of the way it is held against

	base int                                                     // index of that
	once func(ctx context.Context, n int) (time.Duration, error) // does it for the n-th time
	took []float64
}

// measure times n turns of each way. The first ones are not counted: they wait for what is
// made with the first need of it.
func (ws *ways) measure(ctx context.Context, n int) error {
	for i := range n + 1 {
		for _, w := range ws.Ways {
			took, err := w.once(ctx, i)
			if err != nil {
				return fmt.Errorf("%s: %w", w.What, errors.Join(err, context.Cause(ctx)))
			}
			if i > 0 {
				w.took = append(w.took, took.Seconds()*1e6)
			}
		}
	}
	for _, w := range ws.Ways {
		slices.Sort(w.took)
		w.P50, w.P99 = w.took[len(w.took)/2], w.took[len(w.took)*99/100]
	}
	for _, w := range ws.Ways {
		w.Times = w.P50 / ws.Ways[w.base].P50
	}
	return nil
}

// write prints a line for each way, below what they do.
func (ws *ways) write(out io.Writer, what string) error {
	if ws == nil {
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\n%s\tp50\tp99\ttimes\t\n", what)
	for _, w := range ws.Ways {
		against := "of " + ws.Ways[w.base].What
		if w == ws.Ways[w.base] {
			against = ""
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", w.What, format(w.P50, "us"), format(w.P99, "us"), ratioText(w.Times), against)
	}
	return t.Flush()
}
