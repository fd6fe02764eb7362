package chains

import (
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// The phases of a node beside protocol.PhaseStart.
const (
	phaseStart = protocol.PhaseStart
	phaseDone  = protocol.ChainPhase("done")
	phaseSkip  = protocol.ChainPhase("skip")
	phaseError = protocol.ChainPhase("error")
)

// maxErrorText is how much of an error's text events and answers have, in bytes.
const maxErrorText = 4096

// event is a chain/event, encoded by append: chains of thousands of nodes send twice as
// many. Its data say how long the node took, and of an item which one it is.
type event struct {
	id     string
	phase  protocol.ChainPhase
	output jsontext.Value
	err    string
	took   time.Duration
	of     string // the map whose item this is; "" = of no map
	index  int
	seq    int
}

// tell sends an event of a node, if the agent asked for them.
func (r *run) tell(id string, phase protocol.ChainPhase, e event) {
	host.Emit(r.root, protocol.TypeChainEvent, func(seq int) any {
		e.id, e.phase, e.seq = r.prefix+id, phase, seq
		e.output = bounded(e.output, r.plugin.env.MaxOutputBytes)
		e.err = shortened(e.err)
		return &e
	})
}

// shortened cuts the text of an error.
func shortened(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorText], "") + "…"
}

// bounded gives an output, or in place of a longer one how long that is.
func bounded(raw jsontext.Value, most int) jsontext.Value {
	if len(raw) <= most {
		return raw
	}
	return truncated(len(raw))
}

// truncated stands for a value of so many bytes, about.
func truncated(size int) jsontext.Value {
	return jsontext.Value(`{"truncated":true,"bytes":` + strconv.Itoa(size) + `}`)
}

// AppendJSON implements protocol.Appender.
func (e *event) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"kind":"status","data":{`...)
	if e.phase == phaseDone || e.phase == phaseError {
		dst = strconv.AppendFloat(append(dst, `"duration_ms":`...), float64(e.took.Microseconds())/1e3, 'f', 3, 64)
	}
	if e.of != "" {
		if e.phase == phaseDone || e.phase == phaseError {
			dst = append(dst, ',')
		}
		dst = protocol.AppendString(append(dst, `"map":`...), e.of)
		dst = strconv.AppendInt(append(dst, `,"index":`...), int64(e.index), 10)
	}
	dst = strconv.AppendInt(append(dst, `},"seq":`...), int64(e.seq), 10)
	dst = protocol.AppendString(append(dst, `,"node_id":`...), e.id)
	dst = protocol.AppendString(append(dst, `,"phase":`...), e.phase)
	dst = appendValue(append(dst, `,"output":`...), e.output)
	dst = protocol.AppendString(append(dst, `,"error":`...), e.err)
	return append(dst, '}'), nil
}

// appendValue appends a value that may be missing.
func appendValue(dst []byte, raw jsontext.Value) []byte {
	if raw == nil {
		return append(dst, "null"...)
	}
	return append(dst, raw...)
}
