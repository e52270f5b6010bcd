// Command peer feeds contrib's k8sattributes processor for bench/attribution. It is a separate module,
// because the product must not depend on that processor.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/processor/k8sattributesprocessor"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
)

var (
	batch  = flag.String("batch", "", "file of OTLP metrics")
	node   = flag.String("node", "", "watch only the pods of this node")
	length = flag.Duration("length", 30*time.Second, "how long to process")
)

// result is the output that bench/attribution reads.
type result struct {
	Points, Allocs float64 // per second, per point
	// MiB: live heap after a garbage collection, and memory of the process before it.
	Heap, RSS, Anon float64
	Added           []string
}

type host struct{}

func (host) GetExtensions() map[component.ID]component.Component { return nil }

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	f := k8sattributesprocessor.NewFactory()
	cfg := f.CreateDefaultConfig()
	// The default attributes plus the container, which the workload processor adds too.
	err := confmap.NewFromStringMap(map[string]any{
		"auth_type":         "kubeConfig",
		"wait_for_metadata": true,
		"filter":            map[string]any{"node": *node},
		"extract": map[string]any{"metadata": []any{
			"k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid", "k8s.deployment.name", "k8s.container.name",
		}},
		"pod_association": []any{map[string]any{"sources": []any{map[string]any{"from": "resource_attribute", "name": "container.id"}}}},
	}).Unmarshal(cfg)
	if err != nil {
		return err
	}
	set := processor.Settings{ID: component.NewID(f.Type()), TelemetrySettings: component.TelemetrySettings{
		Logger: zap.NewNop(), MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider(), Resource: pcommon.NewResource(),
	}}
	var last pmetric.Metrics
	next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		last = md
		return nil
	})
	if err != nil {
		return err
	}
	p, err := f.CreateMetrics(ctx, set, cfg, next)
	if err != nil {
		return err
	}
	if err := p.Start(ctx, host{}); err != nil {
		return err
	}
	r, err := measure(ctx, p, func() pmetric.Metrics { return last })
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// measure feeds the batch to p as bench/attribution does.
func measure(ctx context.Context, p consumer.Metrics, last func() pmetric.Metrics) (result, error) {
	b, err := os.ReadFile(*batch)
	if err != nil {
		return result{}, err
	}
	pattern, err := (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(b)
	if err != nil {
		return result{}, err
	}
	var r result
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
	for spent < *length {
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
	if r.RSS, r.Anon, err = memory(); err != nil {
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

// memory returns the resident memory of this process, total and anonymous, in MiB.
func memory() (rss, anon float64, err error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f", &kb); n == 1 {
			rss = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %f", &kb); n == 1 {
			anon = kb / 1024
		}
	}
	return rss, anon, nil
}
