package jmes

import "github.com/jmespath-community/go-jmespath/pkg/parsing"

// compare gives what a comparison says. Only numbers have an order.
func (m *machine) compare(tok parsing.TokType, left, right any) (any, error) {
	if tok == parsing.TOKEQ || tok == parsing.TOKNE {
		same, err := m.equal(left, right)
		return same == (tok == parsing.TOKEQ), err
	}
	a, okA := toFloat(left)
	b, okB := toFloat(right)
	if !okA || !okB {
		return nil, nil
	}
	switch tok {
	case parsing.TOKGT:
		return a > b, nil
	case parsing.TOKGTE:
		return a >= b, nil
	case parsing.TOKLT:
		return a < b, nil
	}
	return a <= b, nil
}

// equal tells whether two values are the same JSON. Each pair costs a step, as parts that
// stand in a value many times would otherwise take forever.
func (m *machine) equal(left, right any) (bool, error) {
	if err := m.spend(1); err != nil {
		return false, err
	}
	switch a := left.(type) {
	case nil:
		return right == nil, nil
	case bool:
		b, ok := right.(bool)
		return ok && a == b, nil
	case string:
		b, ok := right.(string)
		return ok && a == b, m.spend(len(a) / 64)
	case float64, Number:
		return sameNumber(left, right), nil
	case []any:
		b, ok := right.([]any)
		if !ok || len(a) != len(b) {
			return false, nil
		}
		for i := range a {
			if same, err := m.equal(a[i], b[i]); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	case map[string]any:
		b, ok := right.(map[string]any)
		if !ok || len(a) != len(b) {
			return false, nil
		}
		for key, v := range a {
			other, there := b[key]
			if !there {
				return false, nil
			}
			if err := m.spend(len(key) / 64); err != nil {
				return false, err
			}
			if same, err := m.equal(v, other); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	return false, nil
}

// sameNumber compares two integers by their digits, everything else as float64.
func sameNumber(left, right any) bool {
	a, okA := left.(Number)
	b, okB := right.(Number)
	if okA && okB && a.integer() && b.integer() {
		return a.text == b.text
	}
	x, _ := toFloat(left)
	y, ok := toFloat(right)
	return ok && x == y
}
