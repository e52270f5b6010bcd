//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/profile/encode"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver"
)

// profilePath is where the control socket serves profiles, like /debug/pprof of a Go program: with
// seconds, and optionally pid, pod or job, rate, and format.
const profilePath = "/debug/pprof/gpu"

// MaxProfile keeps a forgotten profile from costing for hours.
const MaxProfile = 10 * time.Minute

// maxProfileBytes bounds what a client reads of an agent's answer.
const maxProfileBytes = 256 << 20

// ProfileRequest asks an agent for a profile.
type ProfileRequest struct {
	inspect.Choice

	For    time.Duration
	Rate   int // samples a second of each thread; 0: the default
	Format encode.Format
}

// ErrNoProfiler means that no agent at the socket can take a profile: none answers, or it does not trace.
var ErrNoProfiler = errors.New("no agent that traces")

// Profile makes the agent at socket take a profile, and returns it in the format of the request.
func Profile(ctx context.Context, socket string, p ProfileRequest) ([]byte, error) {
	client := http.Client{Timeout: p.For + time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
		},
	}}
	defer client.CloseIdleConnections()
	form := url.Values{"seconds": {strconv.FormatFloat(p.For.Seconds(), 'f', -1, 64)}, "format": {string(p.Format)}}
	for _, pid := range p.PIDs {
		form.Add("pid", strconv.FormatUint(uint64(pid), 10))
	}
	for name, value := range map[string]string{"pod": p.Pod, "job": p.Job} {
		if value != "" {
			form.Set(name, value)
		}
	}
	if p.Rate != 0 {
		form.Set("rate", strconv.Itoa(p.Rate))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+profilePath+"?"+form.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		if _, isDial := errors.AsType[*net.OpError](err); isDial {
			return nil, fmt.Errorf("%w: %w", ErrNoProfiler, err)
		}
		return nil, fmt.Errorf("the agent at %s has not answered: %w", socket, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProfileBytes))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read the agent's profile: %w", err)
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusServiceUnavailable: // an older agent has no such door
		return nil, fmt.Errorf("%w: %s", ErrNoProfiler, strings.TrimSpace(string(body)))
	case resp.StatusCode != http.StatusOK:
		return nil, errors.New(strings.TrimSpace(string(body)))
	}
	return body, nil
}

// parseProfile parses a request.
func parseProfile(form url.Values) (p ProfileRequest, err error) {
	seconds, err := strconv.ParseFloat(form.Get("seconds"), 64)
	if err != nil || !(seconds > 0 && seconds <= MaxProfile.Seconds()) { // also not a number
		return p, fmt.Errorf("seconds must be above 0 and at most %.0f, is %q", MaxProfile.Seconds(), form.Get("seconds"))
	}
	p.For, p.Format = time.Duration(seconds*float64(time.Second)), encode.Pprof
	if f := form.Get("format"); f != "" {
		p.Format = encode.Format(f)
	}
	if !p.Format.Valid() {
		return p, fmt.Errorf("unknown format %q", p.Format)
	}
	if s := form.Get("rate"); s != "" {
		if p.Rate, err = strconv.Atoi(s); err != nil {
			return p, fmt.Errorf("rate must be a number, is %q", s)
		}
	}
	for _, s := range form["pid"] {
		pid, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return p, fmt.Errorf("pid must be a number, is %q", s)
		}
		p.PIDs = append(p.PIDs, uint(pid))
	}
	p.Pod, p.Job = form.Get("pod"), form.Get("job")
	return p, nil
}

func answerProfile(w http.ResponseWriter, r *http.Request, trace *cudareceiver.Switch) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "cannot read the request", http.StatusBadRequest)
		return
	}
	want, err := parseProfile(r.Form)
	if err != nil {
		http.Error(w, logging.OneLine(err), http.StatusBadRequest)
		return
	}
	p, err := trace.Profile(r.Context(), &want.Choice, want.For, want.Rate) // or until the client leaves
	var out bytes.Buffer
	if err == nil {
		err = encode.Write(&out, want.Format, &p)
	}
	switch {
	case errors.Is(err, cudareceiver.ErrNotTracing):
		http.Error(w, logging.OneLine(err), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, logging.OneLine(err), http.StatusConflict)
	default:
		w.Header().Set("Content-Type", want.Format.Media())
		_, _ = out.WriteTo(w) // the client has left
	}
}
