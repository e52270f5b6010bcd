package kubeapi

import (
	"cmp"
	"fmt"
	urlpath "path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload/hami"
	"github.com/gpumeter/gpumeter/internal/workload/podgroup"
)

// Pod is what is kept about a pod.
type Pod struct {
	UID, Namespace, Name string
	Phase                string // Pending, Running, Succeeded, Failed
	Team                 string // from the team label
	// Queue is what the pod, else the nearest owner that names one, says to be its queue; empty if none does.
	Queue  string
	Labels map[string]string
	// Created is when it was created, and Started when its first container started, zero if that is not so or not known.
	// Restarted means that containers were restarted so often that it is not known.
	Created, Started time.Time
	Restarted        bool
	// Owner is the workload that users know: the topmost known owner, the group of a pod without an owner, or the
	// pod itself.
	Owner Owner
	// Owners are all known owners, the direct one first. Owner is the last of them.
	Owners       []Owner
	Containers   []string          // names, including init containers
	ContainerIDs map[string]string // name by id, without the runtime's scheme
	// Pages are where the annotations say that metrics pages are.
	Pages []Page
	// Slices are what an annotation says that HAMi gave to the containers, by name, and SlicesErr why it cannot be read. Whoever may
	// change the pod may change them.
	Slices    map[string][]hami.Slice
	SlicesErr error
}

// Page is where a pod says that it has a metrics page.
type Page struct {
	Port         uint16 // 0: unknown
	Scheme, Path string
}

// Owner is an object that creates pods.
type Owner struct {
	Kind string // lower case
	Name string
}

// pod is a Pod without owners, and how to find them.
type pod struct {
	Pod
	ref ownerRef // the controller; zero if there is none
	// hint is the Deployment or Rollout above the ReplicaSet, derived from the hash in its name, or the set that the
	// operator's label names.
	hint Owner

	static string // UID assigned by the kubelet, for a static pod
	group  string // the group of a pod without a controller
}

// maxPods bounds the pods of a node. Kubernetes supports 110; some users run 500.
const maxPods = 5000

// podStore holds the pods of this node.
type podStore struct {
	c       *Client
	keep    map[string]bool // label keys
	mu      sync.RWMutex
	byUID   map[string]*pod
	byName  map[[2]string]*pod
	byID    map[string]*pod // by container id
	synced  bool
	refused int
}

func (s *podStore) init(c *Client) {
	s.c, s.keep = c, map[string]bool{}
	for _, l := range c.cfg.Labels {
		s.keep[l] = true
	}
	s.reset(0)
}

func (s *podStore) reset(n int) {
	s.byUID, s.byName, s.byID, s.refused = make(map[string]*pod, n), make(map[[2]string]*pod, n), make(map[string]*pod, n), 0
}

func (s *podStore) state() (synced bool, refused int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.synced, s.refused
}

// PodByUID returns the pod with the given UID. For a static pod, the UID assigned by the
// kubelet works, too.
func (c *Client) PodByUID(uid string) (Pod, bool) {
	c.pods.mu.RLock()
	p, ok := c.pods.byUID[uid]
	c.pods.mu.RUnlock()
	return c.withOwners(p), ok
}

// PodByName returns the pod that currently has the given name.
func (c *Client) PodByName(namespace, name string) (Pod, bool) {
	c.pods.mu.RLock()
	p, ok := c.pods.byName[[2]string{namespace, name}]
	c.pods.mu.RUnlock()
	return c.withOwners(p), ok
}

// PodByContainer returns the pod of the container with the given id.
func (c *Client) PodByContainer(id string) (Pod, bool) {
	c.pods.mu.RLock()
	p, ok := c.pods.byID[id]
	c.pods.mu.RUnlock()
	return c.withOwners(p), ok
}

func (c *Client) withOwners(p *pod) Pod {
	if p == nil {
		return Pod{}
	}
	out := p.Pod // its maps are immutable
	var queue string
	out.Owners, queue = c.owners.of(p)
	out.Queue = cmp.Or(out.Queue, queue)
	out.Owner = Owner{"pod", p.Name}
	if n := len(out.Owners); n > 0 {
		out.Owner = out.Owners[n-1]
	}
	return out
}

