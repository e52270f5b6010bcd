package workloadprocessor

import (
	"math"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
)

// role is the meaning of an attribute.
type role uint8

const (
	roleUUID role = iota
	roleIndex
	rolePCI
	rolePartition
	roleInstance
	roleProfile
	roleHost
	rolePID
	roleContainer
	roleCount
)

// lists returns the attribute names by role.
func (a *Attributes) lists() [roleCount][]string {
	return [roleCount][]string{
		roleUUID: a.UUID, roleIndex: a.Index, rolePCI: a.PCI,
		rolePartition: a.Partition, roleInstance: a.Instance, roleProfile: a.Profile,
		roleHost: a.Host, rolePID: a.PID, roleContainer: a.Container,
	}
}

// maxName is the length of the longest possible value.
const maxName = 256

// names holds what attributes name, by role; empty if absent.
type names [roleCount]string

// device reports whether n identifies a device.
func (n *names) device() bool {
	return n[roleUUID] != "" || n[roleIndex] != "" || n[rolePCI] != "" || n[rolePartition] != ""
}

// runner reports whether n identifies a process or a container.
func (n *names) runner() bool { return n[rolePID] != "" || n[roleContainer] != "" }

// pid returns the process, 0 if absent.
func (n *names) pid() uint32 {
	pid, err := strconv.ParseUint(n[rolePID], 10, 31)
	if err != nil {
		return 0
	}
	return uint32(pid)
}

// container returns the container ID without the runtime prefix that kubectl adds.
func (n *names) container() string {
	if _, id, ok := strings.Cut(n[roleContainer], "://"); ok {
		return id
	}
	return n[roleContainer]
}

// meaning is the role of an attribute and its trust rank, 0 being the highest.
type meaning struct {
	role role
	rank int
}

// lexicon looks up attributes by name.
type lexicon struct {
	meanings map[string]meaning
	// first has a bit for the first letter of each name, by name length. Most attributes are
	// not ours, which this shows without hashing.
	first [maxKey + 1]uint32
}

const maxKey = 63

func newLexicon(a *Attributes) *lexicon {
	l := &lexicon{meanings: map[string]meaning{}}
	for r, list := range a.lists() {
		for rank, name := range list {
			l.meanings[name] = meaning{role(r), rank}
			l.first[min(len(name), maxKey)] |= 1 << (name[0] & 31)
		}
	}
	return l
}

// meaning returns the meaning of an attribute; false if it is not ours.
func (l *lexicon) meaning(key string) (meaning, bool) {
	if key == "" || l.first[min(len(key), maxKey)]&(1<<(key[0]&31)) == 0 {
		return meaning{}, false
	}
	m, ok := l.meanings[key]
	return m, ok
}

// read sets n from attrs in one pass: a point has about a dozen attributes, fewer than there
// are names to look for.
func (l *lexicon) read(attrs pcommon.Map, n *names) {
	*n = names{}
	var ranks [roleCount]int
	for key, value := range attrs.All() {
		m, ok := l.meaning(key)
		if !ok || n[m.role] != "" && ranks[m.role] <= m.rank {
			continue
		}
		if s := text(value); s != "" {
			n[m.role], ranks[m.role] = s, m.rank
		}
	}
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
	case pcommon.ValueTypeDouble: // numbers that passed through JSON
		if f := v.Double(); f == math.Trunc(f) && f >= 0 && f < 1<<31 {
			return strconv.FormatInt(int64(f), 10)
		}
	}
	return ""
}

// canonicalPCI returns a PCI address in Linux' form: NVIDIA uses an eight-digit domain, and
// some tools use upper case.
func canonicalPCI(s string) string {
	s = strings.ToLower(s)
	domain, rest, ok := strings.Cut(s, ":")
	if !ok || !strings.Contains(rest, ":") { // no domain
		return "0000:" + s
	}
	if len(domain) > 4 && strings.Trim(domain[:len(domain)-4], "0") == "" {
		return domain[len(domain)-4:] + ":" + rest
	}
	return s
}
