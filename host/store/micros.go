package store

import (
	"fmt"
	"math"
	"strconv"
)

// Micros is a time in microseconds since 1970, as tables have it; in JSON it is seconds.
type Micros int64

// Seconds is the time as messages carry it.
func (m Micros) Seconds() float64 { return float64(m) / 1e6 }

// MarshalJSON implements json.Marshaler.
func (m Micros) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, m.Seconds(), 'f', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler. It refuses what is no time of this era.
func (m *Micros) UnmarshalJSON(raw []byte) error {
	const year10000 = 253402300800
	seconds, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(seconds >= 0 && seconds < year10000) {
		return fmt.Errorf("%.40s should be seconds since 1970", raw)
	}
	*m = Micros(math.Round(seconds * 1e6))
	return nil
}
