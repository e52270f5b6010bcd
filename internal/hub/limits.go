package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

const (
	// maxExpr bounds the text of a query, or of all selectors of a request, in bytes.
	maxExpr = 64 << 10
	// maxSigns bounds the operators and brackets of it: what parses and writes it takes
	// time by the square of how deep they lie in each other, and stack, before any
	// timeout holds.
	maxSigns = 1000
)

var errLong = fmt.Errorf("a query may have %d bytes, and %d operators and brackets", maxExpr, maxSigns)

// checkLength refuses expressions that are too long to be parsed.
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
	return nil
}

// countSigns counts what is neither in quotes or comments nor part of a name or number,
// and the operators that are words. It may count too many, but not too few.
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

// endOfQuote returns where the text goes on behind what is quoted at i. Quotes end with
// the line, but for raw ones.
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

// parse returns an expression limited to the team of a grant, and what its value is.
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
	if g.Team != "" {
		expr, err = restrict(p, expr, g.Team)
	}
	return expr, kind, err
}

// late counts what ran out of time and was not counted where it did.
func (h *handler) late(err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		h.opt.Refusals.Add(QueryTimeout, 1)
	}
}

// inTurn lets as many requests in as there may be queries at the same time, until their
// answers are written: an answer is in memory as long as somebody reads it. Waiting is
// part of the time that they have.
func (h *handler) inTurn(next func(http.ResponseWriter, *http.Request, Grant)) func(http.ResponseWriter, *http.Request, Grant) {
	return func(w http.ResponseWriter, r *http.Request, g Grant) {
		ctx, cancel := context.WithTimeout(r.Context(), h.timeout)
		defer cancel()
		if _, err := h.turns.Insert(ctx, ""); err != nil {
			h.late(err)
			w.Header().Set("Retry-After", "5")
			h.failed(w, err)
			return
		}
		defer h.turns.Delete(0)
		next(w, r.WithContext(ctx), g)
	}
}

// limits returns how many requests a handler of a store answers at the same time, and how
// long each may take.
func limits(store any) (turns, time.Duration) {
	if s, ok := store.(*Store); ok {
		return make(turns, s.opt.Queries), s.opt.QueryTimeout
	}
	return make(turns, DefaultQueries), DefaultQueryTimeout
}
