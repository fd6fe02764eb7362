package event

import "github.com/rs/zerolog"

// maxLogged bounds, in bytes, each text of a client in a line of the log.
const maxLogged = 256

// WithLog returns a Stream whose events get into a log as well, as far as its level shows them.
func (s *Stream) WithLog(log zerolog.Logger) *Stream {
	if log.GetLevel() > zerolog.InfoLevel {
		return s
	}
	return s.With(toLog{log}, Request)
}

type toLog struct{ log zerolog.Logger }

// Take implements Sink: what was asked for and what became of it, never what was in it.
func (l toLog) Take(e Event) {
	line := l.log.Info()
	for _, field := range [...][2]string{{"type", e.Type}, {"name", e.Name}, {"req_id", e.ReqID}} {
		if text := field[1]; text != "" {
			line = line.Str(field[0], text[:min(len(text), maxLogged)])
		}
	}
	line.Float64("ms", float64(e.Duration.Microseconds())/1000).Str("outcome", e.Outcome()).Msg("request")
}
