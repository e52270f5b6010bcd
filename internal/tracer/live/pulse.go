//go:build linux

package live

import (
	"errors"
	"io"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// PyTorch's allocator reports each tensor that is made and freed, which is as frequent as everything else that is
// probed in a process, for two numbers of which only the last ones matter. Where it reports often, it is
// therefore probed for a moment every few seconds.
const (
	oftenReports = 100              // in pollEvery, of all processes
	pauseReports = 10 * time.Second // from one moment to the next
	staleReports = 30 * time.Second // age at which a report before a pause no longer counts
)

// pulse is the state of the probes in frameworks' allocators.
type pulse struct {
	list   map[*pausable]bool
	seen   uint64    // reports so far
	paused time.Time // since when there are no probes; zero: there are
	gap    time.Time // when they were last put in place again
}

// pausable is a set of probes that can be removed and put in place again.
type pausable struct {
	attach func() (probe.Attachment, error)
	file   io.Closer
	link   io.Closer // nil: removed
	of     *pulse
}

// Close removes the probes for good.
func (p *pausable) Close() error {
	delete(p.of.list, p)
	return errors.Join(p.pause(), p.file.Close())
}

func (p *pausable) pause() (err error) {
	if p.link != nil {
		err = p.link.Close()
		p.link = nil
	}
	return err
}

// add makes a link pausable. It takes over the file.
func (u *pulse) add(link io.Closer, file io.Closer, attach func() (probe.Attachment, error)) io.Closer {
	if u.list == nil {
		u.list = map[*pausable]bool{}
	}
	p := &pausable{attach: attach, file: file, link: link, of: u}
	u.list[p] = true
	return p
}

// beat removes or restores probes. It is called every pollEvery.
func (u *pulse) beat(reports uint64, now time.Time) {
	often := reports-u.seen > oftenReports
	u.seen = reports
	switch {
	case u.paused.IsZero() && often:
		u.paused = now
		for p := range u.list {
			_ = p.pause() // the kernel has dropped it in any case
		}
	case !u.paused.IsZero() && now.Sub(u.paused) >= pauseReports:
		u.paused, u.gap = time.Time{}, now
		for p := range u.list {
			if p.link != nil { // of a library that was found meanwhile
				continue
			}
			link, err := p.attach()
			if err != nil {
				u.paused = now // it is tried again
				continue
			}
			p.link = link.Closer
		}
	}
}

// current clears a report that is older than a pause: it may no longer be true.
func (u *pulse) current(m *tracer.Memory, now time.Time) {
	gap := u.gap
	if !u.paused.IsZero() {
		gap = now
	}
	if !gap.IsZero() && m.Framework && !m.Reported.After(gap) && now.Sub(m.Reported) > staleReports {
		m.Framework, m.Allocated, m.Pool = false, 0, 0
	}
}
