package chains

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// wait says how long a node of kind wait waits.
type wait struct {
	until bool           // the value is a time; else a number of seconds
	value protocol.Value // as it was sent
	expr  *jmes.Expr     // computes the value; nil = value is not an expression
}

// What the fields of a wait should be.
const (
	wantSeconds = "a number of seconds, 0 or more"
	wantUntil   = "unix seconds or a time such as \"2030-01-31T08:00:00Z\" (RFC 3339)"
)

// checkWait notes what is wrong with the time of a wait.
func (s *spec) checkWait(at int, bad *problems) {
	switch {
	case (s.seconds == nil) == (s.until == nil):
		bad.at(at, "seconds", "a wait has either seconds or until: %s, or %s; each may be an expression", wantSeconds,
			wantUntil)
		return
	case s.seconds != nil && !isText(s.seconds):
		if _, ok := secondsOf(s.seconds); !ok {
			bad.at(at, "seconds", "should be %s, or an expression that gives it", wantSeconds)
		}
	case s.until != nil && (!isText(s.until) || startsWithDigit(s.until)):
		if _, ok := timeOf(s.until); !ok {
			bad.at(at, "until", "should be %s, or an expression that gives it", wantUntil)
		}
	}
}

func isText(val protocol.Value) bool { return val.Kind() == '"' }

// startsWithDigit reports whether a text begins with a digit, as times do and expressions do not.
func startsWithDigit(val protocol.Value) bool {
	text, _ := val.Str()
	return text != "" && text[0] >= '0' && text[0] <= '9'
}

// timeOf reads unix seconds, or a time in RFC 3339 form.
func timeOf(val protocol.Value) (time.Time, bool) {
	if text, ok := val.Str(); ok {
		t, err := time.Parse(time.RFC3339, text)
		return t, err == nil
	}
	const year3000 = 32503680000
	n, err := strconv.ParseFloat(string(val), 64)
	if val.Kind() != '0' || err != nil || n < 0 || n > year3000 {
		return time.Time{}, false
	}
	return time.UnixMicro(int64(n * 1e6)), true
}

// bindWait compiles the expression of a wait, if it has one.
func (b *binder) bindWait(at int, n *node) {
	s := n.spec
	w := &wait{until: s.until != nil, value: s.seconds}
	field := "seconds"
	if w.until {
		w.value, field = s.until, "until"
	}
	n.wait, n.shown = w, field+" "+strings.Trim(string(w.value), `"`)
	if isText(w.value) && !(w.until && startsWithDigit(w.value)) {
		text, _ := w.value.Str()
		w.expr = b.expr(at, n, field, text)
	}
}

// maxWaitText bounds the time that an expression computes, in bytes of JSON.
const maxWaitText = 1 << 10

// waitEnd returns when a wait ends.
func (r *run) waitEnd(ctx context.Context, n *node, it *item) (time.Time, error) {
	w, val := n.wait, n.wait.value
	if w.expr != nil {
		v, err := r.eval(ctx, n, it, "the wait", w.expr)
		if err != nil {
			return time.Time{}, err
		}
		raw, err := jmes.Append(nil, v, maxWaitText)
		if err != nil {
			return time.Time{}, r.explained(ctx, "the wait", err)
		}
		val = raw
	}
	if w.until {
		if end, ok := timeOf(val); ok {
			return end, nil
		}
		return time.Time{}, protocol.Errorf(protocol.CodeChainNodeError, "until gives %.100s; it should be %s", val,
			wantUntil)
	}
	seconds, ok := secondsOf(val)
	if !ok {
		return time.Time{}, protocol.Errorf(protocol.CodeChainNodeError, "seconds gives %.100s; it should be %s", val,
			wantSeconds)
	}
	return r.begun(n, it).Add(seconds), nil // in a resumed chain counted from when the node first began
}

// waits runs a node of kind wait. It waits until a time, or fails at once if that is after the deadline of
// the chain or the node.
func (r *run) waits(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	end, err := r.waitEnd(ctx, n, it)
	if err != nil {
		return nil, err
	}
	end = end.Round(0) // by the wall clock, as another host may resume the wait
	if deadline, ok := ctx.Deadline(); ok && end.After(deadline) {
		return nil, protocol.Errorf(protocol.CodeChainNodeError, "it would wait until %s, but its time is up at %s; "+
			"a longer \"timeout\" of the chain, and of the node where it has one, gives it more",
			end.UTC().Format(time.RFC3339), deadline.UTC().Format(time.RFC3339))
	}
	e := it.event()
	e.until = end
	r.tell(n.id, phaseWait, e)
	if err := sleep(ctx, r.plugin.env.Now, end); err != nil {
		return nil, err
	}
	return jsontext.Value(`{"until":` + unixSeconds(end) + `}`), nil
}

// unixSeconds returns a time in unix seconds, as text.
func unixSeconds(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', -1, 64)
}
