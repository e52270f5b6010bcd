package device

// A device may have several power meters, temperature sensors, clocks and rails. The methods
// in this file choose the one value that represents the device wherever a single number is
// shown: the metrics with plain names (gpu.power.draw, gpu.temperature ...), the accounts of
// workloads, health rules and tables. Each reader gives the main sensor of its devices one
// of the names below.

// Power returns the power of the device itself: the scope gpu, or else module, which covers
// everything in one package: GPU and CPU, or both dies of an MI250. A scope with a reading in watts is preferred to a
// scope with limits only. The scope memory is contained in the others and never chosen. The
// result is the zero Power if the device has neither scope.
func (s *Sample) Power() Power {
	return choose(s.Powers, []string{"gpu", "module"}, func(p Power) (string, Value) { return p.Scope, p.Draw() })
}

// Temperature returns the temperature of the die: the sensor edge (NVIDIA, Gaudi,
// Tenstorrent, older AMD), or else hotspot (AMD Instinct, Intel). It is absent if only
// memory, board or regulators have a sensor: their temperature is not that of the die.
func (s *Sample) Temperature() Value {
	return choose(s.Temperatures, []string{"edge", "hotspot"}, func(t Temperature) (string, Value) { return t.Sensor, t.Value }).Value
}

// Clock returns the frequency of the compute units. See ComputeClock.
func (s *Sample) Clock() Value { return s.ComputeClock().Frequency }

// ComputeClock returns the clock domain of the compute units: sm (NVIDIA), graphics (AMD,
// Intel, NVIDIA without sm), ai (Tenstorrent) or soc (Gaudi, whose compute engines share
// it). The result is the zero Clock if the device has none of them.
func (s *Sample) ComputeClock() Clock {
	return choose(s.Clocks, []string{"sm", "graphics", "ai", "soc"}, func(c Clock) (string, Value) { return c.Type, c.Frequency })
}

// Voltage returns the voltage of the core rail. It is absent if the device does not measure it.
func (s *Sample) Voltage() Value {
	return choose(s.Voltages, []string{"core"}, func(v Voltage) (string, Value) { return v.Rail, v.Volts }).Volts
}

// choose returns the part whose name comes first in names and that has a reading. If no such
// part has a reading, choose returns the first of them without one.
func choose[T any](parts []T, names []string, of func(T) (name string, reading Value)) T {
	var chosen T
	found := false
	for _, want := range names {
		for _, p := range parts {
			name, reading := of(p)
			if name != want {
				continue
			}
			if reading.OK() {
				return p
			}
			if !found {
				chosen, found = p, true
			}
		}
	}
	return chosen
}
