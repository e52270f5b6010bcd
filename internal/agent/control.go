//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver"
)

// DefaultPause is the default length of a pause.
const DefaultPause = 2 * time.Minute

// MaxPause keeps a forgotten pause from turning into an outage.
const MaxPause = time.Hour

// Pause makes the agent at socket release every driver for d, and returns its response. A
// pause of 0 resumes.
func Pause(ctx context.Context, socket string, d time.Duration) (string, error) {
	return tell(ctx, socket, "pause", url.Values{"for": {d.String()}}, 15*time.Second)
}

// DefaultTraceKeep is where probes survive a restart of the agent.
const DefaultTraceKeep = "/sys/fs/bpf/gpumeter"

// Trace makes the agent at socket start or end tracing, and returns its response. That takes the kernel a
// tenth of a second for each function in mode perf, and more on a busy machine.
func Trace(ctx context.Context, socket string, on bool) (string, error) {
	return tell(ctx, socket, "trace", url.Values{"on": {strconv.FormatBool(on)}}, 10*time.Minute)
}

// tell sends a command to the agent at socket, which may take its time up to a limit.
func tell(ctx context.Context, socket, command string, form url.Values, limit time.Duration) (string, error) {
	there := false
	client := http.Client{Timeout: limit, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			dial := net.Dialer{Timeout: 15 * time.Second}
			c, err := dial.DialContext(ctx, "unix", socket)
			there = err == nil
			return c, err
		},
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/"+command+"?"+form.Encode(), nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil && there {
		return "", fmt.Errorf("the agent at %s has not answered (%w)", socket, errors.Unwrap(err))
	}
	if err != nil {
		return "", fmt.Errorf("no agent responds at %s: is one running as this user? Set --socket (%w)", socket, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return "", fmt.Errorf("cannot read the agent's response: %w", err)
	}
	text := strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(text)
	}
	return text, nil
}

// serveControl serves the control socket until ctx is canceled. Only the user of the agent and
// root can connect.
func serveControl(ctx context.Context, done *sync.WaitGroup, socket string, live *liveView, trace *cudareceiver.Switch) error {
	l, err := listenSocket(socket)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /pause", func(w http.ResponseWriter, r *http.Request) { answerPause(w, r, live) })
	mux.HandleFunc("POST /trace", func(w http.ResponseWriter, r *http.Request) { answerTrace(w, r, trace) })
	mux.HandleFunc("GET "+profilePath, func(w http.ResponseWriter, r *http.Request) { answerProfile(w, r, trace) })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done.Go(func() { _ = srv.Serve(l) }) // ends with ErrServerClosed
	done.Go(func() {
		<-ctx.Done()
		_ = srv.Close()
	})
	return nil
}

func answerPause(w http.ResponseWriter, r *http.Request, live *liveView) {
	d, err := time.ParseDuration(r.FormValue("for"))
	if err != nil || d < 0 || d > MaxPause {
		http.Error(w, fmt.Sprintf("a pause must be between 0 and %s, is %q", MaxPause, r.FormValue("for")), http.StatusBadRequest)
		return
	}
	if err := live.pause(r.Context(), d); err != nil {
		http.Error(w, "cannot release the drivers: "+logging.OneLine(err), http.StatusConflict)
		return
	}
	if d == 0 {
		fmt.Fprintln(w, "Resuming.")
		return
	}
	fmt.Fprintf(w, "Paused until %s: no driver is in use. gpumeter pause --for 0 resumes now.\n", time.Now().Add(d).Format(time.TimeOnly))
}

func answerTrace(w http.ResponseWriter, r *http.Request, trace *cudareceiver.Switch) {
	on, err := strconv.ParseBool(r.FormValue("on"))
	if err != nil {
		http.Error(w, fmt.Sprintf("on must be true or false, is %q", r.FormValue("on")), http.StatusBadRequest)
		return
	}
	do, answer := trace.Stop, "Tracing ended: no probe is left. gpumeter trace --start starts it again, as does a restart of the agent."
	if on {
		do, answer = trace.Start, "Tracing."
	}
	if err := do(); err != nil {
		http.Error(w, logging.OneLine(err), http.StatusConflict)
		return
	}
	fmt.Fprintln(w, answer)
}

// listenSocket listens at path. It removes the stale socket of a killed agent.
func listenSocket(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("cannot create the folder of the socket: %w", err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("another agent listens at %s: set a different --socket", path)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s exists and is not a socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("cannot remove an old socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot protect the socket: %w", err), l.Close())
	}
	return l, nil
}
