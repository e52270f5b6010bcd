package view

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/gpumeter/gpumeter/internal/fleet/queue"
	"github.com/gpumeter/gpumeter/internal/hub/events"
)

// timelineAnswer is what happened to one pod or Slurm job, in order.
type timelineAnswer struct {
	Scheduler string      `json:"scheduler"`
	ID        string      `json:"id"`
	Moments   []jobMoment `json:"moments"`
}

type jobMoment struct {
	Time int64  `json:"time"` // Unix milliseconds
	What string `json:"what"` // created, released, waits, scheduled, sandboxed, initialized, started, held, active, ended
	Text string `json:"text,omitempty"`
	// Because says in words why it waits.
	Because string `json:"because,omitempty"`
}

// maxRecords bounds the log records that are read about one job.
const maxRecords = 200

// timelinePage answers for the pod=NAMESPACE/NAME, or the scheduler, cluster and id of a row of the queue.
func (v *viewer) timelinePage(ctx context.Context, r request) (any, error) {
	j := queue.JobID{Scheduler: cmp.Or(r.values.Get("scheduler"), queue.Kubernetes), Cluster: r.values.Get("cluster"), ID: r.values.Get("id")}
	if pod := r.values.Get("pod"); pod != "" {
		namespace, name, ok := strings.Cut(pod, "/")
		if !ok || j.ID != "" {
			return nil, fmt.Errorf("%w: pod=%q is not NAMESPACE/NAME, or there is an id too", errBad, pod)
		}
		var err error
		if j.ID, err = queue.FindPod(ctx, v.store, namespace, name, r.from, r.to); err != nil {
			return nil, err
		}
		if j.ID == "" {
			return nil, fmt.Errorf("%w: no such pod in this period", errNone)
		}
	}
	if j.ID == "" {
		return nil, fmt.Errorf("%w: no id and no pod", errBad)
	}
	var records []queue.Record
	if v.log != nil {
		list, err := v.log.Events(ctx, events.Query{From: r.from, To: r.to, Names: queue.RecordNames(), Attributes: queue.RecordsOf(j), Limit: maxRecords})
		if err != nil {
			return nil, fmt.Errorf("cannot read events: %w", err)
		}
		for _, e := range list {
			records = append(records, queue.Record{Time: e.Time, Name: e.Name, Attributes: e.Attributes})
		}
	}
	list, err := queue.Timeline(ctx, v.store, j, records, r.from, r.to)
	if err != nil {
		return nil, err
	}
	a := timelineAnswer{Scheduler: j.Scheduler, ID: j.ID, Moments: []jobMoment{}}
	for _, m := range list {
		moment := jobMoment{Time: m.Time.UnixMilli(), What: string(m.What), Text: m.Text}
		if m.What == queue.AtWaits {
			moment.Because = queue.Because(m.Text)
		}
		a.Moments = append(a.Moments, moment)
	}
	return a, nil
}