// replace replaces all pods by list; refused counts the rejected ones.
func (s *podStore) replace(list []*pod, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset(len(list))
	s.refused = refused
	for _, p := range list {
		s.put(p)
	}
	s.synced = true
	s.c.generation.Add(1)
}

// update adds or replaces p.
func (s *podStore) update(p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.byUID[p.UID]; !known && len(s.byName) >= maxPods {
		s.refused++
	} else {
		s.put(p)
	}
	s.c.generation.Add(1)
}

// refuse records that a pod is too large to be read. It reappears at every attempt, so it
// is counted once, until a list succeeds.
func (s *podStore) refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = max(s.refused, 1)
}

func (s *podStore) put(p *pod) {
	s.forget(s.byUID[p.UID])
	for id := range p.ContainerIDs {
		s.byID[id] = p
	}
	s.byUID[p.UID] = p
	if p.static != "" {
		s.byUID[p.static] = p
	}
	s.byName[[2]string{p.Namespace, p.Name}] = p
}

// forget drops the containers of a pod.
func (s *podStore) forget(p *pod) {
	if p == nil {
		return
	}
	for id := range p.ContainerIDs {
		delete(s.byID, id)
	}
}

// remove drops p. Its name may already belong to a successor.
func (s *podStore) remove(p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(s.byUID[p.UID])
	delete(s.byUID, p.UID)
	if now := s.byUID[p.static]; now != nil && now.UID == p.UID {
		delete(s.byUID, p.static)
	}
	name := [2]string{p.Namespace, p.Name}
	if now := s.byName[name]; now != nil && now.UID == p.UID {
		delete(s.byName, name)
	}
	s.c.generation.Add(1)
}

// podObject is the part of a pod that is decoded. The rest is dropped as it arrives.
type podObject struct {
	Metadata struct {
		UID             string            `json:"uid"`
		Namespace       string            `json:"namespace"`
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Created         time.Time         `json:"creationTimestamp"`
		Labels          map[string]string `json:"labels"`
		Annotations     annotations       `json:"annotations"`
		OwnerReferences []reference       `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		podgroup.Spec
		NodeName       string      `json:"nodeName"`
		InitContainers []container `json:"initContainers"`
		Containers     []container `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase                      string            `json:"phase"`
		InitContainerStatuses      []container       `json:"initContainerStatuses"`
		ContainerStatuses          []containerStatus `json:"containerStatuses"`
		EphemeralContainerStatuses []container       `json:"ephemeralContainerStatuses"`
	} `json:"status"`
}

// annotations is the decoded part of the annotations of a pod.
type annotations struct {
	podgroup.Annotations

	// The UID that the kubelet assigned to a static pod. The UID of its mirror pod
	// in the API is different and does not appear in cgroups and logs.
	StaticUID string `json:"kubernetes.io/config.hash"`

	// What Prometheus reads by custom, and KServe's for the port of the engine itself: its prometheus.io/port
	// may be that of a proxy which collects pages.
	Scrape       string `json:"prometheus.io/scrape"`
	Port         string `json:"prometheus.io/port"`
	Path         string `json:"prometheus.io/path"`
	Scheme       string `json:"prometheus.io/scheme"`
	KServeScrape string `json:"serving.kserve.io/enable-prometheus-scraping"`
	KServePort   string `json:"prometheus.kserve.io/port"`
	KServePath   string `json:"prometheus.kserve.io/path"`

	Slices string `json:"hami.io/vgpu-devices-allocated"` // hami.Annotation
}

