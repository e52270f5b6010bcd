package slurmctl

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Share is the entitlement and the usage of an account, or of a user within an account.
type Share struct {
	Account string
	User    string         // empty for the account itself
	Shares  optional.Float // as configured
	Norm    optional.Float // relative to siblings, 0 to 1
	Used    optional.Float // raw usage: TRES seconds, decayed
	Usage   optional.Float // effective usage, 0 to 1
	// Factor is the input to the priority computation, 0 to 1. Under Fair Tree only users
	// have a factor.
	Factor optional.Float
}

// rootAccount is the account above all others. It has no siblings to share with.
const rootAccount = "root"

// Load returns the usage relative to the shares, both as parts of what the siblings have together: 1 is exactly the share.
// Whoever has less is served first.
func (s *Share) Load() optional.Float {
	norm, ok := s.Norm.Get()
	usage, known := s.Usage.Get()
	if !ok || !known || norm <= 0 || s.Account == rootAccount {
		return optional.Float{}
	}
	return optional.Of(usage / norm)
}

type shareList struct{ list []Share }

// text reads columns by name, because they differ between versions and options.
func (l *shareList) text(r io.Reader) error {
	l.list = []Share{}
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	var columns []string
	for sc.Scan() {
		row := strings.Split(sc.Text(), "|")
		if columns == nil {
			if !slices.Contains(row, "Account") {
				return errors.New("unexpected output of sshare")
			}
			columns = row
			continue
		}
		get := func(name string) string {
			if i := slices.Index(columns, name); i >= 0 && i < len(row) {
				return slurm.Text(row[i])
			}
			return ""
		}
		s := Share{
			Account: get("Account"), User: get("User"), Shares: slurm.ParseFloat(get("RawShares")), Norm: slurm.ParseFloat(get("NormShares")),
			Used: slurm.ParseFloat(get("RawUsage")), Usage: slurm.ParseFloat(get("EffectvUsage")), Factor: slurm.ParseFloat(get("FairShare")),
		}
		l.add(s)
	}
	if columns == nil && sc.Err() == nil {
		return errors.New("answer is empty")
	}
	return sc.Err()
}

func (l *shareList) json(r io.Reader) error {
	l.list = []Share{}
	type row struct {
		Name      slurm.Line    `json:"name"`
		Parent    slurm.Line    `json:"parent"`
		Type      slurm.Words   `json:"type"`
		Norm      slurm.Decimal `json:"shares_normalized"`
		Shares    slurm.Decimal `json:"shares"`
		Usage     slurm.Decimal `json:"effective_usage"`
		Used      slurm.Decimal `json:"usage"`
		FairShare struct {
			Factor slurm.Decimal `json:"factor"`
		} `json:"fairshare"`
	}
	var answer struct {
		Shares struct {
			Shares []row `json:"shares"`
		} `json:"shares"`
		Errors []struct {
			Error slurm.Line `json:"error"`
		} `json:"errors"`
	}
	if err := json.NewDecoder(r).Decode(&answer); err != nil {
		return fmt.Errorf("answer is not JSON: %w", err)
	}
	for _, e := range answer.Errors {
		return fmt.Errorf("%.200s", string(e.Error))
	}
	for _, e := range answer.Shares.Shares {
		s := Share{
			Account: string(e.Name), Shares: optional.Float(e.Shares), Norm: optional.Float(e.Norm), Used: optional.Float(e.Used), Usage: optional.Float(e.Usage),
		}
		if slices.Contains(e.Type, "USER") {
			s.Account, s.User, s.Factor = string(e.Parent), string(e.Name), optional.Float(e.FairShare.Factor)
		}
		l.add(s)
	}
	return nil
}

// add appends an association once: there may be one per partition.
func (l *shareList) add(s Share) {
	if s.Account == "" || slices.ContainsFunc(l.list[max(0, len(l.list)-8):], func(o Share) bool { return o.Account == s.Account && o.User == s.User }) {
		return
	}
	l.list = append(l.list, s)
}
