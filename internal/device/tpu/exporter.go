//go:build linux

package tpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

const maxPage = 1 << 20

// exporter reads the metrics page of GKE's TPU device plugin.
type exporter struct {
	url    string
	client *http.Client
}

func newExporter(url string) *exporter {
	return &exporter{url: url, client: &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // the exporter runs on this machine
			DialContext:            (&net.Dialer{Timeout: pollLimit}).DialContext,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
			MaxIdleConns:           1,
			ResponseHeaderTimeout:  pollLimit,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (e *exporter) close() { e.client.CloseIdleConnections() }

// fetch returns the content of the page, by accelerator_id.
func (e *exporter) fetch(ctx context.Context) (map[string]values, error) {
	all, err := e.get(ctx)
	if err != nil {
		return nil, empty{err}
	}
	return all, nil
}

func (e *exporter) get(ctx context.Context) (map[string]values, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, http.NoBody)
	if err != nil {
		return nil, errors.New("the address is not a URL")
	}
	res, err := e.client.Do(req)
	if err != nil {
		return nil, cannotReach(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered with status %d", res.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxPage+1))
	if err != nil {
		return nil, cannotReach(err)
	}
	if len(b) > maxPage {
		return nil, errTooMany
	}
	return parsePage(b)
}

// cannotReach explains an error in words that do not vary between attempts. It never
// returns a context error: a slow exporter does not mean that the chip is down.
func cannotReach(err error) error {
	var number syscall.Errno
	var timeout net.Error
	switch {
	case errors.As(err, &number):
		return errors.New(number.Error())
	case errors.As(err, &timeout) && timeout.Timeout():
		return errors.New("no answer in time")
	}
	return errors.New("unreachable")
}

// parsePage parses a page. Each family appears twice: for pods, and with the suffix _node
// for all chips including idle ones. The _node values take precedence.
func parsePage(b []byte) (map[string]values, error) {
	page, err := promtext.Parse(bytes.NewReader(b), maxPage)
	if err != nil {
		return nil, fmt.Errorf("cannot parse the page: %s", label(err.Error(), 200))
	}
	all := map[string]values{}
	for _, name := range []string{"duty_cycle", "memory_used", "memory_total", "tensorcore_utilization", "memory_bandwidth_utilization"} {
		for _, family := range []string{name, name + "_node"} {
			for _, s := range page[family] {
				id := s.Get("accelerator_id")
				if id == "" {
					continue
				}
				if len(all) >= maxEntries {
					return nil, errTooMany
				}
				chip := all[id]
				if err := chip.setFromPage(name, s.Value); err != nil {
					return nil, fmt.Errorf("%s: %w", family, err)
				}
				all[id] = chip
			}
		}
	}
	return all, nil
}

func (v *values) setFromPage(name string, x float64) error {
	unit := metricTotal // bytes
	if !strings.HasPrefix(name, "memory_used") && !strings.HasPrefix(name, "memory_total") {
		unit = metricDuty // %
	}
	got, err := convert(unit, x)
	if err != nil {
		return err
	}
	switch name {
	case "duty_cycle":
		v.duty = got
	case "memory_used":
		v.used = got
	case "memory_total":
		v.total = got
	case "tensorcore_utilization":
		v.tensor = got
	case "memory_bandwidth_utilization":
		v.bandwidth = got
	}
	return nil
}

// pick returns the values of chip number mine of n. The page names a chip by the number of
// the instance and its own, <instance>-<chip>. If there is one number per chip, or one per
// device of each chip, their order is that of the chips; if some are missing, the numbers
// must be indexes.
func pick(all map[string]values, n, perChip, mine int) (values, error) {
	var numbers []int
	byNumber := map[int]values{}
	for id, v := range all {
		number, err := strconv.Atoi(id[strings.LastIndexByte(id, '-')+1:])
		if err != nil || number < 0 {
			return values{}, fmt.Errorf("cannot map accelerator %q to a chip", label(id, maxText))
		}
		if _, twice := byNumber[number]; twice {
			return values{}, fmt.Errorf("two accelerators have the number %d", number)
		}
		numbers = append(numbers, number)
		byNumber[number] = v
	}
	slices.Sort(numbers)
	if len(numbers) == 0 {
		return values{}, nil
	}
	where := place(numbers, n, perChip)
	if where == nil {
		if numbers[len(numbers)-1] >= n {
			return values{}, fmt.Errorf("the page shows %d accelerators, but the machine has %d chips", len(numbers), n)
		}
		return byNumber[mine], nil
	}
	var chip *values
	devices := 0.0
	for _, number := range numbers {
		if where[number] != mine {
			continue
		}
		v := byNumber[number]
		if chip != nil {
			v = chip.plus(v)
		}
		chip = &v
		devices++
	}
	chip.bandwidth, chip.tensor = chip.bandwidth.Div(devices), chip.tensor.Div(devices) // means
	return *chip, nil
}

// plus combines two devices of one chip. A sum with an unknown part is unknown.
func (v values) plus(w values) values {
	sum := func(a, b device.Value) device.Value {
		if !a.OK() || !b.OK() {
			return device.Value{}
		}
		return combine(metricTotal, a, b)
	}
	v.duty = combine(metricDuty, v.duty, w.duty)
	v.used, v.total = sum(v.used, w.used), sum(v.total, w.total)
	v.bandwidth, v.tensor = sum(v.bandwidth, w.bandwidth), sum(v.tensor, w.tensor)
	return v
}
