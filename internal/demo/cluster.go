//go:build linux

package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/simulated"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver"
)

const teamLabel = local.DefaultTeamLabel

// script returns the Kubernetes cluster of a fleet that was booted at start: its machines are the nodes, the tenants of their
// devices are pods with the times at which these devices change hands, and other pods wait.
func script(fleet []Machine, start time.Time) (*simulated.Cluster, error) {
	c := &simulated.Cluster{Start: start}
	for _, m := range fleet {
		if m.Labels["k8s.node.name"] == "" {
			continue // of Slurm
		}
		if err := addNode(c, m); err != nil {
			return nil, err
		}
	}
	if len(c.Nodes) > 0 {
		c.Pods = append(c.Pods, queue()...)
	}
	return c, nil
}

// addNode adds a machine and the pods that have its devices.
func addNode(c *simulated.Cluster, m Machine) error {
	cfg := sim.Config{Groups: m.Groups, Seed: hash(m.Host), Start: c.Start}
	resources, err := resourcesOf(cfg)
	if err != nil {
		return err
	}
	n := simulated.Node{Name: m.Host, Labels: map[string]string{}, Devices: map[string]int64{}, CPUs: 96, Memory: 1024}
	for _, resource := range resources {
		n.Devices[resource]++
	}
	for _, g := range m.Groups {
		if o, _ := sim.OfferOf(g.Model); o.Label != "" {
			n.Labels[o.Label] = o.Product
		}
	}
	c.Nodes = append(c.Nodes, n)
	tenants, err := sim.Tenants(cfg)
	if err != nil {
		return err
	}
	pods := map[string]*simulated.Pod{} // by UID
	for _, t := range tenants {
		if t.Stolen || t.Pod.UID == "" {
			continue // the thief's own pod never asked for a device
		}
		p := pods[t.Pod.UID]
		if p == nil {
			p = podOf(t.Stay, m.Host)
			pods[t.Pod.UID] = p
		}
		ask := requestOf(t.Pod.Namespace, t.Pod.Owner)
		p.Devices[resources[t.Device]]++
		p.CPUs += ask.cpus
		p.Memory += ask.memory
	}
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		c.Pods = append(c.Pods, *pods[uid])
	}
	return nil
}

// podOf returns the pod of a tenant, without devices.
func podOf(s sim.Stay, node string) *simulated.Pod {
	ask := requestOf(s.Pod.Namespace, s.Pod.Owner)
	p := &simulated.Pod{
		Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: s.Pod.UID, Kind: s.Pod.Kind, Owner: s.Pod.Owner, Container: s.Pod.Container,
		Labels: map[string]string{teamLabel: s.Pod.Team}, Devices: map[string]int64{},
		Node: node, Placed: s.From, Started: s.From + ask.starts, Ended: s.Until, Created: s.From - ask.waited - ask.gated,
	}
	if ask.gated > 0 {
		p.Gate, p.Released = admission, p.Created+ask.gated
	}
	var test int
	if _, err := fmt.Sscanf(p.Name, "kernel-tests-%d-0", &test); err == nil {
		p.Created, p.Started = created(test), s.From+20*time.Second
	}
	return p
}

// resourcesOf returns the resource as which each device and partition of a node is offered, by ID.
func resourcesOf(cfg sim.Config) (map[string]string, error) {
	out := map[string]string{}
	reader, err := sim.New(cfg)
	if err != nil {
		return nil, err
	}
	devices, err := reader.Devices(context.Background()) // of a simulated node: does not block
	if err != nil {
		return nil, err
	}
	var models []string // of the whole devices, in order
	for _, g := range cfg.Groups {
		for range g.Devices {
			models = append(models, g.Model)
		}
	}
	at := 0
	var whole sim.Offer
	for _, d := range devices {
		id := d.ID()
		if id.Parent == "" {
			if whole, err = offer(models[at]); err != nil {
				return nil, err
			}
			out[id.UUID] = whole.Resource
			at++
			continue
		}
		delete(out, id.Parent) // offered in parts, which follow their parent
		out[id.UUID] = whole.Part(id.Profile)
	}
	return out, nil
}

// offer returns how Kubernetes knows the devices of a model.
func offer(model string) (sim.Offer, error) {
	o, ok := sim.OfferOf(model)
	if !ok {
		return o, fmt.Errorf("the demo's cluster does not know as what %s is offered", model)
	}
	return o, nil
}

// elected is the receiver of an elected agent that watches the simulated cluster.
type elected struct {
	receiver receiver.Metrics
	rounds   chan time.Time
	told     chan struct{} // after each round
}

// newScheduler returns the scheduler of a fleet, or nil if none of its machines belongs to Kubernetes. Its counts begin at began.
func newScheduler(fleet []Machine, start, began time.Time, to Sink, log *zap.Logger) (*elected, error) {
	c, err := script(fleet, start)
	if err != nil || len(c.Nodes) == 0 {
		return nil, err
	}
	s := &elected{rounds: make(chan time.Time), told: make(chan struct{})}
	f := schedulerreceiver.NewFactoryWithCluster(simulated.NewWatch(c, local.Vendors(), teamLabel), began, s.rounds)
	set := receiver.Settings{ID: component.NewID(f.Type()), TelemetrySettings: component.TelemetrySettings{
		Logger: log, MeterProvider: noopmetric.NewMeterProvider(), TracerProvider: nooptrace.NewTracerProvider(),
	}}
	cfg := f.CreateDefaultConfig().(*schedulerreceiver.Config)
	cfg.Kubernetes.Cluster = "demo"
	metrics, err := s.called(to.metrics)
	if err != nil {
		return nil, err
	}
	ctx := context.Background() // nothing below blocks
	if s.receiver, err = f.CreateMetrics(ctx, set, cfg, metrics); err != nil {
		return nil, err
	}
	if to.logs != nil {
		logs, err := simulatedLogs(to.logs)
		if err != nil {
			return nil, err
		}
		if _, err := f.CreateLogs(ctx, set, cfg, logs); err != nil { // the same receiver
			return nil, err
		}
	}
	return s, s.receiver.Start(ctx, nil)
}

// tick makes the receiver report the cluster as of a moment.
func (s *elected) tick(at time.Time) {
	if s != nil {
		s.rounds <- at
		<-s.told
	}
}

// Close shuts down the receiver.
func (s *elected) Close() error {
	if s == nil {
		return nil
	}
	return s.receiver.Shutdown(context.Background())
}

// called calls everything simulated, as the gpu receiver does with what a simulated node sends. A round of the only process
// that watches is never empty: it reports at least that it watches.
func (s *elected) called(to consumer.Metrics) (consumer.Metrics, error) {
	return consumer.NewMetrics(func(ctx context.Context, md pmetric.Metrics) error {
		defer func() { s.told <- struct{}{} }()
		for _, rm := range md.ResourceMetrics().All() {
			rm.Resource().Attributes().PutBool("gpumeter.simulated", true)
		}
		return to.ConsumeMetrics(ctx, md)
	}, consumer.WithCapabilities(consumer.Capabilities{MutatesData: true}))
}

// simulatedLogs calls all records simulated.
func simulatedLogs(to consumer.Logs) (consumer.Logs, error) {
	return consumer.NewLogs(func(ctx context.Context, ld plog.Logs) error {
		for _, rl := range ld.ResourceLogs().All() {
			rl.Resource().Attributes().PutBool("gpumeter.simulated", true)
		}
		return to.ConsumeLogs(ctx, ld)
	}, consumer.WithCapabilities(consumer.Capabilities{MutatesData: true}))
}
