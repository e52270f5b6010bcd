// Package serving is the model of the reading side of inference engines: it derives from a store of time series what
// each workload serves of a model, on which devices, and how many tokens its engines counted.
//
//   - At returns what is served at one moment: latencies, tokens, queue and cache beside what the devices do;
//   - TokenReader reads what engines counted in a period, exactly: bills follow from it.
//
// Names of series and labels, owners and devices are those of package fleet.
package serving

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Row is what a workload serves of a model at one moment, and what its devices do meanwhile. What
// routers and gateways see of the same requests is not part of it.
type Row struct {
	Model     string      // empty if no engine says which
	Providers []string    // the engines, such as vllm, in order
	Owner     fleet.Owner // zero if it is unknown

	Engines int // that are known
	Up      int // whose page could be read
	Devices []EngineDevice

	Running, Waiting optional.Float     // requests
	Finished         map[string]float64 // requests per second by outcome; nil if nothing counts them
	In, Out          optional.Float     // tokens per second

	FirstToken Quantiles // time to the first token
	PerToken   Quantiles // time per output token after the first
	InterToken Quantiles // time between two tokens, of engines that measure each token
	Request    Quantiles // time from the arrival of a request to its end
	Queue      Quantiles // time that a request waited

	Cache optional.Float // use of the key-value cache, 0 to 1: of the rank that has the least left
	Hits  optional.Float // part of the looked-up tokens that the prefix cache of the GPU had, 0 to 1

	// The devices of the engines over the same window, partitions by what they report themselves. A device
	// that several rows share is in each of them, as a whole.
	SM, Tensor, Utilization optional.Float // mean over Devices, 0 to 1
	Memory, Power           optional.Float // sum over Devices: bytes, watts
}

// EngineDevice is a device, or a partition of one, that an engine works on.
type EngineDevice struct {
	Device    string // DeviceKey
	UUID      string // of the device
	Partition string // ID; empty for the whole device
	Profile   string // of the partition
	Index     string
	Model     string // of the device
	Host      string
	Node      string // its display name
}

// servingLabels tell rows apart, engineLabels also engines.
var (
	servingLabels = strings.Join([]string{fleet.LabelServedModel, fleet.LabelProvider, fleet.OwnerLabels()}, ", ")
	engineLabels  = strings.Join([]string{fleet.LabelHost, fleet.LabelEngine, servingLabels}, ", ")
	deviceLabels  = strings.Join([]string{engineLabels, fleet.LabelNode, fleet.LabelUUID, fleet.LabelVendor, fleet.LabelModel, fleet.LabelIndex, fleet.LabelPartition, fleet.LabelPartitionProfile}, ", ")
)

// EngineLabels returns the labels that tell apart what each engine says about a model for a workload, separated by commas.
func EngineLabels() string { return engineLabels }

// Window is the time over which pages and reports have rates and quantiles: agents read at least once in it.
const Window = 5 * time.Minute

// serving collects rows.
type serving struct {
	match   []string
	rows    map[rowKey]*servedRow
	engines map[Engine]*served // by engine
	window  string
	asks    []ask
}

// rowKey identifies a row. Workloads of two teams, and processes of two users, may have one ID.
type rowKey struct{ model, owner, team, user string }

// ask is a question, and what to do with each value of the answer.
type ask struct {
	expr string
	take func(query.Sample)
}

// servedRow is a row under construction.
type servedRow struct {
	Row

	first, perToken, interToken, request, queue buckets
	hits, lookups                               optional.Float
	providers                                   map[string]bool
	units                                       map[unitKey]EngineDevice
}

// served is an engine under construction.
type served struct {
	rows  map[*servedRow]bool // with requests or tokens of a model
	owner query.Labels
	known bool // there is a reading of its page, or an attempt
	up    bool
	units map[unitKey]EngineDevice
}

// At returns what the inference engines of a store serve at a moment, ordered by model and owner. Rates and
// quantiles are those of a window before it. PromQL matchers may select engines.
func At(ctx context.Context, store query.Store, at time.Time, window time.Duration, match ...string) ([]Row, error) {
	s := &serving{match: match, rows: map[rowKey]*servedRow{}, engines: map[Engine]*served{}, window: query.Duration(window)}
	s.engine()
	if err := s.run(ctx, store, at); err != nil || len(s.engines) == 0 {
		return []Row{}, err
	}
	s.requests()
	s.histogram(fleet.HistogramFirstToken, func(x *servedRow) *buckets { return &x.first })
	s.histogram(fleet.HistogramPerToken, func(x *servedRow) *buckets { return &x.perToken })
	s.histogram(fleet.HistogramInterToken, func(x *servedRow) *buckets { return &x.interToken }, fleet.Equals(fleet.LabelWeight, fleet.WeightToken))
	s.histogram(fleet.HistogramRequest, func(x *servedRow) *buckets { return &x.request })
	s.histogram(fleet.HistogramQueue, func(x *servedRow) *buckets { return &x.queue })
	if err := s.run(ctx, store, at); err != nil {
		return nil, err
	}
	s.assign()
	if err := s.devices(ctx, store, at, window); err != nil {
		return nil, err
	}
	return s.finish(), nil
}

