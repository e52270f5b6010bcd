package node

import (
	"fmt"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Kind is a change of state.
type Kind string

// The changes of state a View tells of.
const (
	SourceOpen    Kind = "source open"
	SourceAbsent  Kind = "source absent"
	SourceFailed  Kind = "source failed"
	DeviceFound   Kind = "device found"
	DeviceUp      Kind = "device up"      // again
	DeviceDown    Kind = "device down"    // Err says why
	DevicePartial Kind = "device partial" // Err says what it cannot answer; nil: it can again
	PartitionGone Kind = "partition gone"
	Paused        Kind = "paused"
	Resumed       Kind = "resumed"
)

// Notice tells of one change of state. Whoever runs the View logs it.
type Notice struct {
	Kind   Kind
	Source string
	Device device.ID
	Err    error
	For    time.Duration
}

// Bad reports whether somebody should look into it.
func (n Notice) Bad() bool {
	return n.Kind == SourceFailed || n.Kind == DeviceDown || n.Kind == DevicePartial && n.Err != nil
}

func (n Notice) String() string {
	dev := fmt.Sprintf("GPU %d", n.Device.Index)
	if n.Device.Parent != "" {
		dev += " partition " + n.Device.Profile
	}
	switch n.Kind {
	case SourceOpen:
		return n.Source + ": driver opened"
	case SourceAbsent:
		return n.Source + ": no device or driver on this machine"
	case SourceFailed:
		return n.Source + ": driver cannot be read"
	case DeviceFound:
		return dev + " found"
	case DeviceUp:
		return dev + " answers again"
	case DeviceDown:
		return dev + " does not answer"
	case DevicePartial:
		if n.Err == nil {
			return dev + " answers everything again"
		}
		return dev + " does not answer some calls"
	case PartitionGone:
		return dev + " was removed"
	case Paused:
		return fmt.Sprintf("paused for %s: all drivers are released", n.For)
	case Resumed:
		return "resumed"
	}
	return string(n.Kind)
}

// backlog is how many ticks a subscriber may fall behind before it loses the oldest.
const backlog = 16

type subscribers struct {
	mu   sync.Mutex
	list map[chan Tick]struct{}
	lost uint64
}

// Subscribe returns a channel of completed ticks. A subscriber that does not keep up
// loses its oldest ones; it never slows the clock. cancel closes the channel.
func (v *View) Subscribe() (ticks <-chan Tick, cancel func()) {
	c := make(chan Tick, backlog)
	v.subs.mu.Lock()
	defer v.subs.mu.Unlock()
	if v.subs.list == nil {
		v.subs.list = map[chan Tick]struct{}{}
	}
	v.subs.list[c] = struct{}{}
	return c, sync.OnceFunc(func() {
		v.subs.mu.Lock()
		defer v.subs.mu.Unlock()
		delete(v.subs.list, c)
		close(c)
	})
}

func (s *subscribers) publish(t Tick) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.LostTicks = s.lost
	for c := range s.list {
		select {
		case c <- t:
			continue
		default:
		}
		select {
		case <-c: // the oldest makes room
			s.lost++
		default:
		}
		c <- t // only publish sends, under mu: there is room now
	}
}
