package learning

import "a2e/plugins/learning/bandit"

// sums are sums over calls.
type sums struct {
	Calls, Successes int64
	Rewards          int64 // calls with a reward
	rewardSum        float64
}

// plus returns the sums of both.
func (s sums) plus(o sums) sums {
	return sums{s.Calls + o.Calls, s.Successes + o.Successes, s.Rewards + o.Rewards, s.rewardSum + o.rewardSum}
}

// outcomes is the sums over calls and over experiences.
type outcomes struct {
	sums
	Experiences int64
	toldSum     float64 // of the rewards of experiences
}

// count returns the number of calls and experiences.
func (o *outcomes) count() float64 { return float64(o.Calls + o.Experiences) }

// mean returns the mean outcome, from 0 to 1. Experiences and calls with a reward count with their
// reward; any other call counts 1 for a success and 0 for a failure.
func (o *outcomes) mean(s scale) float64 {
	sum := float64(max(o.Successes-o.Rewards, 0)) + s.units(o.Rewards, o.rewardSum) +
		s.units(o.Experiences, o.toldSum)
	return min(max(sum/o.count(), 0), 1)
}

// scale maps rewards, which may have any size, to 0 to 1. low is the smallest reward seen, high the
// greatest, and 0 is always between them. So rewards in [0,1] that reach 1 stay as they are, and those
// from -1 to 1 are mapped as scores are.
type scale struct{ low, high float64 }

// scaleOf returns the scale that includes the rewards of all rivals.
func scaleOf(rivals []*Component) (s scale) {
	for _, c := range rivals {
		s.low, s.high = min(s.low, c.scale.low), max(s.high, c.scale.high)
	}
	return s
}

// units returns the sum of so many mapped rewards. If all rewards were 0, they do not tell good from bad, and
// each counts as a half.
func (s scale) units(count int64, sum float64) float64 {
	n := float64(count)
	if s.low == s.high {
		return n / 2
	}
	return (sum - n*s.low) / (s.high - s.low)
}

// arm returns the component as an arm, with these outcomes and rewards on this scale. The
// mean of the arm, from 0 to 1, is
//
//	(1 - share) × mean outcome  +  share × (score + 1) / 2
//
// where share is the parameter share times n/(n+1), and n is the sum of the confidences of
// the feedback. Without outcomes only the feedback counts.
//
// The pulls are the number of calls and experiences, or n if that is larger: a rated turn
// usually is one of the calls, so the two are not added.
func (c *Component) arm(o *outcomes, s scale, share float64) bandit.Arm {
	mean := bandit.FromScore(c.Score)
	if o.count() > 0 {
		share *= c.ScoreWeight / (c.ScoreWeight + 1)
		mean = (1-share)*o.mean(s) + share*mean
	}
	graded := c.ScoreWeight > 0 || o.Rewards > 0 || o.Experiences > 0
	return bandit.Arm{Pulls: max(o.count(), c.ScoreWeight), Mean: mean, Graded: graded, Weight: c.Weight}
}

// arms returns competing components as arms, by all that is known about them.
func arms(rivals []*Component, share float64) []bandit.Arm {
	s, all := scaleOf(rivals), make([]bandit.Arm, len(rivals))
	for i, c := range rivals {
		all[i] = c.arm(&c.outcomes, s, share)
	}
	return all
}

// newArms returns components as arms by what happened since ppo last learned from them; false = nothing
// happened. A component with only new feedback counts with all that is known about it. So do rivals
// without news, as those with news are compared with them.
func newArms(rivals []*Component, share float64) (all []bandit.Arm, news bool) {
	s, all := scaleOf(rivals), arms(rivals, share)
	for i, c := range rivals {
		news = news || c.since.rated || c.since.Calls != 0 || c.since.Experiences > 0
		if c.since.Calls >= 0 && c.since.count() > 0 { // an import may have set the calls back
			all[i] = c.arm(&c.since.outcomes, s, share)
		}
	}
	return all, news
}
