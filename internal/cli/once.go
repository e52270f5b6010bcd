//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/receiver"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/pageexporter"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver"
)

var outputs = []string{"table", "json", "prometheus"}

func checkOutput(output string) error {
	if !slices.Contains(outputs, output) {
		return fmt.Errorf("unknown --output %q, known are %s", output, strings.Join(outputs, ", "))
	}
	return nil
}

// once reads the machine and prints what it found to standard output.
func once(ctx context.Context, cfg local.Config, output string) error {
	t, err := readOnce(ctx, cfg)
	if err != nil {
		return err
	}
	if err := broken(t); err != nil {
		return err
	}
	switch output {
	case "json":
		return printJSON(os.Stdout, t)
	case "prometheus":
		return printPage(os.Stdout, t)
	}
	return printTable(os.Stdout, t)
}

// broken returns why there is nothing to show, if that is somebody's fault. No hardware
// is nobody's.
func broken(t node.Tick) error {
	var errs []error
	for _, s := range t.Sources {
		if len(t.Readings) == 0 && s.Problem != "" && s.State != "absent" {
			errs = append(errs, fmt.Errorf("%s: %s: gpumeter doctor may know more", s.Name, s.Problem))
		}
	}
	return errors.Join(errs...)
}

// between is the time between the two readings of readOnce.
const between = time.Second

// readOnce reads every device twice, a second apart: the hardware's activity counters
// mean something only as the difference of two readings.
func readOnce(ctx context.Context, cfg local.Config) (node.Tick, error) {
	cfg.Interval = between * 5 // the deadline of a device
	view, err := local.Open(cfg, nil)
	if err != nil {
		return node.Tick{}, err
	}
	defer view.Close() //nolint:errcheck // the process ends anyway
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go view.Learn(ctx)
	t := view.Tick(ctx, time.Now())
	if len(t.Readings) == 0 {
		return t, nil
	}
	select {
	case <-ctx.Done():
		return node.Tick{}, ctx.Err()
	case <-time.After(between):
	}
	return view.Tick(ctx, time.Now()), nil
}

func printJSON(w io.Writer, t node.Tick) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(t)
}

// printPage prints what a scrape of the agent would get.
func printPage(w io.Writer, t node.Tick) error {
	cfg := gpureceiver.NewFactory().CreateDefaultConfig().(*gpureceiver.Config)
	page := pageexporter.NewFactory().CreateDefaultConfig().(*pageexporter.Config)
	e := gpureceiver.NewEmitter(cfg, receiver.Settings{TelemetrySettings: component.TelemetrySettings{
		Logger: zap.NewNop(), MeterProvider: noopmetric.NewMeterProvider(), TracerProvider: nooptrace.NewTracerProvider(),
	}})
	return pageexporter.Render(w, e.Emit(t), page.ResourceLabels, false)
}
