package health

// deviceRules are the rules for one physical device. Only the first applies to a device that
// does not answer.
var deviceRules = []func(trail) []Finding{
	lost, recovery, xidFindings, // state.go, xid.go
	uncorrected, corrected, rowRemap, pageRetirement, sram, eccOff, // memory.go
	throttled, ramp, hot, clocksLow, // heat.go
	pcie, replays, links, fabric, // links.go
	orphaned, heartbeat, status, resets, incidents,
}

// machineRules are the rules that compare devices.
var machineRules = []func(*Machine) []Finding{missing, mismatch, stragglers, switches} // machine.go

func one(f Finding, ok bool) []Finding {
	if !ok {
		return nil
	}
	return []Finding{f}
}
