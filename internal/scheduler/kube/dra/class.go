package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Class is a DeviceClass: a kind of device that claims ask for.
type Class struct {
	Name string
	// Resource is the resource by which pods can ask for devices of the class without a claim. Empty: there is none.
	Resource string
	rules    []rule
	// texts are the quoted texts in the expressions: one of them usually names the driver.
	texts []string
}

// rule is a comparison that a device has to pass.
type rule struct {
	domain, attribute string // of an attribute; both empty: the driver
	value             string
}

const (
	maxSelectors  = 32       // as in the API
	maxExpression = 10 << 10 // as in the API
)

// ParseClass reads a DeviceClass.
func ParseClass(b []byte) (Class, error) {
	var o struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			Selectors []struct {
				CEL struct {
					Expression string `json:"expression"`
				} `json:"cel"`
			} `json:"selectors"`
			Resource string `json:"extendedResourceName"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return Class{}, fmt.Errorf("class cannot be parsed: %w", err)
	}
	if o.Metadata.Name == "" {
		return Class{}, errors.New("class cannot be parsed: no name")
	}
	c := Class{Name: o.Metadata.Name, Resource: o.Spec.Resource}
	for _, s := range o.Spec.Selectors[:min(len(o.Spec.Selectors), maxSelectors)] {
		if text := s.CEL.Expression; len(text) <= maxExpression {
			c.rules = append(c.rules, rulesOf(text)...)
			for _, m := range quoted.FindAllString(text, -1) {
				c.texts = append(c.texts, m[1:len(m)-1])
			}
		}
	}
	return c, nil
}

var (
	quoted   = regexp.MustCompile(`'[^'\\]*'|"[^"\\]*"`)
	isDriver = regexp.MustCompile(`^device\.driver\s*==\s*(?:'([^'\\]*)'|"([^"\\]*)")$`)
	isText   = regexp.MustCompile(`^device\.attributes\[(?:'([^'\\]*)'|"([^"\\]*)")\]\.(\w+)\s*==\s*(?:'([^'\\]*)'|"([^"\\]*)")$`)
)

// rulesOf returns the comparisons that all have to hold. One that is not understood is left out, and so are all if there is
// an alternative.
func rulesOf(expression string) []rule {
	// Operators inside a text are none. All texts get the same length, so that positions agree.
	blank := quoted.ReplaceAllStringFunc(expression, func(s string) string { return strings.Repeat("_", len(s)) })
	if strings.ContainsAny(blank, "|?") {
		return nil
	}
	var list []rule
	from := 0
	clause := func(to int) {
		text := strings.TrimSpace(expression[from:to])
		if m := isDriver.FindStringSubmatch(text); m != nil {
			list = append(list, rule{value: m[1] + m[2]})
		} else if m := isText.FindStringSubmatch(text); m != nil {
			list = append(list, rule{domain: m[1] + m[2], attribute: m[3], value: m[4] + m[5]})
		}
	}
	depth := 0
	for i := range len(blank) {
		switch {
		case strings.IndexByte("([{", blank[i]) >= 0:
			depth++
		case strings.IndexByte(")]}", blank[i]) >= 0:
			depth--
		case depth == 0 && i >= from && strings.HasPrefix(blank[i:], "&&"):
			clause(i)
			from = i + 2
		}
	}
	clause(len(expression))
	return list
}

// driver returns the driver of the accelerators of a class, empty if it is of other devices.
func (c *Class) driver(v device.Vendors) string {
	for _, r := range c.rules {
		if r.attribute == "" {
			return claimed(v, r.value)
		}
	}
	for _, text := range c.texts {
		if d := claimed(v, text); d != "" {
			return d
		}
	}
	return claimed(v, c.Name)
}

// claimed returns name if it is that of a driver of accelerators.
func claimed(v device.Vendors, name string) string {
	if v.Resource(name).Unit == device.Claim {
		return name
	}
	return ""
}

// selects reports whether a device of a driver is of the class, as far as that is understood.
func (c *Class) selects(driver, model string, d *Device) bool {
	for _, r := range c.rules {
		switch {
		case r.attribute == "" && r.value != driver,
			r.domain == driver && r.attribute == "type" && d.Type != r.value,
			r.domain == driver && r.attribute == model && d.Model != r.value:
			return false
		}
	}
	return true
}

// partial reports whether a class is of parts of devices only, judged by the type that it wants.
func (c *Class) partial(driver string, whole []string) bool {
	for _, r := range c.rules {
		if r.domain == driver && r.attribute == "type" && len(whole) > 0 && !slices.Contains(whole, r.value) {
			return true
		}
	}
	return false
}
