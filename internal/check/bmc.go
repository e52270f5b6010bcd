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
	bmcBack   = 24 * time.Hour  // how far back events count, at most to the last boot
	bmcWithin = 3 * time.Second // time limit for reading the log
)

// bmc queries the baseboard management controller. Logged faults may have been repaired
// since, and the log does not always say so, so problems are warnings and never critical.
func bmc(ctx context.Context, h *host) outcome {
	t, err := h.BMC(h.Root)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV):
		return skip("no BMC device")
	case errors.Is(err, fs.ErrPermission):
		return skip("no permission to query the BMC: %v", err)
	case err != nil:
		return unknown(err, "")
	}
	if c, ok := t.(io.Closer); ok {
		defer func() { _ = c.Close() }() // only queries were sent
	}
	back := bmcBack
	if up, err := h.uptime(); err == nil {
		back = min(back, up)
	}
	chassis, chassisErr := ipmi.ReadChassis(t)
	var list ipmi.Log
	logErr := chassisErr
	if refused := ipmi.Refused(0); chassisErr == nil || errors.As(chassisErr, &refused) { // otherwise the BMC does not answer at all
		ctx, cancel := context.WithTimeout(ctx, bmcWithin)
		defer cancel()
		list, logErr = ipmi.ReadLog(ctx, t, back)
	}
	bad := append(judgeChassis(chassis), judgeEvents(list.Open, back)...)
	if chassisErr != nil && logErr != nil {
		if refused := ipmi.Refused(0); errors.As(chassisErr, &refused) && errors.As(logErr, &refused) {
			return skip("the BMC reports neither status nor event log: %v", chassisErr)
		}
	}
	for _, err := range []error{chassisErr, logErr} {
		if refused := ipmi.Refused(0); err != nil && !errors.As(err, &refused) {
			bad = append(bad, Problem{Unknown, "BMC", shorten(err.Error()), "Check whether the BMC answers at all, for example over the network."})
			break
		}
	}
	text := fmt.Sprintf("%d of %d log events read", list.Read, list.Entries)
	if list.Short {
		text += ", then time ran out"
	}
	if list.Overflow {
		text += "; the log is full, newer events are lost"
	}
	return found(capped(bad), "%s", text)
}

func judgeChassis(c ipmi.Chassis) []Problem {
	var bad []Problem
	for _, w := range []struct {
		set          bool
		text, action string
	}{
		{c.CoolingFault, "fan or cooling fault", "Check the fans and the airflow."},
		{c.PowerFault, "main power fault", "Check the power supplies and their cables."},
		{c.Overload, "the power supplies are overloaded", "Check that all power supplies are present and powered."},
		{c.ControlFault, "power control fault", "Check the power supplies and the BMC's own interface."},
		{c.DriveFault, "drive fault", "Find the drive by its LED or in the BMC's own interface, and replace it."},
	} {
		if w.set {
			bad = append(bad, Problem{Warning, "chassis", w.text, w.action})
		}
	}
	return bad
}

// judgeEvents returns the problems, most severe first and newest first among equals.
func judgeEvents(list []ipmi.Event, back time.Duration) []Problem {
	list = slices.Clone(list)
	slices.Reverse(list)
	slices.SortStableFunc(list, func(a, b ipmi.Event) int { return int(b.Severity) - int(a.Severity) })
	var bad []Problem
	for _, e := range list {
		bad = append(bad, Problem{
			Warning, fmt.Sprintf("sensor %#02x", e.Sensor), fmt.Sprintf("%s, logged by the BMC in the last %s", e.Text, span(back)),
			fmt.Sprintf("See record %d of the BMC's event log, which names the part.", e.ID),
		})
	}
	return bad
}
