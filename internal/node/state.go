package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
)

const (
	stateVersion = 1
	maxAccounts  = 1000
	maxUnseen    = 30 * 24 * time.Hour
)

// state is what outlives the process, within one boot of the machine: the kernel log and
// the driver's counters start over with the next boot.
type state struct {
	Version int       `json:"version"`
	Boot    string    `json:"boot_id"`
	Since   time.Time `json:"since"` // when this state was begun
	// Clean: the agent that wrote the file shut down, and nothing was exported afterwards.
	Clean   bool                       `json:"clean,omitempty"`
	Cursors map[string]device.Position `json:"cursors,omitempty"`
	// Devices are keyed by UUID, or by PCI address if only an event is known.
	Devices map[string]*record `json:"devices"`
	// What was reported as begun and not yet as ended.
	Health   *health.State `json:"health,omitempty"`
	Episodes []*Episode    `json:"episodes,omitempty"`
	Tenants  []tenant      `json:"tenants,omitempty"` // sorted
}

// record is what is kept about one device.
type record struct {
	Since    time.Time  `json:"since,omitzero"` // when its counters started
	Counters counters   `json:"counters,omitzero"`
	XIDs     []XIDCount `json:"xids,omitempty"` // by code
	Ledger   *ledger    `json:"ledger,omitempty"`
	Seen     time.Time  `json:"seen"`
}

// counters are enough of a Sample to detect a driver reload while the agent was not
// running.
type counters struct {
	Energy    *float64 `json:"energy_joules,omitempty"`
	Heartbeat *float64 `json:"heartbeat,omitempty"`
	Replays   *float64 `json:"pcie_replays,omitempty"`
}

func newState(boot string, now time.Time) *state {
	return &state{Version: stateVersion, Boot: boot, Since: now, Devices: map[string]*record{}}
}

// taken prepares a state from a file to be continued by this process.
func (s *state) taken(now time.Time) {
	if !s.Clean {
		s.keepStays()
	}
	for _, a := range s.Devices {
		if a.Ledger != nil && !s.Clean {
			a.Ledger.restart(now)
		}
	}
	s.Clean = false
}

// record returns the record of a device, creating it if needed.
func (s *state) record(key string, now time.Time) *record {
	a := s.Devices[key]
	if a == nil {
		a = &record{}
		s.Devices[key] = a
	}
	a.Seen = now
	return a
}

// count adds n occurrences of one code, all of them after since.
func (a *record) count(code int, n uint64, since time.Time) {
	find := func(code int) (int, bool) {
		return slices.BinarySearchFunc(a.XIDs, code, func(x XIDCount, code int) int { return cmp.Compare(x.Code, code) })
	}
	i, ok := find(code)
	if !ok && len(a.XIDs) >= maxCodes {
		code = xidOther
		i, ok = find(code)
	}
	if !ok {
		a.XIDs = slices.Insert(a.XIDs, i, XIDCount{Code: code, Since: since})
	}
	a.XIDs[i].Count += n
}

// adopt moves what was counted under a device's PCI address to the device.
func (s *state) adopt(id device.ID) {
	a := s.Devices[id.PCI]
	if a == nil || id.PCI == "" {
		return
	}
	delete(s.Devices, id.PCI)
	for _, x := range a.XIDs {
		s.record(id.UUID, a.Seen).count(x.Code, x.Count, x.Since)
	}
}

// prune drops devices not seen for a long time, and the oldest of too many.
func (s *state) prune(now time.Time) {
	keys := make([]string, 0, len(s.Devices))
	for key, a := range s.Devices {
		if now.Sub(a.Seen) > maxUnseen {
			delete(s.Devices, key)
			continue
		}
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(s.Devices[b].Seen.Compare(s.Devices[a].Seen), cmp.Compare(a, b))
	})
	for _, key := range keys[min(len(keys), maxAccounts):] {
		delete(s.Devices, key)
	}
}

// remember records when the counters of u started.
func (s *state) remember(u *unit, now time.Time) {
	if u.since.IsZero() || u.down != nil {
		return
	}
	a := s.record(u.id.UUID, now)
	a.Since = u.since
	m := u.guard.Marks()
	a.Counters = counters{number(m.Energy), number(m.Heartbeat), number(m.Replays)}
}

// recall restores what is known about u.
func (s *state) recall(u *unit) {
	a := s.Devices[u.id.UUID]
	if a == nil || a.Since.IsZero() || !u.since.IsZero() {
		return
	}
	u.since = a.Since
	u.guard.Restore(device.Marks{Energy: value(a.Counters.Energy), Heartbeat: value(a.Counters.Heartbeat), Replays: value(a.Counters.Replays)}, a.Seen)
}

func number(v device.Value) *float64 {
	if f, ok := v.Get(); ok {
		return &f
	}
	return nil
}

func value(f *float64) device.Value {
	if f == nil {
		return device.Value{}
	}
	return device.Of(*f)
}

func (s *state) encode() ([]byte, error) {
	data, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return nil, fmt.Errorf("cannot encode the state: %w", err)
	}
	return append(data, '\n'), nil
}

// sane reports whether a time is plausible: it must be representable in nanoseconds since
// 1970.
func sane(t time.Time) bool { return t.Unix() > 0 }

// decodeState parses a state file. Start times in the future are set to now, because the
// clock was wrong.
func decodeState(data []byte, now time.Time) (*state, error) {
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("not a state file: %w", err)
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("state file has version %d, want %d", s.Version, stateVersion)
	}
	if s.Devices == nil || !sane(s.Since) {
		return nil, errors.New("incomplete state file")
	}
	past := func(t *time.Time) {
		if t.After(now) {
			*t = now
		}
	}
	past(&s.Since)
	for key, a := range s.Devices {
		if a == nil || !a.Since.IsZero() && !sane(a.Since) {
			return nil, fmt.Errorf("no valid record of device %q", key)
		}
		past(&a.Since)
		past(&a.Seen)
		if a.Ledger != nil {
			if !a.Ledger.valid() {
				return nil, fmt.Errorf("invalid ledger of device %q", key)
			}
			past(&a.Ledger.At)
			for _, o := range a.Ledger.Owned {
				past(&o.Since)
				o.Seen = now.Add(min(0, o.Seen.Sub(now))) // on the monotonic clock of now, which no step moves
			}
		}
		codes := map[int]bool{}
		for i := range a.XIDs {
			x := &a.XIDs[i]
			if codes[x.Code] || !sane(x.Since) {
				return nil, fmt.Errorf("invalid count of XID %d of device %q", x.Code, key)
			}
			codes[x.Code] = true
			past(&x.Since)
		}
		slices.SortFunc(a.XIDs, func(a, b XIDCount) int { return cmp.Compare(a.Code, b.Code) })
	}
	for _, e := range s.Episodes {
		if e != nil {
			past(&e.Begin)
		}
	}
	for i := range s.Tenants {
		a := &s.Tenants[i]
		if !a.Earlier.valid() || !number64(orZero(a.Peak)) {
			return nil, fmt.Errorf("invalid use of workload %q", a.Workload.ID)
		}
		past(&a.Since)
		past(&a.Left)
	}
	if slices.Contains(s.Episodes, nil) || len(s.Episodes) > maxEpisodes || len(s.Tenants) > maxTenures || !slices.IsSortedFunc(s.Tenants, tenant.compare) {
		return nil, errors.New("invalid episodes or tenants")
	}
	return &s, nil
}
