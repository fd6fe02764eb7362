package embed

import "math"

// Background is the mean and standard deviation of the cosines of unrelated texts. It differs from
// model to model: around 0 for one, around 0.7 and close together for another.
type Background struct {
	Mean, Spread float64
}

const (
	backgroundPairs = 1024 // most pairs that a background is computed from
	priorPairs      = 8    // weight of the assumption for an unknown model, in pairs
	priorSpread     = 0.1  // spread assumed for an unknown model; the mean assumed is 0
)

// BackgroundOf returns the background of texts with these vectors. It looks at some pairs of
// them, as most pairs of texts are unrelated. With few vectors the result is close to the
// assumption for an unknown model.
func BackgroundOf(vectors []Vector) Background {
	var sum, squares, n float64
	for step := len(vectors) / 2; step > 0 && n < backgroundPairs; step-- { // neighbours may have the same topic
		for i := 0; i+step < len(vectors) && n < backgroundPairs; i += 1 + len(vectors)/64 {
			c := vectors[i].Cosine(vectors[i+step])
			sum, squares, n = sum+c, squares+c*c, n+1
		}
	}
	if n == 0 {
		return Background{Spread: priorSpread}
	}
	mean := sum / n
	weight := n / (n + priorPairs)
	return Background{
		Mean:   max(0, weight*mean),
		Spread: weight*math.Sqrt(max(0, squares/n-mean*mean)) + (1-weight)*priorSpread,
	}
}

// Similarity turns a cosine into a similarity that is comparable between models: 1 for the same
// text, near 0 for unrelated texts, and in between it grows with the cosine.
func (b Background) Similarity(cosine float64) float64 {
	above := cosine - b.Mean
	if above <= 0 || b.Mean >= 1 {
		return 0
	}
	// one in forty pairs of unrelated texts is two spreads above the mean: half counts there
	certain := 1 / (1 + math.Exp(-1.5*(above/max(b.Spread, 1e-3)-2)))
	return above / (1 - b.Mean) * certain
}
