package slurmctl

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Share is the entitlement and the usage of an account, or of a user within an account.
type Share struct {
	Account string
	User    string // empty for the account itself
	Shares  Value  // as configured
	Norm    Value  // relative to siblings, 0 to 1
	Used    Value  // raw usage: TRES seconds, decayed
	Usage   Value  // effective usage, 0 to 1
	// Factor is the input to the priority computation, 0 to 1. Under Fair Tree only users
	// have a factor.
	Factor Value
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
			Account: get("Account"), User: get("User"), Shares: parseValue(get("RawShares")), Norm: parseValue(get("NormShares")),
			Used: parseValue(get("RawUsage")), Usage: parseValue(get("EffectvUsage")), Factor: parseValue(get("FairShare")),
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
		Name      slurm.Line  `json:"name"`
		Parent    slurm.Line  `json:"parent"`
		Type      slurm.Words `json:"type"`
		Norm      Value       `json:"shares_normalized"`
		Shares    Value       `json:"shares"`
		Usage     Value       `json:"effective_usage"`
		Used      Value       `json:"usage"`
		FairShare struct {
			Factor Value `json:"factor"`
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
		s := Share{Account: string(e.Name), Shares: e.Shares, Norm: e.Norm, Used: e.Used, Usage: e.Usage}
		if slices.Contains(e.Type, "USER") {
			s.Account, s.User, s.Factor = string(e.Parent), string(e.Name), e.FairShare.Factor
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
