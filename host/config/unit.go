package config

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// unit is what a number counts, for people who write 10MB or 1m30s.
type unit struct {
	want   string                    // for messages; "" = a bare number
	number func(text string) float64 // of a text with a unit; NaN = it has none that is known
}

// unitOf returns the unit of a key, which its name tells.
func unitOf(key string) unit {
	switch {
	case strings.HasSuffix(key, "_bytes"):
		return unit{wantBytes, bytesOf}
	case key == "timeout", strings.HasSuffix(key, "_timeout"), strings.HasSuffix(key, "_seconds"):
		return unit{wantDuration, secondsOf}
	}
	return unit{}
}

// digits returns a text with a unit as the bare number that it stands for; other texts stay.
func (u unit) digits(text string) string {
	if u.number != nil {
		if f := u.number(text); !math.IsNaN(f) {
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
	}
	return text
}

// bytesOf reads a size: kB, MB, GB and TB count by 1000, KiB, MiB, GiB and TiB by 1024.
func bytesOf(text string) float64 {
	text, ok := strings.CutSuffix(strings.ToUpper(strings.TrimSpace(text)), "B")
	base := 1000.0
	if binary, is := strings.CutSuffix(text, "I"); is {
		text, base = binary, 1024
	}
	if !ok || text == "" {
		return math.NaN()
	}
	power := strings.IndexByte("KMGT", text[len(text)-1]) + 1
	f, err := finite(strings.TrimSpace(text[:len(text)-1]))
	if power == 0 || err != nil {
		return math.NaN()
	}
	return f * math.Pow(base, float64(power))
}

func secondsOf(text string) float64 {
	t, err := time.ParseDuration(text)
	if err != nil || t == 0 {
		return math.NaN()
	}
	return t.Seconds()
}
