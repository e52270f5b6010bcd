//go:build linux

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/check/ipmi"
)

const (
	bmcBack   = 24 * time.Hour  // how long an event counts, unless a reboot is nearer
	bmcWithin = 3 * time.Second // how long its log is read
)

// bmc asks the board's controller. What it logged may have been mended since, and it does not
// always say so: a warning, never critical.
func bmc(ctx context.Context, h *host) outcome {
	t, err := h.BMC(h.Root)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV):
		return skip("no device of a BMC")
	case errors.Is(err, fs.ErrPermission):
		return skip("the BMC may not be asked: %v", err)
	case err != nil:
		return unknown(err, "")
	}
	if c, ok := t.(io.Closer); ok {
		defer func() { _ = c.Close() }() // it was only asked
	}
	back := bmcBack
	if up, err := h.uptime(); err == nil {
		back = min(back, up)
	}
	chassis, chassisErr := ipmi.ReadChassis(t)
	var list ipmi.Log
	logErr := chassisErr
	if refused := ipmi.Refused(0); chassisErr == nil || errors.As(chassisErr, &refused) { // or it does not answer
		ctx, cancel := context.WithTimeout(ctx, bmcWithin)
		defer cancel()
		list, logErr = ipmi.ReadLog(ctx, t, back)
	}
	bad := append(judgeChassis(chassis), judgeEvents(list.Open, back)...)
	if chassisErr != nil && logErr != nil {
		if refused := ipmi.Refused(0); errors.As(chassisErr, &refused) && errors.As(logErr, &refused) {
			return skip("the BMC says neither its status nor its log: %v", chassisErr)
		}
	}
	for _, err := range []error{chassisErr, logErr} {
		if refused := ipmi.Refused(0); err != nil && !errors.As(err, &refused) {
			bad = append(bad, Problem{Unknown, "BMC", shorten(err.Error()), "Look whether the BMC answers at all, such as over its network."})
			break
		}
	}
	text := fmt.Sprintf("%d of %d events of the log were read", list.Read, list.Entries)
	if list.Short {
		text += ", for more there was no time"
	}
	if list.Overflow {
		text += "; it is full, and newer ones are lost"
	}
	return found(capped(bad), "%s", text)
}

func judgeChassis(c ipmi.Chassis) []Problem {
	var bad []Problem
	for _, w := range []struct {
		set          bool
		text, action string
	}{
		{c.CoolingFault, "a fan or the cooling has a fault", "Look at the fans and the air to the machine."},
		{c.PowerFault, "the main power has a fault", "Look at the power supplies and their cables."},
		{c.Overload, "the power supplies are overloaded", "Look whether all power supplies are there and have power."},
		{c.ControlFault, "power could not be switched", "Look at the power supplies, and at the BMC's own pages."},
		{c.DriveFault, "a drive has a fault", "Find the drive by its light or in the BMC's own pages, and replace it."},
	} {
		if w.set {
			bad = append(bad, Problem{Warning, "chassis", w.text, w.action})
		}
	}
	return bad
}

// judgeEvents tells the worst first, and of those the newest.
func judgeEvents(list []ipmi.Event, back time.Duration) []Problem {
	list = slices.Clone(list)
	slices.Reverse(list)
	slices.SortStableFunc(list, func(a, b ipmi.Event) int { return int(b.Severity) - int(a.Severity) })
	var bad []Problem
	for _, e := range list {
		bad = append(bad, Problem{
			Warning, fmt.Sprintf("sensor %#02x", e.Sensor), fmt.Sprintf("%s, logged by the BMC in the last %s", e.Text, span(back)),
			fmt.Sprintf("Look at record %d of the BMC's log, which names the part.", e.ID),
		})
	}
	return bad
}
