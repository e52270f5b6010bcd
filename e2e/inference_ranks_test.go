//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// Catches data-parallel ranks of which only the first counts: llm-d's simulator has each on a port of its own,
// all in one process and with the same metrics.
func TestInferenceRanks(t *testing.T) {
	t.Parallel()
	first := vllmLike(t)
	for {
		port, err := strconv.Atoi(first.port)
		if err != nil {
			t.Fatal(err)
		}
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1)); err == nil { // its second port
			l.Close()
			break
		}
		first = vllmLike(t)
	}
	first.argv = slices.Insert(first.argv, 1, "--data-parallel-size", "2")
	first.start()
	port, _ := strconv.Atoi(first.port)
	second := engine{t: t, provider: first.provider, model: first.model, port: strconv.Itoa(port + 1), quiet: first.quiet}
	words := func(i int) int { return 1 + i%7 }
	first.load(4, words) // none of which waits: pages with the same metrics
	second.load(2, words)

	d := &discovery{t: t, engine: first, driver: nvmltest.New(t, "")}
	d.assign()
	d.watch(gpumeter(t))
	d.read(time.Time{})
	d.hub.wait(fmt.Sprintf("inference_scrape_up{server_port=%q} == 1", second.port))
	first.load(2, words)
	second.load(9, words)
	loaded := time.Now()
	d.read(loaded)
	d.hub.wait(fmt.Sprintf("timestamp(inference_scrape_up{server_port=%q}) > %s", second.port, seconds(loaded)))
	got, err := d.hub.query("sum by (server_port) (inference_token_output_total)")
	if err != nil {
		t.Fatal(err)
	}
	tokens := map[string]string{}
	for _, s := range got {
		tokens[s.Metric["server_port"]] = s.Value[1].(string)
	}
	want := map[string]string{first.port: strconv.Itoa(first.used.out), second.port: strconv.Itoa(second.used.out)}
	if diff := cmp.Diff(want, tokens); diff != "" {
		t.Errorf("tokens by port (-client +hub):\n%s", diff)
	}
}
