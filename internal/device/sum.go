package device

// Sum adds up counters of the same kind, such as those of a device's links. A part that
// does not answer counts with its last value, and a part that answers for the first time
// later than the others counts from there: otherwise the sum would fall, which reads as a
// counter reset, or rise by all that the part ever counted. The zero Sum is empty.
type Sum[K comparable] struct {
	last  map[K]float64
	base  float64 // what late parts had counted before they were added
	begun bool
	asked bool // a part answered since the last Total
}

// Add records what one part answered.
func (s *Sum[K]) Add(part K, v Value) {
	f, ok := v.Get()
	if !ok {
		return
	}
	if s.last == nil {
		s.last = map[K]float64{}
	}
	if _, known := s.last[part]; !known && s.begun {
		s.base += f
	}
	s.last[part], s.asked = f, true
}

// Total returns the sum, or absent if no part has answered since the last call.
func (s *Sum[K]) Total() Value {
	if !s.asked {
		return Value{}
	}
	s.begun, s.asked = true, false
	total := -s.base
	for _, f := range s.last {
		total += f
	}
	return Of(max(0, total))
}
