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
	// maxSeriesBytes bounds the memory of the samples of one request until they are written:
	// every series repeats the labels of its resource. A request of 8192 points takes about
	// 8 MiB.
	maxSeriesBytes = 256 << 20
	// sampleCost is the approximate size of a sample without its labels.
	sampleCost = 96
)

const tooManyBytes = "samples and labels of this request take too much memory, the remaining points are dropped: send smaller requests"

// size returns the approximate number of bytes that labels take.
func size(l hub.Labels) int { return int(l.ByteSize()) }

// fits reports whether a point of n samples fits, each with the attributes of the point, and
// refuses the point if not.
func (c *converter) fits(name string, attrs pcommon.Map, n int) bool {
	need := n * (len(name) + sampleCost)
	if n > 1 { // a single sample is always accepted: its labels are bounded
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

// cut truncates s to at most n bytes without splitting a character.
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
