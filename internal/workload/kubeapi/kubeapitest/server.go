// Package kubeapitest is a fake Kubernetes API server for tests. It lists pods, by node if asked, nodes and installed
// kinds by page and watches them, lists ResourceSlices by node, keeps Leases, returns other objects as they were
// put, and fails on demand. Only tests import it.
package kubeapitest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Object is a Kubernetes object in its JSON form.
type Object = map[string]any

// Fault is how requests fail.
type Fault struct {
	Status int    // such as 403, with a Status as the body
	After  int    // Retry-After in seconds, with Status
	Body   string // sent with status 200 instead of the answer
	Hang   bool   // nothing is sent until the client gives up
}

// Server is a fake API server, created by New.
type Server struct {
	mu        sync.Mutex
	version   int               // of the newest change
	compacted int               // the newest change that can no longer be watched
	tables    map[string]*table // what is listed and watched, by path
	changes   []change          // of all tables
	changed   chan struct{}     // closed at each change
	drop      chan struct{}     // closed to end watches
	objects   map[string]any    // by path
	faults    map[string]Fault  // by path prefix
	requests  []string
}

// table is the objects of one kind, by namespace and name.
type table struct {
	kind string
	all  map[string]Object
}

const podPath, nodePath = "/api/v1/pods", "/api/v1/nodes"

type change struct {
	version int
	path    string // of the table
	kind    string // ADDED, MODIFIED, DELETED
	object  Object
}

// New returns an empty server that knows the resources of core, apps and batch.
func New() *Server {
	s := &Server{
		version: 1, changed: make(chan struct{}), drop: make(chan struct{}),
		tables:  map[string]*table{podPath: {"Pod", map[string]Object{}}, nodePath: {"Node", map[string]Object{}}},
		objects: map[string]any{}, faults: map[string]Fault{},
	}
	s.PutResources("v1", Resource{"pods", "Pod", true}, Resource{"pods/status", "Pod", true}, Resource{"nodes", "Node", false})
	s.PutResources("apps/v1", Resource{"replicasets", "ReplicaSet", true}, Resource{"deployments", "Deployment", true},
		Resource{"statefulsets", "StatefulSet", true}, Resource{"daemonsets", "DaemonSet", true})
	s.PutResources("batch/v1", Resource{"jobs", "Job", true}, Resource{"cronjobs", "CronJob", true})
	return s
}

// Resource is one row of a discovery document.
type Resource struct {
	Name, Kind string
	Namespaced bool
}

// PutResources adds kinds to the discovery document of apiVersion.
func (s *Server) PutResources(apiVersion string, list ...Resource) {
	var rows []Object
	for _, r := range list {
		rows = append(rows, Object{"name": r.Name, "kind": r.Kind, "namespaced": r.Namespaced, "verbs": []string{"get"}})
	}
	s.Put("/"+groupPath(apiVersion), Object{"kind": "APIResourceList", "groupVersion": apiVersion, "resources": rows})
}

func groupPath(apiVersion string) string {
	if strings.Contains(apiVersion, "/") {
		return "apis/" + apiVersion
	}
	return "api/" + apiVersion
}

// Put sets the object at path. A list of ResourceSlices is filtered by node.
func (s *Server) Put(path string, obj any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[path] = obj
}

// Delete removes the object at path.
func (s *Server) Delete(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, path)
}

// PutPod adds p, or replaces the pod of its name.
func (s *Server) PutPod(p Object) { s.put(podPath, p) }

// DeletePod removes a pod.
func (s *Server) DeletePod(namespace, name string) { s.remove(podPath, namespace, name) }

// PutNode adds n, or replaces the node of its name.
func (s *Server) PutNode(n Object) { s.put(nodePath, n) }

// DeleteNode removes a node.
func (s *Server) DeleteNode(name string) { s.remove(nodePath, "", name) }

func (s *Server) put(path string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	table := s.tables[path].all
	key, kind := key(o), "ADDED"
	if old, ok := table[key]; ok {
		kind = "MODIFIED"
		if dig(old, "metadata", "uid") != dig(o, "metadata", "uid") {
			s.note("DELETED", path, old)
			kind = "ADDED"
		}
	}
	table[key] = o
	s.note(kind, path, o)
}

func (s *Server) remove(path, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	table := s.tables[path].all
	key := strings.TrimPrefix(namespace+"/"+name, "/")
	if o, ok := table[key]; ok {
		delete(table, key)
		s.note("DELETED", path, o)
	}
}

func (s *Server) note(kind, path string, o Object) {
	s.version++
	s.changes = append(s.changes, change{s.version, path, kind, o})
	close(s.changed)
	s.changed = make(chan struct{})
}

// DropWatches ends all watches. If gone is set, they cannot be resumed: the server answers
// 410, and clients have to list again.
func (s *Server) DropWatches(gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gone {
		s.version++
		s.compacted = s.version
		s.changes = nil
	}
	close(s.drop)
	s.drop = make(chan struct{})
}

// Fail makes requests for paths with a prefix fail, until Heal. The longest prefix applies.
func (s *Server) Fail(prefix string, f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[prefix] = f
}

// Heal removes all faults.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.faults)
}

