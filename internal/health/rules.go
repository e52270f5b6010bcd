package health

// deviceRules are the rules for one physical device. The first is for one that does not
// answer, too.
var deviceRules = []func(trail) []Finding{
	lost, recovery, xidFindings, // state.go, xid.go
	uncorrected, corrected, rowRemap, pageRetirement, sram, eccOff, // memory.go
	throttled, ramp, hot, clocksLow, // heat.go
	pcie, replays, links, fabric, // links.go
	orphaned, heartbeat, status, resets, incidents,
}

// machineRules are those that compare devices.
var machineRules = []func(*Machine) []Finding{missing, mismatch, stragglers, switches} // machine.go

func one(f Finding, ok bool) []Finding {
	if !ok {
		return nil
	}
	return []Finding{f}
}
