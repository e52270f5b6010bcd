package cost

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Quota limits a team or any other set of series. A nil limit is unlimited.
type Quota struct {
	Name   string `json:"name"`
	Source string `json:"source"` // file, kubernetes or slurm
	// Concurrent GPUs; GPU-hours and money per month.
	GPUs  *float64 `json:"gpus,omitempty"`
	Hours *float64 `json:"gpu_hours,omitempty"`
	Money *Money   `json:"money,omitempty"`
	// Currency of Money if the quota says so. Empty means the currency of the prices.
	Currency string `json:"currency,omitempty"`

	team, namespace, cluster string // if the quota is about exactly one
	match                    []matcher
}

// Matches reports whether the quota applies to a series with these labels.
func (q Quota) Matches(labels query.Labels) bool { return matches(q.match, labels) }

// SameCurrency returns an error if a quota is in another currency than the prices.
func SameCurrency(quotas []Quota, p Prices) error {
	for i := range quotas {
		if q := &quotas[i]; q.Money != nil && q.Currency != "" && p.Currency != "" && q.Currency != p.Currency {
			return fmt.Errorf("the quota %s is in %s, but the prices are in %s", q.Name, q.Currency, p.Currency)
		}
	}
	return nil
}

// Team returns the team of a quota that is about exactly one team, otherwise "".
func (q Quota) Team() string { return q.team }

// maxQuotas bounds the quotas of one source.
const maxQuotas = 100_000

// quotaFile is one entry of a quota file.
type quotaFile struct {
	Name      string             `yaml:"name"`
	Team      string             `yaml:"team"`
	Namespace string             `yaml:"namespace"`
	Cluster   string             `yaml:"cluster"`
	Match     map[string]*string `yaml:"match"`
	GPUs      string             `yaml:"gpus"`
	Hours     string             `yaml:"gpu_hours_per_month"`
	Money     string             `yaml:"money_per_month"`
}

// ParseQuotas parses a quota file.
func ParseQuotas(text []byte) ([]Quota, error) {
	var f struct {
		Currency string      `yaml:"currency"`
		Labels   []string    `yaml:"labels"`
		Quotas   []quotaFile `yaml:"quotas"`
	}
	if err := notEmpty(text); err != nil {
		return nil, fmt.Errorf("cannot parse the quota file: %w", err)
	}
	doc, err := decodeYAML(text, &f)
	if err != nil {
		return nil, fmt.Errorf("cannot parse the quota file: %w", err)
	}
	if f.Currency != "" {
		if err := currencyCode(f.Currency); err != nil {
			return nil, doc.at(err, "currency")
		}
	}
	labels, err := declared(f.Labels)
	if err != nil {
		return nil, doc.at(err, "labels")
	}
	if len(f.Quotas) > maxQuotas {
		return nil, doc.at(fmt.Errorf("more than %d", maxQuotas), "quotas")
	}
	out := make([]Quota, 0, len(f.Quotas))
	for i := range f.Quotas {
		q, err := f.Quotas[i].quota(labels)
		if err != nil {
			return nil, doc.at(err, "quotas", i)
		}
		q.Currency = f.Currency
		out = append(out, q)
	}
	return out, nil
}

// exact returns a glob that matches only one name, otherwise "".
func exact(glob string) string {
	if strings.ContainsAny(glob, "*?") {
		return ""
	}
	return glob
}

// join names a namespace with its cluster, if known.
func join(cluster, namespace string) string {
	if cluster == "" || namespace == "" {
		return cmp.Or(namespace, cluster)
	}
	return cluster + "/" + namespace
}

func (e *quotaFile) quota(labels labelSet) (Quota, error) {
	q := Quota{
		Name: cmp.Or(e.Name, e.Team, join(e.Cluster, e.Namespace)), Source: "file",
		team: exact(e.Team), namespace: exact(e.Namespace), cluster: exact(e.Cluster),
	}
	globs := maps.Clone(e.Match)
	if globs == nil {
		globs = map[string]*string{}
	}
	for _, own := range []struct{ name, label, glob string }{
		{"team", fleet.LabelTeam, e.Team}, {"namespace", fleet.LabelNamespace, e.Namespace}, {"cluster", fleet.LabelCluster, e.Cluster},
	} {
		if own.glob == "" {
			continue
		}
		for name := range e.Match {
			if label := labelOf(name); label == own.name || label == own.label {
				return q, of("match", of(name, fmt.Errorf("the quota already has a %s", own.name)))
			}
		}
		globs[own.name] = &own.glob
	}
	if len(globs) == 0 {
		return q, errors.New("team, namespace or match is required")
	}
	var err error
	if q.match, err = labels.matchers(globs); err != nil {
		return q, err
	}
	if q.Name == "" {
		return q, errors.New("a quota with match needs a name")
	}
	if q.GPUs, err = limit(e.GPUs); err != nil {
		return q, of("gpus", err)
	}
	if q.Hours, err = limit(e.Hours); err != nil {
		return q, of("gpu_hours_per_month", err)
	}
	if e.Money != "" {
		n, err := amount(e.Money)
		if err != nil {
			return q, of("money_per_month", err)
		}
		q.Money = &n
	}
	if q.GPUs == nil && q.Hours == nil && q.Money == nil {
		return q, errors.New("one of gpus, gpu_hours_per_month, money_per_month is required")
	}
	return q, nil
}

// limit parses a limit, nil if there is none.
func limit(text string) (*float64, error) {
	if text == "" {
		return nil, nil
	}
	r, err := upTo(text, 1e12)
	if err != nil {
		return nil, err
	}
	v, _ := r.Float64()
	return &v, nil
}

