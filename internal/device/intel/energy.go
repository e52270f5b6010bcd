//go:build linux

package intel

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// meter makes one counter of energy, and the power from it, out of the channels of the
// driver. The first that moves counts: the channel of the card stays at 0 on Arc B580 with
// Linux 6.16, while that of the package runs.
type meter struct {
	channels []channel
	using    int // index of the channel that counts; -1: none yet
	begun    bool
	offset   float64   // J, added to the channel in use, so that the counter goes on where another took over
	moved    time.Time // when the channel in use last did
	at       time.Time // of the last update; zero: the next one has nothing to compare with
	limits   []device.PowerLimit
}

// channel is one counter of the driver, in joules.
type channel struct {
	value float64
	ok    bool
}

// patience is how long a channel may stand still while another moves, until that one is
// taken. A counter that is refreshed every second stands still between two fast ticks.
const patience = 10 * time.Second

// update takes what the channels read at now, and returns the counter and the average
// power since the last update. A powered card always draws something: where the counter
// stood still the power is not 0 but unknown.
func (m *meter) update(now time.Time, read []device.Value) (energy, watts device.Value) {
	next := make([]channel, len(read))
	for i, v := range read {
		next[i].value, next[i].ok = v.Get()
	}
	if !m.begun || len(m.channels) != len(next) {
		m.begun, m.using = true, -1
		m.channels = make([]channel, len(next))
	}
	delta := func(i int) float64 {
		if a, b := m.channels[i], next[i]; a.ok && b.ok {
			return b.value - a.value
		}
		return 0
	}
	if m.using < 0 {
		m.choose(now, next)
	} else if i := m.using; next[i].ok && m.channels[i].ok {
		d := delta(i)
		switch {
		case d < 0: // the driver was loaded anew, or the card reset
			m.offset, m.moved = 0, now
		case d > 0:
			m.moved = now
			if dt := now.Sub(m.at).Seconds(); !m.at.IsZero() && dt > 0 {
				watts = device.Of(d / dt)
			}
		case now.Sub(m.moved) >= patience:
			for j := range next {
				if delta(j) > 0 {
					m.offset += next[i].value - next[j].value
					m.using, m.moved = j, now
					break
				}
			}
		}
	}
	m.at = now
	for i, c := range next {
		if c.ok { // a channel that could not be read now is compared with what it was
			m.channels[i] = c
		} else if i == m.using {
			m.at = time.Time{}
		}
	}
	if m.using < 0 || !next[m.using].ok {
		return device.Value{}, device.Value{}
	}
	return device.Of(m.offset + next[m.using].value), watts
}

// choose takes the first channel that is not at 0. The only one is taken as it is.
func (m *meter) choose(now time.Time, next []channel) {
	for i, c := range next {
		if c.ok && (c.value > 0 || len(next) == 1) {
			m.using, m.offset, m.moved = i, 0, now
			return
		}
	}
}

// pause makes the next update give no power: nobody looked meanwhile.
func (m *meter) pause() { m.at = time.Time{} }

func (g *gpu) readEnergy() {
	read := make([]device.Value, len(g.hwmon.energies))
	for i, name := range g.hwmon.energies {
		read[i] = g.number(g.hwmon.dir, name).Div(micro) // µJ
	}
	var watts device.Value
	g.sample.Energy, watts = g.meter.update(g.r.opts.Now(), read)
	g.sample.Powers = g.power(watts)
}

// power returns the board's power, nil where nothing is known of it.
func (g *gpu) power(watts device.Value) []device.Power {
	if !watts.OK() && len(g.meter.limits) == 0 {
		return nil
	}
	return []device.Power{{Scope: "gpu", Average: watts, Limits: g.meter.limits}}
}
