package cli

import (
	"math"
	"strconv"
	"time"
)

// axis maps values to places of a picture.
type axis struct {
	low, high float64 // values at the ends
	from, to  float64 // their places
}

func (a axis) at(v float64) float64 {
	if a.high == a.low {
		return (a.from + a.to) / 2
	}
	return a.from + (v-a.low)/(a.high-a.low)*(a.to-a.from)
}

// valueAxis makes an axis from low to high or a little beyond, as it begins and ends at
// ticks: about five there are.
func valueAxis(low, high, from, to float64) (axis, []float64) {
	if high-low <= math.Abs(high)*1e-9 {
		half := max(math.Abs(high)/2, 0.5)
		low, high = low-half, high+half
	}
	step := niceStep((high - low) / 5)
	first, last := math.Floor(low/step), math.Ceil(high/step)
	var ticks []float64
	for i := first; i <= last; i++ {
		ticks = append(ticks, i*step)
	}
	return axis{first * step, last * step, from, to}, ticks
}

// niceStep gives the next of 1, 2 and 5 times a power of ten.
func niceStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= least*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// tickText gives a value as a label.
func tickText(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// timeTick is a label on a time axis.
type timeTick struct {
	at   float64 // seconds since 1970
	text string
}

// timeTicks gives at most seven labels between two times, at round ones in UTC.
func timeTicks(low, high float64) []timeTick {
	const minute, hour, day = 60, 3600, 86400
	steps := []struct {
		seconds float64
		layout  string
	}{
		{1, time.TimeOnly}, {2, time.TimeOnly}, {5, time.TimeOnly}, {10, time.TimeOnly}, {30, time.TimeOnly},
		{minute, "15:04"}, {2 * minute, "15:04"}, {5 * minute, "15:04"}, {10 * minute, "15:04"}, {30 * minute, "15:04"},
		{hour, "01-02 15:04"}, {3 * hour, "01-02 15:04"}, {6 * hour, "01-02 15:04"}, {12 * hour, "01-02 15:04"},
		{day, time.DateOnly}, {2 * day, time.DateOnly}, {7 * day, time.DateOnly}, {14 * day, time.DateOnly},
		{30 * day, time.DateOnly}, {90 * day, time.DateOnly}, {365 * day, time.DateOnly},
	}
	const most = 7
	chosen := steps[len(steps)-1]
	for _, s := range steps {
		if (high-low)/s.seconds <= most-1 {
			chosen = s
			break
		}
	}
	step := chosen.seconds * max(1, math.Ceil((high-low)/chosen.seconds/(most-1)))
	var ticks []timeTick
	for at := math.Ceil(low/step) * step; at <= high; at += step {
		ticks = append(ticks, timeTick{at, time.Unix(int64(at), 0).UTC().Format(chosen.layout)})
	}
	return ticks
}
