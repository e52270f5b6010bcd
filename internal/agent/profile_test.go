//go:build linux

package agent

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/profile/encode"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver"
)

func TestParseProfile(t *testing.T) {
	t.Parallel()
	f := func(query string, want ProfileRequest, problem string) {
		t.Helper()
		form, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseProfile(form)
		if problem != "" {
			if err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("%s: %v, want %q", query, err, problem)
			}
			return
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", query, err, diff)
		}
	}
	f("seconds=1.5", ProfileRequest{For: 1500 * time.Millisecond, Format: encode.Pprof}, "")
	f("seconds=600&format=otlp&pid=7&pid=8&rate=50", ProfileRequest{Choice: inspect.Choice{PIDs: []uint{7, 8}}, For: MaxProfile, Rate: 50, Format: encode.OTLP}, "")
	f("seconds=1&pod=ml/llm-0&job=9", ProfileRequest{Choice: inspect.Choice{Pod: "ml/llm-0", Job: "9"}, For: time.Second, Format: encode.Pprof}, "")
	for _, s := range []string{"", "0", "-1", "601", "NaN", "Inf", "1e300", "x"} {
		f("seconds="+s, ProfileRequest{}, "seconds must be above 0 and at most 600")
	}
	f("seconds=1&format=svg", ProfileRequest{}, "unknown format")
	f("seconds=1&pid=-1", ProfileRequest{}, "pid must be a number")
	f("seconds=1&pid=4294967296", ProfileRequest{}, "pid must be a number")
	f("seconds=1&rate=fast", ProfileRequest{}, "rate must be a number")
}

// The command takes a profile itself if no agent can: none answers, it does not trace, or it is older than this
// door. Any other refusal is final.
func TestNoProfiler(t *testing.T) {
	t.Parallel()
	ask := func(socket string) error {
		_, err := Profile(t.Context(), socket, ProfileRequest{For: time.Second, Format: encode.JSON})
		return err
	}
	if err := ask(filepath.Join(t.TempDir(), "none")); !errors.Is(err, ErrNoProfiler) {
		t.Errorf("without an agent: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	defer done.Wait()
	defer cancel()
	socket := filepath.Join(t.TempDir(), "s")
	if err := serveControl(ctx, &done, socket, nil, &cudareceiver.Switch{}); err != nil {
		t.Fatal(err)
	}
	if err := ask(socket); !errors.Is(err, ErrNoProfiler) || !strings.Contains(err.Error(), "does not trace") {
		t.Errorf("an agent that does not trace: %v", err)
	}
	old := filepath.Join(t.TempDir(), "old")
	l, err := listenSocket(old)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.NewServeMux(), ReadHeaderTimeout: time.Minute}
	done.Go(func() { _ = srv.Serve(l) })
	defer srv.Close()
	if err := ask(old); !errors.Is(err, ErrNoProfiler) {
		t.Errorf("an older agent: %v", err)
	}
	_, err = Profile(t.Context(), socket, ProfileRequest{For: time.Hour, Format: encode.JSON})
	if err == nil || errors.Is(err, ErrNoProfiler) || !strings.Contains(err.Error(), "seconds") {
		t.Errorf("an hour: %v", err)
	}
}
