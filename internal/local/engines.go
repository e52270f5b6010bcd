//go:build linux

package local

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
)

// Engines returns a function with the inference engines of a simulated node at a tick, nil if the node is not
// simulated. Their pages are served in this process.
func Engines(c Config) (func(*node.Tick) []discover.Engine, error) {
	if !c.simulated() {
		return nil, nil
	}
	if c.Host == "" {
		c.Host, _ = os.Hostname() // as Open does, because the devices depend on it
	}
	cfg := c.sim()
	engines, err := sim.Engines(cfg)
	if err != nil {
		return nil, err
	}
	pages := make([]*served, len(engines))
	for i, e := range engines {
		p := &served{engine: e}
		p.found = discover.Engine{
			ID: podWorkload(e.Pod).ID + ":" + strconv.Itoa(e.Port), Started: cfg.Start.Add(e.From),
			Target: inference.Target{
				URL:    &url.URL{Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(e.Port), Path: "/metrics"},
				Client: inference.NewClient(p, time.Second),
			},
		}
		if !c.Workloads.Off {
			w := podWorkload(e.Pod)
			p.found.Workload = &w
		}
		pages[i] = p
	}
	return func(t *node.Tick) []discover.Engine {
		ids := map[string]device.ID{}
		for i := range t.Readings {
			ids[t.Readings[i].ID.UUID] = t.Readings[i].ID
		}
		var out []discover.Engine
		for _, p := range pages {
			p.now.Store(t.Time.UnixNano())
			if !p.engine.There(t.Time.Sub(cfg.Start)) {
				continue
			}
			found := p.found
			for _, uuid := range p.engine.Devices {
				if id, ok := ids[uuid]; ok {
					found.Devices = append(found.Devices, id)
				}
			}
			out = append(out, found)
		}
		return out
	}, nil
}

// served answers requests with the page of a simulated engine at the last tick.
type served struct {
	engine *sim.Engine
	found  discover.Engine
	now    atomic.Int64 // Unix nanoseconds
}

// RoundTrip implements http.RoundTripper.
func (s *served) RoundTrip(r *http.Request) (*http.Response, error) {
	page := s.engine.Page(time.Unix(0, s.now.Load()))
	answer := &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"text/plain; version=0.0.4; charset=utf-8"}}, Body: io.NopCloser(bytes.NewReader(page)), ContentLength: int64(len(page)),
	}
	if page == nil {
		answer.StatusCode, answer.Status = http.StatusServiceUnavailable, "503 Service Unavailable"
	}
	return answer, nil
}
