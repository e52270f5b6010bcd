package view

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
)

// queueAnswer is what waits now, in front of which free devices, and how long jobs waited in the period.
type queueAnswer struct {
	At        int64         `json:"at"`
	From      int64         `json:"from"`
	To        int64         `json:"to"`
	Currency  string        `json:"currency,omitempty"`
	Simulated simulation    `json:"simulated"`
	Clusters  []queueSource `json:"clusters"`
	Pools     []queuePool   `json:"pools"`
	Jobs      []queueJob    `json:"jobs"`
	Teams     []queueTeam   `json:"teams"`
	Queues    []queueShare  `json:"queues"`
	Waits     []queueWait   `json:"waits"`
	// Missed is what was free in the period while jobs waited for it.
	Missed missed `json:"missed"`
}

// missed is device time that nobody had although jobs waited for it.
type missed struct {
	Time number `json:"time"` // device seconds
	Cost number `json:"cost"` // at today's rates; null without a price
}

// queueSource is a scheduler of a cluster.
type queueSource struct {
	Cluster   string `json:"cluster"`
	Scheduler string `json:"scheduler"`
	Up        *bool  `json:"up"`      // null: not known
	Waiting   number `json:"waiting"` // jobs
	GPUs      number `json:"gpus"`    // that they ask for
	Unusable  number `json:"unusable"`
}

// queuePool is the devices of one model in one cluster.
type queuePool struct {
	Cluster   string             `json:"cluster"`
	Model     string             `json:"model"` // short name; empty if the scheduler names none
	All       number             `json:"all"`
	Allocated number             `json:"allocated"`
	Free      number             `json:"free"`
	Drained   number             `json:"drained"`
	Down      number             `json:"down"`
	Pending   number             `json:"pending"`
	Blocked   number             `json:"blocked"`
	PerDay    number             `json:"perDay"` // what the blocked devices cost
	Stranded  map[string]float64 `json:"stranded"`
	Placeable map[int]float64    `json:"placeable"`
}

type queueJob struct {
	Cluster   string `json:"cluster"`
	Scheduler string `json:"scheduler"`
	Queue     string `json:"queue"`
	Team      string `json:"team,omitempty"`
	ID        string `json:"id"`
	Name      string `json:"name"`
	Model     string `json:"model,omitempty"`
	Reason    string `json:"reason"`
	Because   string `json:"because"`
	GPUs      number `json:"gpus"`
	Seconds   number `json:"seconds"` // absent: the jobs beyond the limit, together
	Free      number `json:"free"`    // devices of its model, of all models if it names none; null if no device is known
}

// queueTeam is what a team asks for, has and uses.
type queueTeam struct {
	Team    string `json:"team"`
	Asked   number `json:"asked"` // has and waits for
	Given   number `json:"given"`
	Waiting number `json:"waiting"`
	Busy    number `json:"busy"` // device equivalents, as measured
	Idle    int    `json:"idle"` // devices unused for fleet.IdleAfter
	Quota   number `json:"quota"`
}

// queueShare is a queue as its queueing system counts it.
type queueShare struct {
	Cluster   string `json:"cluster"`
	Scheduler string `json:"scheduler"`
	Queue     string `json:"queue"`
	Team      string `json:"team,omitempty"`
	Model     string `json:"model,omitempty"`
	Used      number `json:"used"`
	Nominal   number `json:"nominal"`
	Limit     number `json:"limit"`
	Borrowed  number `json:"borrowed"`
	Pending   number `json:"pending"`
	FairShare number `json:"fairShare"`
}

type queueWait struct {
	Cluster   string `json:"cluster"`
	Scheduler string `json:"scheduler"`
	Queue     string `json:"queue"`
	Jobs      number `json:"jobs"`
	Mean      number `json:"mean"` // seconds
	P50       number `json:"p50"`
	P95       number `json:"p95"`
	FirstWork number `json:"firstWork"` // the median
}

