// Package kubernetes joins what the kubelet, the API server and the control groups know
// of the pods of this node into one workload.Source.
//
// The kubelet says which container was given which device. The API server says who owns
// the pod, what its uid is, and what a claimed device is called. The control group of a
// process says which container it is in. Each may be missing: without the API server the
// folders of the kubelet's logs have uids and names, and the kind of a workload is pod.
//
// Who holds a device:
//
//   - A container that a device plugin gave a device, or replicas of it.
//   - Every container of every pod that shares a claim, in equal parts.
//   - Not a claim with admin access: it is for those who look after devices that others
//     hold. Only the ResourceClaim has that, and where it may not be read every claim
//     holds.
//   - Not what is no device, such as a channel between nodes or the right to monitor.
//   - Not a pod that has ended, though some kubelets still list it.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
)

// Kubelet knows what was given out, as kubelet.Client does.
type Kubelet interface {
	Last() (s kubelet.Snapshot, ok bool, err error)
}

// Pods knows pods, as kubeapi.Client does.
type Pods interface {
	PodByUID(uid string) (kubeapi.Pod, bool)
	PodByName(namespace, name string) (kubeapi.Pod, bool)
	PodByContainer(id string) (kubeapi.Pod, bool)
}

// API is what the API server knows, as kubeapi.Client does.
type API interface {
	Pods
	Devices
	State() kubeapi.State
}

// Devices knows claimed devices, as kubeapi.Client does.
type Devices interface {
	Claimed(driver, pool, device string) (ids []string, ok bool)
	Access(namespace, claim, driver, pool, device string) kubeapi.Access
}

// Cgroups knows the containers of processes, as cgroup.Reader does.
type Cgroups interface {
	Container(pid uint32) (c cgroup.Container, ok bool, err error)
	HostPIDNamespace() (bool, error)
}

// Logs knows names from the folders of logs, as kubelet.Logs does.
type Logs interface {
	Pod(uid string) (kubelet.LogName, bool)
	Container(id string) (kubelet.LogName, bool)
	UID(namespace, pod string) (uid string, ok bool)
}

// Config is what a Source is made of. What is nil is not asked.
type Config struct {
	Kubelet Kubelet
	API     API
	APIErr  error // why there is no API
	Cgroups Cgroups
	Logs    Logs
	Teams   map[string]string // by namespace, for pods that name none
	Vendors device.Vendors    // whose resources are devices
	// StaleFor is how long what the kubelet said last is used while it does not answer.
	// Default 5 minutes.
	StaleFor time.Duration
	// APIStaleFor is the same for the API server. Default 30 minutes: what it says of a
	// pod hardly changes, and upgrades of a control plane take a while.
	APIStaleFor time.Duration
	_           struct{} // keyed literals only: it grows
}

// Source is a workload.Source.
type Source struct {
	cfg Config

	mu    sync.Mutex
	built built
	// unread is why the control group of a process could not be read the last time that
	// happened.
	unread   error
	unreadAt time.Time
}

// built is the last answer of Grants, and what it was made from.
type built struct {
	grants []workload.Grant
	from   basis
	at     time.Time
	wait   bool // something of it will be known in a moment
}

type basis struct {
	snapshot   time.Time
	kubelet    workload.Reason
	generation uint64
	api        workload.Reason
}

// rebuild is when an answer is made anew although nothing changed: lookups ask the API
// server again for what was denied, and logs are read again.
const rebuild = 30 * time.Second

// New returns a Source. What it is made of runs elsewhere.
func New(cfg Config) *Source {
	cfg.StaleFor = cmp.Or(cfg.StaleFor, 5*time.Minute)
	cfg.APIStaleFor = cmp.Or(cfg.APIStaleFor, 30*time.Minute)
	return &Source{cfg: cfg}
}

var _ workload.Source = (*Source)(nil)

