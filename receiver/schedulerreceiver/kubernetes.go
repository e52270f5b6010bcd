package schedulerreceiver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/live"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// KubernetesConfig configures how the pods and nodes of a Kubernetes cluster are watched.
type KubernetesConfig struct {
	// Interval is how often metrics are reported. The API server sends changes as they happen.
	Interval time.Duration `mapstructure:"interval"`
	// Cluster is the value of scheduler.cluster. The API does not know the name of a cluster.
	Cluster string `mapstructure:"cluster"`
	// Kubeconfig is the path of a kubeconfig file. Empty: the service account of the pod.
	Kubeconfig string `mapstructure:"kubeconfig"`
	// TeamLabel is the key of the pod label that names the team.
	TeamLabel string `mapstructure:"team_label"`
	// Lease is the name of the Lease that elects who watches, as NAME, in the namespace of the pod, or NAMESPACE/NAME.
	Lease string `mapstructure:"lease"`
	// MaxSeries bounds the groups in which pods are counted, as for Slurm.
	MaxSeries int `mapstructure:"max_series"`
}

// Validate implements component.ConfigValidator.
func (c *KubernetesConfig) Validate() error {
	var errs []error
	if c.Interval < time.Second {
		errs = append(errs, fmt.Errorf("interval must be at least 1s, is %s", c.Interval))
	}
	if l := c.lease(); l.Name == "" || strings.Contains(l.Name, "/") {
		errs = append(errs, fmt.Errorf("lease must be NAME or NAMESPACE/NAME, is %q", c.Lease))
	}
	if c.MaxSeries < 10 {
		errs = append(errs, fmt.Errorf("max_series must be at least 10, is %d", c.MaxSeries))
	}
	return errors.Join(errs...)
}

// lease returns the Lease without an identity.
func (c *KubernetesConfig) lease() kubeapi.Lease {
	if namespace, name, ok := strings.Cut(c.Lease, "/"); ok {
		return kubeapi.Lease{Namespace: namespace, Name: name}
	}
	return kubeapi.Lease{Name: c.Lease}
}

// Cluster is where a receiver looks at the pods and nodes of a Kubernetes cluster.
type Cluster interface {
	// Run keeps what is known current until ctx is done.
	Run(ctx context.Context)
	View(now time.Time) live.View
	// Events returns what happened to pods since the last call.
	Events() []kube.Event
}

// kubernetesReceiver reports what a Cluster knows.
type kubernetesReceiver struct {
	cfg      *Config
	set      receiver.Settings
	next     consumer.Metrics // nil: none
	logs     consumer.Logs    // nil: none
	forget   func()
	watcher  Cluster
	rounds   <-chan time.Time // nil: a clock of the configured interval
	identity string
	queues   *queues // nil: no pages are read
	mb       *metadata.MetricsBuilder
	began    time.Time
	// shown remembers gauges only. The subjects of histograms do not disappear.
	shown series.Memory

	start, stop sync.Once
	cancel      context.CancelFunc
	done        sync.WaitGroup

	untold []kube.Event // that the pipeline refused
	lost   int          // events that were too many, and that the log does not name yet

	// What was logged last.
	role, trouble, noWaits, denied string
	dropped, untellable            bool // objects were refused, or events
	refused                        bool // the pipeline refused the last batch
	refusedLogs                    bool
}

func newKubernetes(cfg *Config, set receiver.Settings, forget func()) (*kubernetesReceiver, error) {
	api, err := kubeapi.Open(cfg.Kubernetes.Kubeconfig)
	if errors.Is(err, kubeapi.ErrNotInCluster) {
		return nil, errors.New("no Kubernetes API server: set kubernetes::kubeconfig or, for the agent, --kubeconfig, or run in a pod")
	}
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	lease := cfg.Kubernetes.lease()
	lease.Identity = host + "_" + rand.Text()[:10] // two processes of a machine are two
	watcher := live.NewWatcher(api, live.Config{Vendors: local.Vendors(), TeamLabel: cfg.Kubernetes.TeamLabel, Lease: lease})
	r := newReporter(cfg, set, watcher, time.Now())
	r.identity, r.forget = lease.Identity, forget
	r.queues = newQueues(cfg, cfg.Kubernetes.Cluster, set, nil, api)
	return r, nil
}

// newReporter returns a receiver that reports a cluster, with counts since began.
func newReporter(cfg *Config, set receiver.Settings, from Cluster, began time.Time) *kubernetesReceiver {
	return &kubernetesReceiver{
		cfg: cfg, set: set, began: began, watcher: from,
		mb:    metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		shown: series.Memory{Only: func(m pmetric.Metric) bool { return !series.Cumulative(m) }},
	}
}

// to implements reporter.
func (r *kubernetesReceiver) to(metrics consumer.Metrics, logs consumer.Logs) {
	if metrics != nil {
		r.next = metrics
		if r.queues != nil {
			r.queues.next = metrics
		}
	}
	if logs != nil {
		r.logs = logs
	}
}

// Start implements component.Component. It is called once per pipeline.
func (r *kubernetesReceiver) Start(context.Context, component.Host) error {
	r.start.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		r.done.Go(func() { r.watcher.Run(ctx) })
		if r.queues != nil {
			r.done.Go(func() { r.queues.run(ctx) })
		}
		r.done.Go(func() { r.run(ctx) })
	})
	return nil
}

