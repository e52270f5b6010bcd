package fleet

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// before adds the last reading of every account that appears after from and may have been known
// earlier: the store is searched as far back as its memory reaches.
func (h *Hours) before(ctx context.Context, devices map[string]*samples, from time.Time) error {
	wanted := wants{}
	for _, d := range devices {
		for a, first := range d.extremes(func(old, r *reading) bool { return r.at < old.at || r.at == old.at && r.Held < old.Held }) {
			if first.at > from.UnixMilli() && first.Held > 0 {
				wanted.add(d, a)
			}
		}
	}
	end := from.Add(-back)
	if err := h.exist(ctx, wanted, end, h.o.Memory-back); err != nil {
		return err
	}
	oldest := from.Add(-h.o.Memory)
	for d := back; end.After(oldest) && len(wanted) > 0; d = min(4*d, day) {
		begin := end.Add(-d)
		if begin.Before(oldest) {
			begin = oldest
		}
		if err := h.find(ctx, devices, wanted, begin, end, func(old, r *reading) bool { return r.at > old.at || r.at == old.at && r.Held > old.Held }); err != nil {
			return err
		}
		end = begin
	}
	return nil
}

// extremes returns the first or the last reading of device time of each account.
func (d *samples) extremes(better func(old, r *reading) bool) map[int32]*reading {
	out := map[int32]*reading{}
	for _, w := range d.ways {
		for i := range w.readings {
			if r := &w.readings[i]; r.hasHeld && (out[r.account] == nil || better(out[r.account], r)) {
				out[r.account] = r
			}
		}
	}
	return out
}

// wants has accounts to search for, by key.
type wants map[string]query.Labels

func (l wants) add(d *samples, account int32) { l[Account(d.labels[account])] = d.labels[account] }

// matchers select the series of the accounts: by the identity of the workload where there is one.
func (l wants) matchers() [][]string {
	values := map[string][]string{} // by label
	for _, labels := range l {
		label := LabelUUID
		for _, id := range identities {
			if labels[id] != "" {
				label = id
				break
			}
		}
		values[label] = append(values[label], labels[label])
	}
	var out [][]string
	for _, label := range slices.Sorted(maps.Keys(values)) {
		for _, match := range AnyOf(label, values[label]) {
			one := []string{match}
			if label == LabelUUID { // accounts without an identity, such as free time
				one = append(one, Equals(LabelPodUID, ""), Equals(LabelSlurmJob, ""), Equals(LabelContainerID, ""))
			}
			out = append(out, one)
		}
	}
	return out
}

// exist removes the accounts that have no sample in the period before a moment.
func (h *Hours) exist(ctx context.Context, wanted wants, at time.Time, d time.Duration) error {
	found := map[string]bool{}
	for _, match := range wanted.matchers() {
		for _, name := range h.series {
			list, err := h.store.Instant(ctx, Over("last_over_time", h.selector(name, match...), query.Duration(d)), at)
			if err != nil {
				return err
			}
			for _, s := range list {
				found[Account(s.Labels)] = true
			}
		}
	}
	maps.DeleteFunc(wanted, func(account string, _ query.Labels) bool { return !found[account] })
	return nil
}

// find adds the best reading of each wanted account in a period, and removes the account.
func (h *Hours) find(ctx context.Context, devices map[string]*samples, wanted wants, from, to time.Time, better func(old, r *reading) bool) error {
	for _, match := range wanted.matchers() {
		part, err := h.read(ctx, match, from, to, func(time.Time) {})
		if err != nil {
			return err
		}
		for key, d := range part {
			for a, best := range d.extremes(better) {
				account := Account(d.labels[a])
				if wanted[account] == nil || devices[key] == nil {
					continue
				}
				delete(wanted, account)
				w := devices[key].way(d.labels[a])
				r := *best
				r.account, r.row = w.account, w.row
				w.readings = append(w.readings, r)
				slices.SortStableFunc(w.readings, func(a, b reading) int { return int(a.at - b.at) })
			}
		}
	}
	return nil
}
