// Package growth bounds the bytes of labels that a PromQL query produces. The engine limits
// samples only: a query of 300 bytes that nests label_replace doubles a label with each level
// and takes gigabytes with a few hundred samples.
//
// Of derives from an expression how much it adds to the labels of a series. Limit charges that
// for each series that the query selects, and ends the query when its budget is spent.
package growth

import (
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// Growth is what a query adds to the labels of each series that it selects, in bytes.
type Growth struct {
	Copies  float64 // label sets made of the series' label set
	PerByte float64 // bytes made of each byte of the longest label value
	Fixed   float64 // bytes that do not depend on the series
	Literal float64 // the part of Fixed that comes from texts of the query
}

// Plain is the growth of a query that only selects.
var Plain = Growth{Copies: 1}

// valueBytes is the approximate size of a number as a label value, with the overhead of a series.
const valueBytes = 100

// DefaultSubqueryStep is the step of a subquery that has none.
const DefaultSubqueryStep = time.Minute

// Of returns the growth of a query that is evaluated at the steps of a span; zero for an instant.
func Of(e parser.Expr, span, step time.Duration) Growth {
	w := walker{Plain}
	w.value(e, span, step)
	return w.sum
}

// size is the length of a label value: a linear function of the longest selected one.
type size struct{ perByte, fixed float64 }

func (s size) max(t size) size { return size{max(s.perByte, t.perByte), max(s.fixed, t.fixed)} }

type walker struct{ sum Growth }

// value returns a bound of the label values of an expression.
func (w *walker) value(e parser.Expr, span, step time.Duration) size {
	switch n := e.(type) {
	case *parser.VectorSelector, *parser.MatrixSelector:
		return size{perByte: 1}
	case *parser.ParenExpr:
		return w.value(n.Expr, span, step)
	case *parser.UnaryExpr:
		return w.value(n.Expr, span, step)
	case *parser.StepInvariantExpr:
		return w.value(n.Expr, span, step)
	case *parser.BinaryExpr:
		return w.value(n.LHS, span, step).max(w.value(n.RHS, span, step))
	case *parser.SubqueryExpr:
		inner := n.Step
		if inner <= 0 {
			inner = DefaultSubqueryStep
		}
		return w.value(n.Expr, span+n.Range, inner)
	case *parser.AggregateExpr:
		s := w.value(n.Expr, span, step)
		if n.Op != parser.COUNT_VALUES {
			return s
		}
		steps := 1.0
		if step > 0 {
			steps += float64(span / step)
		}
		w.sum.Fixed += steps * (valueBytes + float64(len(text(n.Param))))
		if len(n.Grouping) > 0 || n.Without {
			w.sum.Copies += steps
		}
		return s
	case *parser.Call:
		var s size
		for _, a := range n.Args {
			s = s.max(w.value(a, span, step))
		}
		switch n.Func.Name {
		case "label_replace": // v, destination, replacement, source, regexp
			if len(n.Args) == 5 {
				to := text(n.Args[2])
				refs := float64(strings.Count(to, "$")) // at least the number of references
				return s.max(w.made(size{refs * s.perByte, refs*s.fixed + float64(len(to))}, n.Args[1]))
			}
		case "label_join": // v, destination, separator, sources...
			if sources := float64(len(n.Args) - 3); sources > 0 {
				return s.max(w.made(size{sources * s.perByte, sources * (s.fixed + float64(len(text(n.Args[2]))))}, n.Args[1]))
			}
		}
		return s
	}
	return size{}
}

// made accounts for a label that the query makes.
func (w *walker) made(s size, name parser.Expr) size {
	more := s.fixed + float64(len(text(name)))
	w.sum.Copies++
	w.sum.PerByte += s.perByte
	w.sum.Fixed += more
	w.sum.Literal += more
	return s
}

// text returns the value of a string argument.
func text(e parser.Expr) string {
	for {
		switch n := e.(type) {
		case *parser.ParenExpr:
			e = n.Expr
		case *parser.StepInvariantExpr:
			e = n.Expr
		case *parser.StringLiteral:
			return n.Val
		default:
			return ""
		}
	}
}
