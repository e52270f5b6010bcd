//go:build linux

// Package ipmi asks the board's controller (BMC) what it knows of the machine. It sends only
// commands that read: nothing is cleared, reserved or set.
package ipmi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Transport carries a command to the controller. What it returns begins with the completion
// code.
type Transport interface {
	Command(netfn, cmd byte, data []byte) (resp []byte, err error)
}

// The commands that are ever sent, each a net function and its command.
var (
	getChassisStatus = [2]byte{0x00, 0x01}
	getSELInfo       = [2]byte{0x0a, 0x40}
	getSELEntry      = [2]byte{0x0a, 0x43}
	getSELTime       = [2]byte{0x0a, 0x48}
)

// Refused is the completion code of a command that was not carried out.
type Refused byte

func (r Refused) Error() string {
	return fmt.Sprintf("the controller refuses with code %#02x", byte(r))
}

// ask sends a command and takes the completion code off its answer.
func ask(t Transport, what [2]byte, data ...byte) ([]byte, error) {
	b, err := t.Command(what[0], what[1], data)
	switch {
	case err != nil:
		return nil, err
	case len(b) == 0:
		return nil, errors.New("the controller's answer is empty")
	case b[0] != 0:
		return nil, Refused(b[0])
	}
	return b[1:], nil
}

// Chassis is what is wrong with the machine as a whole, now.
type Chassis struct {
	Overload     bool // a power supply gives less than is asked of it
	PowerFault   bool // of the main power
	ControlFault bool // power could not be switched
	DriveFault   bool
	CoolingFault bool
}

// ParseChassis reads an answer to Get Chassis Status, without its completion code.
func ParseChassis(b []byte) (Chassis, error) {
	if len(b) < 3 {
		return Chassis{}, fmt.Errorf("a chassis status of %d bytes", len(b))
	}
	power, misc := b[0], b[2]
	return Chassis{
		Overload: power&(1<<1) != 0, PowerFault: power&(1<<3) != 0, ControlFault: power&(1<<4) != 0,
		DriveFault: misc&(1<<2) != 0, CoolingFault: misc&(1<<3) != 0,
	}, nil
}

// ReadChassis asks for the status of the chassis.
func ReadChassis(t Transport) (Chassis, error) {
	b, err := ask(t, getChassisStatus)
	if err != nil {
		return Chassis{}, err
	}
	return ParseChassis(b)
}

// Info is what there is in the log of events (SEL).
type Info struct {
	Entries  int
	Overflow bool // events were lost, as it was full
}

// ParseInfo reads an answer to Get SEL Info.
func ParseInfo(b []byte) (Info, error) {
	if len(b) < 14 {
		return Info{}, fmt.Errorf("the log's summary has %d bytes", len(b))
	}
	return Info{int(binary.LittleEndian.Uint16(b[1:])), b[13]&(1<<7) != 0}, nil
}

// Severity is how bad an event is.
type Severity int

// The severities.
const (
	None     Severity = iota // it is not one of those that are looked for
	Serious                  // beyond a critical limit, or a part that failed
	Terminal                 // beyond a limit that it does not recover from, or what stops a machine
)

// Event is a record of the log.
type Event struct {
	ID       uint16
	Kind     byte   // of the record; only 2 has the other fields
	Time     uint32 // seconds since 1970, by the controller's clock
	Sensor   byte   // its number
	Type     byte   // of the sensor
	Class    byte   // of the event
	Offset   byte   // which event of its class
	Ended    bool   // what was said before is no longer so
	Severity Severity
	Text     string // for people, if it has a severity
}

const (
	systemEvent = 0x02 // the kind of record that the standard describes
	threshold   = 0x01 // the class of events of limits
	specific    = 0x6f // the class of events that the type of the sensor has a list of
	first       = 0x0000
	last        = 0xffff // asks for the newest record
)

