//go:build linux

package billing

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// Period holds the flags that set the period of a report.
type Period struct{ From, To, Last, Month, Day string }

// Edges returns the bounds of the period in the time zone of now, and a note if it was shortened.
func (p Period) Edges(now time.Time) (from, to time.Time, note string, err error) {
	ways := 0
	for _, s := range []string{p.From + p.To, p.Last, p.Month, p.Day} {
		if s != "" {
			ways++
		}
	}
	now = now.Truncate(time.Second)
	switch {
	case ways > 1:
		err = errors.New("give only one of --from/--to, --last, --month and --day")
	case p.Month != "":
		from, to, err = monthOf(p.Month, now)
	case p.Day != "":
		from, to, err = dayOf(p.Day, now)
	case p.From != "" || p.To != "":
		to = now
		if p.From == "" {
			err = errors.New("--to needs --from")
		} else if from, err = momentOf(p.From, now); err != nil {
			err = fmt.Errorf("--from: %w", err)
		} else if p.To != "" {
			if to, err = momentOf(p.To, now); err != nil {
				err = fmt.Errorf("--to: %w", err)
			}
		}
	default:
		var d time.Duration
		if d, err = ago(cmp.Or(p.Last, "24h")); err != nil {
			err = fmt.Errorf("--last: %w", err)
		}
		from, to = now.Add(-d), now
	}
	switch {
	case err != nil:
	case !from.Before(to):
		err = errors.New("the period ends before it begins")
	case !from.Before(now):
		err = errors.New("the period has not begun")
	case to.Sub(from) > 2*366*24*time.Hour:
		err = errors.New("the period is longer than two years")
	case to.After(now):
		to, note = now, "The period is not over: the report ends now."
	}
	return from, to, note, err
}

// monthOf returns the calendar month with a name: 2026-10, this or last.
func monthOf(text string, now time.Time) (from, to time.Time, err error) {
	year, month := now.Year(), now.Month()
	switch text {
	case "this":
	case "last":
		month--
	default:
		t, err := time.Parse("2006-01", text)
		if err != nil {
			return from, to, fmt.Errorf("--month %.40q is not like 2026-10, this or last", text)
		}
		year, month = t.Year(), t.Month()
	}
	return cost.Midnight(year, month, 1, now.Location()), cost.Midnight(year, month+1, 1, now.Location()), nil
}

// dayOf returns the calendar day with a name: 2026-10-14, today or yesterday.
func dayOf(text string, now time.Time) (from, to time.Time, err error) {
	year, month, day := now.Date()
	switch text {
	case "today":
	case "yesterday":
		day--
	default:
		t, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return from, to, fmt.Errorf("--day %.40q is not like 2026-10-14, today or yesterday", text)
		}
		year, month, day = t.Date()
	}
	return cost.Midnight(year, month, day, now.Location()), cost.Midnight(year, month, day+1, now.Location()), nil
}

// momentOf parses a date or a time in the time zone of now, or a duration before now.
func momentOf(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return cost.Midnight(t.Year(), t.Month(), t.Day(), now.Location()), nil
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02 15:04", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t.In(now.Location()), nil
		}
	}
	d, err := ago(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.40q is neither like 2026-10-14 or 2026-10-14T12:00:00Z nor like 36h", text)
	}
	return now.Add(-d), nil
}

// ago parses a duration that may be in days.
func ago(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && n > 0 && n < 1e5 {
			return time.Duration(n * 24 * float64(time.Hour)), nil
		}
	} else if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%.40q is not like 90m, 24h or 7d", text)
}
