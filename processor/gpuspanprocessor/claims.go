package gpuspanprocessor

import (
	"math"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/sender"
)

// maxName is the length of the longest value that can be a name.
const maxName = 256

// claims returns what attributes say about the sender.
func claims(attrs pcommon.Map) sender.Claims {
	var c sender.Claims
	for key, v := range attrs.All() {
		switch key {
		case "process.pid":
			c.PID = pid(v)
		case "host.name":
			c.Host = text(v)
		case "container.id":
			c.Container = text(v)
			if _, id, ok := strings.Cut(c.Container, "://"); ok { // as kubectl prints it
				c.Container = id
			}
		case "k8s.pod.uid":
			c.PodUID = text(v)
		case "k8s.pod.name":
			c.Pod = text(v)
		case "k8s.namespace.name":
			c.Namespace = text(v)
		case "k8s.container.name":
			c.ContainerName = text(v)
		case "slurm.job.id":
			c.SlurmJob = text(v)
		}
	}
	return c
}

// text returns a value that can be a name. Some senders use numbers.
func text(v pcommon.Value) string {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		if s := v.Str(); len(s) <= maxName {
			return s
		}
	case pcommon.ValueTypeInt:
		return strconv.FormatInt(v.Int(), 10)
	default:
	}
	return ""
}

// pid returns a process ID, 0 if v is none. Some senders use text, or numbers that passed through JSON.
func pid(v pcommon.Value) uint32 {
	n := int64(0)
	switch v.Type() {
	case pcommon.ValueTypeInt:
		n = v.Int()
	case pcommon.ValueTypeDouble:
		if f := v.Double(); f == math.Trunc(f) && f > 0 && f < 1<<31 {
			n = int64(f)
		}
	case pcommon.ValueTypeStr:
		n, _ = strconv.ParseInt(v.Str(), 10, 32)
	default:
	}
	if n <= 0 || n >= 1<<31 {
		return 0
	}
	return uint32(n)
}
