package inferencereceiver

import (
	"net/url"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

// BenchmarkPage is what reading a page of 700 lines costs, from its text to a batch of metrics.
func BenchmarkPage(b *testing.B) {
	start := time.Unix(1_700_000_000, 0)
	engines, err := sim.Engines(sim.Config{Model: "h200", Start: start, Now: time.Now})
	if err != nil || len(engines) == 0 {
		b.Fatal("no engine", err)
	}
	pages := make([][]byte, 8)
	for i := range pages {
		pages[i] = engines[0].Page(start.Add(time.Hour + time.Duration(i)*10*time.Second))
	}
	e := newEmitter("e", &url.URL{Scheme: "http", Host: "localhost:8000", Path: "/metrics"}, "")
	b.SetBytes(int64(len(pages[0])))
	b.ReportAllocs()
	at := start
	for i := 0; b.Loop(); i++ {
		at = at.Add(10 * time.Second)
		text := promtext.Scan(pages[i%len(pages)])
		md, err := e.emit(&node.Tick{Time: at, Host: "n1"}, nil, inference.Read(text, ""), 0)
		if md.DataPointCount() == 0 || err != nil {
			b.Fatal("no points", err)
		}
	}
}