// run asks what was not asked yet.
func (s *serving) run(ctx context.Context, store query.Store, at time.Time) error {
	exprs := make([]string, len(s.asks))
	for i, a := range s.asks {
		exprs[i] = a.expr
	}
	answers, err := query.Instants(ctx, store, at, exprs...)
	if err != nil {
		return err
	}
	for i, list := range answers {
		for _, x := range list {
			if !math.IsNaN(x.Value) {
				s.asks[i].take(x)
			}
		}
	}
	s.asks = nil
	return nil
}

func (s *serving) ask(expr string, take func(query.Sample)) { s.asks = append(s.asks, ask{expr, take}) }

// row returns the row of a series.
func (s *serving) row(l query.Labels) *servedRow {
	owner, _ := fleet.OwnerOf(l)
	key := rowKey{l[fleet.LabelServedModel], owner.ID, owner.Team, owner.User}
	x := s.rows[key]
	if x == nil {
		x = &servedRow{
			Row: Row{Model: key.model, Owner: owner}, providers: map[string]bool{}, units: map[unitKey]EngineDevice{},
			first: buckets{}, perToken: buckets{}, interToken: buckets{}, request: buckets{}, queue: buckets{},
		}
		s.rows[key] = x
	}
	if p := l[fleet.LabelProvider]; p != "" {
		x.providers[p] = true
	}
	return x
}

func (s *serving) engineOf(l query.Labels) *served {
	e := engineOf(l)
	x := s.engines[e]
	if x == nil {
		x = &served{rows: map[*servedRow]bool{}, units: map[unitKey]EngineDevice{}, owner: l}
		s.engines[e] = x
	}
	if l[fleet.LabelServedModel] != "" {
		x.rows[s.row(l)] = true
	}
	return x
}

// of selects a series of the engines.
func (s *serving) of(series string, match ...string) string {
	return fleet.Select(series, nil, slices.Concat(s.match, match)...)
}

// engine asks for the engines and their devices.
func (s *serving) engine() {
	s.ask("max by ("+engineLabels+") ("+s.of(fleet.SeriesEngineUp)+")", func(v query.Sample) {
		x := s.engineOf(v.Labels)
		x.known, x.up, x.owner = true, x.up || v.Value > 0, v.Labels
	})
	s.ask("max by ("+deviceLabels+") ("+s.of(fleet.SeriesEngineDevice)+")", func(v query.Sample) {
		l := v.Labels
		d := EngineDevice{fleet.DeviceKey(l), l[fleet.LabelUUID], l[fleet.LabelPartition], l[fleet.LabelPartitionProfile], l[fleet.LabelIndex], l[fleet.LabelModel], l[fleet.LabelHost], fleet.NodeOf(l)}
		if d.Device == "" || !(v.Value > 0) {
			return
		}
		units := s.engineOf(l).units
		// On another way to the store a label may be missing.
		if known, ok := units[d.key()]; !ok || known.Node == known.Host {
			units[d.key()] = d
		}
	})
	named := strings.Join([]string{fleet.SeriesTokensOut, fleet.SeriesTokensIn, fleet.SeriesFinished, fleet.SeriesKVCache}, "|")
	s.ask("group by ("+engineLabels+") ("+s.of("", fleet.LabelName+`=~"`+named+`"`)+")", func(v query.Sample) { s.engineOf(v.Labels).rows[s.row(v.Labels)] = true })
}

