//go:build bench

package attribution

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/bench/usage"
	"github.com/gpumeter/gpumeter/extension/gpuextension"
	"github.com/gpumeter/gpumeter/processor/workloadprocessor"
)

// newBatch returns the metrics of every pod of the node: one application each, with ten points. Both
// processors find the pod by its container.
func newBatch(t *testing.T) []byte {
	t.Helper()
	md := pmetric.NewMetrics()
	for i := range nodePods {
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("service.name", deployment(i))
		rm.Resource().Attributes().PutStr("container.id", containerID(i))
		metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
		for n := range 10 {
			m := metrics.AppendEmpty()
			m.SetName(fmt.Sprintf("app.metric.%d", n))
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetDoubleValue(1)
			dp.Attributes().PutStr("model", "llama")
			dp.Attributes().PutStr("phase", "decode")
			dp.Attributes().PutInt("rank", int64(n))
		}
	}
	b, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// result is the output of a contender. testdata/peer has the same type.
type result struct {
	Points, Allocs float64 // per second, per point
	// MiB: live heap after a garbage collection, and memory of the process before it.
	Heap, RSS, Anon float64
	Added           []string
}

func settings() component.TelemetrySettings {
	return component.TelemetrySettings{
		Logger: zap.NewNop(), MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider(), Resource: pcommon.NewResource(),
	}
}

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// contend is the child process: the View of the fake GPUs, and the processor.
func contend(batch string, length time.Duration) error {
	ctx := context.Background()
	ef := gpuextension.NewFactory()
	ec := ef.CreateDefaultConfig().(*gpuextension.Config)
	ec.HostName, ec.NVIDIALibrary = nodeName, *library
	ec.Workloads.KubeletSocket, ec.Workloads.Kubeconfig, ec.Workloads.Node = *socket, *config, nodeName
	ext, err := ef.Create(ctx, extension.Settings{ID: component.NewID(ef.Type()), TelemetrySettings: settings()}, ec)
	if err != nil {
		return err
	}
	h := host{component.NewID(ef.Type()): ext}
	if err := ext.Start(ctx, h); err != nil {
		return err
	}
	if err := ext.(extensioncapabilities.PipelineWatcher).Ready(); err != nil {
		return err
	}
	var last pmetric.Metrics
	next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		last = md
		return nil
	})
	if err != nil {
		return err
	}
	pf := workloadprocessor.NewFactory()
	p, err := pf.CreateMetrics(ctx, processor.Settings{ID: component.NewID(pf.Type()), TelemetrySettings: settings()}, pf.CreateDefaultConfig(), next)
	if err != nil {
		return err
	}
	if err := p.Start(ctx, h); err != nil {
		return err
	}
	r, err := measure(ctx, batch, length, p, func() pmetric.Metrics { return last })
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// measure feeds the batch to p for the given time, as testdata/peer does.
func measure(ctx context.Context, batch string, length time.Duration, p consumer.Metrics, last func() pmetric.Metrics) (result, error) {
	b, err := os.ReadFile(batch)
	if err != nil {
		return result{}, err
	}
	pattern, err := (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(b)
	if err != nil {
		return result{}, err
	}
	var r result
	// Owners are resolved at one per second: 16 deployments.
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		md := pmetric.NewMetrics()
		pattern.CopyTo(md)
		if err := p.ConsumeMetrics(ctx, md); err != nil {
			return result{}, err
		}
		if complete(last()) {
			break
		}
		if time.Now().After(end) {
			return result{}, errors.New("the processor does not know every pod after a minute")
		}
	}
	for key := range last().ResourceMetrics().At(0).Resource().Attributes().All() {
		if _, ok := pattern.ResourceMetrics().At(0).Resource().Attributes().Get(key); !ok {
			r.Added = append(r.Added, key)
		}
	}
	slices.Sort(r.Added)
	var before, after runtime.MemStats
	var spent time.Duration
	points, allocs := 0, uint64(0)
	for spent < length {
		md := pmetric.NewMetrics()
		pattern.CopyTo(md)
		runtime.ReadMemStats(&before)
		start := time.Now()
		if err := p.ConsumeMetrics(ctx, md); err != nil {
			return result{}, err
		}
		spent += time.Since(start)
		runtime.ReadMemStats(&after)
		allocs += after.Mallocs - before.Mallocs
		points += md.DataPointCount()
	}
	r.Points, r.Allocs = float64(points)/spent.Seconds(), float64(allocs)/float64(points)
	if r.RSS, r.Anon, err = usage.Memory(os.Getpid()); err != nil {
		return result{}, err
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	r.Heap = float64(after.HeapAlloc) / (1 << 20)
	return r, nil
}

// complete reports whether every resource has its pod and deployment.
func complete(md pmetric.Metrics) bool {
	for _, rm := range md.ResourceMetrics().All() {
		for _, key := range []string{"k8s.pod.name", "k8s.namespace.name", "k8s.deployment.name"} {
			if _, ok := rm.Resource().Attributes().Get(key); !ok {
				return false
			}
		}
	}
	return true
}
