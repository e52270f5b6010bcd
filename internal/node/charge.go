package node

// charge divides the joules that the counter counted since it was last read: first what was
// estimated from power, the rest by the time in which the power was unknown. A device that
// changes hands while it does not answer is charged to both holders.
func (l *ledger) charge(joules float64, list []share) {
	metered, unmetered := 0.0, 0.0
	for _, o := range l.Owned {
		metered, unmetered = metered+o.Pending, unmetered+o.unmetered
	}
	if metered+unmetered == 0 {
		for i, part := range watts(list, joules, 0) {
			l.earn(l.account(list[i], l.At), part)
		}
		return
	}
	rest := 0.0
	if unmetered > 0 {
		rest = max(0, joules-metered)
		joules -= rest
	}
	for _, o := range l.Owned {
		if o.Pending > 0 {
			l.earn(o, joules*(o.Pending/metered))
		}
		if o.unmetered > 0 {
			l.earn(o, rest*(o.unmetered/unmetered))
		}
		o.Pending, o.unmetered = 0, 0
	}
}

// estimated returns the joules estimated from power since the counter was last read.
func (l *ledger) estimated() (joules float64) {
	for _, o := range l.Owned {
		joules += o.Pending
	}
	return joules
}

// chargePending charges up to joules for what was estimated before the gap, and returns how
// much that was.
func (l *ledger) chargePending(joules float64) float64 {
	pending := l.estimated()
	if pending == 0 {
		return 0
	}
	charged := min(joules, pending)
	for _, o := range l.Owned {
		if o.Pending > 0 {
			l.earn(o, charged*(o.Pending/pending))
			o.Pending = 0
		}
	}
	return charged
}