// ParseEntry reads an answer to Get SEL Entry: the number of the next record, and a record.
func ParseEntry(b []byte) (Event, uint16, error) {
	if len(b) < 18 {
		return Event{}, 0, fmt.Errorf("a record of the log has %d bytes", len(b))
	}
	next, b := binary.LittleEndian.Uint16(b), b[2:]
	e := Event{ID: binary.LittleEndian.Uint16(b), Kind: b[2]}
	if e.Kind != systemEvent {
		return e, next, nil // a maker's own
	}
	e.Time = binary.LittleEndian.Uint32(b[3:])
	e.Type, e.Sensor = b[10], b[11]
	e.Class, e.Ended, e.Offset = b[12]&0x7f, b[12]&0x80 != 0, b[13]&0x0f
	e.describe()
	return e, next, nil
}

// meaning is what an event means.
type meaning struct {
	severity Severity
	text     string
}

// limited are the sensors whose limits count.
var limited = map[byte]string{0x01: "temperature", 0x02: "voltage", 0x04: "fan"}

// limits are the offsets of threshold events by which a value leaves what is allowed.
var limits = map[byte]meaning{
	0x02: {Serious, "below its critical limit"},
	0x04: {Terminal, "below the limit that it does not recover from"},
	0x09: {Serious, "above its critical limit"},
	0x0b: {Terminal, "above the limit that it does not recover from"},
}

// returns are those by which it comes back, and what that ends.
var returns = map[byte]byte{0x03: 0x02, 0x05: 0x04, 0x08: 0x09, 0x0a: 0x0b}

// failures are events by the type of the sensor and their offset. Those of a person who
// pressed a button, and what was corrected, are not among them.
var failures = map[[2]byte]meaning{
	{0x07, 0x00}: {Terminal, "processor: internal error (IERR)"},
	{0x07, 0x01}: {Terminal, "processor: switched off by heat"},
	{0x07, 0x0b}: {Terminal, "processor: uncorrected machine check"},
	{0x08, 0x01}: {Serious, "power supply: failed"},
	{0x08, 0x03}: {Serious, "power supply: its input is lost"},
	{0x08, 0x04}: {Serious, "power supply: its input is lost or out of range"},
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

// describe says what an event means.
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

// Log is what was read of the log of events.
type Log struct {
	Info

	Read  int     // how many records
	Short bool    // there was no time for all that might count
	Open  []Event // serious, in time and not ended; the oldest first
}

const (
	maxRecords = 64
	// uptoHere is the end of the times that count from the controller's start instead of 1970.
	uptoHere = 0x20000000
	// ahead is what a record may be newer than the clock, which was read before it.
	ahead = time.Minute
)

// ReadLog reads the newest records, at most 64 and back to so long ago, until ctx ends.
// How old a record is goes by the controller's clock, which may be in any time zone.
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
		return Log{}, err // it no longer answers
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

// older reads records before one, the newest first, until more says that it is enough. The
// log can only be followed to newer ones: the numbers of older ones are guessed, by the
// distance of the first two. One that is not there is passed over.
func (l *Log) older(ctx context.Context, t Transport, id uint16, more func(Event) bool) {
	if l.Entries < 2 {
		return
	}
	step := uint16(1)
	if e, next, err := entry(t, first); err == nil && next > e.ID && next-e.ID <= 64 {
		step = next - e.ID
	}
	for range min(l.Entries, maxRecords) - 1 {
		if id <= step { // 0 would ask for the first
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
			continue // another one than was asked for
		}
		l.Read++
		if !more(e) {
			return
		}
	}
}

// entry asks for a whole record, for which no reservation is needed.
func entry(t Transport, id uint16) (Event, uint16, error) {
	b, err := ask(t, getSELEntry, 0, 0, byte(id), byte(id>>8), 0, 0xff)
	if err != nil {
		return Event{}, 0, err
	}
	return ParseEntry(b)
}

// age is how long ago an event was, if that can be told.
func (e Event) age(now int64) (timed bool, age time.Duration) {
	if e.Kind != systemEvent || e.Time < uptoHere || e.Time == 0xffffffff {
		return false, 0
	}
	age = time.Duration(now-int64(e.Time)) * time.Second
	return age >= -ahead, age
}

// open returns those events, of a list with the oldest first, that are serious, in time and
// have not ended. Of several that say the same, the newest counts.
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
