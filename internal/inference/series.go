package inference

import (
	"crypto/sha256"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// Labels that tell apart what adds up, and are no attributes.
var (
	// replicas are labels of copies of the same values: the ranks of one engine.
	replicas = [3]string{"tp_rank", "pp_rank", "moe_ep_rank"}
	// ranks are labels of the engines behind one endpoint.
	ranks = []string{"engine", "dp_rank", "WorkerId", "worker_id", "ReplicaId"}
	// workers are those of ranks that come and go.
	workers = ranks[2:]
)

// maxKey bounds the keys of series, which are remembered, in bytes. Real ones have 100 to 200.
const maxKey = 256

// key identifies a series among those of a point. Copies of one series have one key: which of them
// counts changes from reading to reading.
func (s *series) key() string {
	if s.id == "" {
		s.id = s.family + "\xfd" + keyWithout(s.labels, "le", replicas[0], replicas[1], replicas[2])
		if len(s.id) > maxKey {
			sum := sha256.Sum256([]byte(s.id))
			s.id = string(sum[:])
		}
	}
	return s.id
}

// unique returns one of the series that are copies: those of the ranks of one engine. Of several the
// largest counts, because ranks are read one after the other.
func unique(list []series) []series {
	at := map[string]int{}
	out := list[:0:0]
	for _, s := range list {
		key := s.key()
		i, ok := at[key]
		if !ok {
			at[key] = len(out)
			out = append(out, s)
			continue
		}
		if s.size() > out[i].size() {
			out[i] = s
		}
	}
	return out
}

func (s *series) size() float64 {
	if s.histogram != nil {
		return float64(s.histogram.Count)
	}
	return s.value
}

// totals leaves out the parts of totals: with priority scheduling, SGLang's series with an empty priority
// is the sum of the others.
func totals(list []series) []series {
	const part = "priority"
	has := map[string]bool{}
	for _, s := range list {
		if v, ok := label(s.labels, part); ok && v == "" {
			has[keyWithout(s.labels, part, "le")] = true
		}
	}
	if len(has) == 0 {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(s series) bool {
		v, _ := label(s.labels, part)
		return v != "" && has[keyWithout(s.labels, part, "le")]
	})
}

func ranksOf(list []series) map[string]bool {
	out := map[string]bool{}
	for _, s := range list {
		out[rankOf(s.labels)] = true
	}
	return out
}

// rankOf returns which engine behind the endpoint a series is of.
func rankOf(labels []promtext.Label) string {
	var out []string
	for _, name := range ranks {
		if v, ok := label(labels, name); ok && v != "" {
			out = append(out, v)
		}
	}
	return strings.Join(out, "/")
}
