// Package kubernetes combines what the kubelet, the API server and the control groups know
// about the pods of this node into one workload.Source.
//
// The kubelet reports which container was allocated which device. The API server reports
// the owner and the UID of a pod, and the name of a claimed device. The control group of a
// process identifies its container. Each of them may be missing: without the API server,
// UIDs and names come from the kubelet's log directories, and the kind of a workload is
// "pod". The package queries nothing itself; its inputs are refreshed by the packages
// kubelet, kubeapi and cgroup.
//
// These hold a device:
//
//   - A container that a device plugin allocated a device to, or replicas of it.
//   - A container to which HAMi gave a slice of a device, as far as its annotation can be believed: see sliced.
//   - Every container of every pod that shares a claim, in equal parts.
//
// These do not:
//
//   - A claim with admin access, which is for managing devices that others hold. Only the
//     ResourceClaim shows that; if it may not be read, every claim holds its device.
//   - A resource that is not a device, such as a channel between nodes or the permission to
//     monitor.
//   - A pod that has ended, although some kubelets still list it.
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

// Kubelet provides allocations; kubelet.Client implements it.
type Kubelet interface {
	Last() (s kubelet.Snapshot, ok bool, err error)
}

// Pods looks up pods; kubeapi.Client implements it.
type Pods interface {
	PodByUID(uid string) (kubeapi.Pod, bool)
	PodByName(namespace, name string) (kubeapi.Pod, bool)
	PodByContainer(id string) (kubeapi.Pod, bool)
}

// API is the view of the API server; kubeapi.Client implements it.
type API interface {
	Pods
	Devices
	State() kubeapi.State
}

// Devices looks up claimed devices; kubeapi.Client implements it.
type Devices interface {
	Claimed(driver, pool, device string) (ids []string, ok bool)
	Access(namespace, claim, driver, pool, device string) kubeapi.Access
}

// Cgroups finds the containers of processes; cgroup.Reader implements it.
type Cgroups interface {
	Container(pid uint32) (c cgroup.Container, ok bool, err error)
	HostPIDNamespace() (bool, error)
}

// Logs finds names in the log directories; kubelet.Logs implements it.
type Logs interface {
	Pod(uid string) (kubelet.LogName, bool)
	Container(id string) (kubelet.LogName, bool)
	UID(namespace, pod string) (uid string, ok bool)
}

// Config lists the inputs of a Source. A nil input is not used.
type Config struct {
	Kubelet Kubelet
	API     API
	APIErr  error // why API is nil
	Cgroups Cgroups
	Logs    Logs
	Teams   map[string]string // by namespace, for pods without a team label
	Vendors device.Vendors    // determine which resources are devices
	// StaleFor is how long the kubelet's last answer is used while it does not respond. The
	// default is 5 minutes.
	StaleFor time.Duration
	// APIStaleFor is the same for the API server. The default is 30 minutes, because a
	// pod's metadata rarely changes, and control plane upgrades take a while.
	APIStaleFor time.Duration
	_           struct{} // enforces keyed literals
}

// Source is a workload.Source.
type Source struct {
	cfg Config

	mu    sync.Mutex
	built built
	// unread is why the control group of a process last could not be read.
	unread   error
	unreadAt time.Time
}

// built is the last result of Grants, and what it was derived from.
type built struct {
	grants []workload.Grant
	from   basis
	at     time.Time
	wait   bool // some of it will be known in a moment
	// refused are the pods whose slices are not believed.
	refused []string
}

type basis struct {
	snapshot   time.Time
	kubelet    workload.Reason
	generation uint64
	api        workload.Reason
}

// rebuild is when a result is recomputed although nothing changed: denied API lookups are
// retried, and the logs are read again.
const rebuild = 30 * time.Second

// New returns a Source. Its inputs are run by the caller.
func New(cfg Config) *Source {
	cfg.StaleFor = cmp.Or(cfg.StaleFor, 5*time.Minute)
	cfg.APIStaleFor = cmp.Or(cfg.APIStaleFor, 30*time.Minute)
	return &Source{cfg: cfg}
}

var _ workload.Source = (*Source)(nil)

// Run calls Grants every second until ctx is done, so that the owner of a new pod has been
// looked up before it is needed.
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

// Ready reports whether the kubelet and the API server have each answered or failed at
// least once. Before that, a workload may briefly have another name.
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

// Grants implements workload.Source. The result is read-only.
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
	s.built = built{grants: b.grants, from: from, at: now, wait: b.wait, refused: b.refused}
	return b.grants
}

// kubelet returns the kubelet's last snapshot, if it may still be used.
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

// api returns the API server's view, or nil if it is too old to be used.
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
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // processes exit all the time
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
	if ok && how != workload.OK && w.Attributes["k8s.container.name"] == "" { // otherwise the API server will name it in a moment
		if only, found := s.only(w.Attributes["k8s.pod.uid"]); found {
			return only, true
		}
	}
	return w, ok
}

// only returns the only container of a pod that was allocated devices, if there is exactly
// one. Without the API server and the log links, the container of a process has no other
// name.
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