func (r *kubernetesReceiver) run(ctx context.Context) {
	rounds := r.rounds
	if rounds == nil {
		clock := time.NewTicker(r.cfg.Kubernetes.Interval)
		defer clock.Stop()
		rounds = clock.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-rounds:
			r.round(ctx, now)
		}
	}
}

// Shutdown implements component.Component. It is called once per pipeline; the first call stops everything, and gives up
// the Lease.
func (r *kubernetesReceiver) Shutdown(context.Context) error {
	r.stop.Do(func() {
		r.forget()
		if r.cancel != nil {
			r.cancel()
			r.done.Wait()
		}
	})
	return nil
}

func (r *kubernetesReceiver) round(ctx context.Context, now time.Time) {
	v := r.watcher.View(now)
	r.say(v)
	r.tell(ctx, now)
	if r.next == nil {
		return
	}
	if r.queues != nil {
		r.queues.remind(v.Leads)
	}
	md := r.emit(v, now)
	if md.DataPointCount() == 0 {
		return
	}
	err := r.next.ConsumeMetrics(ctx, md)
	if refused := err != nil; refused != r.refused && ctx.Err() == nil {
		if r.refused = refused; refused {
			r.set.Logger.Error("The pipeline refuses metrics of Kubernetes", zap.Error(err))
		} else {
			r.set.Logger.Info("The pipeline accepts metrics of Kubernetes again")
		}
	}
}

// say logs what has changed: who watches, and what is missing.
func (r *kubernetesReceiver) say(v live.View) {
	role := "waits"
	if v.Leads {
		role = "watches"
	}
	if role += " " + v.Holder; role != r.role && (v.Leads || v.Holder != "") {
		r.role = role
		if v.Leads {
			r.set.Logger.Info("This process watches the Kubernetes cluster")
		} else {
			r.set.Logger.Info("Another process watches the Kubernetes cluster", zap.String("holder", v.Holder))
		}
	}
	if text := errText(v.Err); text != r.trouble {
		if r.trouble = text; text == "" {
			r.set.Logger.Info("Requests to the Kubernetes API succeed again")
		} else {
			r.set.Logger.Warn("Some requests to the Kubernetes API failed", zap.String("reason", text))
		}
	}
	if text := errText(v.NoWaits); v.Leads && text != r.noWaits {
		if r.noWaits = text; text == "" {
			r.set.Logger.Info("The times that pods waited are complete again")
		} else {
			r.set.Logger.Warn("Some times that pods waited are missing", zap.String("reason", text))
		}
	}
	if text := errText(v.Denied); v.Leads && text != r.denied {
		if r.denied = text; text == "" {
			r.set.Logger.Info("All objects of the Kubernetes API that explain more may be watched now")
		} else {
			r.set.Logger.Warn("Some objects of the Kubernetes API may not be watched, and what they would tell is absent", zap.String("reason", text))
		}
	}
	if v.Snapshot == nil {
		return
	}
	if untellable := v.Snapshot.Untold > 0; untellable != r.untellable {
		if r.untellable = untellable; untellable {
			r.set.Logger.Warn(leftOutEvents, zap.Int("left_out", v.Snapshot.Untold))
		}
	}
	if dropped := v.Snapshot.Refused > 0; dropped != r.dropped {
		if r.dropped = dropped; dropped {
			r.set.Logger.Warn("Left out objects of the Kubernetes API that are beyond a limit or not understood", zap.Int("left_out", v.Snapshot.Refused))
		}
	}
}

// emit returns the metrics of a round. A process that does not watch has none, but says if nobody can.
func (r *kubernetesReceiver) emit(v live.View, now time.Time) pmetric.Metrics {
	w := &words{r.mb, pcommon.NewTimestampFromTime(now), r.cfg.Kubernetes.Cluster, kubernetesKind}
	switch alone := v.Holder == "" || v.Holder == r.identity; {
	case v.Snapshot != nil:
		w.up(v.Err == nil)
		w.jobs(v.Snapshot.Counts(), r.cfg.Kubernetes.MaxSeries)
		w.waiting(v.Snapshot.Waiting())
		w.claims(v.Snapshot.Claims, v.Snapshot.Claimed)
		w.groups(v.Snapshot.Groups, r.cfg.Kubernetes.MaxSeries)
		if v.Snapshot.Nodes != nil {
			w.room(v.Snapshot.Room(v.Snapshot.Reference()))
		}
	case v.Err != nil && (v.Leads || alone):
		w.up(false)
	}
	w.evicted(v.Waits.Evicted)
	rb := metadata.NewResourceBuilder(r.cfg.ResourceAttributes)
	rb.SetServiceName("gpumeter")
	md := r.mb.Emit(metadata.WithResource(rb.Emit()))
	for m := range series.Metrics(md) {
		began := r.began
		if m.Name() == evictedName {
			began = r.since(v)
		}
		for p := range series.Points(m) {
			series.Start(m, p, began)
		}
	}
	if md.ResourceMetrics().Len() == 0 { // the last series may have to end
		rb.SetServiceName("gpumeter")
		rm := md.ResourceMetrics().AppendEmpty()
		rb.Emit().MoveTo(rm.Resource())
		rm.ScopeMetrics().AppendEmpty().Scope().SetName(metadata.ScopeName)
	}
	put(md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics(), w.waits(v.Waits), r.since(v), w.ts)
	r.shown.End(md, w.ts)
	return md
}

// since returns when the counts of a View began: before this process did if it continues those of another.
func (r *kubernetesReceiver) since(v live.View) time.Time {
	if v.Waits.Since.IsZero() {
		return r.began
	}
	return v.Waits.Since
}
