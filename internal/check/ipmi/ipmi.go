//go:build linux

// Package ipmi reads the chassis status and the System Event Log (SEL) from a board's
// management controller (BMC) through the kernel's OpenIPMI device (/dev/ipmi0), which
// normally requires root. It sends only commands that read: nothing is cleared, reserved or
// set. Sensor names (SDR) are not read; an event names its sensor by number and type.
package ipmi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Transport carries a command to the controller. The response starts with the completion
// code.
type Transport interface {
	Command(netfn, cmd byte, data []byte) (resp []byte, err error)
}

// The only commands that are ever sent: network function and command.
var (
	getChassisStatus = [2]byte{0x00, 0x01}
	getSELInfo       = [2]byte{0x0a, 0x40}
	getSELEntry      = [2]byte{0x0a, 0x43}
	getSELTime       = [2]byte{0x0a, 0x48}
)

// Refused is the completion code of a failed command.
type Refused byte

func (r Refused) Error() string {
	return fmt.Sprintf("the controller returned completion code %#02x", byte(r))
}

// ask sends a command and strips the completion code from the response.
func ask(t Transport, what [2]byte, data ...byte) ([]byte, error) {
	b, err := t.Command(what[0], what[1], data)
	switch {
	case err != nil:
		return nil, err
	case len(b) == 0:
		return nil, errors.New("the controller's response is empty")
	case b[0] != 0:
		return nil, Refused(b[0])
	}
	return b[1:], nil
}

// Chassis lists the current faults of the machine as a whole.
type Chassis struct {
	Overload     bool // the load exceeds the power supplies
	PowerFault   bool // main power subsystem
	ControlFault bool // powering on or off failed
	DriveFault   bool
	CoolingFault bool
}

// ParseChassis parses a response to Get Chassis Status, without its completion code.
func ParseChassis(b []byte) (Chassis, error) {
	if len(b) < 3 {
		return Chassis{}, fmt.Errorf("chassis status has %d bytes", len(b))
	}
	power, misc := b[0], b[2]
	return Chassis{
		Overload: power&(1<<1) != 0, PowerFault: power&(1<<3) != 0, ControlFault: power&(1<<4) != 0,
		DriveFault: misc&(1<<2) != 0, CoolingFault: misc&(1<<3) != 0,
	}, nil
}

// ReadChassis reads the chassis status.
func ReadChassis(t Transport) (Chassis, error) {
	b, err := ask(t, getChassisStatus)
	if err != nil {
		return Chassis{}, err
	}
	return ParseChassis(b)
}

// Info describes the System Event Log (SEL).
type Info struct {
	Entries  int
	Overflow bool // the log was full and events were lost
}

// ParseInfo parses a response to Get SEL Info.
func ParseInfo(b []byte) (Info, error) {
	if len(b) < 14 {
		return Info{}, fmt.Errorf("SEL info has %d bytes", len(b))
	}
	return Info{int(binary.LittleEndian.Uint16(b[1:])), b[13]&(1<<7) != 0}, nil
}

// Severity says how bad an event is.
type Severity int

// The severities.
const (
	None     Severity = iota // not an event of interest
	Serious                  // beyond a critical threshold, or a failed part
	Terminal                 // beyond a non-recoverable threshold, or an error that stops the machine
)

// Event is a SEL record.
type Event struct {
	ID       uint16
	Kind     byte   // record type; only type 2 has the other fields
	Time     uint32 // Unix seconds by the controller's clock
	Sensor   byte   // sensor number
	Type     byte   // sensor type
	Class    byte   // event type
	Offset   byte   // offset within the event type
	Ended    bool   // deassertion of an earlier event
	Severity Severity
	Text     string // human-readable; set if Severity is not None
}

const (
	systemEvent = 0x02 // record type defined by the standard
	threshold   = 0x01 // event type: threshold
	specific    = 0x6f // event type: sensor-specific
	first       = 0x0000
	last        = 0xffff // requests the newest record
)

// ParseEntry parses a response to Get SEL Entry: the next record's ID and a record.
func ParseEntry(b []byte) (Event, uint16, error) {
	if len(b) < 18 {
		return Event{}, 0, fmt.Errorf("SEL record has %d bytes", len(b))
	}
	next, b := binary.LittleEndian.Uint16(b), b[2:]
	e := Event{ID: binary.LittleEndian.Uint16(b), Kind: b[2]}
	if e.Kind != systemEvent {
		return e, next, nil // OEM record
	}
	e.Time = binary.LittleEndian.Uint32(b[3:])
	e.Type, e.Sensor = b[10], b[11]
	e.Class, e.Ended, e.Offset = b[12]&0x7f, b[12]&0x80 != 0, b[13]&0x0f
	e.describe()
	return e, next, nil
}

// meaning is the severity and the text of an event.
type meaning struct {
	severity Severity
	text     string
}

// limited are the sensor types whose thresholds are judged.
var limited = map[byte]string{0x01: "temperature", 0x02: "voltage", 0x04: "fan"}

// limits are the threshold event offsets for values that leave the allowed range.
var limits = map[byte]meaning{
	0x02: {Serious, "below its critical threshold"},
	0x04: {Terminal, "below its non-recoverable threshold"},
	0x09: {Serious, "above its critical threshold"},
	0x0b: {Terminal, "above its non-recoverable threshold"},
}

// returns maps the offsets for values that return to the offsets that they end.
var returns = map[byte]byte{0x03: 0x02, 0x05: 0x04, 0x08: 0x09, 0x0a: 0x0b}

