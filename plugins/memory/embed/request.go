package embed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/go-json-experiment/json"
)

const (
	answerBase = 64 << 10  // bytes of an answer beside its vectors
	answerEach = 512 << 10 // bytes of one vector: 20,000 dimensions in full precision
)

// prepared gives a text as it is sent: valid, without NUL, which some servers
// refuse, and not too long; "" if nothing is left.
func prepared(text string) string {
	text = cut(text, maxRunes*4) // bytes: the runes are counted below
	text = strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", " "), "\ufffd"))
	runes := 0
	for i := range text {
		if runes == maxRunes {
			return text[:i]
		}
		runes++
	}
	return text
}

// ask asks for the vectors of one batch of inputs.
func (e *endpoint) ask(ctx context.Context, inputs []string) ([]Vector, error) {
	body, err := json.Marshal(struct {
		Model string   `json:"model"`
		Input []string `json:"input"`
	}{e.name, inputs})
	if err != nil {
		return nil, err
	}
	raw, err := e.server.Post(ctx, body, answerBase+answerEach*len(inputs))
	if err != nil {
		return nil, err
	}
	return e.decode(raw, len(inputs))
}

// decode reads an answer: as many vectors as there were inputs, each input's at
// its index, all of the size known.
func (e *endpoint) decode(raw []byte, count int) ([]Vector, error) {
	var answer struct {
		Data []struct {
			Index     *int      `json:"index"`
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, errors.New(`the answer is not of the form {"data":[{"index":0,"embedding":[0.1]}]} with numbers that fit 32 bits`)
	}
	if len(answer.Data) != count {
		return nil, fmt.Errorf("the answer has %d vectors for %d texts", len(answer.Data), count)
	}
	out, filled := make([]Vector, count), make([]bool, count)
	for i, d := range answer.Data {
		at := i
		if d.Index != nil {
			at = *d.Index
		}
		if at < 0 || at >= count || filled[at] {
			return nil, fmt.Errorf("the answer has a vector with the index %d, which is taken or not one of %d texts", at, count)
		}
		if size := len(d.Embedding); size == 0 || size != len(answer.Data[0].Embedding) {
			return nil, fmt.Errorf("the answer has vectors of %d and of %d dimensions", len(answer.Data[0].Embedding), size)
		}
		for _, f := range d.Embedding {
			if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
				return nil, fmt.Errorf("the answer has a vector with a number that is not finite, at index %d", at)
			}
		}
		out[at], filled[at] = Quantise(d.Embedding), true
	}
	return out, e.known(len(answer.Data[0].Embedding))
}
