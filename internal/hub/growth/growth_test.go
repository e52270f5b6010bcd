package growth

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql/parser"
)

// Catches growth that is underestimated, wherever it hides.
func TestOf(t *testing.T) {
	p := parser.NewParser(parser.Options{})
	for expr, want := range map[string]Growth{
		`x`:                        {Copies: 1},
		`sum by (a) (rate(x[5m]))`: {Copies: 1},
		`label_replace(x, "abc", "-$1-$2", "a", "(.*)-(.*)")`:                                            {Copies: 2, PerByte: 2, Fixed: 9, Literal: 9},
		`label_replace(label_replace(x, "a", "$1$1", "a", "(.*)"), "a", "$1$1$1", "a", "(.*)")`:          {Copies: 3, PerByte: 2 + 6, Fixed: 5 + 3*4 + 7, Literal: 24},
		`1 + -(label_replace((x), ("a"), (("$1$1")), "a", "(.*)"))`:                                      {Copies: 2, PerByte: 2, Fixed: 5, Literal: 5},
		`label_join(x, "a", "--", "b", "c", "d")`:                                                        {Copies: 2, PerByte: 3, Fixed: 7, Literal: 7},
		`label_join(x * on (a) group_left (b) label_replace(y, "b", "$1$1", "c", "(.*)"), "d", "", "b")`: {Copies: 3, PerByte: 2 + 2, Fixed: 5 + 5, Literal: 10},
		`count_values("v", x)`:                       {Copies: 1, Fixed: 101 * 101},
		`count_values by (a) ("v", x)`:               {Copies: 1 + 101, Fixed: 101 * 101},
		`max_over_time(count_values("v", x)[1m:1s])`: {Copies: 1, Fixed: 1061 * 101},
		`max_over_time(count_values("v", x)[10m:])`:  {Copies: 1, Fixed: 27 * 101},
	} {
		e, err := p.ParseExpr(expr)
		if err != nil {
			t.Fatal(expr, err)
		}
		if diff := cmp.Diff(want, Of(e, 1000*time.Second, 10*time.Second)); diff != "" {
			t.Errorf("%s: %s", expr, diff)
		}
	}
	e, err := p.ParseExpr(`label_replace(vector(1), "a", "` + strings.Repeat("x", 1000) + `", "", "")`)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := Of(e, 0, 0).Check(); err != nil {
			t.Errorf("%.100s: %v", e, err)
		}
		if e, err = p.ParseExpr(`label_replace(` + e.String() + `, "a", "$1$1$1$1$1$1", "a", "(.*)")`); err != nil {
			t.Fatal(err)
		}
	}
	if err := Of(e, 0, 0).Check(); err == nil {
		t.Errorf("%.100s passes", e)
	}
}

// Catches a regular expression that takes minutes or hundreds of megabytes to compile or match,
// and one of a real dashboard that is refused.
func TestRegexps(t *testing.T) {
	var uuids []string
	for i := range 1000 {
		uuids = append(uuids, fmt.Sprintf("GPU-6d5aab5f-8a45-4a0b-8b4f-%012d", i))
	}
	for text, ok := range map[string]bool{
		"":                                true,
		".*":                              true,
		"node-[0-9]{1,4}(?:-gpu[0-7])?":   true,
		"(?i)h[12]00.*":                   true,
		strings.Join(uuids, "|"):          true,
		strings.Repeat("(x|y)+", 8000):    true,
		"(":                               true, // the parser reports it
		".{1000}":                         true,
		strings.Repeat(".{1000}", 20):     false,
		"(((a{10}){10}){10}b){1000}":      true, // invalid: the parser reports it
		strings.Repeat(`(a{30}){30}`, 20): false,
		strings.Repeat(`\pL`, 101):        false,
		strings.Repeat(`[^\P{Han}]`, 101): false,
		"(?i)" + strings.Repeat(`[\x{100}-\x{1e900}]`, 101): false,
	} {
		if err := Regexps([]string{text}); (err == nil) != ok {
			t.Errorf("%.50s: %v", text, err)
		}
	}
	if err := Regexps([]string{".{1000}", strings.Repeat(".{1000}", 10)}); err == nil {
		t.Error("the limit is not for the whole request")
	}
}