// Requests returns the requests so far, with their queries.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Note records r as a request, for handlers that answer by themselves.
func (s *Server) Note(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+r.URL.RequestURI())
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Note(r)
	s.mu.Lock()
	fault, faulty := s.fault(r.URL.Path)
	table := s.tables[r.URL.Path]
	s.mu.Unlock()
	switch {
	case faulty && fault.Hang:
		<-r.Context().Done()
	case faulty && fault.Status != 0:
		if fault.After != 0 {
			w.Header().Set("Retry-After", strconv.Itoa(fault.After))
		}
		fail(w, fault.Status)
	case faulty:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, fault.Body)
	case strings.Contains(r.URL.Path, "/leases") && r.Method != http.MethodGet:
		s.writeLease(w, r)
	case table != nil && r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	case table != nil:
		s.list(w, r)
	default:
		s.object(w, r)
	}
}

func (s *Server) fault(path string) (f Fault, ok bool) {
	longest := ""
	for prefix, g := range s.faults {
		if strings.HasPrefix(path, prefix) && (!ok || len(prefix) > len(longest)) {
			longest, f, ok = prefix, g, true
		}
	}
	return f, ok
}

func fail(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(status(code)) //nolint:errcheck // the client has gone
}

func status(code int) Object {
	reason := map[int]string{401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Expired", 429: "TooManyRequests"}[code]
	return Object{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
		"reason": reason, "message": "the test says " + strconv.Itoa(code),
	}
}

func node(r *http.Request) string {
	n, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
	return n
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q, node := r.URL.Query(), node(r)
	limit, _ := strconv.Atoi(q.Get("limit"))
	s.mu.Lock()
	meta := Object{"resourceVersion": strconv.Itoa(s.version)}
	from := 0
	if token := q.Get("continue"); token != "" {
		var of int
		fmt.Sscanf(token, "%d-%d", &of, &from) //nolint:errcheck // an invalid token starts over
		if of < s.compacted {
			s.mu.Unlock()
			fail(w, http.StatusGone)
			return
		}
	}
	items := []Object{}
	table := s.tables[r.URL.Path]
	if table == nil { // uninstalled meanwhile
		s.mu.Unlock()
		fail(w, http.StatusNotFound)
		return
	}
	for i, key := range slices.Sorted(maps.Keys(table.all)) {
		o := table.all[key]
		if i < from || node != "" && dig(o, "spec", "nodeName") != node {
			continue
		}
		if limit > 0 && len(items) == limit {
			meta["continue"] = fmt.Sprintf("%d-%d", s.version, i)
			break
		}
		items = append(items, o)
	}
	s.mu.Unlock()
	send(w, Object{"kind": table.kind + "List", "apiVersion": "v1", "metadata": meta, "items": items})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	flush.Flush() //nolint:errcheck // the client has gone
	s.mu.Lock()
	drop := s.drop
	s.mu.Unlock()
	for {
		s.mu.Lock()
		gone, changed := since < s.compacted, s.changed
		var send []change
		for _, c := range s.changes {
			at := dig(c.object, "spec", "nodeName")
			if c.version > since && c.path == r.URL.Path && (node(r) == "" || at == node(r)) {
				send = append(send, c)
			}
		}
		since = s.version
		s.mu.Unlock()
		if gone {
			out.Encode(Object{"type": "ERROR", "object": status(410)}) //nolint:errcheck // the client has gone
			return
		}
		for _, c := range send {
			o := clone(c.object, c.version)
			if out.Encode(Object{"type": c.kind, "object": o}) != nil {
				return
			}
		}
		if flush.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-drop:
			return
		case <-changed:
		}
	}
}

func clone(o Object, version int) Object {
	out, meta := maps.Clone(o), Object{}
	if m, ok := o["metadata"].(Object); ok {
		meta = maps.Clone(m)
	}
	meta["resourceVersion"] = strconv.Itoa(version)
	out["metadata"] = meta
	return out
}

func (s *Server) object(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	obj, ok := s.objects[r.URL.Path]
	if namespace, name, pod := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/pods/"); pod && !ok {
		obj, ok = s.tables[podPath].all[namespace+"/"+name]
	}
	s.mu.Unlock()
	if !ok {
		fail(w, http.StatusNotFound)
		return
	}
	if list, ok := obj.(Object); ok && strings.HasSuffix(r.URL.Path, "/resourceslices") && node(r) != "" {
		obj = sliceList(list, node(r))
	}
	send(w, obj)
}

func sliceList(list Object, node string) Object {
	items, _ := list["items"].([]Object)
	own := []Object{}
	for _, i := range items {
		if dig(i, "spec", "nodeName") == node {
			own = append(own, i)
		}
	}
	return Object{"kind": "ResourceSliceList", "items": own}
}

func send(w http.ResponseWriter, obj any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(obj) //nolint:errcheck // the client has gone
}

// key returns the namespace, if there is one, and the name of an object.
func key(o Object) string {
	namespace, _ := dig(o, "metadata", "namespace").(string)
	name, _ := dig(o, "metadata", "name").(string)
	return strings.TrimPrefix(namespace+"/"+name, "/")
}

func dig(o Object, path ...string) any {
	var v any = o
	for _, p := range path {
		m, _ := v.(Object)
		v = m[p]
	}
	return v
}