// failures are events by sensor type and offset. Operator actions such as a pressed button
// and corrected errors are not included.
var failures = map[[2]byte]meaning{
	{0x07, 0x00}: {Terminal, "processor: internal error (IERR)"},
	{0x07, 0x01}: {Terminal, "processor: thermal trip"},
	{0x07, 0x0b}: {Terminal, "processor: uncorrected machine check"},
	{0x08, 0x01}: {Serious, "power supply: failed"},
	{0x08, 0x03}: {Serious, "power supply: input lost"},
	{0x08, 0x04}: {Serious, "power supply: input lost or out of range"},
	{0x0c, 0x01}: {Terminal, "memory: uncorrected error (ECC)"},
	{0x0d, 0x01}: {Serious, "drive: fault"},
	{0x13, 0x01}: {Serious, "critical interrupt: bus timeout"},
	{0x13, 0x02}: {Serious, "critical interrupt: I/O channel check"},
	{0x13, 0x04}: {Serious, "critical interrupt: PCI parity error (PERR)"},
	{0x13, 0x05}: {Terminal, "critical interrupt: PCI system error (SERR)"},
	{0x13, 0x08}: {Terminal, "critical interrupt: uncorrected bus error"},
	{0x13, 0x09}: {Terminal, "critical interrupt: fatal NMI"},
	{0x13, 0x0a}: {Terminal, "critical interrupt: fatal bus error"},
}

// describe sets the severity and the text of an event.
func (e *Event) describe() {
	switch e.Class {
	case threshold:
		name, ok := limited[e.Type]
		if from, back := returns[e.Offset]; ok && back && !e.Ended {
			e.Offset, e.Ended = from, true
		}
		if m := limits[e.Offset]; ok && m.severity != None {
			e.Severity, e.Text = m.severity, name+": "+m.text
		}
	case specific:
		m := failures[[2]byte{e.Type, e.Offset}]
		e.Severity, e.Text = m.severity, m.text
	}
}

// Log is the result of reading the SEL.
type Log struct {
	Info

	Read  int     // records read
	Short bool    // time ran out before all relevant records were read
	Open  []Event // serious, recent and not deasserted; oldest first
}

const (
	maxRecords = 64
	// uptoHere is the upper bound of timestamps relative to the controller's start.
	uptoHere = 0x20000000
	// ahead is how much newer than the clock, which is read first, a record may be.
	ahead = time.Minute
)

// ReadLog reads the newest records, at most 64 and at most back in age, until ctx is done.
// Ages are computed with the controller's clock, which may be in any time zone.
func ReadLog(ctx context.Context, t Transport, back time.Duration) (Log, error) {
	b, err := ask(t, getSELInfo)
	if err != nil {
		return Log{}, err
	}
	info, err := ParseInfo(b)
	if err != nil {
		return Log{}, err
	}
	l := Log{Info: info}
	if l.Entries == 0 {
		return l, nil
	}
	now := time.Now().Unix()
	b, err = ask(t, getSELTime)
	if refused := Refused(0); err != nil && !errors.As(err, &refused) {
		return Log{}, err // the controller no longer answers
	}
	if len(b) >= 4 {
		now = int64(binary.LittleEndian.Uint32(b))
	}
	newest, _, err := entry(t, last)
	if err != nil {
		return Log{}, err
	}
	list := []Event{newest}
	l.Read = 1
	if timed, age := newest.age(now); !timed || age <= back {
		l.older(ctx, t, newest.ID, func(e Event) bool {
			list = append(list, e)
			timed, age := e.age(now)
			return !timed || age <= back
		})
	}
	slices.Reverse(list)
	l.Open = open(list, now, back)
	return l, nil
}

// older reads the records before id, newest first, until more returns false. The log can
// only be followed toward newer records, so the IDs of older ones are extrapolated from the
// distance of the first two. IDs without a record are skipped.
func (l *Log) older(ctx context.Context, t Transport, id uint16, more func(Event) bool) {
	if l.Entries < 2 {
		return
	}
	step := uint16(1)
	if e, next, err := entry(t, first); err == nil && next > e.ID && next-e.ID <= 64 {
		step = next - e.ID
	}
	for range min(l.Entries, maxRecords) - 1 {
		if id <= step { // 0 would request the first record
			return
		}
		if ctx.Err() != nil {
			l.Short = true
			return
		}
		id -= step
		e, _, err := entry(t, id)
		if refused := Refused(0); errors.As(err, &refused) {
			continue
		}
		if err != nil {
			l.Short = true
			return
		}
		if e.ID != id {
			continue // not the requested record
		}
		l.Read++
		if !more(e) {
			return
		}
	}
}

// entry reads a whole record, which needs no reservation.
func entry(t Transport, id uint16) (Event, uint16, error) {
	b, err := ask(t, getSELEntry, 0, 0, byte(id), byte(id>>8), 0, 0xff)
	if err != nil {
		return Event{}, 0, err
	}
	return ParseEntry(b)
}

// age returns how long ago an event was. timed is false if that is unknown.
func (e Event) age(now int64) (timed bool, age time.Duration) {
	if e.Kind != systemEvent || e.Time < uptoHere || e.Time == 0xffffffff {
		return false, 0
	}
	age = time.Duration(now-int64(e.Time)) * time.Second
	return age >= -ahead, age
}

// open returns the events of a list, oldest first, that are serious, recent and not
// deasserted. Of several equal events the newest counts.
func open(list []Event, now int64, back time.Duration) []Event {
	type key struct{ sensor, kind, class, offset byte }
	var out []Event
	of := func(e Event) key { return key{e.Sensor, e.Type, e.Class, e.Offset} }
	for _, e := range list {
		timed, age := e.age(now)
		if e.Severity == None {
			continue
		}
		if e.Ended || timed && age <= back {
			out = slices.DeleteFunc(out, func(o Event) bool { return of(o) == of(e) })
		}
		if !e.Ended && timed && age <= back {
			out = append(out, e)
		}
	}
	return out
}
