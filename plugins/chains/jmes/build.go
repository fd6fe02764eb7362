package jmes

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/jmespath-community/go-jmespath/pkg/functions"
	"github.com/jmespath-community/go-jmespath/pkg/parsing"
)

// step computes the value of a node of the library's tree for the current value. Each takes at least one
// step of the machine's budget.
type step func(m *machine, cur any) (any, error)

// compiled is a step, and what its users must know about it.
type compiled struct {
	step
	all    bool   // its value is the whole scope
	member string // its value is this member of the scope
}

// where says what a step's current value is, and which variables it sees.
type where struct {
	root   bool   // the current value is the scope itself
	dollar bool   // it was written as $
	member string // the current value is this member of the scope
	vars   *variable
	deep   int
}

// variable is a variable of a let expression.
type variable struct {
	name string
	slot int
	next *variable
}

// value returns the where of a step whose current value is not the scope.
func (w where) value() where { return where{vars: w.vars, deep: w.deep} }

type builder struct {
	funcs map[string]*function
	names map[string]bool // true = it is named without $. at least once
	whole bool            // the scope is used as one object
	vars  int

	literals []any // their numbers have all their digits, see exactLiterals
}

// build makes the step of one node of the tree.
func (b *builder) build(n *parsing.ASTNode, w where) (compiled, error) {
	if w.deep++; w.deep > maxDepth {
		return compiled{}, fmt.Errorf("has more than %d steps within each other", maxDepth)
	}
	switch n.NodeType {
	case parsing.ASTSubexpression, parsing.ASTIndexExpression, parsing.ASTPipe:
		return b.chained(n, w)
	case parsing.ASTField:
		return b.field(n.Value.(string), w), nil
	case parsing.ASTRootNode:
		return b.scope(), nil
	case parsing.ASTCurrentNode, parsing.ASTIdentity:
		if w.root {
			return b.scope(), nil
		}
	}
	s, err := b.node(n, w)
	return compiled{step: s}, err
}

// node makes the step of a node that build does not handle itself.
func (b *builder) node(n *parsing.ASTNode, w where) (step, error) {
	switch n.NodeType {
	case parsing.ASTCurrentNode, parsing.ASTIdentity:
		return func(m *machine, cur any) (any, error) { return cur, m.spend(1) }, nil
	case parsing.ASTLiteral:
		value := b.literal(n.Value)
		return func(m *machine, _ any) (any, error) { return value, m.spend(1) }, nil
	case parsing.ASTIndex:
		i := n.Value.(int)
		return b.onValue(w, func(m *machine, cur any) (any, error) { return index(cur, i), m.spend(1) }), nil
	case parsing.ASTSlice:
		bounds := [3]*int(n.Value.([]*int))
		if step := bounds[2]; step != nil && *step == 0 {
			return nil, errors.New("has a slice with step 0; it is 1 or more, or negative")
		}
		return b.onValue(w, func(m *machine, cur any) (any, error) { return m.slice(cur, bounds) }), nil
	case parsing.ASTVariable:
		return variableOf(n.Value.(string), w)
	case parsing.ASTLetExpression:
		return b.let(n, w)
	case parsing.ASTFunctionExpression:
		return b.call(n, w)
	case parsing.ASTBinding:
		return nil, errors.New("has a single =; == compares")
	}
	first, inner := w, w // for the first child, and for those after it
	switch n.NodeType {
	case parsing.ASTProjection, parsing.ASTValueProjection, parsing.ASTFilterProjection:
		inner = w.value()
	case parsing.ASTFlatten:
	case parsing.ASTExpRef:
		first = w.value()
	default:
		first.member, inner.member = "", ""
	}
	kids, err := b.children(n, first, inner)
	if err != nil {
		return nil, err
	}
	return combined(n, kids)
}

// children makes the steps of the children of a node; for a key and value of an object it is that of the
// value.
func (b *builder) children(n *parsing.ASTNode, first, inner where) ([]step, error) {
	kids := make([]step, len(n.Children))
	for i := range n.Children {
		child := &n.Children[i]
		if n.NodeType == parsing.ASTMultiSelectHash {
			child = &child.Children[0]
		}
		kid, err := b.build(child, first)
		if err != nil {
			return nil, err
		}
		kids[i], first = kid.step, inner
	}
	return kids, nil
}

// scope returns the step whose value is the whole scope.
func (b *builder) scope() compiled {
	b.whole = true
	return compiled{all: true, step: func(m *machine, _ any) (any, error) {
		all := m.scope.All()
		return all, cmp.Or(m.spend(1), m.build(len(all)*entryBytes))
	}}
}

// field returns the step for a member of the scope, or of the current value.
func (b *builder) field(name string, w where) compiled {
	switch {
	case w.root:
		b.names[name] = b.names[name] || !w.dollar
		return compiled{member: name, step: func(m *machine, _ any) (any, error) {
			v, _ := m.scope.Member(name)
			return v, m.spend(1)
		}}
	case w.member != "" && name == "output":
		return compiled{step: func(m *machine, _ any) (any, error) { return m.output(w.member), m.spend(1) }}
	}
	return compiled{step: func(m *machine, cur any) (any, error) {
		object, _ := cur.(map[string]any)
		return object[name], m.spend(1)
	}}
}

