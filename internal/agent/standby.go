//go:build linux

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/confmap"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/pageexporter"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/logging"
)

// retryClaim is how often an agent on standby tries to take over.
const retryClaim = 500 * time.Millisecond

// errTaken means that another agent reads the devices of this machine.
var errTaken = errors.New("another agent reads the devices of this machine")

// standby is what an agent needs to know to wait for another one.
type standby struct {
	root, state string
	listen      string // address of the page; empty: none
	log         *zap.Logger
}

// alone waits until no other agent reads the devices of this machine. end lets the next one read them;
// it is nil if ctx ended before.
func (a *Agent) alone(ctx context.Context, log *zap.Logger) (end func(), err error) {
	s, err := a.standby(ctx, log)
	if s == nil || err != nil {
		return func() {}, err
	}
	return s.wait(ctx), nil
}

// standby returns nil if the agent reads no device of this machine, or may read devices beside
// another agent.
func (a *Agent) standby(ctx context.Context, log *zap.Logger) (*standby, error) {
	switch {
	case a.NoStandby, a.Local.Simulate != "", a.Local.Sim != nil:
		return nil, nil
	case a.ConfigFile == "":
		return &standby{a.Local.Root, a.StateDir, a.Listen, log}, nil
	}
	written, err := readConfig(a.ConfigFile)
	if err != nil {
		return nil, err
	}
	resolver, err := confmap.NewResolver(configSettings(fromText(written)).ResolverSettings)
	if err != nil {
		return nil, err
	}
	conf, err := resolver.Resolve(ctx)
	if err != nil {
		return nil, nil //nolint:nilerr // the Collector reports what is wrong
	}
	gpu := part(conf, "extensions", "gpu")
	if gpu == nil || text(gpu["simulate"]) != "" {
		return nil, nil
	}
	s := &standby{text(gpu["root"]), text(gpu["state_dir"]), "", log}
	if page := part(conf, "exporters", "page"); page != nil && page["tls"] == nil {
		usual := pageexporter.NewFactory().CreateDefaultConfig().(*pageexporter.Config)
		s.listen = cmp.Or(text(page["endpoint"]), usual.HTTP.NetAddr.Endpoint)
	}
	return s, nil
}

// part returns the settings of the component of a type, nil if there is none.
func part(conf *confmap.Conf, kind, typ string) map[string]any {
	all, _ := conf.Get(kind).(map[string]any)
	for id, settings := range all {
		if name, _, _ := strings.Cut(id, "/"); name == typ {
			if m, ok := settings.(map[string]any); ok {
				return m
			}
			return map[string]any{}
		}
	}
	return nil
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// wait returns once no other agent reads the devices of this machine. Until the result is called, other
// agents wait for this one. The result is nil if ctx ended before.
func (s *standby) wait(ctx context.Context) (end func()) {
	var held claim
	err := s.claim(&held)
	if err == nil {
		return held.release
	}
	s.log.Warn("Standing by: this agent sends nothing, and takes over when the other one ends. --no-standby reads devices beside another agent", logging.Reason(err))
	defer s.serve()()
	ignored := make(chan os.Signal, 1) // there is nothing to reload or to pause
	signal.Notify(ignored, syscall.SIGHUP, syscall.SIGUSR1)
	defer signal.Stop(ignored)
	retry := time.NewTicker(retryClaim)
	defer retry.Stop()
	for err != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
			err = s.claim(&held)
		}
	}
	s.log.Info("No other agent reads the devices of this machine any more: this one takes over")
	return held.release
}

// serve serves what monitoring and a rolling update ask an agent: an agent on standby is ready, because
// a surge rollout ends the old agent only when the new one is.
func (s *standby) serve() (stop func()) {
	if s.listen == "" {
		return func() {}
	}
	l, err := net.Listen("tcp", s.listen)
	if err != nil { // the other agent may have the port
		s.log.Info("No page while standing by", logging.Reason(err))
		return func() {}
	}
	s.log.Info("serving standby", zap.String("address", l.Addr().String()))
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "standby: "+errTaken.Error()+"\n") // a client that is gone is not an error
	}
	mux.HandleFunc("GET /healthz", answer)
	mux.HandleFunc("GET /readyz", answer)
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = io.WriteString(w, "# HELP gpumeter_standby 1 while another agent reads the devices of this machine and this one waits.\n# TYPE gpumeter_standby gauge\ngpumeter_standby 1\n")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ErrorLog: zap.NewStdLog(zap.NewNop())}
	go func() { _ = server.Serve(l) }() // until Close
	return func() { _ = server.Close() }
}

// claim is what an agent holds while it reads devices.
type claim struct{ files []*os.File }

func (c *claim) release() {
	for _, f := range c.files {
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // a child that has not executed its program yet has the file, too
		f.Close()
	}
	c.files = nil
}

// claim locks what all agents of this machine have in common:
//
//   - the file with the UUID of the machine in sysfs. Agents on the host, in containers with the
//     host's network, and in containers with the host's /sys below root or the host's processes see
//     the same inode. Only root can open the file, so no other user can keep an agent
//     from its work. Where the file cannot be opened, there is no such lock.
//   - a file in the state folder, which the pods of a rollout share. A folder may be on a file
//     server, so the file has the boot ID of the machine that locked it.
func (s *standby) claim(c *claim) error {
	const uuid = "sys/class/dmi/id/product_uuid"
	paths := []string{filepath.Join(cmp.Or(s.root, "/"), uuid)}
	if filepath.Join("/", s.root) == "/" {
		paths = append(paths, filepath.Join("/proc/1/root", uuid)) // the host's, if its processes are visible
	}
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if c.has(f) {
			f.Close()
			continue
		}
		if err := lock(f); err != nil {
			c.release()
			return fmt.Errorf("%w: %s is locked", errTaken, path)
		}
		c.files = append(c.files, f)
	}
	err := c.folder(s.state)
	if err != nil {
		c.release()
	}
	return err
}

// has reports whether c holds the same file: its own lock would refuse it.
func (c *claim) has(f *os.File) bool {
	st, err := f.Stat()
	for _, other := range c.files {
		if o, err2 := other.Stat(); err == nil && err2 == nil && os.SameFile(st, o) {
			return true
		}
	}
	return false
}

// folder locks the state folder, unless the folder is unusable or belongs to another machine:
// the View reports that.
func (c *claim) folder(dir string) error {
	boot := local.BootID()
	if dir == "" || boot == "" || os.MkdirAll(dir, 0o700) != nil {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil
	}
	if lock(f) != nil {
		defer f.Close()
		// An empty file was locked a moment ago.
		if b, err := io.ReadAll(io.LimitReader(f, 64)); err != nil || len(b) > 0 && string(b) != boot {
			return nil
		}
		return fmt.Errorf("%w: it uses %s", errTaken, dir)
	}
	if _, err := f.WriteAt([]byte(boot), 0); err != nil { // boot IDs have one length
		f.Close()
		return nil
	}
	c.files = append(c.files, f)
	return nil
}

func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
