// Package jmes evaluates JMESPath over the state of a chain, within bounds.
//
// The parser and most functions are those of go-jmespath. This package evaluates by itself,
// as expressions come from agents: the library's evaluation has no bound on time and memory
// (`[@,@]|[@,@]|…` doubles with each step), sorts its input in place in sort_by, returns
// the values of an object in random order, and writes whole inputs into its errors.
// Here every step counts against a budget, nothing changes its input, and the members of
// objects are visited in the order of their keys.
//
//	jmes.go   Compiler, what an expression names     funcs.go   functions: arity, types, cost; ==
//	build.go  the library's tree into our steps      own.go     those that are not the library's
//	eval.go   the evaluation                         value.go   values from JSON and into it
//	                                                 number.go  numbers with all their digits
//
// Values are nil, bool, float64, Number, string, []any and map[string]any. A Number is one whose
// digits a float64 would change. Comparisons and sorting see all digits of any number, and
// arithmetic with integers is exact; with fractions it is that of float64.
package jmes

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jmespath-community/go-jmespath/pkg/parsing"
)

// Bounds of one expression.
const (
	maxText  = 8192 // bytes; this also bounds the stack of the library's parser, which recurses
	maxDepth = 200  // nesting of steps
)

// Scope is what an expression is evaluated over: an object whose members are looked up when they are
// needed. Its values must not change.
type Scope interface {
	// Member returns a member that Names lists. own means that it is the output of the chain's node of
	// that name: then NAME.output is the value itself, unless that has a member `output`.
	Member(name string) (v any, own bool)
	// All returns the whole object, for expressions that use it as one.
	All() map[string]any
}

// Expr is a compiled expression. It is safe for concurrent use.
type Expr struct {
	root  step
	names []string
	bare  map[string]bool
	whole bool
	vars  int
}

// Compiler compiles expressions. It is safe for concurrent use.
type Compiler struct{ funcs func() map[string]*function }

// NewCompiler makes a Compiler. Keep it, as it makes its table of functions only once.
func NewCompiler() *Compiler { return &Compiler{sync.OnceValue(table)} }

// Compile parses an expression and checks what can be checked without data: its size,
// its functions and how many arguments they get, its variables. The error continues the
// sentence "the expression …".
func (c *Compiler) Compile(text string) (e *Expr, err error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("is longer than %d bytes; compute less in one expression", maxText)
	}
	defer func() {
		if v := recover(); v != nil { // the library's parser reads beyond the end of some broken texts
			e, err = nil, fmt.Errorf("is not JMESPath: it ends too early")
		}
	}()
	ast, err := parsing.NewParser().Parse(text)
	if err != nil {
		return nil, explain(text, err)
	}
	marked, literals := exactLiterals(text)
	if len(literals) > 0 {
		if ast, err = parsing.NewParser().Parse(marked); err != nil {
			return nil, explain(marked, err)
		}
	}
	b := builder{funcs: c.funcs(), names: map[string]bool{}, literals: literals}
	root, err := b.build(&ast, where{root: true})
	if err != nil {
		return nil, err
	}
	e = &Expr{root: root.step, bare: b.names, whole: b.whole, vars: b.vars}
	for name := range b.names {
		e.names = append(e.names, name)
	}
	slices.Sort(e.names)
	return e, nil
}

// Names lists the members of the scope that the expression mentions, sorted.
func (e *Expr) Names() []string { return e.names }

// Bare reports whether the expression mentions a member of Names without $. before it.
func (e *Expr) Bare(name string) bool { return e.bare[name] }

// Whole reports whether the expression uses the scope as one object, for example as @ alone.
func (e *Expr) Whole() bool { return e.whole }

// Eval evaluates the expression. The error says what did not fit or which bound was reached, or is that of
// ctx.
func (e *Expr) Eval(ctx context.Context, s Scope) (v any, err error) {
	m := machine{ctx: ctx, scope: s, steps: maxSteps, bytes: maxBytes}
	if e.vars > 0 {
		m.vars = make([]any, e.vars)
	}
	defer func() {
		if r := recover(); r != nil { // a function of the library, such as find_first beyond the end
			v, err = nil, fmt.Errorf("a function does not take these arguments: %.200s", fmt.Sprint(r))
		}
	}()
	return e.root(&m, nil)
}
