package env

import (
	"math"
	"strconv"
	"time"

	"a2e/protocol"
)

// observation is a protocol.EnvObservation on its way out: it is on the path of every
// step, so it is written by append.
type observation struct {
	episode   string
	step      int64
	state     []byte // a JSON object
	done      bool
	truncated bool
	reward    float64
	at        int64 // microseconds since 1970
	meta      map[string]any
}

func (o *observation) append(dst []byte) ([]byte, error) {
	dst = append(dst, `{"episode_id":`...)
	dst = protocol.AppendString(dst, o.episode)
	dst = append(dst, `,"step_num":`...)
	dst = strconv.AppendInt(dst, o.step, 10)
	dst = append(dst, `,"state":`...)
	dst = append(dst, o.state...)
	dst = append(dst, `,"done":`...)
	dst = strconv.AppendBool(dst, o.done)
	dst = append(dst, `,"truncated":`...)
	dst = strconv.AppendBool(dst, o.truncated)
	dst = appendNumber(append(dst, `,"reward":`...), o.reward)
	dst = append(dst, `,"created_at":`...)
	dst = appendMicros(dst, o.at)
	dst = append(dst, `,"metadata":`...)
	if o.meta == nil {
		return append(dst, "{}}"...), nil
	}
	dst, err := protocol.AppendJSON(dst, o.meta)
	return append(dst, '}'), err
}

// appendNumber appends a float as JSON; it is no NaN.
func appendNumber(dst []byte, f float64) []byte {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

// appendMicros appends a time in microseconds since 1970 as seconds.
func appendMicros(dst []byte, at int64) []byte {
	return protocol.AppendSeconds(dst, time.UnixMicro(at))
}

// observed answers reset, step and observe.
type observed struct{ observation }

// AppendJSON implements protocol.Appender.
func (r *observed) AppendJSON(dst []byte) ([]byte, error) {
	dst, err := r.observation.append(append(dst, `{"obs":`...))
	return append(dst, '}'), err
}

// batchResponse answers a batch: a protocol.EnvBatchStepResponse.
type batchResponse struct{ moves []move }

// AppendJSON implements protocol.Appender.
func (r *batchResponse) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"results":[`...)
	for i := range r.moves {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"type":"`+string(protocol.TypeEnvStepResp)+`","obs":`...)
		var err error
		if dst, err = r.moves[i].seen.append(dst); err != nil {
			return dst, err
		}
		dst = append(dst, '}')
	}
	return append(dst, ']', '}'), nil
}
