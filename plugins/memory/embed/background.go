package embed

import "math"

// Background is what the cosines of texts that have nothing to do with each other are like.
// It differs from model to model: around 0 for one, around 0.7 and close together for
// another.
type Background struct {
	Mean, Spread float64
}

const (
	backgroundPairs = 1024 // that a background is the mean of at most
	priorPairs      = 8    // how many pairs it takes to outweigh what is assumed of an unknown model
	priorSpread     = 0.1
)

// BackgroundOf returns the background of texts with these vectors, from some of the pairs
// among them: most texts have nothing to do with each other. Of few vectors little can be
// said; then the cosines count nearly as they are.
func BackgroundOf(vectors []Vector) Background {
	var sum, squares, n float64
	for step := len(vectors) / 2; step > 0 && n < backgroundPairs; step-- { // neighbours may be about the same
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

// Similarity returns what a cosine means, alike for each model: 1 for the same text, near 0
// for texts that have as much in common as any two, and in between the more the further the
// cosine is from those.
func (b Background) Similarity(cosine float64) float64 {
	above := cosine - b.Mean
	if above <= 0 || b.Mean >= 1 {
		return 0
	}
	// one in forty pairs of unrelated texts is two spreads above the mean: half counts there
	certain := 1 / (1 + math.Exp(-1.5*(above/max(b.Spread, 1e-3)-2)))
	return above / (1 - b.Mean) * certain
}