// Run looks at the grants every second until ctx is done, so that the API server has been
// asked for the owner of a new pod before somebody wants to know it.
func (s *Source) Run(ctx context.Context) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		s.Grants()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// Ready reports whether the kubelet and the API server have answered, or failed to, at
// least once. Before, a workload may have another name for a moment.
func (s *Source) Ready() bool {
	if s.cfg.Kubelet != nil {
		if _, ok, err := s.cfg.Kubelet.Last(); !ok && (err == nil || errors.Is(err, kubelet.ErrNotAsked)) {
			return false
		}
	}
	if s.cfg.API == nil {
		return true
	}
	st := s.cfg.API.State()
	_, failed := st.Problem(kubeapi.Pods)
	return st.Synced || failed
}

// Grants implements workload.Source. Nobody may change what it returns.
func (s *Source) Grants() []workload.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	snapshot, from := s.kubelet(now)
	var api API
	from.api, from.generation, api = s.api(now)
	if s.built.from == from && !s.built.wait && now.Sub(s.built.at) < rebuild {
		return s.built.grants
	}
	b := builder{cfg: s.cfg, api: api, current: from.api == workload.OK, snapshot: snapshot, stale: from.kubelet == workload.Stale}
	b.build()
	s.built = built{grants: b.grants, from: from, at: now, wait: b.wait}
	return b.grants
}

// kubelet returns what the kubelet said last, if that may still be used.
func (s *Source) kubelet(now time.Time) (snapshot kubelet.Snapshot, from basis) {
	if s.cfg.Kubelet == nil {
		return snapshot, basis{kubelet: workload.Absent}
	}
	snapshot, ok, err := s.cfg.Kubelet.Last()
	switch {
	case !ok:
		return kubelet.Snapshot{}, basis{kubelet: workload.Absent}
	case now.Sub(snapshot.Time) > s.cfg.StaleFor:
		return kubelet.Snapshot{}, basis{kubelet: workload.Expired}
	case err != nil:
		return snapshot, basis{kubelet: workload.Stale, snapshot: snapshot.Time}
	}
	return snapshot, basis{kubelet: workload.OK, snapshot: snapshot.Time}
}

// api returns the API server if what it said may be used: nil if it is too old.
func (s *Source) api(now time.Time) (how workload.Reason, generation uint64, api API) {
	if s.cfg.API == nil {
		return workload.Absent, 0, nil
	}
	st := s.cfg.API.State()
	p, failing := st.Problem(kubeapi.Pods)
	switch {
	case failing && now.Sub(p.Since) > s.cfg.APIStaleFor:
		return workload.Expired, 0, nil
	case failing:
		return workload.Stale, st.Generation, s.cfg.API
	}
	return workload.OK, st.Generation, s.cfg.API
}

// Process implements workload.Source.
func (s *Source) Process(pid uint32) (workload.Workload, bool) {
	if s.cfg.Cgroups == nil {
		return workload.Workload{}, false
	}
	c, ok, err := s.cfg.Cgroups.Container(pid)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // processes end all the time
		s.mu.Lock()
		s.unread, s.unreadAt = err, time.Now()
		s.mu.Unlock()
	}
	if err != nil || !ok {
		return workload.Workload{}, false
	}
	how, _, api := s.api(time.Now())
	b := builder{cfg: s.cfg, api: api, current: how == workload.OK}
	w, ok := b.container(c)
	if ok && how != workload.OK && w.Attributes["k8s.container.name"] == "" { // else the API server will name it in a moment
		if only, found := s.only(w.Attributes["k8s.pod.uid"]); found {
			return only, true
		}
	}
	return w, ok
}

// only returns the container of a pod that was given devices, if it is one alone. Without
// the API server and the links of logs a process has no other name for its container.
func (s *Source) only(uid string) (found workload.Workload, ok bool) {
	if uid == "" {
		return workload.Workload{}, false
	}
	for _, g := range s.Grants() {
		if g.Workload.Attributes["k8s.pod.uid"] != uid {
			continue
		}
		if ok && g.Workload.ID != found.ID {
			return workload.Workload{}, false
		}
		found, ok = g.Workload, true
	}
	return found, ok
}
