//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"
)

// Catches a tick lost because the backend was unavailable and the agent was killed meanwhile: queued data
// arrives late, some of it out of order, and must not be rejected.
func TestOutage(t *testing.T) {
	t.Parallel()
	f := func(name string, open func(*testing.T) *backend) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			o := outage(t, b)
			eventually(t, "the backend has all ticks", func() error {
				missing, err := o.missing()
				if err == nil && len(missing) > 0 {
					err = fmt.Errorf("of %d ticks it lacks %v", len(o.ticks), missing)
				}
				return err
			})
			if log := o.agent.said(); strings.Contains(log, "Dropping data") {
				t.Error("the agent dropped data")
			}
		})
	}
	f("Prometheus", prometheus3)
	f("VictoriaMetrics", victoriametrics)
}

// Shows why the documented out-of-order window is needed even for an outage of seconds: the request that an
// agent was sending when it ended is sent by the next agent after those queued behind it.
func TestOutageWithoutWindow(t *testing.T) {
	t.Parallel()
	b := prometheus3(t)
	b.edit = func(config string) string { return strings.Replace(config, "out_of_order_time_window: 6h", "", 1) }
	o := outage(t, b)
	eventually(t, "the agent drops the rejected request", func() error {
		if !strings.Contains(o.agent.said(), "Dropping data") {
			return errors.New("it has not dropped anything")
		}
		return nil
	})
	eventually(t, "the backend has all other ticks", func() error {
		missing, err := o.missing()
		if err == nil && len(missing) > 1 { // none if that request came from another receiver
			err = fmt.Errorf("of %d ticks it lacks %v", len(o.ticks), missing)
		}
		return err
	})
}

// outlived is the state after an outage.
type outlived struct {
	b     *backend
	agent *process
	ticks []sample // read before and during the outage
}

// outage stops the backend, kills the agent, starts a second and then the backend again.
func outage(t *testing.T, b *backend) *outlived {
	const few = 5
	b.up("")
	dir, binary := t.TempDir(), gpumeter(t)
	first, second := filepath.Join(dir, "first.json"), filepath.Join(dir, "second.json")
	flags := []string{"--state-dir", filepath.Join(dir, "state"), "--otlp-file"}

	agent := b.agent(binary, append(flags, first)...)
	eventually(t, "the backend has a tick", func() error {
		_, err := b.samples(energy)
		return err
	})
	if code := b.p.stop(t); code != 0 {
		t.Fatalf("%s ended with %d", b.name, code)
	}
	written(t, first, len(written(t, first, 1))+few)
	if err := agent.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-agent.done
	ticks := written(t, first, 0)
	// The last one may have been on its way to the queue.
	ticks = ticks[:len(ticks)-1]

	agent = b.agent(binary, append(flags, second)...)
	ticks = append(ticks, written(t, second, few)...)
	b.up("")
	return &outlived{b, agent, ticks}
}

// missing returns the ticks that the backend lacks. A tick with a different value is missing.
func (o *outlived) missing() ([]string, error) {
	stored, err := o.b.samples(energy)
	if err != nil {
		return nil, err
	}
	has := map[sample]bool{}
	for _, s := range stored {
		has[s] = true
	}
	var missing []string
	for _, s := range o.ticks {
		if !has[s] {
			missing = append(missing, seconds(s.at))
		}
	}
	return missing, nil
}

// energy selects a counter that changes with each tick.
const energy = `gpu_energy_joules_total{gpu_index="0"}`

// written waits until at least n ticks were written to file and returns that counter's
// values.
func written(t *testing.T, file string, n int) (ticks []sample) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d ticks in %s", n, filepath.Base(file)), func() error {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		ticks = ticks[:0]
		for line := range bytes.Lines(text) {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // still being written, or the agent was killed
			}
			ticks = append(ticks, readEnergy(t, line)...)
		}
		if len(ticks) < n {
			return fmt.Errorf("%d", len(ticks))
		}
		return nil
	})
	for i := 1; i < len(ticks); i++ {
		// An agent blocked on the backend would skip ticks. A busy machine may skip some, too.
		if gap := ticks[i].at.Sub(ticks[i-1].at); gap > 3*time.Second {
			t.Errorf("no tick for %s after %s", gap, seconds(ticks[i-1].at))
		}
	}
	return ticks
}

// readEnergy returns the value of that counter, nothing if line is not a tick.
func readEnergy(t *testing.T, line []byte) []sample {
	t.Helper()
	var u pmetric.JSONUnmarshaler
	all, err := u.UnmarshalMetrics(line)
	if err != nil {
		t.Fatalf("%v in %.200q", err, line)
	}
	for _, r := range all.ResourceMetrics().All() {
		for _, s := range r.ScopeMetrics().All() {
			for _, m := range s.Metrics().All() {
				if m.Name() != "gpu.energy" {
					continue
				}
				for _, p := range m.Sum().DataPoints().All() {
					if index, ok := p.Attributes().Get("gpu.index"); ok && index.Int() == 0 {
						return []sample{{time.UnixMilli(p.Timestamp().AsTime().UnixMilli()), strconv.FormatFloat(p.DoubleValue(), 'f', -1, 64)}}
					}
				}
			}
		}
	}
	return nil
}
