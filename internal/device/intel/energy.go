//go:build linux

package intel

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// meter derives one energy counter, and power from it, from the driver's channels. It uses
// the first channel that moves: on Arc B580 with Linux 6.16 the card channel stays at 0
// while the package channel runs.
type meter struct {
	channels []channel
	using    int // index of the channel in use; -1: none yet
	begun    bool
	doubted  bool      // the channel in use was lower at the last update
	offset   float64   // J, added to the channel in use so that the counter is continuous across a switch
	moved    time.Time // when the channel in use last moved
	at       time.Time // time of the last update; zero: the next update has nothing to compare with
	limits   []device.PowerLimit
}

// channel is one of the driver's counters, in joules.
type channel struct {
	value float64
	ok    bool
}

// patience is how long a channel may stand still while another one moves before meter
// switches to that one. A counter that is refreshed every second stands still between two
// fast ticks.
const patience = 10 * time.Second

// update records what the channels read at now, and returns the counter and the average
// power since the last update. A powered card always draws power, so if the counter stood
// still the power is unknown, not 0.
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
		doubted := m.doubted
		m.doubted = false
		switch {
		case d < 0 && !doubted && !m.at.IsZero(): // a misreading would be followed by megawatts
			m.doubted, next[i].ok = true, false
		case d < 0: // the driver was reloaded, or the card was reset
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
		if c.ok { // an unreadable channel keeps its previous value
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

// choose picks the first channel that is not at 0. A single channel is used in any case.
func (m *meter) choose(now time.Time, next []channel) {
	for i, c := range next {
		if c.ok && (c.value > 0 || len(next) == 1) {
			m.using, m.offset, m.moved = i, 0, now
			return
		}
	}
}

// pause makes the next update return no power, because the interval was not observed.
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

// power returns the board's power, or nil if nothing is known about it.
func (g *gpu) power(watts device.Value) []device.Power {
	if !watts.OK() && len(g.meter.limits) == 0 {
		return nil
	}
	return []device.Power{{Scope: "gpu", Average: watts, Limits: g.meter.limits}}
}
