// Package embed turns texts into vectors, so that texts about the same thing can
// be found by the angle between them.
//
// There are two embedders: Hashed is built in and lexical, it needs nothing but
// the text; NewEndpoint asks an OpenAI-compatible server for the vectors of a
// model that knows meanings. The package also splits texts into search words
// (Words) and measures how much of a query a text contains (Grams).
package embed

import "context"

// Model names what made a vector: vectors of different models never compare.
type Model struct {
	Name string
	Size int // dimensions; 0 = not known before the first answer
}

// Embedder turns texts into vectors. It is safe for concurrent use.
type Embedder interface {
	// Model names the embedder's vectors.
	Model() Model
	// Embed gives one vector for each text, in order; nil for a text without
	// anything to embed. An error means that none was made (the endpoint is
	// down...): callers go on without vectors.
	Embed(ctx context.Context, texts []string) ([]Vector, error)
}
