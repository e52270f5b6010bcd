package hubexporter

import (
	"unicode/utf8"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// maxLabelValue bounds what one attribute can add to the index, in bytes.
const maxLabelValue = 4096

// maxLabels bounds the labels of one series.
const maxLabels = 128

const (
	// maxName bounds the name of a metric or a label, in bytes.
	maxName = 1024
	// maxSeriesBytes bounds what the samples of one request take in memory until they are
	// written: labels of a resource are in each of its series again. A request of 8192
	// points has some 8 MiB.
	maxSeriesBytes = 256 << 20
	// sampleCost is what one takes besides its labels, about.
	sampleCost = 96
)

const tooManyBytes = "the samples of this request take too much memory with their labels, the others are left out: send less at once"

// size returns about how many bytes labels take.
func size(l hub.Labels) int { return int(l.ByteSize()) }

// fits reports whether a point of n samples can be taken, each with the attributes of the
// point, and refuses it if not.
func (c *converter) fits(name string, attrs pcommon.Map, n int) bool {
	need := n * (len(name) + sampleCost)
	if n > 1 { // one sample more does not matter: its labels are bounded
		each := 0
		for _, l := range c.sorted(attrs, name) {
			each += len(l.name) + len(l.value)
		}
		need += n * each
	}
	if c.room < need {
		c.to.Refuse(hub.Invalid, 1, tooManyBytes)
		return false
	}
	c.to.Point()
	return true
}

// cut returns the first n bytes of s at most, without the half of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for i := n; i > n-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i]
		}
	}
	return s[:n]
}
