package tokens

import "fmt"

// Notes says what the numbers of a bill do not: how prompts count, and what is in no cost.
func (s *Bill) Notes() []string {
	if len(s.Rows) == 0 {
		return nil
	}
	total, rest := s.Total(), s.RestTotal()
	notes := []string{s.InputWeight.Text()}
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if t := rest.Time(); t.Hours() >= 0.05 {
		money := ""
		if rest.Priced() && s.Currency != "" {
			money = fmt.Sprintf(", for %s %s,", rest.Amounts.Total(), s.Currency)
		}
		add("These workloads also held GPUs for %.1f GPU-hours%s while no engine worked on them: in no model's cost.", t.Hours(), money)
	}
	if s.Remote.Hours() >= 0.05 {
		add("%.1f GPU-hours are on machines without an engine of the workload. They are in the cost of its only model, as those of an engine that spans machines.", s.Remote.Hours())
	}
	if total.Unbilled > 0 {
		add("%d tokens are of engines whose workload or whose GPUs are unknown: they are in no cost per token.", total.Unbilled)
	}
	if all, unpriced := total.LeftOut(); unpriced > 0 && s.Currency != "" && total.Priced() {
		add("%.1f GPU-hours of engines have no price. A cost per token leaves out each day (UTC) of an engine that has such hours: %.1f GPU-hours and their tokens.", unpriced.Hours(), all.Hours())
	}
	if e := total.UnpricedEnergy; e > 0 {
		add("No price for the energy of owned devices: %.1f kWh are not included in any cost.", e.KWh())
	}
	if s.Missed > 0 {
		add("%d counters of engines had values at their first sample: what they had counted before is in no period.", s.Missed)
	}
	if s.Refused > 0 {
		add("%d invalid counter values were discarded.", s.Refused)
	}
	return notes
}
