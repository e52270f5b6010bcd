package health

// deviceRules are the rules for one physical device that answers. downRules are the rules
// for a device that does not: its earlier problems may persist, but the device cannot
// confirm them. Errors in the kernel log need no confirmation.
var deviceRules = []func(trail) []Finding{
	lost, recovery, xidFindings, // state.go, xid.go
	uncorrected, corrected, rowRemap, pageRetirement, sram, eccOff, // memory.go
	throttled, ramp, hot, clocksLow, // heat.go
	pcie, replays, links, fabric, // links.go
	orphaned, heartbeat, status, resets, incidents,
}

var downRules = []func(trail) []Finding{lost, xidFindings}

// machineRules are the rules that compare devices.
var machineRules = []func(*Machine) []Finding{missing, mismatch, stragglers, switches, unlisted} // machine.go, xid.go, unlisted.go

func one(f Finding, ok bool) []Finding {
	if !ok {
		return nil
	}
	return []Finding{f}
}
