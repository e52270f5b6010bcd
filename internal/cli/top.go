//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/cli/tui"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
)

// top holds the flags of gpumeter top, which shows this machine or a fleet.
type top struct {
	hardware
	store    storeFlags
	prices   string
	interval time.Duration
	once     bool

	env func(string) string
}

// Bounds of --interval. A shorter one loads the drivers for more than anyone can read.
const (
	minTopInterval = 500 * time.Millisecond
	maxTopInterval = time.Minute
)

func newTop() *cobra.Command {
	t := &top{env: os.Getenv}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch devices and their workloads in the terminal",
		Long: `Watch devices and their workloads in the terminal: those of this machine, or of all
machines in a hub or any Prometheus-compatible store.

Press ? for the keys. If the output is not a terminal, top prints one snapshot and exits.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.check(cmd); err != nil {
				return err
			}
			return t.run(cmd.Context(), os.Stdout)
		},
	}
	t.hardware.register(cmd)
	f := cmd.Flags()
	t.store.register(cmd, "url", "", "`URL` of a hub or of any Prometheus-compatible store, instead of this machine")
	f.StringVar(&t.prices, "prices", "", "price `FILE`, to show the cost of a device per hour")
	f.DurationVar(&t.interval, "interval", 2*time.Second, "time between readings, 500ms to 1m")
	f.BoolVar(&t.once, "once", false, "print one snapshot and exit")
	return cmd
}

func (t *top) check(cmd *cobra.Command) error {
	if t.interval < minTopInterval || t.interval > maxTopInterval {
		return fmt.Errorf("--interval must be between %s and %s, is %s", minTopInterval, maxTopInterval, t.interval)
	}
	if err := t.store.check(cmd); err != nil {
		return err
	}
	if t.store.url == "" {
		return t.local().Validate()
	}
	for _, flag := range slices.Concat([]string{"nvidia-library", "gaudi-library", "neuron-monitor", "root", "host-name", "simulate"}, workloadFlags) {
		if cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s has no effect with --url, which does not read devices", flag)
		}
	}
	return nil
}

func (t *top) local() local.Config {
	c := t.config()
	c.Interval, c.SlowInterval = t.interval, 5*t.interval
	return c
}

// run shows devices until the user quits, or prints them once if out is not a terminal.
func (t *top) run(ctx context.Context, out *os.File) error {
	price, err := openPrices(t.prices)
	if err != nil {
		return err
	}
	kind := t.env("TERM")
	t.once = t.once || !term.IsTerminal(out.Fd()) || kind == "" || kind == "dumb"
	watch := t.watchNode(price)
	if t.store.url != "" {
		if watch, err = t.watchStore(price); err != nil {
			return err
		}
	}
	if t.once {
		return t.printOnce(ctx, out, watch, price)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := tea.NewProgram(tui.New(tui.Options{ASCII: !utf8Locale(t.env), ShortModel: local.Vendors().ShortModel}), tea.WithContext(ctx), tea.WithOutput(out), tea.WithoutSignalHandler())
	var done sync.WaitGroup
	done.Go(func() { watch(ctx, func(s tui.Snapshot) { p.Send(s) }) })
	_, err = p.Run()
	cancel()
	done.Wait() // until the drivers are released
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) {
		return nil // by a signal
	}
	return err
}

// watcher calls show with each new snapshot until ctx is canceled.
type watcher func(ctx context.Context, show func(tui.Snapshot))

// printOnce prints one snapshot. For a machine it takes two readings, because activity is the
// difference between two values of the hardware's counters.
func (t *top) printOnce(ctx context.Context, out io.Writer, watch watcher, price pricing) error {
	var s tui.Snapshot
	if t.store.url == "" {
		tick, err := readOnce(ctx, t.local())
		if err == nil {
			err = broken(tick)
		}
		if err != nil {
			return err
		}
		s = (&thisMachine{price: price}).snapshot(tick)
	} else {
		watch(ctx, func(got tui.Snapshot) { s = got })
	}
	if s.Problem != "" {
		return errors.New(s.Problem)
	}
	width, err := strconv.Atoi(t.env("COLUMNS"))
	if err != nil || width < 40 {
		width = 140
	}
	_, err = fmt.Fprintln(out, tui.New(tui.Options{Plain: true, ASCII: !utf8Locale(t.env), ShortModel: local.Vendors().ShortModel}).Text(s, min(width, 400)))
	return err
}

// watchNode returns a watcher that reads this machine.
func (t *top) watchNode(price pricing) watcher {
	return func(ctx context.Context, show func(tui.Snapshot)) {
		view, err := local.Open(t.local(), nil)
		if err != nil {
			show(tui.Snapshot{Problem: oneLine(err)})
			return
		}
		ticks, cancel := view.Subscribe()
		m := thisMachine{price: price}
		var done sync.WaitGroup
		done.Go(func() {
			for tick := range ticks {
				if err := broken(tick); err != nil {
					show(tui.Snapshot{Problem: oneLine(err)})
					continue
				}
				show(m.snapshot(tick))
			}
		})
		_ = view.Run(ctx) // the process exits anyway
		cancel()
		done.Wait()
	}
}

// watchStore returns a watcher that queries a hub or another store.
func (t *top) watchStore(price pricing) (watcher, error) {
	store, err := t.store.open(20 * time.Second)
	if err != nil {
		return nil, err
	}
	j := &judge{store: store, price: price}
	reader := fleet.NewReader(store, fleet.Options{Price: price.prices.Hourly})
	ask := func(ctx context.Context) tui.Snapshot {
		s, err := askStore(ctx, store, reader, time.Now(), price)
		if err != nil {
			return tui.Snapshot{Problem: oneLine(err)}
		}
		s.From = redactURL(t.store.url)
		j.add(&s)
		s.Apart()
		return s
	}
	if t.once {
		return func(ctx context.Context, show func(tui.Snapshot)) {
			j.once(ctx, time.Now())
			show(ask(ctx))
		}, nil
	}
	return func(ctx context.Context, show func(tui.Snapshot)) {
		var judging sync.WaitGroup
		defer judging.Wait()
		judging.Go(func() { j.run(ctx) })
		for {
			began := time.Now()
			if s := ask(ctx); ctx.Err() == nil {
				show(s)
			}
			// A query over 10,000 devices takes seconds: leave the store time for other clients.
			pause := max(t.interval, 4*time.Since(began))
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}, nil
}

// utf8Locale reports whether the locale is UTF-8.
func utf8Locale(env func(string) string) bool {
	locale := strings.ToUpper(cmp.Or(env("LC_ALL"), env("LC_CTYPE"), env("LANG")))
	return strings.Contains(locale, "UTF-8") || strings.Contains(locale, "UTF8")
}

// redactURL returns a URL without its password.
func redactURL(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the store"
	}
	return u.Redacted()
}

// hostOf returns the host of a tick for display.
func hostOf(t node.Tick) string { return cmp.Or(t.Host, "this machine") }
