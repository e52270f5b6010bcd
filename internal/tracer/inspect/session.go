//go:build linux

// Package inspect computes the output of gpumeter trace and explain. A Session is a running tracer
// with a view of the machine; from its readings come the report of an interval, a recording of every
// call, and the anomalies of a period. Nothing here prints.
package inspect

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Tracer is a live.Tracer, or a fake.
type Tracer interface {
	Run(ctx context.Context) error
	Snapshot(now time.Time, gpus map[uint32][]string) tracer.Snapshot
	Record(pid uint32, on bool) error
}

// Machine knows the devices and the workloads of processes: a node.View, or a fake.
type Machine interface {
	Tick(ctx context.Context, now time.Time) node.Tick
	Learn(ctx context.Context)
	Process(pid uint32) (workload.Workload, bool)
}

// Session is a running tracer with a view of the machine.
type Session struct {
	Tracer
	Machine

	stop func() error
}

// Begin starts tracing until the session is closed.
func Begin(ctx context.Context, t Tracer, m Machine) *Session {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	var ended error
	done.Go(func() { ended = t.Run(ctx) })
	done.Go(func() { m.Learn(ctx) })
	return &Session{Tracer: t, Machine: m, stop: func() error {
		cancel()
		done.Wait()
		if errors.Is(ended, context.Canceled) {
			return nil
		}
		return ended
	}}
}

// Close ends the session and returns the tracer's error, if any.
func (s *Session) Close() error { return s.stop() }

// Look reads the tracer and the machine.
func (s *Session) Look(ctx context.Context) (tracer.Snapshot, node.Tick) {
	t := s.Tick(ctx, time.Now())
	return s.Snapshot(time.Now(), onDevices(&t)), t
}

// onDevices returns the processes that the driver lists, with the UUIDs of their devices, or of their
// partitions where the driver knows them.
func onDevices(t *node.Tick) map[uint32][]string {
	all := map[uint32][]string{}
	cut := map[uint32][]string{} // devices that already have a partition listed
	for _, partitions := range []bool{true, false} {
		for i := range t.Readings {
			r := &t.Readings[i]
			if (r.ID.Parent != "") != partitions {
				continue
			}
			for _, p := range r.Processes {
				if slices.Contains(cut[p.PID], r.ID.UUID) {
					continue
				}
				all[p.PID] = append(all[p.PID], r.ID.UUID)
				cut[p.PID] = append(cut[p.PID], r.ID.Parent)
			}
		}
	}
	return all
}
