package learning

import "a2e/host/store"

// maxPoints is how many points of weights, and how many of scores, one answer has at most: the
// last ones.
const maxPoints = 10_000

// overTime returns what the store knows of how weights and scores came to be, the weights and
// then the scores, each the oldest first: of a component, or of all for "".
func overTime(tx *store.Tx, name string) ([]map[string]any, error) {
	weights, err := weightsOverTime(tx, name)
	if err != nil {
		return nil, err
	}
	scores, err := scoresOverTime(tx, name)
	return append(weights, scores...), err
}

func weightsOverTime(tx *store.Tx, name string) ([]map[string]any, error) {
	const query = `SELECT * FROM (SELECT number, kind, component, at, weight, score, strategy FROM learning_weight_history
		WHERE ?1 = '' OR component = ?1 ORDER BY number DESC LIMIT ?2) AS last ORDER BY number`
	points := []map[string]any{}
	err := tx.Each(query, []any{name, maxPoints}, func(scan func(...any) error) error {
		var number, at int64
		var kind, component, strategy string
		var weight float64
		var worth *float64
		if err := scan(&number, &kind, &component, &at, &weight, &worth, &strategy); err != nil {
			return err
		}
		p := map[string]any{"ts": inSeconds(at), "kind": kind, "component_name": component, "routing_weight": weight, "strategy": strategy}
		if worth != nil {
			p["worth"] = *worth
		}
		points = append(points, p)
		return nil
	})
	return points, err
}

// scoresOverTime returns the mean of the feedback up to each of them. The mean needs all
// feedback that is kept; of the points the last ones stay.
func scoresOverTime(tx *store.Tx, name string) (points []map[string]any, err error) {
	const query = `SELECT c.kind, c.name, c.number, f.at, f.score, f.confidence FROM learning_feedback f
		JOIN learning_components c ON c.number = f.component WHERE (?1 = '' OR c.name = ?1) AND f.confidence > 0 ORDER BY f.at, f.number`
	type sums struct{ score, weight float64 }
	so := make(map[int64]sums)
	err = tx.Each(query, []any{name}, func(scan func(...any) error) error {
		var number, at int64
		var kind, component string
		var score, confidence float64
		if err := scan(&kind, &component, &number, &at, &score, &confidence); err != nil {
			return err
		}
		sum := so[number]
		sum.score, sum.weight = sum.score+score*confidence, sum.weight+confidence
		so[number] = sum
		if len(points) == 2*maxPoints {
			points = append(points[:0], points[maxPoints:]...)
		}
		points = append(points, map[string]any{"ts": inSeconds(at), "kind": kind, "component_name": component, "avg_score": sum.score / sum.weight})
		return nil
	})
	return points[max(0, len(points)-maxPoints):], err
}