// amount parses an amount of money, which may exceed the limit of a price.
func amount(text string) (Money, error) {
	r, err := upTo(text, 1e12)
	if err != nil {
		return 0, err
	}
	n := new(big.Int).Mul(r.Num(), big.NewInt(2_000_000))
	n.Add(n, r.Denom())
	n.Div(n, new(big.Int).Mul(r.Denom(), big.NewInt(2)))
	return Money(n.Int64()), nil
}

// upTo parses a number from 0 to most.
func upTo(text string, most int64) (*big.Rat, error) {
	r, err := decimal(text)
	if err != nil {
		return nil, err
	}
	if r.Sign() < 0 || r.Cmp(big.NewRat(most, 1)) > 0 {
		return nil, fmt.Errorf("must be 0 or more, at most %d", most)
	}
	return r, nil
}

// ParseResourceQuotas parses a Kubernetes ResourceQuota or a list of them in the JSON format of
// kubectl get -o json. isDevice reports whether a resource counts whole devices; quotas without
// such a resource are omitted.
func ParseResourceQuotas(text []byte, isDevice func(resource string) bool) ([]Quota, error) {
	type object struct {
		Metadata struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Spec struct {
			Hard map[string]any `json:"hard"`
		} `json:"spec"`
	}
	var list struct {
		Kind  string `json:"kind"`
		Items []object
		object
	}
	if len(text) > 64<<20 {
		return nil, errors.New("the resource quotas exceed 64 MiB")
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("cannot parse the resource quotas: %w", err)
	}
	if list.Items == nil && list.Spec.Hard != nil {
		list.Items = []object{list.object}
	}
	if len(list.Items) > maxQuotas {
		return nil, fmt.Errorf("more than %d resource quotas", maxQuotas)
	}
	var out []Quota
	for _, o := range list.Items {
		total, limits := 0.0, false
		for name, v := range o.Spec.Hard {
			resource := strings.TrimPrefix(strings.TrimPrefix(name, "requests."), "limits.")
			if !isDevice(resource) || name == "limits."+resource && o.Spec.Hard["requests."+resource] != nil {
				continue
			}
			n, err := strconv.ParseFloat(fmt.Sprint(v), 64)
			if err != nil || !(n >= 0 && n <= 1e9) {
				return nil, fmt.Errorf("resource quota %.63s/%.63s: %.63s: %.20q is not a valid limit", o.Metadata.Namespace, o.Metadata.Name, name, fmt.Sprint(v))
			}
			total, limits = total+n, true
		}
		if !limits || o.Metadata.Namespace == "" {
			continue
		}
		m, err := exactly(map[string]string{"namespace": escape(o.Metadata.Namespace)})
		if err != nil {
			return nil, err
		}
		out = append(out, Quota{Name: o.Metadata.Namespace + "/" + o.Metadata.Name, Source: "kubernetes", GPUs: &total, match: m, namespace: o.Metadata.Namespace})
	}
	return out, nil
}

// escape keeps a name from being a pattern. Valid names have neither * nor ?; a * would become a
// ?, which still matches the name itself.
func escape(name string) string { return strings.NewReplacer("*", "?").Replace(name) }

// ParseAssociations parses the output of sacctmgr show assoc -p: a header and one line per
// association, separated by |. GrpTRES limits concurrent GPUs. GrpTRESMins limits GPU-minutes
// over Slurm's accounting history, here taken as a month.
func ParseAssociations(text []byte) ([]Quota, error) {
	var columns map[string]int
	var out []Quota
	n := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		if n++; n > maxQuotas {
			return nil, fmt.Errorf("more than %d associations", maxQuotas)
		}
		cells := strings.Split(line, "|")
		if columns == nil {
			columns = map[string]int{}
			for i, c := range cells {
				columns[c] = i
			}
			if _, ok := columns["Account"]; !ok {
				return nil, errors.New("the associations have no column Account: use the output of sacctmgr show assoc -p")
			}
			continue
		}
		cell := func(name string) string {
			if i, ok := columns[name]; ok && i < len(cells) {
				return cells[i]
			}
			return ""
		}
		q := Quota{Source: "slurm", Name: cell("Account")}
		globs := map[string]string{"account": escape(cell("Account"))}
		if user := cell("User"); user != "" {
			q.Name += "/" + user
			globs["user"] = escape(user)
		}
		if cluster := cell("Cluster"); cluster != "" {
			q.Name = cluster + "/" + q.Name
			globs[fleet.LabelSlurmCluster] = escape(cluster)
		}
		if partition := cell("Partition"); partition != "" {
			q.Name += "@" + partition
			globs[fleet.LabelSlurmPartition] = escape(partition)
		}
		var err error
		if q.GPUs, err = tres(cell("GrpTRES"), 1); err == nil {
			q.Hours, err = tres(cell("GrpTRESMins"), 60)
		}
		if err != nil {
			return nil, fmt.Errorf("association %.80s: %w", q.Name, err)
		}
		if q.GPUs == nil && q.Hours == nil || cell("Account") == "" {
			continue
		}
		if q.match, err = exactly(globs); err != nil {
			return nil, err
		}
		out = append(out, q)
	}
	return out, nil
}

// tres parses the GPU limit of a list such as cpu=64,gres/gpu=8. Limits by type are ignored if
// there is an overall limit, which includes them in Slurm. A limit of -1 means unlimited.
func tres(list string, by float64) (*float64, error) {
	var all, typed *float64
	for e := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(e, "=")
		if name != "gres/gpu" && !strings.HasPrefix(name, "gres/gpu:") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%.60q is not a valid limit", e)
		}
		if v < 0 {
			continue
		}
		v /= by
		if name == "gres/gpu" {
			all = &v
			continue
		}
		if typed == nil {
			typed = new(float64)
		}
		*typed += v
	}
	return cmp.Or(all, typed), nil
}
