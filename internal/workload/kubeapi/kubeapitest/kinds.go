package kubeapitest

import (
	"fmt"
	"maps"
	"strings"
)

// Install makes an API group have these kinds, to be listed and watched. Objects of kinds that were there stay.
func (s *Server) Install(apiVersion string, kinds ...Resource) {
	group, version, _ := strings.Cut(apiVersion, "/")
	s.PutResources(apiVersion, kinds...)
	s.Put("/apis/"+group, Object{"kind": "APIGroup", "name": group, "versions": []Object{{"groupVersion": apiVersion, "version": version}}})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range kinds {
		if path := "/apis/" + apiVersion + "/" + r.Name; s.tables[path] == nil {
			s.tables[path] = &table{r.Kind, map[string]Object{}}
		}
	}
}

// Uninstall removes an API group with its objects, and ends all watches.
func (s *Server) Uninstall(apiVersion string) {
	group, _, _ := strings.Cut(apiVersion, "/")
	s.Delete("/apis/" + group)
	s.Delete("/apis/" + apiVersion)
	s.mu.Lock()
	maps.DeleteFunc(s.tables, func(path string, _ *table) bool { return strings.HasPrefix(path, "/apis/"+apiVersion+"/") })
	s.mu.Unlock()
	s.DropWatches(false)
}

// PutObject adds an object of an installed kind, or replaces the one of its name.
func (s *Server) PutObject(o Object) { s.put(s.pathOf(o), o) }

// DeleteObject removes an object of an installed kind.
func (s *Server) DeleteObject(o Object) {
	namespace, _ := dig(o, "metadata", "namespace").(string)
	name, _ := dig(o, "metadata", "name").(string)
	s.remove(s.pathOf(o), namespace, name)
}

// pathOf returns where the objects of a kind are listed. A kind that is not installed is a mistake of the test.
func (s *Server) pathOf(o Object) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	prefix := fmt.Sprintf("/apis/%v/", o["apiVersion"])
	for path, t := range s.tables {
		if strings.HasPrefix(path, prefix) && t.kind == o["kind"] {
			return path
		}
	}
	panic(fmt.Sprintf("kubeapitest: %v of %v is not installed", o["kind"], o["apiVersion"]))
}
