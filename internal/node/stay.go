package node

import (
	"cmp"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Tenure is a workload that acquired a device, or that released it: Ended, with what it
// used in this stay. The stays of a workload add up to its totals.
type Tenure struct {
	Device device.ID `json:"device"`
	At     time.Time `json:"at"` // when it came or left
	Holder
}

// tenant is a workload whose arrival was reported.
type tenant struct {
	Device   device.ID         `json:"device"`
	Unit     string            `json:"unit,omitempty"`
	Workload workload.Workload `json:"workload"`
	Since    time.Time         `json:"since"`
	// Left is when it left, zero while it is there. Its departure is reported once its
	// joules have been read from the energy counter.
	Left time.Time `json:"left,omitzero"`
	// Earlier is what it used in this stay before its totals were restarted.
	Earlier spent    `json:"earlier,omitzero"`
	Peak    *float64 `json:"peak_memory,omitempty"` // bytes, the highest of this stay
}

func (a tenant) compare(b tenant) int {
	return cmp.Or(cmp.Compare(a.Device.UUID, b.Device.UUID), cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Workload.ID, b.Workload.ID))
}

// continues returns a as the continuation of the same stay at an earlier tick.
func (a tenant) continues(was tenant) tenant {
	a.Since, a.Earlier, a.Peak = was.Since, was.Earlier, was.Peak
	return a
}

// observe records the memory that the workload uses now.
func (a *tenant) observe(used device.Value) {
	if v, ok := used.Get(); ok && v > orZero(a.Peak) {
		a.Peak = &v
	}
}

// spent is a workload's use, in joules and seconds.
type spent struct {
	Energy    float64 `json:"energy_joules,omitempty"`
	Allocated float64 `json:"allocated_seconds,omitempty"`
	Active    float64 `json:"active_seconds,omitempty"`
}

func (s spent) plus(o spent) spent {
	return spent{s.Energy + o.Energy, s.Allocated + o.Allocated, s.Active + o.Active}
}

func (s spent) valid() bool {
	return number64(s.Energy) && number64(s.Allocated) && number64(s.Active)
}

// untold returns what no record has reported yet.
func (o *account) untold() spent {
	return spent{max(0, orZero(o.Energy)-o.Told.Energy), max(0, o.Allocated-o.Told.Allocated), max(0, orZero(o.Active)-o.Told.Active)}
}

// untold returns what the accounts of a tenant have used that no record has reported yet.
func (l *ledger) untold(a tenant) (use spent) {
	for _, o := range l.tenantAccounts(a) {
		use = use.plus(o.untold())
	}
	return use
}

// tenantAccounts returns the accounts of a tenant, one per description.
func (l *ledger) tenantAccounts(a tenant) []*account {
	first, end := l.accounts(cmp.Or(a.Unit, a.Device.UUID), a.Workload.ID)
	return l.Owned[first:end]
}

// leave returns the end of a stay. h is the workload's last state on the device; without
// one, the workload left while the agent was not running.
func (l *ledger) leave(a tenant, h Holder) Tenure {
	use := a.Earlier.plus(l.untold(a))
	for _, o := range l.tenantAccounts(a) {
		o.Told = spent{orZero(o.Energy), o.Allocated, orZero(o.Active)}
	}
	h.Since, h.Allocated, h.Peak, h.Ended = a.Since, use.Allocated, value(a.Peak), true
	if h.Energy.OK() || use.Energy > 0 {
		h.Energy = device.Of(use.Energy)
	}
	if h.Active.OK() || use.Active > 0 {
		h.Active = device.Of(use.Active)
	}
	return Tenure{Device: a.Device, At: a.Left, Holder: h}
}

// keepStays keeps what the tenants used so far, before the accounts start at 0.
func (s *state) keepStays() {
	for i := range s.Tenants {
		a := &s.Tenants[i]
		if r := s.Devices[a.Device.UUID]; r != nil && r.Ledger != nil {
			a.Earlier = a.Earlier.plus(r.Ledger.untold(*a))
		}
	}
}
