package event

import "github.com/rs/zerolog"

// maxLogged is the maximum length of each client text in a line of the log, in bytes.
const maxLogged = 256

// WithLog returns a Stream that also writes its events to a log, if the log's level shows them:
// requests at level info, children and denials at level debug.
func (s *Stream) WithLog(log zerolog.Logger) *Stream {
	switch level := log.GetLevel(); {
	case level > zerolog.InfoLevel:
		return s
	case level > zerolog.DebugLevel:
		return s.With(toLog{log}, Request)
	}
	return s.With(toLog{log}, Request|ChildStart|ChildEnd|Denied)
}

type toLog struct{ log zerolog.Logger }

// Take implements Sink. It logs what was requested and the result, but no contents.
func (l toLog) Take(e Event) {
	line := l.log.Debug()
	if e.Kind == Request {
		line = l.log.Info()
	}
	for _, field := range [...][2]string{{"type", e.Type}, {"name", e.Name}, {"req_id", e.ReqID}, {"text", e.Text}} {
		if text := field[1]; text != "" {
			line = line.Str(field[0], text[:min(len(text), maxLogged)])
		}
	}
	if e.PID != 0 {
		line = line.Int("pid", e.PID)
	}
	if e.Kind&(Request|ChildEnd) != 0 {
		line = line.Float64("ms", float64(e.Duration.Microseconds())/1000)
	}
	switch e.Kind {
	case Request:
		line.Str("outcome", e.Outcome()).Msg("request")
	case ChildStart:
		line.Msg("a child process was started")
	case ChildEnd:
		line.Msg("a child process has ended")
	case Denied:
		line.Msg("denied")
	}
}
