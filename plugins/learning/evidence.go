package learning

import (
	"fmt"
	"math"
	"strings"
	"time"

	"a2e/host/store"
	"a2e/plugins/learning/bandit"
)

// view says as of when evidence is looked at, and how fast it loses weight: that of age t
// counts exp(-rate × t). Both times are microseconds; a rate of 0 has all count in full.
type view struct {
	at   int64
	rate float64
}

// newView looks at evidence as of now, with a half-life; 0 = none.
func newView(now time.Time, halfLife time.Duration) view {
	v := view{at: now.UnixMicro()}
	if halfLife > 0 {
		v.rate = math.Ln2 / float64(halfLife.Microseconds())
	}
	return v
}

// view is how the plugin looks at evidence now.
func (p *Plugin) view() view { return newView(p.env.Now(), p.opts.HalfLife) }

// aged is sums over calls, each weighted by its age at a time.
type aged struct {
	calls, successes   float64
	rewards, rewardSum float64 // calls that brought a reward, and these rewards
	at                 int64   // microseconds since 1970
}

// as returns the sums at a time; what a clock ahead of ours has dated counts in full.
func (a aged) as(at int64, rate float64) aged {
	if rate == 0 || at <= a.at {
		return a
	}
	w := math.Exp(-rate * float64(at-a.at))
	return aged{a.calls * w, a.successes * w, a.rewards * w, a.rewardSum * w, at}
}

// plus returns the sums over both, at the later time of both: the order does not matter.
func (a aged) plus(o aged, rate float64) aged {
	a, o = a.as(o.at, rate), o.as(a.at, rate)
	return aged{a.calls + o.calls, a.successes + o.successes, a.rewards + o.rewards, a.rewardSum + o.rewardSum, max(a.at, o.at)}
}

// outcomes is what came of calls, and of what experiences tell.
type outcomes struct {
	aged
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

// chosen restricts a query of the components c to those of which a column ("" = all) is the parameter n.
func chosen(column string, n int) string {
	if column == "" {
		return ""
	}
	return fmt.Sprintf(" WHERE %s = $%d", column, n)
}

// weight is what evidence counts of a time, with the parameters rate and at of a view. PostgreSQL
// refuses results too close to 0; what is that old counts nothing.
func weight(time string) string {
	const age = "(CAST($2 AS BIGINT) - @)"
	const text = "CASE WHEN " + age + " <= 0 THEN 1.0 WHEN CAST($1 AS DOUBLE PRECISION) * " + age + " > 40 THEN 0.0 " +
		"ELSE exp(-CAST($1 AS DOUBLE PRECISION) * " + age + ") END"
	return strings.ReplaceAll(text, "@", time)
}

// faint takes what is all but 0 for it: products of such numbers PostgreSQL refuses.
func faint(x float64) float64 {
	if math.Abs(x) < 1e-100 {
		return 0
	}
	return x
}

// readTold adds to components what experiences tell of them. column and args chose them.
func (v view) readTold(tx *store.Tx, all []*Component, column string, args []any) error {
	of := numbered(all)
	query := `SELECT component, count(*), sum(reward), sum(w), sum(w * reward), min(reward), max(reward), sum(fresh), sum(fresh * reward), max(number)
		FROM (SELECT x.component, x.number, x.reward, ` + weight("x.at") + ` AS w, CASE WHEN x.number > c.ppo_experience THEN 1.0 ELSE 0.0 END AS fresh
			FROM learning_told x JOIN learning_components c ON c.number = x.component` + chosen(column, 3) + `) AS told GROUP BY component`
	return tx.Each(query, append([]any{v.rate, v.at}, args...), func(scan func(...any) error) error {
		var x Component
		if err := scan(&x.number, &x.Experiences, &x.ExperienceMean, &x.told, &x.toldSum, &x.scale.low, &x.scale.high, &x.since.told, &x.since.toldSum, &x.lastExperience); err != nil {
			return err
		}
		c := of[x.number]
		c.Experiences, c.ExperienceMean, c.lastExperience = x.Experiences, x.ExperienceMean/float64(x.Experiences), x.lastExperience
		c.told, c.toldSum, c.since.told, c.since.toldSum = x.told, x.toldSum, x.since.told, x.since.toldSum
		c.scale = scaleOf([]*Component{c, &x})
		return nil
	})
}

// readScores has the feedback of components count by its age; what has lost all but nothing
// of its weight is not looked at.
func (v view) readScores(tx *store.Tx, all []*Component, column string, args []any) error {
	of := numbered(all)
	for _, c := range all {
		c.Score, c.ScoreWeight = 0, 0
	}
	query := `SELECT component, sum(w * score * confidence), sum(w * confidence)
		FROM (SELECT f.component, f.score, f.confidence, ` + weight("f.at") + ` AS w
			FROM learning_components c JOIN learning_feedback f ON c.number = f.component AND f.at > CAST($2 AS
				BIGINT) - 40 / CAST($1 AS DOUBLE PRECISION)` +
		chosen(column, 3) + `) AS scored GROUP BY component`
	return tx.Each(query, append([]any{v.rate, v.at}, args...), func(scan func(...any) error) error {
		var number int64
		var sum, weight float64
		err := scan(&number, &sum, &weight)
		if c := of[number]; err == nil {
			c.Score, c.ScoreWeight = meanScore(sum, weight), weight
		}
		return err
	})
}
