package slo

// Severity says how soon somebody has to look.
type Severity string

// Severities, gravest first.
const (
	Page   Severity = "page"   // now: the budget of a month would be gone in days
	Ticket Severity = "ticket" // in the next days
)

// Alert is that an error budget burns too fast.
type Alert struct {
	Severity    Severity
	Long, Short int     // Windows in which it burns
	Limit       float64 // above which the burn rate is in both
	Burn, Now   float64 // in the long and in the short window
}

// alerts are those of the SRE workbook, gravest first. The long window says that it matters, and the short one
// that it has not stopped.
var alerts = []struct {
	severity    Severity
	long, short int // in Windows
	limit       float64
}{
	{Page, oneHour, fiveMinutes, 14.4}, // 2 % of the budget of 30 days in an hour
	{Page, sixHours, halfHour, 6},      // 5 % in six hours
	{Ticket, threeDays, sixHours, 1},   // 10 % in three days
}

// Alert returns the gravest alert of an objective, and whether there is one.
func (r *Result) Alert() (Alert, bool) {
	for _, a := range alerts {
		long, ok := r.Burn[a.long].Get()
		short, also := r.Burn[a.short].Get()
		if ok && also && long > a.limit && short > a.limit {
			return Alert{a.severity, a.long, a.short, a.limit, long, short}, true
		}
	}
	return Alert{}, false
}

// Undecided reports whether an alert of a severity is possible as far as is known, because windows that it needs could
// not be read.
func (r *Result) Undecided(s Severity, unread [windows]bool) bool {
	burns := func(w int, limit float64) bool {
		v, ok := r.Burn[w].Get()
		return ok && v > limit || !ok && unread[w]
	}
	for _, a := range alerts {
		if a.severity == s && burns(a.long, a.limit) && burns(a.short, a.limit) {
			return true
		}
	}
	return false
}
