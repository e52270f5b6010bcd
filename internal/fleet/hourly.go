package fleet

// DayHours is the device time of each hour of a day (UTC), in seconds.
type DayHours [24]uint16

// AddHour adds device time of an hour. d.Hourly must not be nil.
func (d *Day) AddHour(device string, hour int, t Seconds) {
	h := d.Hourly[device]
	if h == nil {
		h = &DayHours{}
		d.Hourly[device] = h
	}
	h[hour] = uint16(min(3600, int64(h[hour])+int64(t)/1e6))
}
