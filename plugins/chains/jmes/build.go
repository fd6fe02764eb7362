package jmes

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jmespath-community/go-jmespath/pkg/functions"
	"github.com/jmespath-community/go-jmespath/pkg/parsing"
)

// What a step does: what the library's node of that type means, or something of our own.
const (
	opMember = -1 - iota // a member of the scope
	opOutput             // NAME.output of the scope
	opAll                // the whole scope
	opText               // a projection of a slice: a text stays one

	opCurrent  = int(parsing.ASTCurrentNode)
	opField    = int(parsing.ASTField)
	opIndex    = int(parsing.ASTIndex)
	opSlice    = int(parsing.ASTSlice)
	opLiteral  = int(parsing.ASTLiteral)
	opVariable = int(parsing.ASTVariable)
	opLet      = int(parsing.ASTLetExpression)
	opSub      = int(parsing.ASTSubexpression)
	opPipe     = int(parsing.ASTPipe)
	opOr       = int(parsing.ASTOrExpression)
	opAnd      = int(parsing.ASTAndExpression)
	opNot      = int(parsing.ASTNotExpression)
	opCompare  = int(parsing.ASTComparator)
	opArith    = int(parsing.ASTArithmeticExpression)
	opSign     = int(parsing.ASTArithmeticUnaryExpression)
	opList     = int(parsing.ASTMultiSelectList)
	opHash     = int(parsing.ASTMultiSelectHash)
	opProject  = int(parsing.ASTProjection)
	opValues   = int(parsing.ASTValueProjection)
	opFilter   = int(parsing.ASTFilterProjection)
	opFlatten  = int(parsing.ASTFlatten)
	opCall     = int(parsing.ASTFunctionExpression)
	opRef      = int(parsing.ASTExpRef)
)

// step is one step of an expression: a node of the library's tree, checked.
type step struct {
	op     int
	name   string // member, field, function
	keys   []string
	n      int // index, variable
	bounds [3]*int
	tok    parsing.TokType
	val    any
	fn     *function
	kids   []*step
}

// where says what a step's current value is, and which variables it sees.
type where struct {
	root   bool // the current value is the scope itself
	dollar bool // it was written as $
	vars   *variable
	deep   int
}

// variable is one of a let expression.
type variable struct {
	name string
	slot int
	next *variable
}

// value is the place of a step whose current value is not the scope.
func (w where) value() where { return where{vars: w.vars, deep: w.deep} }

type builder struct {
	funcs map[string]*function
	names map[string]bool // whether one stands without $.
	vars  int
}

// build makes the steps of one node of the tree.
func (b *builder) build(n *parsing.ASTNode, w where) (*step, error) {
	if w.deep++; w.deep > maxDepth {
		return nil, fmt.Errorf("has more than %d steps within each other", maxDepth)
	}
	s := &step{op: int(n.NodeType), val: n.Value}
	inner := w // of the children after the first
	switch n.NodeType {
	case parsing.ASTField:
		return b.field(n.Value.(string), w), nil
	case parsing.ASTRootNode:
		return &step{op: opAll}, nil
	case parsing.ASTCurrentNode, parsing.ASTIdentity:
		if s.op = opCurrent; w.root {
			s.op = opAll
		}
		return s, nil
	case parsing.ASTLiteral:
		return s, nil
	case parsing.ASTIndex:
		s.n = n.Value.(int)
		return b.onValue(s, w), nil
	case parsing.ASTSlice:
		copy(s.bounds[:], n.Value.([]*int))
		if step := s.bounds[2]; step != nil && *step == 0 {
			return nil, errors.New("has a slice with step 0; it is 1 or more, or negative")
		}
		return b.onValue(s, w), nil
	case parsing.ASTVariable:
		return variableOf(n.Value.(string), w)
	case parsing.ASTLetExpression:
		return b.let(n, w)
	case parsing.ASTSubexpression, parsing.ASTIndexExpression, parsing.ASTPipe:
		return b.chained(n, w)
	case parsing.ASTFunctionExpression:
		return b.call(n, w)
	case parsing.ASTMultiSelectHash:
		return b.hash(n, w)
	case parsing.ASTBinding:
		return nil, errors.New("has a single =; == compares")
	case parsing.ASTComparator, parsing.ASTArithmeticExpression, parsing.ASTArithmeticUnaryExpression:
		s.tok = n.Value.(parsing.TokType)
	case parsing.ASTProjection:
		if left := n.Children[0]; left.NodeType == parsing.ASTIndexExpression && left.Children[1].NodeType == parsing.ASTSlice {
			s.op = opText
		}
		inner = w.value()
	case parsing.ASTValueProjection, parsing.ASTFilterProjection:
		inner = w.value()
	case parsing.ASTExpRef:
		w = w.value()
	case parsing.ASTOrExpression, parsing.ASTAndExpression, parsing.ASTNotExpression, parsing.ASTMultiSelectList, parsing.ASTFlatten:
	default:
		return nil, fmt.Errorf("has a part that is not understood: %s", n.NodeType)
	}
	for i := range n.Children {
		if i > 0 {
			w = inner
		}
		kid, err := b.build(&n.Children[i], w)
		if err != nil {
			return nil, err
		}
		s.kids = append(s.kids, kid)
	}
	return s, nil
}

