package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"

	"github.com/gpumeter/gpumeter/internal/hub/growth"
)

const (
	// maxExpr bounds the text of a query, or of all selectors of a request, in bytes.
	maxExpr = 64 << 10
	// maxSigns bounds operators and brackets: parsing and printing take quadratic time in the
	// nesting depth, and stack, before any timeout applies.
	maxSigns = 1000
)

var errLong = fmt.Errorf("query exceeds %d bytes or %d operators and brackets", maxExpr, maxSigns)

// checkLength rejects expressions that are too long to parse.
func checkLength(exprs ...string) error {
	size, signs := 0, len(exprs)-1
	for _, e := range exprs {
		if size += len(e); size > maxExpr {
			return errLong
		}
		if signs += countSigns(e); signs > maxSigns {
			return errLong
		}
	}
	return growth.Regexps(quotes(exprs))
}

// quotes returns the quoted strings of expressions, any of which may be a regular expression.
func quotes(exprs []string) (out []string) {
	for _, e := range exprs {
		for i := 0; i < len(e); {
			switch c := e[i]; c {
			case '"', '\'', '`':
				end := endOfQuote(e, i)
				if text, err := strutil.Unquote(e[i:end]); err == nil { // otherwise the parser reports it
					out = append(out, text)
				}
				i = end
			case '#':
				end := strings.IndexByte(e[i:], '\n')
				if end < 0 {
					end = len(e) - i
				}
				i += end
			default:
				i++
			}
		}
	}
	return out
}

// countSigns counts characters outside quotes and comments that are not part of a name or
// number, and the operators that are words. It may overcount but never undercounts.
func countSigns(e string) (n int) {
	for i := 0; i < len(e); {
		switch c := e[i]; {
		case c == '"' || c == '\'' || c == '`':
			i = endOfQuote(e, i)
		case c == '#':
			end := strings.IndexByte(e[i:], '\n')
			if end < 0 {
				return n
			}
			i += end
		case isWord(c):
			start := i
			for i < len(e) && isWord(e[i]) {
				i++
			}
			switch strings.ToLower(e[start:i]) {
			case "and", "or", "unless", "atan2", "offset", "bool":
				n++
			}
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		default:
			n++
			i++
		}
	}
	return n
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '.'
}

// endOfQuote returns the position after the string that is quoted at i. Quotes end at the
// end of the line, except for raw strings.
func endOfQuote(e string, i int) int {
	quote := e[i]
	for i++; i < len(e); i++ {
		switch {
		case e[i] == quote:
			return i + 1
		case quote == '`':
		case e[i] == '\n':
			return i
		case e[i] == '\\':
			i++
		}
	}
	return i
}

// parse returns the expression restricted to the scope of a grant, and its value type.
func (*handler) parse(expr string, g Grant) (string, parser.ValueType, error) {
	if err := checkLength(expr); err != nil {
		return "", "", err
	}
	p := parser.NewParser(parser.Options{})
	e, err := p.ParseExpr(expr)
	if err != nil {
		return "", "", err
	}
	kind := e.Type()
	if err := growth.Of(e, 0, 0).Check(); err != nil {
		return "", "", err
	}
	if !g.Scope.All() {
		expr, err = restrict(p, expr, g.Scope)
	}
	return expr, kind, err
}

// late counts a timeout that was not counted elsewhere.
func (h *handler) late(err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		h.opt.Refusals.Add(QueryTimeout, 1)
	}
}
