package planning

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"a2e/host/state/store"
)

// priority is how urgent a task is; the most urgent has the lowest number. Zero is normal.
type priority int

const mostUrgent priority = -2

func priorities() []string { return []string{"urgent", "high", "normal", "low"} }

// String implements fmt.Stringer.
func (p priority) String() string { return priorities()[p-mostUrgent] }

// MarshalText implements encoding.TextMarshaler.
func (p priority) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *priority) UnmarshalText(text []byte) error {
	i := slices.Index(priorities(), string(text))
	if i < 0 {
		return fmt.Errorf("is %.40q; should be one of %s", text, strings.Join(priorities(), ", "))
	}
	*p = mostUrgent + priority(i)
	return nil
}

// due is when a task should be done, in microseconds since 1970; 0 = no due time.
type due store.Micros

// never is the stored value for no due time; it sorts after all times.
const never = math.MaxInt64

// Scan implements sql.Scanner.
func (d *due) Scan(src any) error {
	at, ok := src.(int64)
	if *d = due(at); at == never {
		*d = 0
	}
	if !ok {
		return fmt.Errorf("a time of type %T", src)
	}
	return nil
}

func (d due) stored() int64 {
	if d == 0 {
		return never
	}
	return int64(d)
}

// String returns the time in RFC 3339, or "" without a due time.
func (d due) String() string {
	if d == 0 {
		return ""
	}
	return timeText(store.Micros(d))
}

// timeText returns a time in RFC 3339.
func timeText(m store.Micros) string {
	return time.UnixMicro(int64(m)).UTC().Format(time.RFC3339)
}

// MarshalText implements encoding.TextMarshaler.
func (d due) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. A date without a time is the last second of that day in UTC.
func (d *due) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = 0
		return nil
	}
	at, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		at, err = time.Parse(time.DateOnly, string(text))
		at = at.Add(24*time.Hour - time.Second)
	}
	if err != nil || at.Year() < 1971 {
		return fmt.Errorf("is %.40q; should be a time such as 2030-12-31T18:00:00Z, or a date such as 2030-12-31", text)
	}
	*d = due(at.Unix() * 1e6)
	return nil
}

// estimate is how long a task may take, in seconds; 0 = unknown.
type estimate int64

const maxEstimate = 10 * 365 * 24 * time.Hour

// String returns a text such as 1h30m, or "" for an unknown estimate.
func (e estimate) String() string {
	if e == 0 {
		return ""
	}
	text := (time.Duration(e) * time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// MarshalText implements encoding.TextMarshaler.
func (e estimate) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *estimate) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*e = 0
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d < time.Second || d > maxEstimate || d%time.Second != 0 {
		return fmt.Errorf("is %.40q; should be whole hours, minutes and seconds such as 1h30m", text)
	}
	*e = estimate(d / time.Second)
	return nil
}
