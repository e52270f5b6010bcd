package kubeapitest

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// writeLease creates a Lease, or patches one of the version that the patch names.
func (s *Server) writeLease(w http.ResponseWriter, r *http.Request) {
	var lease Object
	if err := json.NewDecoder(r.Body).Decode(&lease); err != nil {
		fail(w, http.StatusBadRequest)
		return
	}
	path := r.URL.Path
	if r.Method == http.MethodPost {
		name, _ := dig(lease, "metadata", "name").(string)
		path += "/" + name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.objects[path].(Object)
	if known != (r.Method == http.MethodPatch) || known && dig(old, "metadata", "resourceVersion") != dig(lease, "metadata", "resourceVersion") {
		fail(w, http.StatusConflict)
		return
	}
	if known {
		merged := copied(old) // the old one is perhaps being sent
		merge(merged, lease)
		lease = merged
	}
	s.version++
	if meta, ok := lease["metadata"].(Object); ok && !known {
		meta["uid"] = fmt.Sprint("lease-", s.version)
	}
	s.objects[path] = clone(lease, s.version)
	send(w, s.objects[path])
}

// copied returns a copy of an object and of the objects in it.
func copied(o Object) Object {
	out := make(Object, len(o))
	for k, v := range o {
		if in, ok := v.(Object); ok {
			v = copied(in)
		}
		out[k] = v
	}
	return out
}

// Holder returns who has a Lease.
func (s *Server) Holder(namespace, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lease, _ := s.objects["/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases/"+name].(Object)
	holder, _ := dig(lease, "spec", "holderIdentity").(string)
	return holder
}

// LeaseNote returns what the holder of a Lease has written into it.
func (s *Server) LeaseNote(namespace, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lease, _ := s.objects["/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases/"+name].(Object)
	note, _ := dig(lease, "metadata", "annotations", "gpumeter/note").(string)
	return note
}