// onValue makes a step that needs a value work on the whole scope too.
func (b *builder) onValue(w where, s step) step {
	if !w.root {
		return s
	}
	return followed(b.scope().step, s, false)
}

// followed returns a step that runs right on the value of left if that is not null, or always.
func followed(left, right step, always bool) step {
	return func(m *machine, cur any) (any, error) {
		v, err := left(m, cur)
		if err != nil || v == nil && !always {
			return nil, err
		}
		return right(m, v)
	}
}

// chained makes the steps of a.b, a[0] and a | b.
func (b *builder) chained(n *parsing.ASTNode, w where) (compiled, error) {
	pipe, whole := n.NodeType == parsing.ASTPipe, b.whole
	if pipe {
		w.member = ""
	}
	left, err := b.build(&n.Children[0], w)
	if err != nil {
		return compiled{}, err
	}
	next := w.value()
	if next.root = left.all; left.all {
		b.whole = whole // the right side finds its members itself
		next.dollar = n.Children[0].NodeType == parsing.ASTRootNode
	} else if !pipe {
		next.member = left.member
	}
	right, err := b.build(&n.Children[1], next)
	if err != nil || left.all {
		return right, err
	}
	return compiled{step: followed(left.step, right.step, pipe)}, nil
}

// let makes the steps of let $a = x, $b = y in z; a value does not see the variables of the same let.
func (b *builder) let(n *parsing.ASTNode, w where) (step, error) {
	w.member = ""
	bindings := n.Children[0].Children
	values := make([]step, len(bindings))
	for i := range bindings {
		if bindings[i].NodeType != parsing.ASTBinding || bindings[i].Children[0].NodeType != parsing.ASTVariable {
			return nil, errors.New("has a let that binds no variable: let $name = value in …")
		}
		v, err := b.build(&bindings[i].Children[1], w)
		if err != nil {
			return nil, err
		}
		values[i] = v.step
	}
	slot := b.vars
	for i := range bindings {
		w.vars = &variable{bindings[i].Children[0].Value.(string), b.vars, w.vars}
		b.vars++
	}
	body, err := b.build(&n.Children[1], w)
	return func(m *machine, cur any) (any, error) {
		for i, value := range values {
			v, err := value(m, cur)
			if err != nil {
				return nil, err
			}
			m.vars[slot+i] = v
		}
		return body.step(m, cur)
	}, err
}

func variableOf(name string, w where) (step, error) {
	for v := w.vars; v != nil; v = v.next {
		if v.name == name {
			return func(m *machine, _ any) (any, error) { return m.vars[v.slot], m.spend(1) }, nil
		}
	}
	return nil, fmt.Errorf("uses the variable %.64s, which no let binds; members are written without $ or after $., "+
		"as in $.%.64s", name, strings.TrimPrefix(name, "$"))
}

// call makes the step of a function.
func (b *builder) call(n *parsing.ASTNode, w where) (step, error) {
	name := n.Value.(string)
	fn := b.funcs[name]
	if fn == nil {
		return nil, fmt.Errorf("calls the function %.64s, which JMESPath does not have", name)
	}
	if err := fn.arity(len(n.Children)); err != nil {
		return nil, err
	}
	for i := range n.Children {
		if n.Children[i].NodeType == parsing.ASTExpRef && !fn.takes(i, functions.JpExpref) {
			return nil, fmt.Errorf("gives %s() an expression (&…) as argument %d, which takes none", name, i+1)
		}
	}
	w.member = ""
	args, err := b.children(n, w, w)
	return func(m *machine, cur any) (any, error) { return m.call(fn, args, cur) }, err
}

// explain returns an error that says where a text stops being JMESPath, with a hint.
func explain(text string, err error) error {
	var syntax parsing.SyntaxError
	if !errors.As(err, &syntax) {
		return fmt.Errorf("is not JMESPath: %.200s", err.Error())
	}
	message := strings.TrimPrefix(syntax.Error(), "SyntaxError: ")
	hint := ""
	switch rest := text[min(max(syntax.Offset, 0), len(text)):]; {
	case text == "":
		message = "it is empty"
	case strings.HasPrefix(text, "/"), strings.Contains(message, "Unknown char"):
		hint = "; write a string in single quotes, as in 'a text'"
	case rest != "" && (rest[0] == '-' || rest[0] >= '0' && rest[0] <= '9'):
		hint = "; write a number in backquotes, as in `5`, and a name with characters other than letters, digits " +
			"and _ in double quotes"
	}
	return fmt.Errorf("is not JMESPath: %.200s, at character %d%s", strings.ToLower(message[:1])+message[1:],
		syntax.Offset+1, hint)
}
