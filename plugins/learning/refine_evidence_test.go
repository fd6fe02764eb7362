package learning

import (
	"math"
	"testing"
)

// The values are those of R's binom.confint(x, n, methods = "wilson") and of the formula
// worked out by hand.
func TestIntervals(t *testing.T) {
	for _, c := range []struct {
		successes, calls int64
		low, high        float64
	}{
		{0, 0, 0, 1}, {0, 10, 0, 0.2775328}, {8, 10, 0.4901625, 0.9433178}, {10, 10, 0.7224672, 1}, {50, 100, 0.4038315, 0.5961685},
	} {
		low, high := wilson(c.successes, c.calls)
		if math.Abs(low-c.low) > 1e-6 || math.Abs(high-c.high) > 1e-6 {
			t.Errorf("%d of %d: %v to %v, not %v to %v", c.successes, c.calls, low, high, c.low, c.high)
		}
	}
	for n, half := range map[float64]float64{0: 1, 1: 1, 50: 0.3841291, 200: 0.1920646} {
		if got := hoeffding(n); math.Abs(got-half) > 1e-6 {
			t.Errorf("hoeffding of %v is %v, not %v", n, got, half)
		}
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name      string
		component Component
		direction int
		enough    bool
	}{
		{"nothing", Component{}, 0, false},
		{"few calls", Component{Calls: 9, Successes: 9}, 0, false},
		{"good", Component{Calls: 30, Successes: 30}, 1, true},
		{"bad", Component{Calls: 30, Successes: 3}, -1, true},
		{"unclear", Component{Calls: 30, Successes: 20}, 0, true},
		{"liked, few calls", Component{Calls: 2, Successes: 2, Feedbacks: 50, Score: 0.8, ScoreWeight: 50}, 1, true},
		{"little confidence", Component{Feedbacks: 50, Score: 0.8, ScoreWeight: 2}, 0, false},
		{"disliked", Component{Feedbacks: 50, Score: -0.8, ScoreWeight: 50}, -1, true},
		{"works, disliked", Component{Calls: 50, Successes: 50, Feedbacks: 50, Score: -0.8, ScoreWeight: 50}, 0, true},
	} {
		v := c.component.judge()
		if v.direction != c.direction || v.enough != c.enough || v.confidence < 0 || v.confidence > 1 || v.worth < 0 || v.worth > 1 {
			t.Errorf("%s: %+v", c.name, v)
		}
		if (v.worth-0.5)*float64(v.direction) < 0 || v.direction == 0 && v.worth != 0.5 {
			t.Errorf("%s is worth %v", c.name, v.worth)
		}
	}
	surer := Component{Calls: 300, Successes: 300}
	if few := (&Component{Calls: 30, Successes: 30}).judge(); few.confidence >= surer.judge().confidence {
		t.Error("more calls make no surer")
	}
}