// requests asks for requests, tokens and caches. Each series counts once, whatever its ways to the store.
func (s *serving) requests() {
	s.ask("sum by ("+engineLabels+", "+fleet.LabelState+") "+fleet.Once(s.of(fleet.SeriesRequests)), func(v query.Sample) {
		x := s.row(v.Labels)
		s.engineOf(v.Labels).rows[x] = true
		switch v.Labels[fleet.LabelState] {
		case fleet.StateRunning:
			x.Running = plus(x.Running, v.Value)
		case fleet.StateWaiting:
			x.Waiting = plus(x.Waiting, v.Value)
		}
	})
	s.ask(s.rate(s.of(fleet.SeriesFinished), fleet.LabelOutcome), func(v query.Sample) {
		x := s.row(v.Labels)
		if x.Finished == nil {
			x.Finished = map[string]float64{}
		}
		x.Finished[v.Labels[fleet.LabelOutcome]] += v.Value
	})
	for series, field := range map[string]func(*servedRow) *optional.Float{
		s.of(fleet.SeriesTokensIn):  func(x *servedRow) *optional.Float { return &x.In },
		s.of(fleet.SeriesTokensOut): func(x *servedRow) *optional.Float { return &x.Out },
		s.of(fleet.SeriesPrefixHits, fleet.Equals(fleet.LabelTier, fleet.TierGPU)):    func(x *servedRow) *optional.Float { return &x.hits },
		s.of(fleet.SeriesPrefixQueries, fleet.Equals(fleet.LabelTier, fleet.TierGPU)): func(x *servedRow) *optional.Float { return &x.lookups },
	} {
		s.ask(s.rate(series), func(v query.Sample) {
			f := field(s.row(v.Labels))
			*f = plus(*f, v.Value)
		})
	}
	s.ask("max by ("+servingLabels+") ("+s.of(fleet.SeriesKVCache, fleet.Equals(fleet.LabelTier, fleet.TierGPU))+")", func(v query.Sample) {
		x := s.row(v.Labels)
		if used, ok := x.Cache.Get(); !ok || v.Value > used {
			x.Cache = optional.Of(v.Value)
		}
	})
}

// rate returns the expression for the rate of a counter by row and further labels.
func (s *serving) rate(selector string, more ...string) string {
	return "sum by (" + strings.Join(append([]string{servingLabels}, more...), ", ") + ") " + fleet.Once(fleet.Over("rate", selector, s.window))
}

// histogram asks for the buckets of a histogram.
func (s *serving) histogram(name string, of func(*servedRow) *buckets, match ...string) {
	sum := s.rate(s.of(fleet.Buckets(name), append(match, fleet.OfEngines)...), fleet.LabelBucket)
	for expr, series := range map[string]bool{sum: false, "count" + strings.TrimPrefix(sum, "sum"): true} {
		s.ask(expr, func(v query.Sample) { of(s.row(v.Labels)).put(v.Labels[fleet.LabelBucket], v.Value, series) })
	}
}

func plus(sum optional.Float, v float64) optional.Float { return optional.Of(sum.Default(0) + v) }

// assign gives engines to their rows. An engine that names no model, as one that is down, belongs to the
// only model of its workload.
func (s *serving) assign() {
	for _, e := range slices.SortedFunc(maps.Keys(s.engines), Engine.Compare) {
		x := s.engines[e]
		if len(x.rows) == 0 {
			x.rows[s.sole(x.owner)] = true
		}
		for row := range x.rows {
			if x.known {
				row.Engines++
			}
			if x.up {
				row.Up++
			}
			maps.Copy(row.units, x.units)
		}
	}
}

// sole returns the only row of a workload, or the one without a model.
func (s *serving) sole(l query.Labels) *servedRow {
	owner, _ := fleet.OwnerOf(l)
	var found []*servedRow
	for _, x := range s.rows {
		if x.Owner.ID == owner.ID && x.Owner.Team == owner.Team && x.Owner.User == owner.User && x.Model != "" {
			found = append(found, x)
		}
	}
	if len(found) == 1 && owner.ID != "" {
		if p := l[fleet.LabelProvider]; p != "" {
			found[0].providers[p] = true
		}
		return found[0]
	}
	return s.row(l)
}

// finish returns the rows in order.
func (s *serving) finish() []Row {
	out := make([]Row, 0, len(s.rows))
	for _, x := range s.rows {
		x.Providers = slices.Sorted(maps.Keys(x.providers))
		x.FirstToken, x.PerToken, x.InterToken, x.Request, x.Queue = x.first.quantiles(), x.perToken.quantiles(), x.interToken.quantiles(), x.request.quantiles(), x.queue.quantiles()
		x.Hits = x.hits.Ratio(x.lookups)
		out = append(out, x.Row)
	}
	slices.SortFunc(out, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Owner.ID, b.Owner.ID), cmp.Compare(a.Owner.Team, b.Owner.Team), cmp.Compare(a.Owner.User, b.Owner.User))
	})
	return out
}