// pages returns where the annotations say that metrics pages are.
func (a *annotations) pages() []Page {
	var list []Page
	add := func(port, path, scheme string) {
		p := Page{Scheme: "http", Path: "/metrics"}
		if port != "" {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil || n == 0 {
				return
			}
			p.Port = uint16(n)
		}
		if strings.EqualFold(scheme, "https") {
			p.Scheme = "https"
		}
		if path, _, _ = strings.Cut(path, "?"); path != "" {
			p.Path = urlpath.Clean("/" + path)
		}
		if len(p.Path) <= maxPath && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	if a.KServePort != "" || a.KServePath != "" {
		add(a.KServePort, a.KServePath, "")
	}
	if enabled(a.Scrape) || enabled(a.KServeScrape) {
		add(a.Port, a.Path, a.Scheme)
	}
	return list
}

// maxPath bounds the path of a page, in bytes.
const maxPath = 256

func enabled(text string) bool {
	on, err := strconv.ParseBool(text)
	return err == nil && on
}

// container is the decoded part of a container, and of a container status.
type container struct {
	Name        string `json:"name"`
	ContainerID string `json:"containerID"`
}

// containerStatus is the decoded part of the status of a container that is neither an init container nor ephemeral.
type containerStatus struct {
	container
	Restarts  int            `json:"restartCount"`
	State     containerState `json:"state"`
	LastState containerState `json:"lastState"`
}

type containerState struct {
	Running    containerStart `json:"running"`
	Terminated containerStart `json:"terminated"`
}

type containerStart struct {
	At time.Time `json:"startedAt"`
}

// started returns when the first of these containers started, zero if none has or it is not known: the status has the last two
// starts of a container.
func started(list []containerStatus) (first time.Time, restarted bool) {
	for _, c := range list {
		restarted = restarted || c.Restarts > 1
		for _, at := range []time.Time{c.State.Running.At, c.State.Terminated.At, c.LastState.Running.At, c.LastState.Terminated.At} {
			if !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	if restarted {
		return time.Time{}, true
	}
	return first, false
}

// check returns an error if p cannot be a pod.
func (p *podObject) check() error {
	if p.Metadata.UID == "" || p.Metadata.Name == "" {
		return fmt.Errorf("cannot parse a pod: %w: no UID or no name", errNonsense)
	}
	return nil
}

// strip copies the needed parts of p.
func (s *podStore) strip(p *podObject) *pod {
	m := &p.Metadata
	out := &pod{Pod: Pod{
		UID: m.UID, Namespace: m.Namespace, Name: m.Name, Phase: p.Status.Phase, Created: m.Created,
		ContainerIDs: map[string]string{},
		Pages:        m.Annotations.pages(),
	}, static: m.Annotations.StaticUID}
	for k, v := range m.Labels {
		if s.keep[k] {
			if out.Labels == nil {
				out.Labels = map[string]string{}
			}
			out.Labels[k] = v
		}
	}
	out.Started, out.Restarted = started(p.Status.ContainerStatuses)
	marks := podgroup.Marks{UID: m.UID, Labels: m.Labels, Annotations: &m.Annotations.Annotations, Spec: &p.Spec.Spec}
	out.Queue = marks.Queue()
	if s.c.cfg.TeamLabel != "" {
		out.Team = m.Labels[s.c.cfg.TeamLabel]
	}
	for _, list := range [][]container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			out.Containers = append(out.Containers, c.Name)
		}
	}
	if text := m.Annotations.Slices; text != "" {
		inits := len(p.Spec.InitContainers)
		out.Slices, out.SlicesErr = hami.Of(text, out.Containers[:inits], out.Containers[inits:])
	}
	running := make([]container, 0, len(p.Status.ContainerStatuses))
	for i := range p.Status.ContainerStatuses {
		running = append(running, p.Status.ContainerStatuses[i].container)
	}
	for _, list := range [][]container{p.Status.InitContainerStatuses, running, p.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			if _, id, ok := strings.Cut(c.ContainerID, "://"); ok {
				out.ContainerIDs[id] = c.Name
			}
		}
	}
	for _, r := range m.OwnerReferences {
		if r.Controller {
			out.ref = ownerRef{r.APIVersion, r.Kind, r.Name, r.UID}
			out.hint = hint(out.ref, &marks)
			break
		}
	}
	if out.ref == (ownerRef{}) {
		out.group = marks.Group().Name
	}
	return out
}
