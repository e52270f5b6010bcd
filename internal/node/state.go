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

// state is what outlives the process, within one boot of the machine: the kernel's log
// and the driver's counters begin anew with the next.
type state struct {
	Version int       `json:"version"`
	Boot    string    `json:"boot_id"`
	Since   time.Time `json:"since"` // when XIDs began to be counted
	// Clean: the agent that wrote it has ended, and nothing was shown afterwards.
	Clean   bool                       `json:"clean,omitempty"`
	Cursors map[string]device.Position `json:"cursors,omitempty"`
	// Devices are by UUID, or by PCI address if an event is all that is known.
	Devices map[string]*account `json:"devices"`
	// What was told as begun, and not as ended.
	Health   *health.State `json:"health,omitempty"`
	Episodes []*Episode    `json:"episodes,omitempty"`
	Tenants  []tenant      `json:"tenants,omitempty"` // sorted
}

// account is what is kept of one device.
type account struct {
	Since    time.Time  `json:"since,omitzero"` // when its counters began
	Counters counters   `json:"counters,omitzero"`
	XIDs     []XIDCount `json:"xids,omitempty"` // by code
	Ledger   *ledger    `json:"ledger,omitempty"`
	Seen     time.Time  `json:"seen"`
}

// counters are enough of a Sample to tell that the driver was reloaded while we were not
// looking.
type counters struct {
	Energy    *float64 `json:"energy_joules,omitempty"`
	Heartbeat *float64 `json:"heartbeat,omitempty"`
	Replays   *float64 `json:"pcie_replays,omitempty"`
}

func newState(boot string, now time.Time) *state {
	return &state{Version: stateVersion, Boot: boot, Since: now, Devices: map[string]*account{}}
}

// taken tells the state that another process goes on with it.
func (s *state) taken(now time.Time) {
	for _, a := range s.Devices {
		if a.Ledger != nil && !s.Clean {
			a.Ledger.restart(now)
		}
	}
	s.Clean = false
}

// account returns what is kept of a device.
func (s *state) account(key string, now time.Time) *account {
	a := s.Devices[key]
	if a == nil {
		a = &account{}
		s.Devices[key] = a
	}
	a.Seen = now
	return a
}

// count adds what was heard of one code. since is when counting began, unless the log
// has events from before.
func (a *account) count(code int, n xidNews, since time.Time) {
	find := func(code int) (int, bool) {
		return slices.BinarySearchFunc(a.XIDs, code, func(x XIDCount, code int) int { return cmp.Compare(x.Code, code) })
	}
	i, ok := find(code)
	if !ok && len(a.XIDs) >= maxCodes {
		code = xidOther
		i, ok = find(code)
	}
	if !ok {
		if n.first.Before(since) {
			since = n.first
		}
		a.XIDs = slices.Insert(a.XIDs, i, XIDCount{Code: code, Since: since})
	}
	a.XIDs[i].Count += n.count
}

// adopt gives a device what was counted while only its address was known.
func (s *state) adopt(id device.ID) {
	a := s.Devices[id.PCI]
	if a == nil || id.PCI == "" {
		return
	}
	delete(s.Devices, id.PCI)
	for _, x := range a.XIDs {
		s.account(id.UUID, a.Seen).count(x.Code, xidNews{x.Count, x.Since}, x.Since)
	}
}

// prune forgets devices that are gone for long, and the oldest of too many.
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

// remember keeps when the counters of u began.
func (s *state) remember(u *unit, now time.Time) {
	if u.since.IsZero() || u.down != nil {
		return
	}
	a := s.account(u.id.UUID, now)
	a.Since = u.since
	a.Counters = counters{number(u.prev.Energy), number(u.prev.Heartbeat), number(u.prev.PCIe.Replays)}
}

// recall gives u what is known of it from before.
func (s *state) recall(u *unit) {
	a := s.Devices[u.id.UUID]
	if a == nil || a.Since.IsZero() || !u.since.IsZero() {
		return
	}
	u.since = a.Since
	u.prev.Energy, u.prev.Heartbeat = value(a.Counters.Energy), value(a.Counters.Heartbeat)
	u.prev.PCIe.Replays = value(a.Counters.Replays)
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

// sane reports whether a time can be one of ours: nanoseconds since 1970 can say it.
func sane(t time.Time) bool { return t.Unix() > 0 }

// decodeState reads a state file. No start may be in the future: the clock was wrong.
func decodeState(data []byte, now time.Time) (*state, error) {
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("not a state file: %w", err)
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("a state file of version %d, not %d", s.Version, stateVersion)
	}
	if s.Devices == nil || !sane(s.Since) {
		return nil, errors.New("not a whole state file")
	}
	past := func(t *time.Time) {
		if t.After(now) {
			*t = now
		}
	}
	past(&s.Since)
	for key, a := range s.Devices {
		if a == nil || !a.Since.IsZero() && !sane(a.Since) {
			return nil, fmt.Errorf("nothing is known of %q", key)
		}
		past(&a.Since)
		past(&a.Seen)
		if a.Ledger != nil {
			if !a.Ledger.valid() {
				return nil, fmt.Errorf("what was used of %q is not kept properly", key)
			}
			past(&a.Ledger.At)
			for _, o := range a.Ledger.Owned {
				past(&o.Since)
				past(&o.Seen)
			}
		}
		codes := map[int]bool{}
		for i := range a.XIDs {
			x := &a.XIDs[i]
			if codes[x.Code] || !sane(x.Since) {
				return nil, fmt.Errorf("XID %d of %q is not counted properly", x.Code, key)
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
	if slices.Contains(s.Episodes, nil) || len(s.Episodes) > maxEpisodes || len(s.Tenants) > maxTenures || !slices.IsSortedFunc(s.Tenants, tenant.compare) {
		return nil, errors.New("what was going on is not kept properly")
	}
	return &s, nil
}