func (v *viewer) queuePage(ctx context.Context, r request) (any, error) {
	at := r.at.Truncate(freshness)
	clusters, err := v.queues.get(ctx, at.Unix(), v.opts.Now(), freshness, func(ctx context.Context) ([]queue.Cluster, error) { return queue.At(ctx, v.store, at) })
	if err != nil {
		return nil, fmt.Errorf("cannot read the queues: %w", err)
	}
	waits, err := v.waits.get(ctx, span{r.from.Unix() / 60, r.to.Unix() / 60}, v.opts.Now(), 12*freshness, func(ctx context.Context) ([]queue.Wait, error) {
		return queue.Waits(ctx, v.store, r.from, r.to)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read how long jobs waited: %w", err)
	}
	blocked, err := v.blocked.get(ctx, span{r.from.Unix() / 60, r.to.Unix() / 60}, v.opts.Now(), 12*freshness, func(ctx context.Context) ([]queue.Blocked, error) {
		return queue.BlockedIn(ctx, v.store, r.from, r.to)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read what was free meanwhile: %w", err)
	}
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	a := queueAnswer{
		At: r.at.Unix(), From: r.from.Unix(), To: r.to.Unix(), Currency: v.accounts.Currency, Simulated: simulationOf(f, nil),
		Clusters: []queueSource{}, Pools: []queuePool{}, Jobs: []queueJob{}, Queues: []queueShare{}, Waits: make([]queueWait, 0, len(waits)),
	}
	prices := queue.RatesOf(f)
	for i := range clusters {
		v.addCluster(&a, &clusters[i], prices)
	}
	a.Missed.Cost = number(absent)
	for _, b := range blocked {
		a.Missed.Time += number(b.Seconds)
		if rate, ok := prices.Of(b.Model).Get(); ok {
			if math.IsNaN(float64(a.Missed.Cost)) {
				a.Missed.Cost = 0
			}
			a.Missed.Cost += number(rate * b.Seconds / 3600)
		}
	}
	slices.SortStableFunc(a.Jobs, func(x, y queueJob) int { return cmp.Compare(y.Seconds, x.Seconds) }) // NaN sorts last
	for _, w := range waits {
		a.Waits = append(a.Waits, queueWait{w.Cluster, w.Scheduler, w.Queue, number(w.Jobs), number(float(w.Mean)), number(float(w.P50)), number(float(w.P95)), number(float(w.FirstWork))})
	}
	if a.Teams, err = v.queueTeams(ctx, r, clusters, f); err != nil {
		return nil, err
	}
	return a, nil
}

// addCluster adds what one scheduler says.
func (v *viewer) addCluster(a *queueAnswer, c *queue.Cluster, prices queue.Rates) {
	pools := c.Pools()
	if c.Any() {
		all := func(queue.Key) bool { return true }
		source := queueSource{c.Name, c.Scheduler, nil, number(queue.Sum(c.PendingJobs, all)), number(queue.Sum(c.Pending, all)), number(float(c.Unusable))}
		if c.Up.OK() {
			source.Up = new(!c.Down())
		}
		a.Clusters = append(a.Clusters, source)
	}
	free := map[string]float64{}
	for _, p := range pools {
		free[p.Model] += p.Free
		row := queuePool{
			Cluster: c.Name, Model: v.opts.shortModel(queue.Spoken(p.Model)), All: number(p.All), Allocated: number(p.Allocated), Free: number(p.Free), Drained: number(p.Drained), Down: number(p.Down),
			Pending: number(p.Pending), Blocked: number(p.Blocked), PerDay: number(float(prices.Of(p.Model).Scale(24 * p.Blocked))), Stranded: map[string]float64{}, Placeable: map[int]float64{},
		}
		for _, n := range p.Stranded {
			row.Stranded[n.Cause] = n.N
		}
		for _, n := range p.Placeable {
			row.Placeable[n.Size] = n.N
		}
		a.Pools = append(a.Pools, row)
	}
	all := 0.0
	for _, n := range free {
		all += n
	}
	for _, j := range c.Waiting {
		row := queueJob{
			Cluster: c.Name, Scheduler: c.Scheduler, Queue: j.Queue, Team: j.Team, ID: j.ID, Name: j.Name, Model: v.opts.shortModel(queue.Spoken(j.Model)), Reason: j.Reason,
			Because: queue.Because(j.Reason), GPUs: number(j.Devices), Seconds: number(float(j.Seconds)), Free: number(all),
		}
		switch {
		case len(pools) == 0: // as for a tenant
			row.Free = number(absent)
		case j.Model != "":
			row.Free = number(free[j.Model])
		}
		a.Jobs = append(a.Jobs, row)
	}
	for _, q := range c.Queues {
		a.Queues = append(a.Queues, queueShare{
			c.Name, c.Scheduler, q.Queue, q.Team, q.Model,
			number(float(q.Used)), number(float(q.Nominal)), number(float(q.Limit)), number(float(q.Borrowed)), number(float(q.Pending)), number(float(q.FairShare)),
		})
	}
}

// queueTeams returns what teams ask for, have and use.
func (v *viewer) queueTeams(ctx context.Context, r request, clusters []queue.Cluster, f *fleet.Fleet) ([]queueTeam, error) {
	holders, err := v.fleet.Holdings(ctx, f.At, "")
	if err != nil {
		return nil, err
	}
	teams := queue.Teams(clusters, f, holders)
	out, places := make([]queueTeam, 0, len(teams)), map[string]int{}
	for i, t := range teams {
		places[t.Team] = i
		out = append(out, queueTeam{t.Team, number(t.Given + t.Waiting), number(t.Given), number(t.Waiting), number(t.Busy), t.Idle, number(absent)})
	}
	if v.accounts.Quotas == nil || len(out) == 0 {
		return out, nil
	}
	quotas, err := v.accounts.Quotas(ctx, r.to.In(v.opts.Zone))
	if err != nil {
		return nil, fmt.Errorf("cannot read quotas: %w", err)
	}
	for _, q := range quotas {
		if i, ok := places[q.Team]; ok && q.What == limits["gpus"] && !(out[i].Quota <= q.Limit) { // the lowest counts
			out[i].Quota = q.Limit
		}
	}
	return out, nil
}