// field is a member of the scope, or of the current value.
func (b *builder) field(name string, w where) *step {
	if w.root {
		b.names[name] = b.names[name] || !w.dollar
		return &step{op: opMember, name: name}
	}
	return &step{op: opField, name: name}
}

// onValue lets a step that needs a value work on the whole scope.
func (b *builder) onValue(s *step, w where) *step {
	if !w.root {
		return s
	}
	return &step{op: opSub, kids: []*step{{op: opAll}, s}}
}

// chained makes the steps of a.b, a[0] and a | b.
func (b *builder) chained(n *parsing.ASTNode, w where) (*step, error) {
	left, err := b.build(&n.Children[0], w)
	if err != nil {
		return nil, err
	}
	next := w.value()
	next.root = left.op == opAll
	next.dollar = n.Children[0].NodeType == parsing.ASTRootNode
	right, err := b.build(&n.Children[1], next)
	switch {
	case err != nil:
		return nil, err
	case left.op == opAll: // the right side has found its members already
		return right, nil
	case n.NodeType == parsing.ASTPipe:
		return &step{op: opPipe, kids: []*step{left, right}}, nil
	}
	if first := right.first(); left.op == opMember && first.op == opField && first.name == "output" {
		*first = step{op: opOutput, name: left.name}
	}
	return &step{op: opSub, kids: []*step{left, right}}, nil
}

// first gives the step that is the first to look at the current value, in what may stand
// behind a dot: that of x[0] in a.x[0].y, say.
func (s *step) first() *step {
	for {
		switch s.op {
		case opSub, opProject, opText, opValues, opFilter, opFlatten:
			s = s.kids[0]
		default:
			return s
		}
	}
}

// hash makes the steps of {a: x, b: y}.
func (b *builder) hash(n *parsing.ASTNode, w where) (*step, error) {
	s := &step{op: opHash}
	for i := range n.Children {
		pair := &n.Children[i]
		kid, err := b.build(&pair.Children[0], w)
		if err != nil {
			return nil, err
		}
		s.keys, s.kids = append(s.keys, pair.Value.(string)), append(s.kids, kid)
	}
	return s, nil
}

// let makes the steps of let $a = x, $b = y in z: what is bound does not see the others.
func (b *builder) let(n *parsing.ASTNode, w where) (*step, error) {
	s := &step{op: opLet}
	bindings := n.Children[0].Children
	for i := range bindings {
		if bindings[i].NodeType != parsing.ASTBinding || bindings[i].Children[0].NodeType != parsing.ASTVariable {
			return nil, errors.New("has a let that binds no variable: let $name = value in …")
		}
		kid, err := b.build(&bindings[i].Children[1], w)
		if err != nil {
			return nil, err
		}
		s.kids = append(s.kids, kid)
	}
	s.n = b.vars
	inner := w
	for i := range bindings {
		inner.vars = &variable{bindings[i].Children[0].Value.(string), b.vars, inner.vars}
		b.vars++
	}
	body, err := b.build(&n.Children[1], inner)
	if err != nil {
		return nil, err
	}
	s.kids = append(s.kids, body)
	return s, nil
}

func variableOf(name string, w where) (*step, error) {
	for v := w.vars; v != nil; v = v.next {
		if v.name == name {
			return &step{op: opVariable, n: v.slot}, nil
		}
	}
	return nil, fmt.Errorf("uses the variable %.64s, which no let binds; members are written without $ or after $., as in $.%.64s", name, strings.TrimPrefix(name, "$"))
}

// call makes the step of a function.
func (b *builder) call(n *parsing.ASTNode, w where) (*step, error) {
	name := n.Value.(string)
	fn := b.funcs[name]
	if fn == nil {
		return nil, fmt.Errorf("calls the function %.64s, which JMESPath does not have", name)
	}
	if err := fn.arity(len(n.Children)); err != nil {
		return nil, err
	}
	s := &step{op: opCall, fn: fn}
	for i := range n.Children {
		arg := &n.Children[i]
		if arg.NodeType == parsing.ASTExpRef && !fn.takes(i, functions.JpExpref) {
			return nil, fmt.Errorf("gives %s() an expression (&…) as argument %d, which takes none", name, i+1)
		}
		kid, err := b.build(arg, w)
		if err != nil {
			return nil, err
		}
		s.kids = append(s.kids, kid)
	}
	return s, nil
}

// explain says where a text stops being JMESPath, and what may have been meant.
func explain(text string, err error) error {
	var syntax parsing.SyntaxError
	if !errors.As(err, &syntax) {
		return fmt.Errorf("is no JMESPath: %.200s", err.Error())
	}
	message := strings.TrimPrefix(syntax.Error(), "SyntaxError: ")
	hint := ""
	switch rest := text[min(max(syntax.Offset, 0), len(text)):]; {
	case text == "":
		message = "it is empty"
	case strings.HasPrefix(text, "/"), strings.Contains(message, "Unknown char"):
		hint = "; a text stands in single quotes, as in 'a text'"
	case rest != "" && (rest[0] == '-' || rest[0] >= '0' && rest[0] <= '9'):
		hint = "; a number stands in backquotes, as in `5`, and a name with other characters than letters, digits and _ in double quotes"
	}
	return fmt.Errorf("is no JMESPath: %.200s, at character %d%s", strings.ToLower(message[:1])+message[1:], syntax.Offset+1, hint)
}
