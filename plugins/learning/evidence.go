package learning

import (
	"a2e/host/state/store"
	"a2e/plugins/learning/bandit"
)

// sums are over calls.
type sums struct {
	calls, successes   float64
	rewards, rewardSum float64 // calls that brought a reward, and these rewards
}

// plus returns the sums over both.
func (s sums) plus(o sums) sums {
	return sums{s.calls + o.calls, s.successes + o.successes, s.rewards + o.rewards, s.rewardSum + o.rewardSum}
}

// outcomes is what came of calls, and of what experiences tell.
type outcomes struct {
	sums
	told, toldSum float64 // experiences, and their rewards
}

// count returns how many there are.
func (o *outcomes) count() float64 { return o.calls + o.told }

// mean returns what they came to on average, each from 0 to 1: its reward where it brought
// one, else 1 for a success. A failed call counts 0.
func (o *outcomes) mean(s scale) float64 {
	sum := max(o.successes-o.rewards, 0) + s.units(o.rewards, o.rewardSum) + s.units(o.told, o.toldSum)
	return min(max(sum/o.count(), 0), 1)
}

// scale maps rewards, which may be of any size, to 0 to 1: low is the smallest one seen, high
// the greatest, and 0 is always between them. So rewards in [0,1] stay what they are, and
// those in [-1,1] become what scores do.
type scale struct{ low, high float64 }

// scaleOf is the one scale on which components are compared.
func scaleOf(rivals []*Component) (s scale) {
	for _, c := range rivals {
		s.low, s.high = min(s.low, c.scale.low), max(s.high, c.scale.high)
	}
	return s
}

// units is the sum of n rewards after they were mapped. Where none was ever other than 0,
// nothing tells good from bad: each is a half.
func (s scale) units(n, sum float64) float64 {
	if s.low == s.high {
		return n / 2
	}
	return (sum - n*s.low) / (s.high - s.low)
}

// arm is a component with these outcomes among those of a scale.
//
// It is worth, from 0 to 1:
//
//	(1 - share) × mean outcome  +  share × (score + 1) / 2
//
// The share of the feedback grows with it: of share it is n/(n+1), n being the sum of
// the confidences. Without outcomes the feedback is all.
//
// It counts as pulled as often as it was called, or as it was rated: a rated turn is one of
// the calls where these are known, so the larger number counts.
func (c *Component) arm(o *outcomes, s scale, share float64) bandit.Arm {
	mean := bandit.FromScore(c.Score)
	if o.count() > 0 {
		share *= c.ScoreWeight / (c.ScoreWeight + 1)
		mean = (1-share)*o.mean(s) + share*mean
	}
	graded := c.ScoreWeight > 0 || o.rewards > 0 || o.told > 0
	return bandit.Arm{Pulls: max(o.count(), c.ScoreWeight), Mean: mean, Graded: graded, Weight: c.Weight}
}

// arms returns components that compete as arms, by all that is known of them.
func arms(rivals []*Component, share float64) []bandit.Arm {
	s, all := scaleOf(rivals), make([]bandit.Arm, len(rivals))
	for i, c := range rivals {
		all[i] = c.arm(&c.outcomes, s, share)
	}
	return all
}

// newArms returns them by what happened since ppo has learned from them last; false = nothing
// has. With new feedback alone, what was before counts again; so it does for rivals without
// news, which those with news are measured against.
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

// numbered returns components by their number.
func numbered(all []*Component) map[int64]*Component {
	of := make(map[int64]*Component, len(all))
	for _, c := range all {
		of[c.number] = c
	}
	return of
}

// chosen restricts a query of the components c to those of which a column ("" = all) is the parameter $1.
func chosen(column string) string {
	if column == "" {
		return ""
	}
	return " WHERE " + column + " = $1"
}

// readTold adds to components what experiences tell of them. column and args chose them.
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
