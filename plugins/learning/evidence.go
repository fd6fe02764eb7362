package learning

import (
	"a2e/host/state/store"
	"a2e/plugins/learning/bandit"
)

// sums are sums over calls.
type sums struct {
	calls, successes   float64
	rewards, rewardSum float64 // calls with a reward, and the sum of these rewards
}

// plus returns the sums of both.
func (s sums) plus(o sums) sums {
	return sums{s.calls + o.calls, s.successes + o.successes, s.rewards + o.rewards, s.rewardSum + o.rewardSum}
}

// outcomes is the sums over calls and over experiences.
type outcomes struct {
	sums
	told, toldSum float64 // number of experiences, and the sum of their rewards
}

// count returns the number of calls and experiences.
func (o *outcomes) count() float64 { return o.calls + o.told }

// mean returns the mean outcome, from 0 to 1. Experiences and calls with a reward count with their
// reward; any other call counts 1 for a success and 0 for a failure.
func (o *outcomes) mean(s scale) float64 {
	sum := max(o.successes-o.rewards, 0) + s.units(o.rewards, o.rewardSum) + s.units(o.told, o.toldSum)
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

// units returns the sum of n mapped rewards. If all rewards were 0, they do not tell good from bad, and
// each counts as a half.
func (s scale) units(n, sum float64) float64 {
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
	graded := c.ScoreWeight > 0 || o.rewards > 0 || o.told > 0
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
		news = news || c.since.rated || c.since.calls != 0 || c.since.told > 0
		if c.since.calls >= 0 && c.since.count() > 0 { // an import may have set the calls back
			all[i] = c.arm(&c.since.outcomes, s, share)
		}
	}
	return all, news
}

// numbered returns a map of components by their number.
func numbered(all []*Component) map[int64]*Component {
	of := make(map[int64]*Component, len(all))
	for _, c := range all {
		of[c.number] = c
	}
	return of
}

// chosen returns the condition that restricts a query of the components c to those whose column is $1; ""
// = no condition.
func chosen(column string) string {
	if column == "" {
		return ""
	}
	return " WHERE " + column + " = $1"
}

// readTold adds the experiences to components. column and args are those that selected the components.
func readTold(tx *store.Tx, all []*Component, column string, args []any) error {
	of := numbered(all)
	query := `SELECT x.component, count(*), sum(x.reward), min(x.reward), max(x.reward),
		sum(CASE WHEN x.number > c.ppo_experience THEN 1 ELSE 0 END),
		sum(CASE WHEN x.number > c.ppo_experience THEN x.reward ELSE 0 END), max(x.number)
		FROM learning_told x JOIN learning_components c ON c.number = x.component` + chosen(column) + `
		GROUP BY x.component`
	return tx.Each(query, args, func(scan func(...any) error) error {
		var x Component
		if err := scan(&x.number, &x.Experiences, &x.toldSum, &x.scale.low, &x.scale.high, &x.since.told,
			&x.since.toldSum, &x.lastExperience); err != nil {
			return err
		}
		c := of[x.number]
		c.Experiences, c.told, c.toldSum = x.Experiences, float64(x.Experiences), x.toldSum
		c.ExperienceMean, c.lastExperience = x.toldSum/c.told, x.lastExperience
		c.since.told, c.since.toldSum = x.since.told, x.since.toldSum
		c.scale = scaleOf([]*Component{c, &x})
		return nil
	})
}
